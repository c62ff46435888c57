"""A reduction over nothing gives the identity: interpreted and compiled, before and after any schedule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.ir.expr import PrimExpr
from tilewright.ir.function import IRModule
from tilewright.te.tensor import Axis
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.schedule import LoopHandle, Schedule, ScheduleError
from tilewright.tir.script import parse_script, to_script

SIZES = (0, 1, 6)
Step = Callable[[Schedule, LoopHandle, LoopHandle], object]


def row_sums() -> PrimFunc:
    m = te.var("m")
    a = te.placeholder((3, m), "int32", name="A")
    k = te.reduce_axis((0, m), "k")
    s = te.compute((3,), lambda i: te.sum(a[i, k], axis=k), name="S")
    return te.create_prim_func([a, te.compute((3,), lambda i: s[i] * 2 + 1, name="D")])


def _split_outermost(s: Schedule, i: LoopHandle, k: LoopHandle) -> None:
    outer, inner = s.split(k, [None, 4])
    s.reorder(outer, i, inner)


def _at_consumer(s: Schedule, i: LoopHandle, k: LoopHandle) -> None:
    s.split(k, [None, 4])
    s.compute_at(s.get_block("S"), s.get_loops(s.get_block("D"))[0])


def _decomposed(s: Schedule, i: LoopHandle, k: LoopHandle) -> None:
    outer, _ = s.split(k, [None, 4])
    s.decompose_reduction(s.get_block("S"), outer)


def _kept_in_place(s: Schedule, i: LoopHandle, k: LoopHandle) -> None:
    """The consumer runs in the reduction loop's row, so that the init cannot move in front of everything."""
    s.reverse_compute_at(s.get_block("D"), i)
    s.parallel(i)


SCHEDULES: dict[str, Step] = {
    "plain": lambda s, i, k: None,
    "reorder": lambda s, i, k: s.reorder(k, i),
    "split": lambda s, i, k: s.split(k, [None, 4]),
    "split twice": lambda s, i, k: s.split(s.split(k, [None, 4])[0], [None, 2]),
    "outermost": _split_outermost,
    "split rows": lambda s, i, k: s.split(i, [None, 2]),
    "vectorize": lambda s, i, k: (s.reorder(k, i), s.vectorize(i)),
    "rfactor": lambda s, i, k: s.rfactor(s.split(k, [None, 4])[1]),
    "rfactor outer": lambda s, i, k: s.rfactor(s.split(k, [None, 4])[0]),
    "decompose": _decomposed,
    "compute_at": _at_consumer,
    "reverse_compute_at": _kept_in_place,
    "cache_write": lambda s, i, k: s.cache_write(s.get_block("S"), 0, "local"),
}


@pytest.fixture(scope="module")
def module() -> tw.Module:
    return tw.build(IRModule({f"f{n}": made(step).replace(name=f"f{n}") for n, step in enumerate(SCHEDULES.values())}))


def made(step: Step) -> PrimFunc:
    schedule = Schedule(row_sums())
    step(schedule, *schedule.get_loops(schedule.get_block("S")))
    return schedule.func


@pytest.mark.parametrize("name", SCHEDULES)
def test_empty_sums_are_zero(module: tw.Module, name: str) -> None:
    func = made(SCHEDULES[name])
    for size in SIZES:
        a = np.arange(3 * size, dtype=np.int32).reshape(3, size)
        expected = a.sum(axis=1) * 2 + 1
        found, compiled = np.full(3, 77, np.int32), np.full(3, 77, np.int32)
        interpret(func, a, found)
        np.testing.assert_array_equal(found, expected)
        module[f"f{list(SCHEDULES).index(name)}"](a, compiled)
        np.testing.assert_array_equal(compiled, expected)


