"""Which blocks a template is for: blocks by their kind, and the contraction that a kernel is built around."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.template import Template

_CONTRACTIONS = (
    Anchor.MATMUL,
    Anchor.CONV2D,
    Anchor.DEPTHWISE_CONV2D,
    Anchor.WINDOW_DOTS,
    Anchor.CONV2D_TRANSPOSE,
)


class Contraction(NamedTuple):
    """A contraction, and the stage that applies its epilogue: the contraction itself where there is none."""

    anchor: BlockHandle
    output: BlockHandle


def kind_of(context: ScheduleContext, handle: BlockHandle) -> Anchor | None:
    """What kind of computation a block is the anchor of, None if of none."""
    return ANCHOR.of(context.block(handle))


def blocks_of_kind(context: ScheduleContext, *kinds: Anchor) -> list[BlockHandle]:
    """The blocks of some kinds, in order."""
    return [handle for handle in context.sch.blocks() if kind_of(context, handle) in kinds]


def contractions(context: ScheduleContext) -> list[BlockHandle]:
    """Matrix products and convolutions, in order."""
    return blocks_of_kind(context, *_CONTRACTIONS)


def find_contraction(context: ScheduleContext) -> Contraction | str:
    """The contraction of a kernel that is one with its epilogue, else why it is not."""
    anchors, outputs = contractions(context), context.sch.get_output_blocks()
    if len(anchors) != 1:
        return "several contractions" if anchors else "no contraction"
    if len(outputs) != 1:
        return "several outputs"
    (anchor,), (output,) = anchors, outputs
    if anchor.name == output.name:
        return Contraction(anchor, output)
    if [handle.name for handle in context.sch.get_consumers(anchor)] != [output.name]:
        return "other stages than the output read the contraction"
    if context.block(output).is_reduction:
        return "the output is a reduction of its own"
    return Contraction(anchor, output)


def requires_kind(kind: Anchor) -> Callable[[ScheduleContext], str | None]:
    """The condition of a template that schedules whole kernels of a kind."""

    def matches(context: ScheduleContext) -> str | None:
        return None if blocks_of_kind(context, kind) else f"no {kind} block"

    return matches


def contraction_template(
    name: str,
    meaning: str,
    matches: Callable[[ScheduleContext, BlockHandle, BlockHandle], str | None],
    apply: Callable[[ScheduleContext, BlockHandle, BlockHandle], None],
) -> Template[ScheduleContext]:
    """A template of kernels that are one contraction with its epilogue: its functions take both blocks."""

    def whole_matches(context: ScheduleContext) -> str | None:
        contraction = find_contraction(context)
        return contraction if isinstance(contraction, str) else matches(context, *contraction)

    def whole_apply(context: ScheduleContext) -> None:
        contraction = find_contraction(context)
        assert not isinstance(contraction, str)
        apply(context, *contraction)

    return Template(name, meaning, whole_matches, whole_apply)
