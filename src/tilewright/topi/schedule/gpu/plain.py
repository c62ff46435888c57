"""The plainest GPU schedule: every stage a kernel of its own, an element for each thread where that is legal."""

from __future__ import annotations

from functools import partial

from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.handles import LoopHandle
from tilewright.tir.schedule.schedule import Schedule
from tilewright.topi.schedule.context import ScheduleContext, spatial_loops
from tilewright.topi.schedule.gpu.attempt import attempt
from tilewright.topi.schedule.gpu.injective import spread


def schedule_plain_gpu(func: PrimFunc, target: Target) -> PrimFunc:
    """A schedule that takes nothing for granted: what a kernel gets whose template failed.

    for i, j, k: C[i, j] += A[i, k] * B[k, j]   ->   for bx in blockIdx.x: for tx in threadIdx.x: for k: C[...] += ...

    A stage whose outer loops do not prove independent is left to a single thread.
    """
    context = ScheduleContext(Schedule(func), target)
    for handle in context.sch.blocks():
        loops = spatial_loops(context, handle)
        # The outermost loop alone may be independent where all of them together do not prove to be.
        for count in sorted({len(loops), min(1, len(loops))}, reverse=True):
            if attempt(context, partial(_spread, loops=loops[:count])):
                break
    return context.sch.func


def _spread(context: ScheduleContext, loops: list[LoopHandle]) -> bool:
    return spread(context, loops) is not None
