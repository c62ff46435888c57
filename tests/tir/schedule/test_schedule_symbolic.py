"""Schedules of programs whose dimensions are known only when they run."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.ir.expr import TRUE, Var
from tilewright.ir.structural import structural_equal
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.schedule import Schedule, ScheduleError, replay
from tilewright.tir.script import parse_script, to_script
from tilewright.tir.verify import verify


def program() -> PrimFunc:
    """D = max(A @ B + 1, 0) of (n, m) and (m, 7)."""
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), name="A", dtype="int32")
    b = te.placeholder((m, 7), name="B", dtype="int32")
    k = te.reduce_axis((0, m), name="k")
    c = te.compute((n, 7), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    d = te.compute((n, 7), lambda i, j: te.maximum(c[i, j] + 1, 0), name="D")
    return te.create_prim_func([a, b, d])


def check(schedule: Schedule, original: PrimFunc) -> None:
    verify(schedule.func, "scheduled")
    random = np.random.default_rng(0)
    for n, m in [(13, 10), (8, 4), (1, 1)]:
        a = random.integers(-5, 6, (n, m)).astype("int32")
        b = random.integers(-5, 6, (m, 7)).astype("int32")
        expected, found = np.zeros((n, 7), "int32"), np.ones((n, 7), "int32")
        interpret(original, a, b, expected)
        interpret(schedule.func, a, b, found)
        np.testing.assert_array_equal(expected, found)


def test_a_tiled_producer_under_its_consumer() -> None:
    func = program()
    schedule = Schedule(func)
    c, d = schedule.get_block("C"), schedule.get_block("D")
    i, _ = schedule.get_loops(d)
    outer, _ = schedule.split(i, [None, 4])
    schedule.compute_at(c, outer)
    _, row, column, k = schedule.get_loops(c)
    outer_k, inner_k = schedule.split(k, [None, 4])
    schedule.reorder(outer_k, inner_k, row, column)
    schedule.vectorize(column)
    schedule.decompose_reduction(c, outer_k)
    schedule.parallel(outer)
    check(schedule, func)


def test_a_consumer_under_its_producer() -> None:
    func = program()
    schedule = Schedule(func)
    i, j, k = schedule.get_loops(schedule.get_block("C"))
    outer, inner = schedule.split(i, [None, 4])
    schedule.reorder(outer, j, inner, k)
    schedule.reverse_compute_at(schedule.get_block("D"), outer)
    schedule.parallel(outer)
    check(schedule, func)


def test_fused_loops() -> None:
    func = program()
    schedule = Schedule(func)
    i, j, _ = schedule.get_loops(schedule.get_block("C"))
    outer, inner = schedule.split(schedule.fuse(i, j), [None, 8])
    schedule.parallel(outer)
    schedule.vectorize(inner)
    check(schedule, func)


def test_staging_and_partial_results() -> None:
    func = program()
    schedule = Schedule(func)
    copy = schedule.cache_write(schedule.get_block("D"), 0, "local")
    i, _ = schedule.get_loops(copy)
    outer, _ = schedule.split(i, [None, 4])
    schedule.compute_at(schedule.get_block("D"), outer)
    schedule.compute_at(schedule.get_block("C"), outer)
    schedule.parallel(outer)
    check(schedule, func)
    schedule = Schedule(func)
    _, _, k = schedule.get_loops(schedule.get_block("C"))
    _, inner = schedule.split(k, [None, 4])
    partial = schedule.rfactor(inner)
    schedule.vectorize(schedule.get_loops(partial)[3])
    check(schedule, func)


def test_sampling_needs_a_constant_extent() -> None:
    schedule = Schedule(program())
    i, _ = schedule.get_loops(schedule.get_block("D"))
    with pytest.raises(ScheduleError, match="loop i has no constant positive extent"):
        schedule.sample_perfect_tile(i, 2)


def test_iterators_that_are_alone_in_their_group_may_have_any_size() -> None:
    n = te.var("n")
    a = te.placeholder((n, 3, 4), name="A", dtype="int32")
    rows, columns = te.reduce_axis((0, 3), name="rows"), te.reduce_axis((0, 4), name="columns")
    b = te.compute((n,), lambda i: te.sum(a[i, rows, columns], axis=[rows, columns]), name="B")
    func = te.create_prim_func([a, b])
    schedule = Schedule(func)
    schedule.fuse_iterators(schedule.get_block("B"), [[0], [1, 2]])
    assert len(schedule.get_loops(schedule.get_block("B"))) == 2
    verify(schedule.func, "scheduled")
    data, found = np.arange(60, dtype="int32").reshape(5, 3, 4), np.zeros(5, "int32")
    interpret(schedule.func, data, found)
    np.testing.assert_array_equal(found, data.sum(axis=(1, 2)))
    with pytest.raises(ScheduleError, match="have no constant domains"):
        Schedule(program()).fuse_iterators(Schedule(program()).get_block("D"), [[0, 1]])


def _flat() -> tuple[PrimFunc, Var, Var]:
    """B = A + 1 of n * m elements; the sizes are those of two more arrays."""
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n * m,), name="A", dtype="int32")
    sizes = [te.placeholder((size,), name=name, dtype="int32") for size, name in ((n, "N"), (m, "M"))]
    b = te.compute((n * m,), lambda i: a[i] + 1, name="B")
    return te.create_prim_func([a, *sizes, b]), n, m


@pytest.mark.parametrize(
    "factors", [[None, "m"], ["n", "m"], ["n // 2 + 1", None], [None, "m", 2], ["m", "n"], [4, "m", None]]
)
@pytest.mark.parametrize("written", [True, False])
def test_symbols_as_factors(factors: list[str | int | None], written: bool) -> None:
    func, n, m = _flat()
    known = {"n": n, "m": m, "n // 2 + 1": n // 2 + 1}
    schedule = Schedule(func)
    (loop,) = schedule.get_loops(schedule.get_block("B"))
    given = factors if written else [known.get(item, item) for item in factors]  # type: ignore[arg-type]
    made = schedule.split(loop, given)
    assert len(made) == len(factors)
    if factors != [4, "m", None]:
        schedule.parallel(made[0])
    verify(schedule.func, "scheduled")
    assert structural_equal(replay(schedule.trace, func).func, schedule.func)
    assert structural_equal(parse_script(to_script(schedule.func)), schedule.func)
    module = tw.build(schedule.func)
    for rows, columns in [(3, 4), (1, 5), (5, 1), (4, 7), (3, 0), (0, 2), (0, 0)]:
        array = np.arange(rows * columns, dtype="int32")
        rest = np.zeros(rows, "int32"), np.zeros(columns, "int32")
        for run in (interpret, lambda _, *arrays: module(*arrays)):
            found = np.zeros(rows * columns, "int32")
            run(schedule.func, array, *rest, found)
            np.testing.assert_array_equal(found, array + 1)


def test_equal_factors_need_no_guard() -> None:
    func, n, m = _flat()
    schedule = Schedule(func)
    schedule.split(schedule.get_loops(schedule.get_block("B"))[0], [n, m])
    assert schedule.block(schedule.get_block("B")).predicate is TRUE


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (["q", None], "'q' is not an expression of the symbols of main"),
        (["n +", None], "'n \\+' is not an expression of the symbols of main"),
        (["n", 2], "do not certainly make as many iterations as loop i has"),
        (["n - m", "m"], "a factor may be negative"),
        ([te.var("z"), None], "z is not a symbol of main"),
        ([1.5, None], "1.5 is not a factor"),
    ],
)
def test_symbols_that_are_no_factors(factors: list[object], message: str) -> None:
    func, _, _ = _flat()
    schedule = Schedule(func)
    with pytest.raises(ScheduleError, match=message):
        schedule.split(schedule.get_loops(schedule.get_block("B"))[0], factors)  # type: ignore[arg-type]


def test_a_stage_is_split_by_a_symbol() -> None:
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), name="A", dtype="int32")
    b = te.compute((n * m,), lambda i: a[i // m, i % m] + 1, name="B")
    s = te.create_schedule(b.op)
    outer, _ = s[b].split(b.op.axis[0], factor=m)
    s[b].parallel(outer)
    array = np.arange(12, dtype="int32").reshape(3, 4)
    found = np.zeros(12, "int32")
    tw.build(s, [a, b])(array, found)
    np.testing.assert_array_equal(found, array.ravel() + 1)
