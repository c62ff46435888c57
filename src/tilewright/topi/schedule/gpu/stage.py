"""What templates of single stages see: the stage, and the one that goes on with its results."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tilewright.ir.expr import IntImm, const_value
from tilewright.ir.visit import pre_order, uses_any
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.matrix_form import columns_of_result


@dataclass(slots=True)
class StageContext(ScheduleContext):
    """One stage of a kernel being scheduled."""

    stage: BlockHandle = field(kw_only=True)
    epilogue: BlockHandle | None = field(default=None, kw_only=True)
    """The stage that goes on with the results of a reduction, one by one, and is the only one to read them."""
    paired: int = field(default=1, kw_only=True)
    """Neighbouring results of the reduction that the epilogue makes one of."""

    @staticmethod
    def of(
        context: ScheduleContext, stage: BlockHandle, epilogue: BlockHandle | None = None, paired: int = 1
    ) -> StageContext:
        """A stage of a kernel; what is done to it is done to a copy (`take`)."""
        shared = (context.sch, context.target, context.packing, context.choices)
        return StageContext(*shared, stage=stage, epilogue=epilogue, paired=paired)

    def stages_in_loops(self) -> list[BlockHandle]:
        """The stages that share the outermost loop of this one, itself included; none without loops."""
        loops = self.sch.get_loops(self.stage)
        return [other for other in self.sch.blocks() if loops and loops[0] in self.sch.get_loops(other)]

    def reduce_loops(self) -> list[LoopHandle]:
        """The loops that count the steps of the stage's reduction."""
        return reduce_loops(self, self.stage)


def reduce_loops(context: ScheduleContext, handle: BlockHandle) -> list[LoopHandle]:
    """The loops that count the steps of a reduction."""
    iters = [item for item in context.block(handle).iters if item.kind is IterKind.REDUCE]
    return [loop for loop in context.sch.get_loops(handle) if any(uses_any(item.value, [loop.var]) for item in iters)]


def find_pairs(context: ScheduleContext, handle: BlockHandle) -> BlockHandle | None:
    """The stage that makes one result of two neighbouring ones of a reduction, and is the only one to read them."""
    sch = context.sch
    consumers = sch.get_consumers(handle)
    if len(consumers) != 1 or sch.get_consumers(consumers[0]) or context.block(consumers[0]).is_reduction:
        return None
    return consumers[0] if columns_of_result(context, handle, consumers[0]) == 2 else None


def find_epilogue(context: ScheduleContext, handle: BlockHandle) -> BlockHandle | None:
    """The stage that goes on with the results of a reduction, one by one, and is the only one to read them."""
    sch = context.sch
    consumers = sch.get_consumers(handle)
    block = context.block(handle)
    results = {region.buffer for region in block.writes}
    if len(consumers) != 1 or sch.get_consumers(consumers[0]) or any(param in results for param in sch.func.params):
        return None
    stage = context.block(consumers[0])
    if stage.is_reduction or any(item.kind is not IterKind.SPATIAL for item in stage.iters):
        return None
    axes = [item.var for item in stage.iters if const_value(item.domain.extent) != 1]
    for item in pre_order(stage.body):
        if isinstance(item, BufferLoad) and item.buffer in results:
            # Axes of one element may come and go.
            used = [index for index in item.indices if not isinstance(index, IntImm)]
            if [index for index in used if index in axes] != axes or len(used) > len(stage.iters):
                return None
    sizes = [prod(context.sizes(sch.get_loops(handle))) for handle in (handle, consumers[0])]
    steps = prod(const_value(item.domain.extent) or 1 for item in block.iters if item.kind is IterKind.REDUCE)
    return consumers[0] if sizes[0] == sizes[1] * steps else None
