"""The schedule of a reduction: a thread for each result, or a block of threads where results are few."""

from __future__ import annotations

from math import prod

from tilewright.ir.visit import uses_any
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.cpu.context import CpuContext
from tilewright.topi.schedule.gpu.injective import THREADS, spread

_FEW_STEPS = 64
"""Steps of a reduction below which one thread does them all."""
_MANY_STEPS = 1 << 14
"""Steps of a reduction from which several blocks share those of one result, where results are few."""
_COMBINE = 16
"""Partial results that one thread combines: with 256 threads, two rounds of 16."""


def schedule_reduction(context: CpuContext, handle: BlockHandle) -> None:
    """Schedule a reduction with loops of its own."""
    sch = context.sch
    loops = sch.get_loops(handle)
    reduce = [loop for loop in loops if _drives(context, handle, loop)]
    spatial = [loop for loop in loops if loop not in reduce]
    results, steps = prod(context.sizes(spatial)), prod(context.sizes(reduce))
    if not reduce or results == 0 or steps == 0:
        spread(context, spatial)
        return
    sch.reorder(*spatial, *reduce)
    cores = context.target.cores
    if steps < _FEW_STEPS or results >= cores * THREADS * 4:
        _one_thread_each(context, handle, spatial)
        return
    fused = sch.fuse(*reduce) if len(reduce) > 1 else reduce[0]
    if steps >= _MANY_STEPS and results < cores and context.extent(fused) is not None:
        parts = _divisor(steps, 4 * cores)
        outer, _ = sch.split(fused, [parts, None])
        partial = _partial(context, outer)
        if partial is not None:
            schedule_reduction(context, partial)
            schedule_reduction(context, handle)
            return
    _one_block_each(context, handle, spatial, fused, steps)


def _one_thread_each(context: CpuContext, handle: BlockHandle, spatial: list[LoopHandle]) -> None:
    """Each thread accumulates a result in a register."""
    sch = context.sch
    if len(context.block(handle).writes) > 1 or not spatial:
        spread(context, spatial)
        return
    output = sch.cache_write(handle, 0, "local")
    thread = spread(context, sch.get_loops(output))
    if thread is not None:
        sch.compute_at(handle, thread)


def _one_block_each(
    context: CpuContext, handle: BlockHandle, spatial: list[LoopHandle], fused: LoopHandle, steps: int
) -> None:
    """Threads of a block accumulate parts, which are combined through shared memory in two rounds.

    for i: for k: C[i] += A[i, k]   ->   for bx: for tx(256): P[tx] = sum of every 256th;
                                                 for tx(16): Q[tx] = sum of 16 of P;  C[bx] = sum of Q
    """
    sch = context.sch
    threads = min(THREADS, context.target.max_threads, 1 << (steps - 1).bit_length() - 1)
    _, lane = sch.split(fused, [None, threads])
    partial = _partial(context, lane)
    if partial is None:
        spread(context, spatial)
        return
    stages = [partial]
    count = threads
    if count > 2 * _COMBINE:
        last = sch.get_loops(handle)[-1]
        _, inner = sch.split(last, [None, count // _COMBINE])
        second = _partial(context, inner)
        if second is not None:
            stages.append(second)
    loops = sch.get_loops(handle)
    rows = [loop for loop in loops if not _drives(context, handle, loop)]
    if rows:
        row = sch.fuse(*rows) if len(rows) > 1 else rows[0]
    else:
        row = sch.add_unit_loop(loops[0])
    for stage in reversed(stages):
        sch.compute_at(stage, row)
    sch.bind(row, "blockIdx.x")
    for stage in stages:
        for number in range(len(context.block(stage).writes)):
            sch.set_scope(stage, number, "shared")
        lane_value = context.block(stage).iters[0].value
        own = sch.get_loops(stage)
        lane_loop = next((loop for loop in own if loop.var is lane_value), None)
        if lane_loop is not None:
            rest = [loop for loop in own[own.index(row) + 1 :] if loop != lane_loop]
            sch.reorder(lane_loop, *rest)
            sch.bind(lane_loop, "threadIdx.x")


def _partial(context: CpuContext, loop: LoopHandle) -> BlockHandle | None:
    """Partial results along a loop; None where the reduction has no such form."""
    try:
        return context.sch.rfactor(loop, 0)
    except ScheduleError:
        return None


def _divisor(number: int, most: int) -> int:
    return max(count for count in range(1, most + 1) if number % count == 0)


def _drives(context: CpuContext, handle: BlockHandle, loop: LoopHandle) -> bool:
    iters = context.block(handle).iters
    return any(item.kind is IterKind.REDUCE and uses_any(item.value, [loop.var]) for item in iters)
