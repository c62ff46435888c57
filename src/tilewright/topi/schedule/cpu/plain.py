"""The plainest CPU schedule: every stage as it is written, its outer loops in parallel where that is legal."""

from __future__ import annotations

from math import prod

from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.schedule import Schedule
from tilewright.topi.schedule.context import ScheduleContext, spatial_loops


def schedule_plain_cpu(func: PrimFunc, target: Target) -> PrimFunc:
    """A schedule that takes nothing for granted: what a kernel gets whose template failed.

    for i, j, k: C[i, j] += A[i, k] * B[k, j]   ->   for ij in parallel: for k: C[...] += ...

    A stage whose outer loops do not prove independent stays serial.
    """
    context = ScheduleContext(Schedule(func), target)
    for handle in context.sch.blocks():
        loops = spatial_loops(context, handle)
        work = prod(context.sizes(context.sch.get_loops(handle)))
        # The outermost loop alone may be independent where all of them together do not prove to be.
        for count in sorted({len(loops), min(1, len(loops))}, reverse=True):
            trial = ScheduleContext(context.sch.copy(), target)
            try:
                trial.parallelize(loops[:count], work)
            except ScheduleError:
                continue
            context = trial
            break
    return context.sch.func
