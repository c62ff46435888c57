"""Which stages of a fused kernel are computed in place of their use."""

from __future__ import annotations

from tilewright.ir.expr import FloatImm, IntImm, const_value
from tilewright.ir.visit import find_all
from tilewright.tir.annotations import ANCHOR, KEPT, LAYOUT, Anchor, Layout
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.stmt import Block, BufferStore
from tilewright.topi.schedule.context import ScheduleContext, operations_in

_COSTLY = 8
"""Stages at least this costly are not computed again for each of several uses."""


def inline_stages(context: ScheduleContext) -> None:
    """Inline every injective intermediate stage, except where that would repeat costly work.

    Kept: results, reductions, the padded input of a contraction (the inner loop would test borders), costly stages
    that several others read (a reduction that visits them, stages that take other elements of them).
    """
    sch = context.sch
    outputs = {handle.name for handle in sch.get_output_blocks()}
    for handle in sch.blocks():
        block = context.block(handle)
        if handle.name in outputs or block.is_reduction or block.init is not None:
            continue
        stays = _keep(context, handle, block) if block.iters else not _is_number(block)
        if stays:
            continue
        sch.compute_inline(handle)


def _is_number(block: Block) -> bool:
    """Whether a stage without axes is a number in the code."""
    return isinstance(block.body, BufferStore) and isinstance(block.body.value, (FloatImm, IntImm))


def _keep(context: ScheduleContext, handle: BlockHandle, block: Block) -> bool:
    if KEPT.of(block):
        return True
    consumers = [context.block(consumer) for consumer in context.sch.get_consumers(handle)]
    if any(ANCHOR.is_on(consumer) for consumer in consumers):
        # A contraction reads each element many times: compute it once, unless it only picks elements by name.
        if all(ANCHOR.of(consumer) is Anchor.DEPTHWISE_CONV2D for consumer in consumers):
            # Each element is read a few times only; loops are partitioned so that inner tiles test no border. Not where
            # vectors are of pixels: most would be at one.
            planar = "pad" in handle.name and any(LAYOUT.of(item) is Layout.NCHW for item in consumers)
            return planar or operations_in(block) > 0
        return "pad" in handle.name or operations_in(block) > 0
    if "pad" in handle.name and any(KEPT.of(consumer) for consumer in consumers):
        # A stage that is kept takes whole vectors, without tests of borders.
        return True
    if operations_in(block) < _COSTLY or len(consumers) < 2:
        return False
    return not _meets_in_one_stage(context, handle)


def _meets_in_one_stage(context: ScheduleContext, handle: BlockHandle) -> bool:
    """Whether all that is computed of a stage becomes part of one other stage, element by element.

    Equal expressions are one object: however often that stage reads the value, it is computed once.
    """
    sch = context.sch
    outputs = {output.name for output in sch.get_output_blocks()}
    ends: set[str] = set()
    seen = {handle.name}
    pending = [handle]
    while pending:
        source = pending.pop()
        for consumer in sch.get_consumers(source):
            block = context.block(consumer)
            if block.is_reduction or not _reads_own_elements(block, context.block(source).writes[0].buffer):
                return False
            if consumer.name in outputs or KEPT.of(block) or ANCHOR.is_on(block):
                ends.add(consumer.name)
            elif consumer.name not in seen:
                seen.add(consumer.name)
                pending.append(consumer)
    return len(ends) == 1


def _reads_own_elements(block: Block, source: Buffer) -> bool:
    """Whether each element that a stage computes takes the same element of a buffer, and no other."""
    if not isinstance(block.body, BufferStore) or len(block.iters) != source.ndim:
        return False
    places = [item.var for item in block.iters]
    single = [const_value(item.domain.extent) == 1 for item in block.iters]
    for load in find_all(block.body.value, BufferLoad):
        if load.buffer is source:
            pairs = zip(load.indices, places, single, strict=True)
            if not all(index is place or (one and const_value(index) == 0) for index, place, one in pairs):
                return False
    return tuple(block.body.indices) == tuple(places)