@pytest.mark.parametrize("reducer", ["sum", "max", "prod"])
@pytest.mark.parametrize("step", [None, "split", "unroll", "split steps"])
def test_rows_of_a_triangle(reducer: str, step: str | None) -> None:
    """The first row reduces nothing; the domain speaks of the loop over rows, also when that is split."""
    x = te.placeholder((10,), "float32", name="X")

    def row(n: Axis) -> PrimExpr:
        k = te.reduce_axis((0, n), "k")
        return getattr(te, reducer)(x[k], axis=k)

    func = te.create_prim_func([x, te.compute((10,), row, name="Y")])
    schedule = Schedule(func)
    n, _ = schedule.get_loops(schedule.get_block("Y"))
    if step == "split steps":
        schedule.split(n, [None, 10])
        schedule.split(schedule.get_loops(schedule.get_block("Y"))[-1], [None, 9])
    elif step is not None:
        outer, inner = schedule.split(n, [None, 4])
        schedule.unroll(inner) if step == "unroll" else schedule.parallel(outer)
    values = np.linspace(0.5, 2, 10, dtype=np.float32)
    start, combine = {"sum": (0.0, np.sum), "max": (-np.inf, np.max), "prod": (1.0, np.prod)}[reducer]
    expected = np.array([start, *(combine(values[:n]) for n in range(1, 10))], np.float32)
    found, compiled = np.full(10, 77, np.float32), np.full(10, 77, np.float32)
    interpret(schedule.func, values, found)
    tw.build(schedule)(values, compiled)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(compiled, expected, rtol=1e-5)


def test_a_written_reduction_over_nothing() -> None:
    """Guarded loops, a reduction without loops, and an extent of zero that is known."""
    func = parse_script(
        """
@script.function
def main(A: Buffer[(3, m), "int32"], S: Buffer[(3,), "int32"], T: Buffer[(3,), "int32"], U: Buffer[(3,), "int32"]):
    for i in range(3):
        for k in range(8):
            with block("S"):
                vi, vk = spatial(3, i), reduce(m, k)
                where(k < m)
                with init():
                    S[vi] = -1
                S[vi] = S[vi] + A[vi, vk]
    for i in range(3):
        with block("T"):
            vi, vk = spatial(3, i), reduce(m, 0)
            where(0 < m)
            with init():
                T[vi] = -2
            T[vi] = T[vi] + A[vi, vk]
    for i in range(3):
        for k in range(0):
            with block("U"):
                vi, vk = spatial(3, i), reduce(0, k)
                with init():
                    U[vi] = -3
                U[vi] = U[vi] + A[vi, vk]
"""
    )
    assert isinstance(func, PrimFunc)
    module = tw.build(func)
    for size in (0, 1, 4):
        a = np.ones((3, size), np.int32)
        for run in (lambda *arrays: interpret(func, *arrays), module):
            s, t, u = (np.full(3, 77, np.int32) for _ in range(3))
            run(a, s, t, u)
            assert (s.tolist(), t.tolist(), u.tolist()) == ([size - 1] * 3, [min(size, 1) - 2] * 3, [-3] * 3)


def test_elements_and_steps_are_not_fused_where_there_may_be_none() -> None:
    schedule = Schedule(row_sums())
    i, k = schedule.get_loops(schedule.get_block("S"))
    with pytest.raises(ScheduleError, match="fuse: the reduction of block S may be over nothing") as caught:
        schedule.fuse(i, k)
    assert "decompose_reduction first" in str(caught.value)
    schedule.decompose_reduction(schedule.get_block("S"), k)
    fused = parse_script(
        """
@script.function
def main(A: Buffer[(3, m), "int32"], S: Buffer[(3,), "int32"]):
    for f in range(3 * m):
        with block("S"):
            vi, vk = spatial(3, f // m), reduce(m, f % m)
            with init():
                S[vi] = 0
            S[vi] = S[vi] + A[vi, vk]
"""
    )
    assert isinstance(fused, PrimFunc)
    with pytest.raises(ScheduleError, match="its init would not run: loop f runs through elements and steps"):
        tw.build(fused)


def test_an_epilogue_needs_a_last_step() -> None:
    schedule = Schedule(row_sums())
    with pytest.raises(ScheduleError, match="may have no step at all, and then no last one"):
        schedule.fuse_reduction_epilogue(schedule.get_block("S"), schedule.get_block("D"))


def test_known_extents_cost_nothing() -> None:
    a = te.placeholder((3, 5), "int32", name="A")
    k = te.reduce_axis((0, 5), "k")
    schedule = Schedule(te.create_prim_func([a, te.compute((3,), lambda i: te.sum(a[i, k], axis=k), name="S")]))
    i, k_loop = schedule.get_loops(schedule.get_block("S"))
    schedule.fuse(i, k_loop)
    assert "<= 0" not in to_script(lower_blocks(schedule.func))
