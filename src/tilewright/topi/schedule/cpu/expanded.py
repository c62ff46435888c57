"""The schedule of a 1 x 1 convolution and the depthwise convolution of its results: some channels after the other."""

from __future__ import annotations

from math import prod

from tilewright.tir.annotations import PREFETCH_NEAR, Anchor
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.depthwise import (
    choose_pixels,
    has_dense_windows,
    lines_together,
    schedule_taps,
    sliding_tile,
    tile_of_windows,
    windows_of,
)
from tilewright.topi.schedule.cpu.joined import joined_convolutions, why_not_joined
from tilewright.topi.schedule.cpu.register_tiles import (
    analytic_tile,
    begins_at_bias,
    pack_weights,
    schedule_tile,
    start_at_bias,
    unroll_reduction,
)
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors
from tilewright.topi.schedule.template import Template


def _matches(context: ScheduleContext) -> str | None:
    """A convolution and a depthwise convolution of its results, as `fuse` puts them in one kernel."""
    return why_not_joined(context, Anchor.CONV2D, Anchor.DEPTHWISE_CONV2D)


def schedule_expanded(context: ScheduleContext) -> None:
    """A 1 x 1 convolution and the depthwise convolution of its results, a panel of channels after the other.

    for n, strip, panel:
        for y, xo:            image[y, x, channel] = epilogue(pixels x weights)   (a register tile of pixels x channels)
        for yo, xo, vector:   out[y, x, channel] = epilogue(depthwise)            (a register tile of pixels)

    A channel of a depthwise convolution needs no other: those of a panel stay in the nearest caches. Of large images
    these are some lines at a time, and the lines that two such strips share are computed twice.
    """
    sch = context.sch
    expand, image, depthwise, output = joined_convolutions(context)
    lines, sliding = _depthwise_tile(context, depthwise, output)
    tile = _panel(context, expand, image)
    strips = _strips(context, image, output, lines, tile)
    channels = context.sizes(sch.get_loops(image))[-1]
    if begins_at_bias(context, expand, channels, tile):
        start_at_bias(context, expand)
    if has_dense_windows(context, depthwise):
        start_at_bias(context, depthwise)
    pack_weights(context, expand, tile)
    pack_weights(context, depthwise, sliding)
    n, y, x, c = sch.get_loops(output)
    work = prod(context.sizes([n, y, x, c]))
    panel, vector, lane = sch.split(c, [None, tile.vectors, tile.lanes])
    strip, line_outer, line = sch.split(y, [strips, None, lines])
    pixel_outer, pixel = sch.split(x, [None, sliding.rows])
    sch.reorder(n, strip, panel, line_outer, pixel_outer, vector, line, pixel, lane)
    schedule_taps(context, depthwise, vector, sliding, lines)
    for loop in (line, pixel):
        sch.unroll(loop)
    sch.vectorize(lane)
    depth = _schedule_image(context, expand, image, panel, tile)
    context.parallelize([n, strip, panel], work * depth)


def _panel(context: ScheduleContext, expand: BlockHandle, image: BlockHandle) -> RegisterTile:
    """The register tile of the 1 x 1 convolution; its vectors of channels, a panel, divide all of them."""
    width, channels = context.sizes(context.sch.get_loops(image))[-2:]
    tile = analytic_tile(context, expand, width, channels, pads=False, stay=True)
    widths = divisors(channels // tile.lanes, tile.vectors)
    tile = RegisterTile(tile.rows, widths[-1], tile.lanes)
    return choose_tile(context, tile, width, channels, widths=divisors(channels // tile.lanes, channels))


def _strips(context: ScheduleContext, image: BlockHandle, output: BlockHandle, lines: int, tile: RegisterTile) -> int:
    """Into how many strips of lines the image is cut, so that a panel of one stays in the second cache level."""
    block = context.block(image)
    height, width = context.sizes(context.sch.get_loops(image))[-3:-1]
    size = height * width * tile.columns * block.writes[0].buffer.dtype.itemsize
    most = context.target.l2_bytes * context.cpu.convolution.strip_share
    steps = context.sizes(context.sch.get_loops(output))[-3] // lines
    options = divisors(steps, steps)
    return context.choose("strips", options, next((n for n in options if size <= most * n), options[-1]))


def _depthwise_tile(context: ScheduleContext, depthwise: BlockHandle, output: BlockHandle) -> tuple[int, RegisterTile]:
    """How many lines are in a tile of the depthwise convolution, and the tile."""
    extents = context.sizes(context.sch.get_loops(output))
    height, width, channels = extents[-3:]
    tile = sliding_tile(width, channels, context.lanes(depthwise), context.target.vector_registers)
    windows = windows_of(context, depthwise, extents, len(extents) - 2)
    whole = tile_of_windows(context, windows, height, width) if windows is not None else None
    lines = 1
    if windows is not None:
        lines = whole[0] if whole is not None else lines_together(context, windows, height, tile.rows)
    lines = context.choose("lines", divisors(height, context.cpu.depthwise.most_lines), lines)
    tile = RegisterTile(whole[1], 1, tile.lanes) if whole is not None else tile
    return lines, choose_pixels(context, tile, width)


def _schedule_image(
    context: ScheduleContext, expand: BlockHandle, image: BlockHandle, panel: LoopHandle, tile: RegisterTile
) -> int:
    """The 1 x 1 convolution for a panel of channels, in register tiles; gives how many channels it reads."""
    sch = context.sch
    block = context.block(expand)
    source = next(item.buffer for item in block.reads if item.buffer is not block.writes[0].buffer)
    sch.compute_at(image, panel, preserve_unit_loops=True)
    *_, row, column, channel = sch.get_loops(image)
    outer, inner = sch.split(column, [None, tile.rows])
    vector, lane = sch.split(channel, [None, tile.lanes])
    sch.reorder(row, outer, inner, vector, lane)
    sch.compute_at(expand, outer)
    reduction = schedule_tile(context, expand, outer, tile)
    depth = prod(context.sizes(reduction))
    for loop in (inner, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    reduction = unroll_reduction(context, reduction, tile)
    if reduction:
        # Each panel reads all pixels once more, from the second cache level.
        sch.annotate(reduction[-1], PREFETCH_NEAR, {source.name: tile.rows * depth})
    return depth


TEMPLATE = Template(
    "expanded-depthwise",
    "a panel of channels of the 1 x 1 convolution stays in cache while the depthwise convolution reads it",
    _matches,
    schedule_expanded,
)
