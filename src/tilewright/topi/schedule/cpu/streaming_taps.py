"""The schedule of convolutions whose weights come from beyond the near caches: one tap at a time for a whole image."""

from __future__ import annotations

from tilewright.ir.expr import const_value
from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.annotations import LAYOUT, PREFETCH, Anchor, Layout
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.cpu.anchors import contraction_template, kind_of
from tilewright.topi.schedule.cpu.contraction import keep_planar, weights_stay
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.register_tiles import pack_weights, schedule_tile, unroll_reduction, vectorize_tile
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, register_tile
from tilewright.topi.schedule.packing import constant_parameters

_PARTS = (1, 2, 4, 8)
"""Into how many parts the channels of a tap may be divided."""


def _matches(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> str | None:
    """A convolution that is better done tap by tap.

    That is where constant weights are too large to stay in the second cache level, and where the sums of a panel stay
    in the first level: few pixels, many channels. Several cores take panels, so there must be enough of those (of an
    open number of images, in one of them).
    A tap of one channel is one product an element: sums that are read and written for it would take the time.
    """
    block = context.block(anchor)
    if kind_of(context, anchor) is not Anchor.CONV2D or LAYOUT.of(block) is not Layout.NHWC:
        return "no channels-last convolution"
    number, *extents = [const_value(dim) for dim in block.writes[0].buffer.shape]
    sizes = [const_value(item.domain.extent) for item in block.iters if item.kind is IterKind.REDUCE]
    known = [int(extent) for extent in extents if extent is not None]
    if len(known) != 3 or None in sizes or len(sizes) != 3 or 0 in known or number == 0:
        return "sizes are open or zero"
    if sizes[:2] == [1, 1] or sizes[2] == 1:
        return "one tap, or one channel"
    if not _has_constant_weights(context, anchor) or not _in_order(context, anchor, output):
        return "weights are no constants, or the output is in another order"
    batch = 1 if number is None else int(number)
    height, width, columns = known
    target = context.target
    tile = register_tile(width, columns, context.lanes(anchor), target.vector_registers, context.cpu)
    if weights_stay(context, anchor, columns):
        return "weights stay in the second cache level"
    sums = height * width * tile.columns * block.writes[0].buffer.dtype.itemsize
    if sums > target.l1_bytes * context.cpu.convolution.sums_share:
        return "the sums of a panel do not stay in the first cache level"
    panels = batch * -(-columns // tile.columns)
    if -(-panels // target.cores) * target.cores > context.cpu.convolution.panels_most_idle * panels:
        return "too few panels for all cores"
    return None


def schedule_taps(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> None:
    """Sums of a panel of channels for the whole image, one tap after the other; the next tap's weights are fetched.

    for panel:
        sum[y, x, c] = 0
        for tap, part of the channels, y, xo:
            acc[xi, c] = 0;  for ic: acc[xi, c] += image[y + tap, xo + xi + tap, ic] * weights[tap, ic, c]
            sum[y, xo + xi, c] += acc[xi, c]
        out[y, x, c] = epilogue(sum[y, x, c])
    """
    sch = context.sch
    keep_planar(context, anchor)
    for producer in sch.get_producers(anchor):
        schedule_injective(context, producer)
    if anchor.name == output.name:
        output = sch.cache_write(anchor, 0, "local")
    n, y, x, c = sch.get_loops(output)
    width, columns = context.extent(x), context.extent(c)
    assert width is not None and columns is not None
    tile = register_tile(width, columns, context.lanes(anchor), context.target.vector_registers, context.cpu)
    tile = choose_tile(context, tile, width, columns)
    pack_weights(context, anchor, tile)
    *_, kh, kw, ic = sch.get_loops(anchor)
    part = _channels_together(context, anchor, context.extent(ic) or 1, tile)
    ic_part, _ = sch.split(ic, [None, part])
    taps = sch.fuse(kh, kw, ic_part)
    partial = sch.rfactor(taps)
    panel, vector, lane = sch.split(c, [None, tile.vectors, tile.lanes])
    sch.reorder(n, panel, y, x, vector, lane)
    sch.compute_at(anchor, panel, preserve_unit_loops=True)
    below = loops_below(context, anchor, panel)
    reduce_vars = {item.value for item in context.block(anchor).iters if item.kind is IterKind.REDUCE}
    (tap,) = [loop for loop in below if loop.var in reduce_vars]
    spatial = [loop for loop in below if loop is not tap]
    *outer, row, column = spatial
    row_outer, row_inner = sch.split(row, [None, tile.rows])
    sch.reorder(tap, *outer, row_outer, row_inner, column)
    sch.set_scope(anchor, 0, "local")
    start = sch.decompose_reduction(anchor, tap)
    sch.compute_at(partial, row_outer, preserve_unit_loops=True)
    reduction = schedule_tile(context, partial, row_outer, tile)
    for loops in ([row_inner, column], [loops_below(context, start, panel)[-1]]):
        vectorize_tile(context, loops, tile.lanes)
    sch.unroll(vector)
    sch.vectorize(lane)
    panels = (context.extent(n) or 1) * (context.extent(panel) or 1)
    context.parallelize([n, panel], panels * context.cpu.parallel.least_work)
    reduction = unroll_reduction(context, reduction, tile)
    names = [param.name for number, param in enumerate(sch.func.params) if number in context.packing]
    sch.annotate(reduction[-1], PREFETCH, dict.fromkeys(names, part * tile.columns))


def _channels_together(context: ScheduleContext, anchor: BlockHandle, depth: int, tile: RegisterTile) -> int:
    """How many channels of a tap meet the whole image before the next ones do.

    Each tile of pixels reads their weights again, so those should stay in the first cache level.
    """
    options = [depth // count for count in _PARTS if depth % count == 0 and depth > count]
    item = context.block(anchor).writes[0].buffer.dtype.itemsize
    most = context.target.l1_bytes * context.cpu.convolution.tap_weights_share
    near = [n for n in options if n * tile.columns * item <= most]
    return context.choose("channels_together", options, (near or options[-1:])[0])


def _has_constant_weights(context: ScheduleContext, anchor: BlockHandle) -> bool:
    """Whether the channels of the result are told apart by constant weights only: no groups."""
    block = context.block(anchor)
    channel = [item.var for item in block.iters if item.kind is IterKind.SPATIAL][-1:]
    constants = constant_parameters(context.sch.func)
    loads = [item for item in find_all(block.body, BufferLoad) if item.buffer is not block.writes[0].buffer]
    return [item.buffer in constants for item in loads if uses_any(item, channel)] == [True]


def _in_order(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> bool:
    """Whether the result has its elements where the convolution has them."""
    if anchor.name == output.name:
        return True
    block, buffer = context.block(output), context.block(anchor).writes[0].buffer
    own = tuple(item.var for item in block.iters)
    return all(tuple(load.indices) == own for load in find_all(block.body, BufferLoad) if load.buffer is buffer)


TEMPLATE = contraction_template(
    "streaming-taps",
    "one tap at a time for a whole image: its weights come from beyond the second cache level, and are prefetched",
    _matches,
    schedule_taps,
)
