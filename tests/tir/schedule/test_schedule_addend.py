"""Tests of start_at_addend: sums that begin at what is added to them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir.schedule.programs import block_of, check, check_compiled, matmul_relu, row_argmax
from tilewright import te
from tilewright.te.tensor import Tensor
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.schedule import Schedule, ScheduleError


def biased(epilogue: object, columns: int = 12, dtype: str = "int32") -> PrimFunc:
    """D[i, j] = epilogue(C, bias, i, j) where C[i, j] is the sum over k of A[i, k] * B[k, j]."""
    a, b = te.placeholder((6, 10), dtype, "A"), te.placeholder((10, columns), dtype, "B")
    bias = te.placeholder((columns,), dtype, "bias")
    k = te.reduce_axis((0, 10), "k")
    c = te.compute((6, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    d = te.compute((6, columns), lambda i, j: epilogue(c, bias, i, j), name="D")  # type: ignore[operator]
    return te.create_prim_func([a, b, bias, d])


def test_sums_start_at_the_bias() -> None:
    func = matmul_relu()
    schedule = Schedule(func)
    c, d = schedule.get_block("C"), schedule.get_block("D")
    schedule.start_at_addend(c)
    text = schedule.show()
    assert "C[v_i, v_j] = bias[v_j]" in text
    assert "D[v_i, v_j] = max(C[v_i, v_j], 0)" in text
    assert [region.buffer.name for region in block_of(schedule, "D").reads] == ["C"]
    check_compiled(schedule, func)
    # What comes after: tiles, the init in a block of its own, vectors.
    i, j = schedule.get_loops(d)
    _, j_outer, _, j_inner = schedule.tile(i, j, 3, 5)
    schedule.compute_at(c, j_outer)
    *_, row, column, k = schedule.get_loops(c)
    schedule.reorder(k, row, column)
    schedule.set_scope(c, 0, "local")
    start = schedule.decompose_reduction(c, k)
    assert [region.buffer.name for region in block_of(schedule, start.name).reads] == ["bias"]
    schedule.vectorize(j_inner)
    check_compiled(schedule, func)


def test_every_use_must_be_in_the_addition() -> None:
    func = biased(lambda c, b, i, j: te.select(b[j] + c[i, j] > 0, b[j] + c[i, j], (b[j] + c[i, j]) * 2))
    schedule = Schedule(func)
    schedule.start_at_addend(schedule.get_block("C"))
    assert "bias" not in str(block_of(schedule, "D").body)
    check_compiled(schedule, func)
    schedule = Schedule(biased(lambda c, b, i, j: (c[i, j] + b[j]) * c[i, j]))
    with pytest.raises(ScheduleError, match="block D does more with C than add to it"):
        schedule.start_at_addend(schedule.get_block("C"))
    schedule = Schedule(biased(lambda c, b, i, j: c[i, j] + c[i, j]))
    with pytest.raises(ScheduleError, match="block D does more with C than add to it"):
        schedule.start_at_addend(schedule.get_block("C"))


def test_a_second_addend_joins_the_first() -> None:
    func = biased(lambda c, b, i, j: c[i, j] + b[j] + b[11 - j] * 3)
    schedule = Schedule(func)
    block = schedule.get_block("C")
    schedule.start_at_addend(block)
    schedule.start_at_addend(block)
    assert "C[v_i, v_j] = bias[v_j] + bias[11 - v_j] * 3" in schedule.show()
    check_compiled(schedule, func)


def test_constants_are_addends_too_and_sums_from_them_are_whole() -> None:
    func = biased(lambda c, b, i, j: te.maximum(c[i, j] + 3, b[j]))
    schedule = Schedule(func)
    schedule.start_at_addend(schedule.get_block("C"))
    check_compiled(schedule, func)
    with pytest.raises(ScheduleError, match="would begin where the whole one does"):
        schedule.rfactor(schedule.get_loops(schedule.get_block("C"))[2])


def test_partial_results_come_first() -> None:
    func = matmul_relu()
    schedule = Schedule(func)
    block = schedule.get_block("C")
    schedule.rfactor(schedule.split(schedule.get_loops(block)[2], [None, 5])[1])
    schedule.start_at_addend(block)
    check_compiled(schedule, func)


def test_transposed_and_shifted_consumers() -> None:
    a, b = te.placeholder((6, 5, 4), "int32", "A"), te.placeholder((5, 6), "int32", "b")
    k = te.reduce_axis((0, 4), "k")
    s = te.compute((6, 5), lambda i, j: te.sum(a[i, j, k], axis=k), name="S")
    func = te.create_prim_func([a, b, te.compute((5, 6), lambda j, i: s[i, j] + b[j, i], name="D")])
    schedule = Schedule(func)
    schedule.start_at_addend(schedule.get_block("S"))
    assert "S[v_i, v_j] = b[v_j, v_i]" in schedule.show()
    check_compiled(schedule, func)


def _window(reads: object) -> Schedule:
    a, b = te.placeholder((8, 4), "int32", "A"), te.placeholder((8,), "int32", "b")
    k = te.reduce_axis((0, 4), "k")
    s = te.compute((8,), lambda i: te.sum(a[i, k], axis=k), name="S")
    return Schedule(te.create_prim_func([a, b, reads(s, b)]))  # type: ignore[operator]


def _twice(s: Tensor, b: Tensor) -> Tensor:
    return te.compute((7,), lambda i: s[i] + s[i + 1] + b[i], name="D")


def _part(s: Tensor, b: Tensor) -> Tensor:
    return te.compute((6,), lambda i: s[i + 1] + b[i], name="D")


def _repeated(s: Tensor, b: Tensor) -> Tensor:
    return te.compute((8, 3), lambda i, j: s[i] + b[j], name="D")


def _guarded(s: Tensor, b: Tensor) -> Tensor:
    return te.compute((8,), lambda i: te.select(i > 0, s[i] + b[i - 1], 0), name="D")


def _divided(s: Tensor, b: Tensor) -> Tensor:
    return te.compute((8,), lambda i: te.select(b[i] > 0, s[i] + 7 // b[i], 0), name="D")


@pytest.mark.parametrize(
    ("reads", "message"),
    [
        (_twice, "does more with S than add to it"),
        (_part, "block D does not read every sum of block S"),
        (_repeated, "does not determine its iterator v_j"),
        (_guarded, "the addend may read past the end of b"),
        (_divided, "the addend divides by what may be zero"),
    ],
)
def test_refusals(reads: object, message: str) -> None:
    schedule = _window(reads)
    before = schedule.func
    with pytest.raises(ScheduleError, match=message):
        schedule.start_at_addend(schedule.get_block("S"))
    assert schedule.func is before


def test_only_sums_of_their_own_begin_elsewhere() -> None:
    schedule = Schedule(row_argmax())
    with pytest.raises(ScheduleError, match="is not a sum with an init"):
        schedule.start_at_addend(schedule.get_block("arg"))
    schedule = Schedule(matmul_relu())
    block = schedule.get_block("C")
    schedule.decompose_reduction(block, schedule.get_loops(block)[2])
    with pytest.raises(ScheduleError, match="written by block C_init too"):
        schedule.start_at_addend(block)
    schedule = Schedule(matmul_relu())
    block = schedule.get_block("C")
    schedule.bind(schedule.get_loops(block)[2], "threadIdx.x")
    with pytest.raises(ScheduleError, match="every thread of loop k would begin at the addend"):
        schedule.start_at_addend(block)


def test_an_addend_that_is_made_in_the_loop_of_the_sum() -> None:
    """The init cannot go before that loop: lowering leaves it inside, for the first step."""
    a, b = te.placeholder((6, 4), "int32", "A"), te.placeholder((6,), "int32", "b")
    k = te.reduce_axis((0, 4), "k")
    e = te.compute((6,), lambda i: b[i] * 2, name="E")
    s = te.compute((6,), lambda i: te.sum(a[i, k], axis=k), name="S")
    func = te.create_prim_func([a, b, te.compute((6,), lambda i: e[i] + s[i], name="D")])
    schedule = Schedule(func)
    block = schedule.get_block("S")
    schedule.start_at_addend(block)
    schedule.compute_at(schedule.get_block("E"), schedule.get_loops(block)[1])
    check_compiled(schedule, func)
    with pytest.raises(ScheduleError, match="it would run before block E, which writes E"):
        schedule.decompose_reduction(block, schedule.get_loops(block)[1])
    check(schedule, func)


def test_symbolic_sizes() -> None:
    n = te.var("n")
    a, b = te.placeholder((n, 8), "int32", "A"), te.placeholder((n,), "int32", "b")
    k = te.reduce_axis((0, 8), "k")
    s = te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="S")
    func = te.create_prim_func([a, b, te.compute((n,), lambda i: s[i] + b[i], name="D")])
    schedule = Schedule(func)
    schedule.start_at_addend(schedule.get_block("S"))
    random = np.random.default_rng(0)
    left, right = random.integers(-5, 6, (7, 8)).astype("int32"), random.integers(-5, 6, 7).astype("int32")
    out = np.zeros(7, "int32")
    interpret(schedule.func, left, right, out)
    np.testing.assert_array_equal(out, left.sum(axis=1) + right)


def test_floats_are_rounded_in_another_order_only() -> None:
    func = biased(lambda c, b, i, j: c[i, j] + b[j], dtype="float32")
    schedule = Schedule(func)
    schedule.start_at_addend(schedule.get_block("C"))
    random = np.random.default_rng(0)
    a, b, bias = (random.standard_normal(shape).astype("float32") for shape in ((6, 10), (10, 12), (12,)))
    results = []
    for program in (func, schedule.func):
        results.append(np.zeros((6, 12), "float32"))
        interpret(program, a, b, bias, results[-1])
    scale = np.abs(a) @ np.abs(b) + np.abs(bias)
    assert np.all(np.abs(results[0] - results[1]) <= 11 * np.finfo("float32").eps * scale)
    assert np.any(results[0] != results[1])
