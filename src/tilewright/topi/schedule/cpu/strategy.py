"""The default CPU schedule of any kernel: picks the template by what the kernel contains."""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import const_value
from tilewright.target import Target
from tilewright.tir.annotations import ANCHOR, ROWS, Anchor
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.amx_product import schedule_tile_matrix
from tilewright.topi.schedule.cpu.attention import is_attention, schedule_attention
from tilewright.topi.schedule.cpu.contraction import schedule_contraction
from tilewright.topi.schedule.cpu.depthwise import schedule_depthwise, schedule_separable
from tilewright.topi.schedule.cpu.depthwise_planar import has_planes, schedule_planes
from tilewright.topi.schedule.cpu.dot_product import schedule_dot_product
from tilewright.topi.schedule.cpu.half_product import is_half_product, schedule_half_product
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.recurrent import is_recurrence, schedule_recurrence
from tilewright.topi.schedule.cpu.reduction import schedule_reductions
from tilewright.topi.schedule.cpu.split_k_product import part_of_sum, schedule_deep_product
from tilewright.topi.schedule.cpu.streaming_taps import keep_planes, schedule_taps, streams_taps
from tilewright.topi.schedule.cpu.winograd import schedule_winograd
from tilewright.topi.schedule.cpu.winograd_plain import schedule_winograd_plain
from tilewright.topi.schedule.inline import inline_stages
from tilewright.topi.schedule.packing import with_packing
from tilewright.topi.schedule.template import Scheduled

_CONTRACTIONS = (Anchor.MATMUL, Anchor.CONV2D, Anchor.DEPTHWISE_CONV2D, Anchor.CONV2D_TRANSPOSE)


def schedule_cpu(
    func: PrimFunc, target: Target, choices: Choices | None = None, sch: Schedule | None = None
) -> Scheduled:
    """A scheduled program for a CPU, equivalent to the given unscheduled one.

    Constant parameters may come out rearranged: the attribute `PACKING` says how. `choices` overrides what
    templates would decide by themselves, and collects what they ask.
    """
    context = ScheduleContext(sch or Schedule(func), target, choices=choices or Choices())
    _schedule(context)
    return Scheduled(with_packing(context.sch.func, context.packing), ())


def _schedule(context: ScheduleContext) -> None:
    sch = context.sch
    kinds = {ANCHOR.of(context.block(handle)) for handle in sch.blocks()}
    if Anchor.WINOGRAD in kinds:
        schedule_winograd(context)
        return
    if Anchor.WINOGRAD_PLAIN in kinds:
        schedule_winograd_plain(context)
        return
    if is_recurrence(context):
        schedule_recurrence(context)
        return
    if is_attention(context):
        schedule_attention(context)
        return
    inline_stages(context)
    if is_half_product(context):
        schedule_half_product(context)
        return
    outputs = sch.get_output_blocks()
    blocks = [context.block(handle) for handle in sch.blocks()]
    anchors = [block.name for block in blocks if ANCHOR.of(block) in _CONTRACTIONS]
    if len(outputs) == 1 and _kinds(context, anchors) == [Anchor.DEPTHWISE_CONV2D, Anchor.CONV2D]:
        depthwise, pointwise = (sch.get_block(name) for name in anchors)
        schedule_separable(context, depthwise, pointwise, outputs[0])
        return
    if len(outputs) == 1 and len(anchors) == 1:
        anchor = sch.get_block(anchors[0])
        consumers = [handle.name for handle in sch.get_consumers(anchor)]
        alone = anchor.name == outputs[0].name
        if alone or (consumers == [outputs[0].name] and not context.block(outputs[0]).is_reduction):
            if schedule_tile_matrix(context, anchor, outputs[0]) or schedule_dot_product(context, anchor, outputs[0]):
                return
            if _is_column(context, anchor):
                schedule_reductions(context, outputs[0])
                return
            part = part_of_sum(context, anchor)
            if part is not None:
                schedule_deep_product(context, anchor, outputs[0], part)
                return
            alone_in_channel = _kinds(context, anchors) == [Anchor.DEPTHWISE_CONV2D]
            template = schedule_depthwise if alone_in_channel else schedule_contraction
            if alone_in_channel and has_planes(context, anchor, outputs[0]):
                template = schedule_planes
            keep_planes(context, anchor)
            if streams_taps(context, anchor, outputs[0]):
                template = schedule_taps
            template(context, anchor, outputs[0])
            return
    for handle in sch.blocks():
        if ROWS.is_on(context.block(handle)):
            _schedule_rows(context, handle)
    if len(outputs) == 1 and any(block.is_reduction for block in blocks):
        schedule_reductions(context, outputs[0])
        return
    for handle in sch.blocks():
        if not ROWS.is_on(context.block(handle)) and not context.block(handle).is_reduction:
            schedule_injective(context, handle)


def _schedule_rows(context: ScheduleContext, handle: BlockHandle) -> None:
    """Rows that are computed by statements of their own: in parallel."""
    sizes = [region.buffer.static_shape for region in context.block(handle).reads]
    context.parallelize(context.sch.get_loops(handle), sum(prod(size) for size in sizes if size))


def _is_column(context: ScheduleContext, anchor: BlockHandle) -> bool:
    """Whether a matrix product has one column: its sums walk memory, so that lanes are parts of them."""
    block = context.block(anchor)
    spatial = [item for item in block.iters if item.kind is IterKind.SPATIAL]
    return ANCHOR.of(block) is Anchor.MATMUL and const_value(spatial[-1].domain.extent) == 1


def _kinds(context: ScheduleContext, anchors: list[str]) -> list[Anchor | None]:
    """What the contractions of some names are."""
    return [ANCHOR.of(context.block(context.sch.get_block(name))) for name in anchors]
