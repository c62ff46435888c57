"""The plainest GPU schedule: every stage a kernel of its own, an element for each thread where that is legal."""

from __future__ import annotations

from functools import partial

from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.handles import LoopHandle
from tilewright.tir.schedule.schedule import Schedule
from tilewright.topi.schedule.context import ScheduleContext, spatial_loops
from tilewright.topi.schedule.gpu.injective import spread
from tilewright.topi.schedule.template import apply_first_legal


def schedule_plain_gpu(func: PrimFunc, target: Target) -> PrimFunc:
    """A schedule that takes nothing for granted: what a kernel gets whose template failed.

    for i, j, k: C[i, j] += A[i, k] * B[k, j]   ->   for bx in blockIdx.x: for tx in threadIdx.x: for k: C[...] += ...

    A stage whose outer loops do not prove independent is left to a single thread.
    """
    context = ScheduleContext(Schedule(func), target)
    for handle in context.sch.blocks():
        loops = spatial_loops(context, handle)
        # The outermost loop alone may be independent where all of them together do not prove to be.
        counts = sorted({len(loops), min(1, len(loops)), 0}, reverse=True)
        apply_first_legal([partial(_spread, loops=loops[:count]) for count in counts], context)
    return context.sch.func


def _spread(context: ScheduleContext, loops: list[LoopHandle]) -> None:
    spread(context, loops)
