"""The loops of a reduction inside a thread."""

from __future__ import annotations

from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.stage import reduce_loops


def accumulate(context: ScheduleContext, handle: BlockHandle, outside: LoopHandle, whole: int | None = None) -> None:
    """The loops of a reduction in a thread: steps outside, a vector of results inside.

    `whole` is the number of steps that all threads have, where not all have as many.
    """
    sch = context.sch
    own = sch.get_loops(handle)
    below = own[own.index(outside) + 1 :]
    reduce = [loop for loop in reduce_loops(context, handle) if loop in below]
    results = [loop for loop in below if loop not in reduce]
    if results and reduce:
        sch.reorder(*reduce, *results)
    for loop in results[:-1]:
        sch.unroll(loop)
    if results and (context.extent(results[-1]) or 0) > 1:
        sch.vectorize(results[-1])
    if reduce:
        count = context.extent(reduce[-1]) or 1
        most = context.gpu.reduction.unrolled
        if count <= most:
            for loop in reduce:
                if 1 < (context.extent(loop) or 0) <= most:
                    sch.unroll(loop)
        else:
            _unroll_most(context, reduce[-1], min(count, whole or count))


def _unroll_most(context: ScheduleContext, loop: LoopHandle, whole: int) -> None:
    """Several steps at a time: their loads are on their way together. What is left over, or needs a guard, is apart."""
    sch = context.sch
    most = context.gpu.reduction.unrolled
    main = whole - whole % most
    if main == 0:
        return
    if main < (context.extent(loop) or 0):
        loop, rest = sch.partition(loop, [main])
        if (context.extent(rest) or 0) <= most:
            sch.unroll(rest)
    _, inner = sch.split(loop, [None, most])
    sch.unroll(inner)
