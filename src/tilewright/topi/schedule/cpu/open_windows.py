"""The schedule of convolutions over images of open sizes: windows of some pixels are copied, and meet all weights."""

from __future__ import annotations

from tilewright.ir.build import add, mul
from tilewright.ir.visit import find_all
from tilewright.tir.annotations import Anchor
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.cpu.anchors import contraction_template, kind_of
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.prefetch import prefetch_panels
from tilewright.topi.schedule.cpu.register_tiles import (
    analytic_tile,
    can_fill_panels,
    copy_computed_panels,
    fill_panels,
    pack_weights,
    reduction_size,
    schedule_tile,
    unroll_reduction,
)
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, vector_length

_IMAGE_RANK = 4
_PIXELS = 128
"""What an open number of pixels is taken for."""
_TILES_IN_BLOCK = (1, 2, 4, 8, 16, 32)
_SHARE = 0.25
"""The part of the second cache level that windows of a block may take: two panels of weights are beside them."""


def _matches(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> str | None:
    names = [handle.name for handle in context.sch.get_producers(anchor)]
    is_one = kind_of(context, anchor) is Anchor.CONV2D and "windows" in names
    return None if is_one else "no convolution by windows of open images"


def _in_order(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> bool:
    """Whether the output has each pixel of an image at its own place."""
    block, total = context.block(output), context.block(anchor).writes[0].buffer
    if output.name == anchor.name or len(block.iters) != _IMAGE_RANK:
        return False
    n, y, x, o = (item.var for item in block.iters)
    place = (n, add(mul(y, block.iters[2].domain.extent), x), o)
    return all(item.indices == place for item in find_all(block.body, BufferLoad) if item.buffer is total)


def schedule_open_windows(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> None:
    """Tile all pixels of an image x channels, compute each tile in registers, apply the epilogue on it.

    for image, block of pixels:
        windows[pixels, kh, kw, c] = the taps of those pixels
        for panel of channels, tile of pixels:
            acc = 0;  for kh, kw, c: acc[pixel, o] += windows[pixel, kh, kw, c] * w[kh, kw, c, o]
            out[n, y, x, o] = epilogue(acc)
    """
    sch = context.sch
    windows = next(handle for handle in sch.get_producers(anchor) if handle.name == "windows")
    target = output if _in_order(context, anchor, output) else sch.cache_write(anchor, 0, "global")
    image, *pixels, channel = sch.get_loops(target)
    columns = context.extent(channel)
    assert columns is not None
    fills = can_fill_panels(context, anchor)
    tile = analytic_tile(context, anchor, _PIXELS, columns, fills, stay=False)
    tile = choose_tile(context, tile, _PIXELS, columns)
    copy_computed_panels(context, anchor, tile, _PIXELS)
    pack_weights(context, anchor, tile)
    if fills:
        fill_panels(context, anchor, tile)
    block, row_tile, row = sch.split(
        sch.fuse(*pixels) if target is output else pixels[0], [None, _tiles_in_block(context, anchor, tile), tile.rows]
    )
    panel, vector, lane = sch.split(channel, [None, tile.vectors, tile.lanes])
    sch.reorder(image, block, panel, row_tile, row, vector, lane)
    sch.compute_at(anchor, row_tile)
    sch.compute_at(windows, block)
    _in_vectors(context, loops_below(context, windows, block)[-1])
    reduction = schedule_tile(context, anchor, row_tile, tile)
    for loop in (row, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    context.parallelize([image, block], context.cpu.parallel.least_work)
    prefetch_panels(context, anchor, unroll_reduction(context, reduction, tile), tile, in_blocks=True)
    if target is not output:
        schedule_injective(context, output)


def _tiles_in_block(context: ScheduleContext, anchor: BlockHandle, tile: RegisterTile) -> int:
    """Tiles of pixels whose windows are copied at a time: those stay in the second cache level."""
    windows = reduction_size(context, anchor) * tile.rows * context.block(anchor).writes[0].buffer.dtype.itemsize
    fitting = max(1, int(context.target.l2_bytes * _SHARE) // windows)
    return context.choose("row_tiles", _TILES_IN_BLOCK, max(n for n in _TILES_IN_BLOCK if n <= fitting))


def _in_vectors(context: ScheduleContext, channel: LoopHandle) -> None:
    """Channels of a tap copied some registers at a time."""
    length = vector_length(context.extent(channel) or 1, context.target.lanes(32))
    _, lane = context.sch.split(channel, [None, length])
    context.sch.vectorize(lane)


TEMPLATE = contraction_template(
    "open-windows",
    "windows of a block of pixels of an open image, copied as they are used, against panels of weights",
    _matches,
    schedule_open_windows,
)
