"""Grouped convolutions as products: the channels of a result become groups, and channels of a group.

    for n, y, x, c, r, s, k:  C[n, y, x, c] += A[n, y + r, x + s, c // 24 * 24 + k] * W[r, s, k, c]

->  for n, y, x, g, o, r, s, k:  C[n, y, x, g, o] += A[n, y + r, x + s, g * 24 + k] * W[r, s, k, g * 24 + o]

The group then counts the products of a batch, as `matrix_form` knows them: `c` alone is in both operands, and leaves no
columns. Axes of one element (`n` of one image) go: new indices have numbers in their places, and no matrix form.
"""

from __future__ import annotations

from itertools import chain

from tilewright.ir.expr import FloorDiv, PrimExpr, Var, const_value
from tilewright.ir.visit import find_all
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.stmt import Block, IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.products import tileable_output


def separate_groups(context: ScheduleContext) -> bool:
    """Give the grouped convolutions of a kernel, each with the one stage that reads it, an axis of groups.

    One that is the result itself gets a stage that copies it. Says whether there are any.
    """
    any_separated = False
    for handle in context.sch.blocks():
        if ANCHOR.of(context.block(handle)) is not Anchor.CONV2D:
            continue
        found = _channels_of_groups(context.block(handle))
        if found is None or len(context.sch.get_consumers(handle)) > 1:
            continue
        trial = ScheduleContext(context.sch.copy(), context.target, dict(context.packing), context.choices)
        try:
            _separate(trial, handle, *found)
        except ScheduleError:
            continue  # Other templates compute it with its channels on one axis.
        if not isinstance(tileable_output(trial, handle), str):
            context.take(trial)
            any_separated = True
    return any_separated


def _channels_of_groups(block: Block) -> tuple[int, int] | None:
    """The iterator of a convolution's channels, by its number, and the channels of a group; None without groups."""
    for number, item in enumerate(block.iters):
        if item.kind is not IterKind.SPATIAL:
            continue  # Steps that are digits: words of bytes.
        for quotient in find_all(block.body, FloorDiv):
            width = const_value(quotient.b)
            extent = const_value(item.domain.extent)
            if quotient.a is item.var and width and extent and width > 1 and extent % width == 0:
                return number, width
    return None


def _separate(context: ScheduleContext, handle: BlockHandle, axis: int, width: int) -> None:
    sch = context.sch
    (consumer,) = sch.get_consumers(handle) or [sch.cache_write(handle, 0, "global")]
    block = context.block(handle)
    result = block.writes[0].buffer
    if len(context.block(consumer).iters) != result.ndim:
        raise ScheduleError("the stage that reads the convolution has other axes")
    sizes = [const_value(item.domain.extent) for item in block.iters]

    def separated(*places: Var) -> tuple[PrimExpr, ...]:
        channel = places[axis]
        kept = [[place] if size != 1 else [] for place, size in zip(places, sizes, strict=False)]
        return tuple(chain(*kept[:axis], (channel // width, channel % width), *kept[axis + 1 :]))

    sch.transform_layout(handle, result.name, IndexMap.of(separated, result.ndim))
    for stage in (handle, consumer):
        sch.transform_block_layout(stage, IndexMap.of(separated, len(context.block(stage).iters)))
