"""Which stages of a fused kernel are computed in place of their use."""

from __future__ import annotations

from tilewright.ir.expr import FloatImm, IntImm
from tilewright.tir.annotations import ANCHOR, KEPT, LAYOUT, Anchor, Layout
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.stmt import Block, BufferStore
from tilewright.topi.schedule.context import ScheduleContext, operations_in

_COSTLY = 8
"""Stages at least this costly are not computed again for each of several uses."""


def inline_stages(context: ScheduleContext) -> None:
    """Inline every injective intermediate stage, except where that would repeat costly work.

    Kept: results, reductions, the padded input of a contraction (the inner loop would test borders), costly stages
    that are read several times (by several consumers, or by a reduction that visits them repeatedly).
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
    if operations_in(block) < _COSTLY:
        return False
    return len(consumers) > 1
