"""The schedule of recurrent layers: each step a kernel, a warp for each element of the state with all its gates."""

from __future__ import annotations

from math import prod

from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.recurrent import ANCHOR
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.injective import schedule_injective

_MOST_STEPS = 64
"""Steps that become kernels of their own; longer sequences run in one block of threads, which can wait for itself."""
_MOST_UNROLLED = 8
_OPERANDS = 100
"""Weights and states that a thread has in registers."""


def is_recurrence(context: ScheduleContext) -> bool:
    """Whether a program has the products of a recurrent layer."""
    return any(context.block(handle).annotations.get("anchor") == ANCHOR for handle in context.sch.blocks())


def schedule_recurrence(context: ScheduleContext) -> bool:
    """Compute the products of an element of the state where it is updated, the threads of a warp along the sums.

    for t:  for b, g, n, k: product[t, b, g, n] += h[t-1, b, k] * w[g, n, k];  for b, n: h[t, b, n] = step(...)
    ->  for t:  for n in blocks and threadIdx.y:  for lane in threadIdx.x(32): part[b, g] += h[...] * w[g, n, lane::32]
                                                  product[b, g] = sum of part over lanes;  for b: h[t, b, n] = step(...)
    """
    sch = context.sch
    products = [handle for handle in sch.blocks() if context.block(handle).annotations.get("anchor") == ANCHOR]
    steps = {consumer.name for handle in products for consumer in sch.get_consumers(handle)}
    if any(context.extents(sch.get_loops(handle)) is None for handle in products):
        return False
    for handle in sch.blocks():
        if handle.name in steps or handle in products:
            continue
        if handle.name.endswith("_first"):
            sch.compute_inline(handle)
        else:
            schedule_injective(context, handle)
    for handle in products:
        _schedule_product(context, handle)
    return True


def _schedule_product(context: ScheduleContext, product: BlockHandle) -> None:
    sch = context.sch
    (consumer,) = sch.get_consumers(product)
    time, *_, step = sch.get_loops(product)
    lanes = min(max(context.target.warp_size, 32), context.target.max_threads)
    warps = _choose_warps(context, sch.get_loops(consumer)[-1], max(1, context.target.max_threads // lanes))
    (length,) = context.sizes([step])
    _, lane = sch.split(step, [None, lanes])
    partial = sch.rfactor(lane, 0)
    _, batch, column = sch.get_loops(consumer)
    alone = (context.extent(time) or 0) > _MOST_STEPS
    if alone:
        warps = max(1, context.target.max_threads // lanes)
    block, warp = sch.split(column, [None, warps])
    # Sequences that share weights while these are in registers; more sums than that fill the registers themselves.
    group, inner = sch.split(batch, [None, context.choose_again("sequences", (1, 2, 4, 8), _sequences(context, batch))])
    sch.reorder(block, group, warp, inner)
    sch.compute_at(product, warp)
    sch.compute_at(partial, warp)
    if not alone:
        sch.bind(block, "blockIdx.x")
        sch.bind(group, "blockIdx.y")
    sch.bind(warp, "threadIdx.y")
    sch.bind(sch.get_loops(product)[-1], "threadIdx.x")
    own = sch.get_loops(partial)
    thread, *inside = own[own.index(warp) + 1 :]
    values = [item.value for item in context.block(partial).iters if item.kind is IterKind.REDUCE]
    reduce = [loop for loop in inside if any(loop.var is value for value in values)]
    results = [loop for loop in inside if loop not in reduce]
    if reduce and results:
        sch.reorder(thread, *reduce, *results)
    sch.bind(thread, "threadIdx.x")
    for loop in results:
        if 1 < (context.extent(loop) or 0) <= _MOST_UNROLLED:
            sch.unroll(loop)
    if reduce:
        _unroll_steps(context, reduce[0], prod(context.sizes(results)), length // lanes)


def _unroll_steps(context: ScheduleContext, loop: LoopHandle, sums: int, whole: int) -> None:
    """Write out as many steps as registers hold operands for: all their loads are on their way at once.

    The last step, which not all lanes have, is on its own, so that the others need no guard.
    """
    sch = context.sch
    count = context.extent(loop) or 1
    if 0 < whole < count:
        loop, tail = sch.partition(loop, [whole])
        sch.unroll(tail)
        count = whole
    most = max(1, _OPERANDS // (sums + 1))
    factor = max(n for n in range(1, count + 1) if count % n == 0 and n <= most)
    if factor > 1:
        _, inner = sch.split(loop, [None, factor])
        sch.unroll(inner)


def _choose_warps(context: ScheduleContext, column: LoopHandle, most: int) -> int:
    """Elements of the state of a block: they divide the state, so that no warp needs a guard, and all cores work."""
    (size,) = context.sizes([column])
    options = [n for n in range(1, min(8, most) + 1) if size % n == 0 or n == 4]
    busy = [n for n in options if size % n == 0 and size // n >= context.target.cores]
    return context.choose_again("warps", options, max(busy) if busy else min(4, most))


def _sequences(context: ScheduleContext, batch: LoopHandle) -> int:
    count = context.extent(batch) or 1
    return max(n for n in (1, 2, 4) if n <= count)
