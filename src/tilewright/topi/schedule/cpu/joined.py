"""Kernels of two convolutions, the second of which reads what the first makes: what their schedules begin with."""

from __future__ import annotations

from typing import NamedTuple

from tilewright.tir.annotations import Anchor
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.anchors import contractions, kind_of
from tilewright.topi.schedule.cpu.injective import schedule_injective


class JoinedConvolutions(NamedTuple):
    """The blocks of such a kernel; `between` stores what the second convolution reads."""

    first: BlockHandle
    between: BlockHandle
    second: BlockHandle
    output: BlockHandle


def why_not_joined(context: ScheduleContext, first: Anchor, second: Anchor) -> str | None:
    """Why a kernel is not one of two such convolutions, as `fuse` puts them together; None if it is."""
    if [kind_of(context, handle) for handle in contractions(context)] != [first, second]:
        return f"no {first.value} before a {second.value}"
    return None if len(context.sch.get_output_blocks()) == 1 else "several outputs"


def joined_convolutions(context: ScheduleContext) -> JoinedConvolutions:
    """The blocks, each convolution with one of its own to store its results; what the first reads is scheduled."""
    sch = context.sch
    first, second = contractions(context)
    (output,) = sch.get_output_blocks()
    for producer in sch.get_producers(first):
        schedule_injective(context, producer)
    (between,) = sch.get_producers(second)
    if between.name == first.name:
        between = sch.cache_write(first, 0, "local")
    if second.name == output.name:
        output = sch.cache_write(second, 0, "local")
    return JoinedConvolutions(first, between, second, output)
