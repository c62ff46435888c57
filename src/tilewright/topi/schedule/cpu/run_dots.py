"""The schedule of products of bytes by dot products of whole runs: what a window holds, side by side."""

from __future__ import annotations

from math import prod

from tilewright.ir.dtype import INT8
from tilewright.ir.expr import PrimExpr, Var
from tilewright.tir.annotations import WHOLE
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.intrinsics.run_dots import run_dots
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.cpu.anchors import contraction_template
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.narrow_product import Product, find_product
from tilewright.topi.schedule.cpu.register_tiles import start_at_bias
from tilewright.topi.schedule.cpu.tiling import divisors

_MOST_SUMS = 5
"""Sums of a tile: as many as there are registers for, beside operands and addresses."""
_VECTOR_SUMS = 4
"""Sums of vectors of bytes: registers for them are fewer, and a vector of results is whole."""
_LOOP = 4
"""Instructions that count the steps of a run and move its addresses."""


def _matches(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> str | None:
    if not context.target.has_run_dots and not _is_worth_memory(context, anchor):
        return "no dot products of runs on this processor"
    product = find_product(context, anchor)
    if product is None:
        return "no product of narrow operands with constant columns"
    if product.rows.dtype is not INT8 or product.columns.dtype is not INT8:
        return f"no dot products of runs of {product.rows.dtype} and {product.columns.dtype}"
    if product.apart or len(product.columns.indices) != len(set(product.columns.indices)):
        return "groups of channels"
    if any(not isinstance(index, Var) for index in product.columns.indices):
        return "columns are not indexed by the reduction"
    return "no elements" if prod(context.sizes(context.sch.get_loops(output))) == 0 else None


def _is_worth_memory(context: ScheduleContext, anchor: BlockHandle) -> bool:
    """Whether windows spare a copy of the image, where memory is short: worth it without instructions for runs, too."""
    is_window = any(extent != 1 for extent in _extents(context, anchor)[:-1])
    return context.target.capabilities.little_memory and is_window and bool(context.sch.get_producers(anchor))


def schedule_run_dots(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> None:
    """The window of each pixel as one run, then its dot products with the weights of some channels at a time.

    Before:  pad[y, x, i] = ...;  c[y, x, o] += pad[y * s + kh, x * s + kw, i] * w[kh, kw, i, o];  out = epilogue(c)
    After:   for y, x:
               window[kh, kw, i] = ...                                     (what lies outside the image is filled in)
               for oo:  sums[4] = dots(window, w[4 oo .., kh, kw, i]);  out[y, x, 4 oo ..] = epilogue(sums)

    No copy of the image is made, and windows need no more memory than the weights of one channel.
    """
    sch = context.sch
    product = find_product(context, anchor)
    assert product is not None
    if anchor.name == output.name:
        output = sch.cache_write(anchor, 0, "local")
    start_at_bias(context, anchor)
    window = _window(context, anchor, product)
    for producer in sch.get_producers(anchor if window is None else window):
        if window is None:
            schedule_injective(context, producer)
        else:
            sch.compute_inline(producer)
    _pack(context, anchor, product)
    loops = sch.get_loops(output)
    rows, columns = _tile(context, context.sizes(loops)[-2] if len(loops) > 1 else 1, product.width)
    outer, lane = sch.split(loops[-1], [None, columns])
    inner: list[LoopHandle] = []
    place = outer
    if len(loops) > 1:
        place, row = sch.split(loops[-2], [None, rows])
        sch.reorder(*loops[:-2], place, outer, row, lane)
        inner.append(row)
    sch.compute_at(anchor, outer, preserve_unit_loops=True)
    if window is not None:
        sch.compute_at(window, place)
        sch.set_scope(window, 0, "local")
        _schedule_window(context, window, place)
        for loop in [*loops[:-2], place]:
            sch.annotate(loop, WHOLE, True)
    _schedule_sums(context, anchor, outer, (rows, columns))
    for loop in inner:
        sch.unroll(loop)
    sch.vectorize(lane)


def _tile(context: ScheduleContext, pixels: int, channels: int) -> tuple[int, int]:
    """Pixels and channels of a tile: a vector of channels, or the tile that takes the fewest instructions a product."""
    heights = divisors(pixels, _MOST_SUMS)
    best = 1 if context.target.lanes(32) > 1 else min(_word_tiles(pixels, channels))[1]
    rows = context.choose("rows", heights, best)
    widths = divisors(channels, max(1, _VECTOR_SUMS if context.target.lanes(32) > 1 else _MOST_SUMS // rows))
    return rows, context.choose("columns", widths, widths[-1])


def _word_tiles(pixels: int, channels: int) -> list[tuple[float, int, int]]:
    """Tiles by the instructions that a product takes: three load a word of bytes and take it apart, two multiply."""
    tiles = []
    for rows in divisors(pixels, _MOST_SUMS):
        columns = divisors(channels, _MOST_SUMS // rows)[-1]
        words, products = rows + columns, rows * columns
        tiles.append(((3 * words + 2 * products + _LOOP) / (4 * products), rows, columns))
    return tiles


def _window(context: ScheduleContext, anchor: BlockHandle, product: Product) -> BlockHandle | None:
    """The block that puts what a window holds side by side; None where that is one run as it is."""
    if all(extent == 1 for extent in _extents(context, anchor)[:-1]):
        return None
    return context.sch.reindex(anchor, product.rows.buffer.name, "read")


def _extents(context: ScheduleContext, anchor: BlockHandle) -> list[int]:
    """The extents of the reduction."""
    block = context.block(anchor)
    return [int(getattr(item.domain.extent, "value", 0)) for item in block.iters if item.kind is IterKind.REDUCE]


def _pack(context: ScheduleContext, anchor: BlockHandle, product: Product) -> None:
    """The weights of a channel as one run: `w[kh, kw, ic, oc]` becomes `w[oc, kh, kw, ic]`."""
    block = context.block(anchor)
    steps = [item.var for item in block.iters if item.kind is IterKind.REDUCE]
    places = [product.columns.indices.index(step) for step in steps]

    def arrange(*i: PrimExpr) -> tuple[PrimExpr, ...]:
        return (i[product.column_axis], *(i[place] for place in places))

    context.pack(anchor, product.columns.buffer, IndexMap.of(arrange, product.columns.buffer.ndim))


def _schedule_window(context: ScheduleContext, window: BlockHandle, pixel: LoopHandle) -> None:
    """What a window holds, a vector of channels at a time."""
    *_, last = loops_below(context, window, pixel)
    context.sch.vectorize(last)


def _schedule_sums(context: ScheduleContext, anchor: BlockHandle, outer: LoopHandle, tile: tuple[int, int]) -> None:
    """The dot products of a tile."""
    sch = context.sch
    reduce_vars = {item.value for item in context.block(anchor).iters if item.kind is IterKind.REDUCE}
    below = loops_below(context, anchor, outer)
    run = [loop for loop in below if loop.var in reduce_vars]
    *rows, column = [loop for loop in below if loop.var not in reduce_vars]
    first = rows[-1] if rows else column
    sch.set_scope(anchor, 0, "local")
    start = sch.decompose_reduction(anchor, first)
    *others, lane = loops_below(context, start, outer)
    sch.vectorize(lane)
    for loop in others:
        sch.unroll(loop)
    sch.tensorize(first, run_dots(*tile, tuple(context.sizes(run))))


TEMPLATE = contraction_template(
    "run-dots", "windows as runs of bytes, then dot products of whole runs (smlad, MVE)", _matches, schedule_run_dots
)
