"""The plainest CPU schedule: every stage as it is written, its outer loops in parallel where that is legal."""

from __future__ import annotations

from math import prod

from tilewright.ir.visit import uses_any
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.stmt import IterKind, LoopKind
from tilewright.topi.schedule.context import ScheduleContext


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


def spatial_loops(context: ScheduleContext, handle: BlockHandle) -> list[LoopHandle]:
    """The outermost loops of a stage that has them to itself, as far as each serves spatial iterators alone."""
    sch = context.sch
    others = {loop.var for other in sch.blocks() if other != handle for loop in sch.get_loops(other)}
    ordered = [item for item in context.block(handle).iters if item.kind is not IterKind.SPATIAL]
    found: list[LoopHandle] = []
    for loop in sch.get_loops(handle):
        used = any(uses_any(item.value, [loop.var]) for item in ordered)
        if used or loop.var in others or context.loop(loop).kind is not LoopKind.SERIAL:
            break
        if found and context.loop(found[-1]).body is not context.loop(loop):
            break
        found.append(loop)
    return found
