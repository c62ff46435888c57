"""The schedule of depthwise convolutions of planes (channels before rows and columns): vectors of pixels."""

from __future__ import annotations

from math import prod

from tilewright.tir.annotations import LAYOUT, Anchor, Layout
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.cpu.anchors import contraction_template, kind_of
from tilewright.topi.schedule.cpu.reduction import vectorize_last
from tilewright.topi.schedule.cpu.register_tiles import reduction_size, schedule_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors

_MOST_LINES, _MOST_VECTORS = 4, 4
"""Lines of a tile, and vectors across: a tap that is spread over a vector, or an element, then serves several sums."""


def _matches(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> str | None:
    """A depthwise convolution of planes of known sizes."""
    if kind_of(context, anchor) is not Anchor.DEPTHWISE_CONV2D:
        return "no depthwise convolution"
    if LAYOUT.of(context.block(anchor)) is not Layout.NCHW:
        return "channels are last"
    loops = context.sch.get_loops(output)[:4]
    extents = context.extents(loops)
    if len(loops) != 4 or extents is None or prod(extents) == 0:
        return "sizes are open or zero"
    return None


def schedule_planar_depthwise(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> None:
    """Plane by plane: the padded plane, then tiles of a few lines and vectors of pixels, with the epilogue on them.

    parallel (n, c):
        pad[y, x] = image[n, c, y - top, x - left] or 0
        for yo, xo:
            acc[yi, xi] = 0;  for kh, kw: acc[yi, xi] += pad[y + kh, x + kw] * weight[c, kh, kw]   (xi in vectors)
            out[n, c, y, x] = epilogue(acc[yi, xi])
    """
    sch = context.sch
    padded = sch.get_producers(anchor)
    if anchor.name == output.name:
        # The result itself is the convolution: accumulate in a tile of its own and copy it out.
        output = sch.cache_write(anchor, 0, "local")
    loops = sch.get_loops(output)
    extents = context.extents(loops)
    assert extents is not None
    *_, height, width = extents
    lanes = min(width, context.lanes(anchor))
    whole = divisors(width // lanes, _MOST_VECTORS)[-1] if width % lanes == 0 else 1
    vectors = context.choose("vectors", divisors(-(-width // lanes), _MOST_VECTORS), whole)
    lines = context.choose("lines", divisors(height, 2 * _MOST_LINES), divisors(height, _MOST_LINES)[-1])
    plane = sch.fuse(*loops[:2])
    line_outer, line = sch.split(loops[2], [None, lines])
    pixel_outer, vector, lane = sch.split(loops[3], [None, vectors, lanes])
    sch.reorder(plane, line_outer, pixel_outer, line, vector, lane)
    sch.compute_at(anchor, pixel_outer)
    reduction = schedule_tile(context, anchor, pixel_outer, RegisterTile(lines, vectors, lanes))
    taps = reduction_size(context, anchor)
    for loop in (line, vector, *(reduction if taps <= context.cpu.depthwise.most_unrolled_taps else ())):
        sch.unroll(loop)
    sch.vectorize(lane)
    for handle in padded:
        sch.compute_at(handle, plane)
        vectorize_last(context, handle, loops_below(context, handle, plane))
    context.parallelize([plane], prod(extents) * taps)


TEMPLATE = contraction_template(
    "depthwise-planar",
    "planes padded in the first cache level, register tiles of lines x vectors of pixels",
    _matches,
    schedule_planar_depthwise,
)
