"""Products whose sums grow in stages (partial sums, then their total): loops of a stage, and the constant factor."""

from __future__ import annotations

from tilewright.ir.visit import find_all
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.packing import constant_parameters


def constant_factor(context: ScheduleContext, sums: BlockHandle) -> BufferLoad | None:
    """The constant factor of a product; None if it has none, or several."""
    constants = constant_parameters(context.sch.func)
    loads = [item for item in find_all(context.block(sums).body, BufferLoad) if item.buffer in constants]
    return loads[0] if len(loads) == 1 else None


def reduction_first(context: ScheduleContext, handle: BlockHandle) -> list[LoopHandle]:
    """The loops of a sum's reduction, which come before its other loops now."""
    iters = context.block(handle).iters
    loops = context.sch.get_loops(handle)[-len(iters) :]
    count = sum(item.kind is IterKind.REDUCE for item in iters)
    if count:
        context.sch.reorder(*loops[-count:], *loops[:-count])
    return loops[len(loops) - count :]


def own_loops(context: ScheduleContext, handle: BlockHandle) -> list[LoopHandle]:
    """The innermost loops of a stage, which count its elements in a tile."""
    count = sum(item.kind is IterKind.SPATIAL for item in context.block(handle).iters)
    return context.sch.get_loops(handle)[-count:]
