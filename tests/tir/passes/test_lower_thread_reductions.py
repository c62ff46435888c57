"""Reductions across threads: partial results, combined by few; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.on_device import cuda_text, require_nvrtc
from tilewright import te
from tilewright.backends.backend import lower
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.ir.expr import is_const_int
from tilewright.ir.visit import pre_order
from tilewright.support.errors import UnsupportedError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.lower_thread_reductions import lower_thread_reductions
from tilewright.tir.schedule import Schedule
from tilewright.tir.stmt import Allocate, Block, Evaluate, For

TARGET = Target("opencl -max-threads=512")
SHUFFLES = Target("cuda -arch=sm_80")


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
    for program in (func, lower_thread_reductions(func), lower(func, TARGET), lower(func, SHUFFLES)):
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


@pytest.mark.parametrize(("threads", "exchanges", "barriers"), [(32, 5, 0), (64, 5, 1), (512, 9, 1), (48, 0, 2)])
def test_threads_of_a_warp_exchange_registers(threads: int, exchanges: int, barriers: int) -> None:
    _check(_rows(threads).func)
    lowered = lower(_rows(threads).func, SHUFFLES)
    scopes = [str(item.value) for item in pre_order(lowered.body) if isinstance(item, Evaluate)]
    assert sum("warp" in scope for scope in scopes) == exchanges
    assert len(scopes) - exchanges == barriers


@pytest.mark.parametrize("threads", [64, 512])
def test_several_results_meet_once(threads: int) -> None:
    """Threads of several warps wait for each other once for all results of a thread, not for each."""
    a = te.placeholder((6, 500), name="A")
    k = te.reduce_axis((0, 500), name="k")
    c = te.compute((6,), lambda i: te.sum(a[i, k], axis=k), name="C")
    sch = Schedule(te.create_prim_func([a, c]))
    product = sch.get_block("C")
    _, lane = sch.split(sch.get_loops(product)[-1], [None, threads])
    partial = sch.rfactor(lane, 0)
    row, last = sch.get_loops(product)
    block, own = sch.split(row, [None, 3])
    sch.bind(block, "blockIdx.x")
    sch.compute_at(partial, block)
    sch.unroll(own)
    sch.bind(last, "threadIdx.x")
    sch.bind(sch.get_loops(partial)[1], "threadIdx.x")
    _check(sch.func)
    lowered = lower(sch.func, SHUFFLES)
    own_loops = [item for item in pre_order(lowered.body) if isinstance(item, For) and is_const_int(item.extent, 3)]
    inside = {id(item) for loop in own_loops for item in pre_order(loop)}
    barriers = [item for item in pre_order(lowered.body) if isinstance(item, Evaluate) and "shared" in str(item.value)]
    assert len(own_loops) >= 2 and len(barriers) == 1 and id(barriers[0]) not in inside


def test_shuffles_in_the_text() -> None:
    text = cuda_text([_rows(64).func])
    assert text.count("__shfl_sync") == 5
    assert text.count("__syncthreads") == 1
    require_nvrtc()
    assert compile_cuda(text, "sm_80")


@pytest.mark.parametrize("target", [TARGET, SHUFFLES], ids=str)
def test_pairs_are_exchanged_as_a_whole(target: Target) -> None:
    a = te.placeholder((3, 300), name="A")
    k = te.reduce_axis((0, 300), name="k")
    index, value = te.compute_many((3,), lambda i: te.argmax((k, a[i, k]), axis=k), name="C")
    sch = Schedule(te.create_prim_func([a, index, value]))
    row, column = sch.get_loops(sch.get_block("C"))
    _, lane = sch.split(column, [None, 64])
    sch.bind(row, "blockIdx.x")
    sch.bind(lane, "threadIdx.x")
    values = np.random.default_rng(0).integers(0, 50, (3, 300)).astype(np.float32)
    places, best = np.zeros(3, np.int64), np.zeros(3, np.float32)
    interpret(lower(sch.func, target), values.reshape(-1), places, best)
    np.testing.assert_array_equal(places, values.argmax(1))
    np.testing.assert_array_equal(best, values.max(1))


def test_every_thread_reads_its_own_result() -> None:
    """A mean that the same block goes on with: neither shared memory nor a barrier for rows of one warp."""
    a = te.placeholder((5, 96), name="A")
    k = te.reduce_axis((0, 96), name="k")
    total = te.compute((5,), lambda i: te.sum(a[i, k], axis=k), name="T")
    b = te.compute((5, 96), lambda i, j: a[i, j] - total[i] / 96.0, name="B")
    sch = Schedule(te.create_prim_func([a, b]))
    row, column = sch.get_loops(sch.get_block("B"))
    step = sch.get_loops(sch.get_block("T"))[-1]
    partial = sch.rfactor(sch.split(step, [None, 32])[1], 0)
    sch.compute_at(sch.get_block("T"), row)
    sch.compute_at(partial, row)
    sch.bind(row, "blockIdx.x")
    sch.bind(sch.split(column, [None, 32])[1], "threadIdx.x")
    sch.bind(sch.get_loops(sch.get_block("T"))[-1], "threadIdx.x")
    lane = sch.get_loops(partial)[1:]
    sch.bind(next(item for item in lane if item.var is sch.block(partial).iters[0].value), "threadIdx.x")
    values = np.random.default_rng(0).random((5, 96), np.float32)
    for target in (TARGET, SHUFFLES):
        lowered = lower(sch.func, target)
        result = np.zeros((5, 96), np.float32)
        interpret(lowered, values.reshape(-1), result.reshape(-1))
        np.testing.assert_allclose(result, values - values.mean(1, keepdims=True), atol=1e-6)
    scopes = {item.buffer.scope for item in pre_order(lowered.body) if isinstance(item, Allocate)}
    assert scopes == {"warp", "local"}


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
    assert len([item for item in pre_order(lowered.body) if isinstance(item, Block)]) == 2
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


def test_a_single_thread_combines_with_nobody() -> None:
    a = te.placeholder((6, 500), name="A")
    k, q = te.reduce_axis((0, 500), name="k"), te.reduce_axis((0, 1), name="q")
    c = te.compute((6,), lambda i: te.sum(a[i, k + q], axis=[k, q]), name="C")
    sch = Schedule(te.create_prim_func([a, c]))
    row, _, one = sch.get_loops(sch.get_block("C"))
    sch.bind(row, "blockIdx.x")
    sch.bind(one, "threadIdx.x")
    _check(sch.func)


def test_loops_that_are_not_one_an_axis_are_refused() -> None:
    """A row loop of one iteration split in two: the block has no use for either."""
    a = te.placeholder((4, 7), name="A")
    k, q = te.reduce_axis((0, 4), name="k"), te.reduce_axis((0, 2), name="q")
    c = te.compute((1, 6), lambda i, j: te.sum(a[k, j + q], axis=[k, q]), name="C")
    sch = Schedule(te.create_prim_func([a, c]))
    row, _, lane, _ = sch.get_loops(sch.get_block("C"))
    sch.bind(lane, "threadIdx.x")
    sch.split(row, [None, 2])
    with pytest.raises(UnsupportedError, match="needs one loop for each axis of its result"):
        lower(sch.func, TARGET)
