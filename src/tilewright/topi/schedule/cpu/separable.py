"""The schedule of depthwise-separable convolutions: a depthwise and a 1 x 1 convolution, row by row."""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import const_value
from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.analysis.linear import linear
from tilewright.tir.annotations import PREFETCH, Anchor
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.depthwise import (
    choose_pixels,
    has_dense_windows,
    schedule_taps,
    sliding_tile,
    tile_of_windows,
    windows_of,
)
from tilewright.topi.schedule.cpu.joined import joined_convolutions, why_not_joined
from tilewright.topi.schedule.cpu.prefetch import prefetch_results
from tilewright.topi.schedule.cpu.register_tiles import (
    analytic_tile,
    begins_at_bias,
    can_fill_panels,
    fill_panels,
    pack_weights,
    schedule_tile,
    start_at_bias,
    unroll_reduction,
)
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors
from tilewright.topi.schedule.template import Template


def _matches(context: ScheduleContext) -> str | None:
    """A depthwise convolution and a convolution of its results, as `fuse` puts them in one kernel."""
    return why_not_joined(context, Anchor.DEPTHWISE_CONV2D, Anchor.CONV2D)


def schedule_separable(context: ScheduleContext) -> None:
    """A depthwise convolution and the 1 x 1 convolution of its results, a row of pixels (or two) after the other.

    for n, y:
        for xo, channels:  row[x, channel] = epilogue(depthwise)           (a register tile of pixels)
        for xo, panel:     out[y, x, column] = epilogue(row x weights)     (a register tile of pixels x columns)

    The row stays in the nearest caches. The weights must stay in the second level, since each row meets all of them.
    Of two rows, windows of both are a tile: four rows of the image are read for them instead of three for each.
    """
    sch = context.sch
    depthwise, row, pointwise, output = joined_convolutions(context)
    n, y, x, c = sch.get_loops(output)
    width, columns = context.extent(x), context.extent(c)
    assert width is not None and columns is not None
    fills = can_fill_panels(context, pointwise)
    tile = analytic_tile(context, pointwise, width, columns, fills, stay=True)
    tile = choose_tile(context, tile, width, columns)
    if begins_at_bias(context, pointwise, columns, tile):
        start_at_bias(context, pointwise)
    if has_dense_windows(context, depthwise):
        start_at_bias(context, depthwise)
    pack_weights(context, pointwise, tile)
    if fills:
        fill_panels(context, pointwise, tile)
    lines, sliding = _depthwise_tile(context, depthwise, row)
    panel, vector, lane = sch.split(c, [None, tile.vectors, tile.lanes])
    outer, inner = sch.split(x, [None, tile.rows])
    order = [outer, panel, inner, vector, lane]
    if lines > 1:
        y, line = sch.split(y, [None, lines])
        order.insert(0, line)
    sch.reorder(n, y, *order)
    sch.compute_at(pointwise, panel)
    reduction = schedule_tile(context, pointwise, panel, tile)
    channels = _schedule_rows(context, depthwise, row, y, (lines, sliding))
    for loop in (inner, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    context.parallelize([n, y], prod(context.sizes([n, y])) * lines * width * columns * channels)
    reduction = unroll_reduction(context, reduction, tile)
    _prefetch_rows(context, depthwise, reduction, lines)
    prefetch_results(context, output, reduction, tile)


def _depthwise_tile(context: ScheduleContext, depthwise: BlockHandle, row: BlockHandle) -> tuple[int, RegisterTile]:
    """How many rows of results are worked on together, and the register tile of the depthwise convolution."""
    extents = context.sizes(context.sch.get_loops(row))
    height, width, channels = extents[-3:]
    tile = sliding_tile(width, channels, context.lanes(depthwise), context.target.vector_registers)
    windows = windows_of(context, depthwise, extents, len(extents) - 2)
    whole = tile_of_windows(context, windows, height, width) if windows is not None else None
    lines = min(whole[0], context.cpu.convolution.separable_lines) if whole is not None else 1
    images = prod(extents[:-3])
    if context.idle(images * height // lines) > context.idle(images * height):
        lines = 1
    lines = context.choose("lines", divisors(height, 2), lines)
    if lines > 1 and whole is not None:
        tile = RegisterTile(whole[1], 1, tile.lanes)
    return lines, choose_pixels(context, tile, width)


def _schedule_rows(
    context: ScheduleContext, depthwise: BlockHandle, row: BlockHandle, y: LoopHandle, tile: tuple[int, RegisterTile]
) -> int:
    """The depthwise convolution of a step of `y`, in register tiles of some lines; gives how many channels it has."""
    sch = context.sch
    lines, sliding = tile
    sch.compute_at(row, y, preserve_unit_loops=True)
    *_, row_line, pixel, channel = sch.get_loops(row)
    channels = context.extent(channel)
    assert channels is not None
    pack_weights(context, depthwise, sliding)
    pixel_outer, pixel_inner = sch.split(pixel, [None, sliding.rows])
    channel_outer, channel_inner = sch.split(channel, [None, sliding.lanes])
    in_tile = [row_line, pixel_inner] if lines > 1 else [pixel_inner]
    sch.reorder(pixel_outer, channel_outer, *in_tile, channel_inner)
    schedule_taps(context, depthwise, channel_outer, sliding, lines)
    for loop in in_tile:
        sch.unroll(loop)
    sch.vectorize(channel_inner)
    return channels


def _prefetch_rows(context: ScheduleContext, depthwise: BlockHandle, reduction: list[LoopHandle], lines: int) -> None:
    """Fetch the rows of the image that the next rows of results need, while these are multiplied."""
    block = context.block(depthwise)
    images = [item for item in find_all(block.body, BufferLoad) if item.buffer in context.sch.func.params]
    own = [item.var for item in block.iters if item.kind is IterKind.SPATIAL]
    for image in images:
        sizes = [const_value(size) for size in image.buffer.shape[2:]]
        if len(sizes) != 2 or None in sizes or not uses_any(image.indices[1], own[1:2]):
            continue
        step = linear(image.indices[1]).terms.get(own[1])
        taps = [const_value(item.domain.extent) for item in block.iters if item.kind is IterKind.REDUCE]
        if step is None or not taps or taps[0] is None:
            continue
        row = prod(size for size in sizes if size is not None)
        first = (lines - 1) * step + taps[0]
        context.sch.annotate(reduction[-1], PREFETCH, {image.buffer.name: [lines * step * row, first * row]})


TEMPLATE = Template(
    "depthwise-separable",
    "a row of the depthwise convolution stays in cache while the 1 x 1 convolution reads it",
    _matches,
    schedule_separable,
)
