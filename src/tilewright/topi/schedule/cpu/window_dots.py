"""The schedule of depthwise convolutions by dot products of four neighbouring pixels."""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import PrimExpr, const_value
from tilewright.tir.annotations import Anchor
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.intrinsics.window_dots import LANES, VECTORS, dots_of_lanes, interleave
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.cpu.anchors import contraction_template, kind_of
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.prefetch import buffer_bytes
from tilewright.topi.schedule.cpu.register_tiles import reduction_size, start_at_bias
from tilewright.topi.schedule.cpu.tiling import divisors

_MOST_LINES = 4
_SUMS_SHARE = 0.75
"""Of the registers: what sums may take of them."""
_HELD_SHARE = 0.75
"""Of the first cache level: weights up to which stay there beside pixels."""
_NEAR_SHARE = 0.5
"""Of the first cache level: what lines of an image with their border may take of it."""
_SMALL_SHARE = 0.25
"""Of the second cache level: images up to which are copied with their border as a whole."""


def _matches(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> str | None:
    if kind_of(context, anchor) is not Anchor.WINDOW_DOTS:
        return "no depthwise convolution by dot products"
    return "no elements" if prod(context.sizes(context.sch.get_loops(output))) == 0 else None


def schedule_window_dots(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> None:
    """Some lines x the windows that share pixels x a vector of channels, in registers.

    Before:  runs[y, xo, g, c, k] = pad[y, xo * w + 4 g + k, c];  sums[y, x, c] += runs[y + kh, x // P, g, c, k] * w[..]
    After:   for yo, xo, co:
               runs[..] = interleave(pad[..]);  sums[..] = dots(sums[..], runs[..], w[..])       (in registers)
               out[..] = epilogue(sums[..])

    `pad` is made before, of large images some lines at a time. Two lines share most of the pixels that they put side by
    side.
    """
    sch = context.sch
    (runs,) = sch.get_producers(anchor)
    if anchor.name == output.name:
        output = sch.cache_write(anchor, 0, "local")
    start_at_bias(context, anchor)
    weights = context.block(anchor).reads[1].buffer
    several = const_value(weights.shape[0])
    assert isinstance(several, int)
    loops = sch.get_loops(output)
    extents = context.sizes(loops)
    work = prod(extents) * reduction_size(context, anchor) // LANES
    lines = context.choose("lines", divisors(extents[1], _MOST_LINES), divisors(extents[1], 2)[-1])
    line_outer, line = sch.split(loops[1], [None, lines])
    window_outer, window = sch.split(loops[2], [None, several])
    width = _channels_at_once(context, extents[3], lines * several)
    _pack_taps(context, anchor, width)
    channel_outer, channel = sch.split(loops[3], [None, width])
    order = [loops[0], window_outer]
    vectors = extents[3] // width
    together = _vectors_together(context, vectors, buffer_bytes(weights))
    if together < vectors:
        some, channel_outer = sch.split(channel_outer, [None, together])
        order.insert(1, some)
    order.append(channel_outer)
    padded = sch.get_producers(runs)
    near = _tiles_near(context, padded, extents, lines, together * width)
    if near:
        place, line_outer = sch.split(line_outer, [None, near])
        order.insert(-2, place)
    order.insert(-2, line_outer)
    sch.reorder(*order, line, window, channel)
    sch.compute_at(anchor, channel_outer)
    sch.compute_at(runs, channel_outer)
    _schedule_sums(context, anchor, channel_outer)
    _schedule_runs(context, runs, channel_outer, width)
    sch.unroll(line)
    sch.unroll(window)
    sch.vectorize(channel)
    if near:
        for producer in padded:
            sch.compute_at(producer, place)
            sch.vectorize(loops_below(context, producer, place)[-1])
        context.parallelize(order[: order.index(place) + 1], work)
        return
    for producer in padded:
        schedule_injective(context, producer)
    context.parallelize_tiles(order, work)


def _channels_at_once(context: ScheduleContext, channels: int, windows: int) -> int:
    """Channels of a tile: half a vector of bytes where the sums of a whole one take too many registers."""
    most = context.target.vector_registers * _SUMS_SHARE
    fitting = [width for width in VECTORS if channels % width == 0 and windows * width // LANES <= most]
    return fitting[0] if fitting else VECTORS[-1]


def _pack_taps(context: ScheduleContext, anchor: BlockHandle, width: int) -> None:
    """Arrange the constant weights of a vector of channels in the order in which they are multiplied.

    Before: `w[window, kh, group, channel, k]`; after: `w[channel // width, kh, group, window, channel % width, k]`.
    Few weights, which the first cache level holds, are near enough as they are.
    """
    weights = context.block(anchor).reads[1].buffer
    if buffer_bytes(weights) <= context.target.l1_bytes * _HELD_SHARE:
        return

    def arrange(*i: PrimExpr) -> tuple[PrimExpr, ...]:
        window, line, group, channel, pixel = i
        return (channel // width, line, group, window, channel % width, pixel)

    context.pack(anchor, weights, IndexMap.of(arrange, weights.ndim))


def _vectors_together(context: ScheduleContext, vectors: int, weights: int) -> int:
    """How many vectors of channels all pixels are worked on with, before the next ones: their weights stay near."""
    near = int(context.target.l1_bytes * context.cpu.depthwise.channels_share)
    fitting = max(1, near * vectors // max(1, weights))
    return context.choose("channels_together", divisors(vectors, vectors), divisors(vectors, fitting)[-1])


def _tiles_near(
    context: ScheduleContext, padded: list[BlockHandle], extents: list[int], lines: int, channels: int
) -> int:
    """Tiles of lines whose part of the image gets its border at a time, and stays in the first cache level meanwhile.

    None of an image that the second level holds beside the results: lines that two parts share get it only once then.
    """
    shape = context.block(padded[0]).writes[0].buffer.static_shape if len(padded) == 1 else None
    if shape is None or prod(shape) <= context.target.l2_bytes * _SMALL_SHARE:
        return 0
    tiles, cores = extents[1] // lines, context.target.cores
    fitting = context.target.l1_bytes * _NEAR_SHARE / (shape[2] * channels) * extents[1] / shape[1] / lines
    # Cores have equal parts of the image.
    equal = [count for count in divisors(tiles, max(1, int(fitting))) if tiles // count % cores == 0]
    return equal[-1] if equal else 0


def _schedule_runs(context: ScheduleContext, runs: BlockHandle, place: LoopHandle, width: int) -> None:
    """The pixels of a tile, side by side."""
    sch = context.sch
    sch.set_scope(runs, 0, "local")
    *outer, channel, _ = loops_below(context, runs, place)
    sch.tensorize(channel, interleave(width))
    for loop in outer:
        sch.unroll(loop)


def _schedule_sums(context: ScheduleContext, anchor: BlockHandle, place: LoopHandle) -> None:
    """The dot products of a tile, one line of its windows after the other."""
    sch = context.sch
    reduce_vars = {item.value for item in context.block(anchor).iters if item.kind is IterKind.REDUCE}
    below = loops_below(context, anchor, place)
    reduction = [loop for loop in below if loop.var in reduce_vars]
    spatial = [loop for loop in below if loop.var not in reduce_vars]
    sch.set_scope(anchor, 0, "local")
    vector, lane = sch.split(spatial[-1], [None, LANES])
    tile = [*spatial[:-1], vector]
    sch.reorder(*reduction[:-1], *tile, lane, reduction[-1])
    start = sch.decompose_reduction(anchor, (*reduction[:-1], *tile)[0])
    *start_rest, start_lane = loops_below(context, start, place)
    sch.vectorize(start_lane)
    sch.tensorize(lane, dots_of_lanes())
    for loop in (*reduction[:-1], *tile, *start_rest):
        sch.unroll(loop)


TEMPLATE = contraction_template(
    "window-dots",
    "neighbouring pixels of a channel side by side in registers, then dot products",
    _matches,
    schedule_window_dots,
)
