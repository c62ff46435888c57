"""Reductions across threads: partial results, combined by few; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import te
from tilewright.ir.visit import pre_order
from tilewright.support.errors import UnsupportedError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.lower_thread_reductions import lower_thread_reductions
from tilewright.tir.pipeline import lower
from tilewright.tir.schedule import Schedule
from tilewright.tir.stmt import Block, Evaluate

TARGET = Target("opencl")


def _rows(threads: int, *, rows_per_block: int = 0) -> Schedule:
    a = te.placeholder((6, 500), name="A")
    k = te.reduce_axis((0, 500), name="k")
    c = te.compute((6,), lambda i: te.sum(a[i, k], axis=k), name="C")
    sch = Schedule(te.create_prim_func([a, c]))
    row, column = sch.get_loops(sch.get_block("C"))
    _, lane = sch.split(column, [None, threads])
    if rows_per_block:
        row, inner = sch.split(row, [None, rows_per_block])
        sch.bind(inner, "threadIdx.y")
    sch.bind(row, "blockIdx.x")
    sch.bind(lane, "threadIdx.x")
    return sch


def _check(func: PrimFunc) -> PrimFunc:
    a = np.random.default_rng(0).random((6, 500), np.float32)
    for program in (func, lower_thread_reductions(func), lower(func, TARGET)):
        c = np.full(6, np.nan, np.float32)
        interpret(program, a, c)
        np.testing.assert_allclose(c, a.sum(1), rtol=1e-5)
    return lower(func, TARGET)


@pytest.mark.parametrize(("threads", "rounds"), [(16, 1), (64, 2), (48, 2)])
def test_partial_results_are_combined(threads: int, rounds: int) -> None:
    lowered = _check(_rows(threads).func)
    assert sum(isinstance(item, Evaluate) for item in pre_order(lowered.body)) == rounds


def test_rows_and_threads_together() -> None:
    _check(_rows(32, rows_per_block=4).func)


def test_the_whole_of_a_tensor() -> None:
    a = te.placeholder((300,), name="A")
    k = te.reduce_axis((0, 300), name="k")
    c = te.compute((), lambda: te.max(a[k], axis=k), name="C")
    sch = Schedule(te.create_prim_func([a, c]))
    (column,) = sch.get_loops(sch.get_block("C"))
    _, lane = sch.split(column, [None, 64])
    sch.bind(lane, "threadIdx.x")
    values = np.random.default_rng(0).random(300, np.float32)
    result = np.zeros((), np.float32)
    interpret(lower(sch.func, TARGET), values, result.reshape(1))
    assert result == values.max()


def test_programs_without_such_reductions_stay_as_they_are() -> None:
    sch = _rows(16)
    lowered = lower_thread_reductions(sch.func)
    assert len([item for item in pre_order(lowered.body) if isinstance(item, Block)]) == 3
    assert lower_thread_reductions(lowered) is lowered


def test_two_reduction_loops_over_threads_are_refused() -> None:
    a = te.placeholder((4, 8, 8), name="A")
    k, m = te.reduce_axis((0, 8), name="k"), te.reduce_axis((0, 8), name="m")
    c = te.compute((4,), lambda i: te.sum(a[i, k, m], axis=[k, m]), name="C")
    sch = Schedule(te.create_prim_func([a, c]))
    _, first, second = sch.get_loops(sch.get_block("C"))
    sch.bind(first, "threadIdx.y")
    sch.bind(second, "threadIdx.x")
    with pytest.raises(UnsupportedError, match="needs loops of its own and one loop bound to threads"):
        lower_thread_reductions(sch.func)
