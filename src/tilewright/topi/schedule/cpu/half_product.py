"""The schedule of products and convolutions in half precision: blocks of sums in registers, totals in near memory."""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import PrimExpr, const_value
from tilewright.tir.annotations import PREFETCH, ROLLED, Anchor
from tilewright.tir.buffer import Buffer
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.intrinsics.half import half_multiply_add
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.anchors import blocks_of_kind
from tilewright.topi.schedule.cpu.dot_product import vector_tile
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.prefetch import buffer_bytes
from tilewright.topi.schedule.cpu.staged_products import constant_factor, own_loops, reduction_first
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors
from tilewright.topi.schedule.cpu.unrolling import unroll_steps
from tilewright.topi.schedule.template import Template

_PRODUCT_RANK = 2
"""Dimensions of the weights of a matrix product."""


def _matches(context: ScheduleContext) -> str | None:
    """A product in half precision, of constant weights in whole vectors, with one result."""
    sums = blocks_of_kind(context, Anchor.HALF)
    if not sums:
        return "no partial sums in half precision"
    if len(context.sch.get_output_blocks()) != 1:
        return "several outputs"
    if constant_factor(context, sums[0]) is None:
        return "no constant weights"
    columns = const_value(context.block(sums[0]).writes[0].buffer.shape[-2])
    if columns is None or columns % _columns(context):
        return "columns are not whole vectors"
    return None


def _columns(context: ScheduleContext) -> int:
    """Columns in a vector: two steps of each."""
    return context.target.lanes(16) // 2


def schedule_half_product(context: ScheduleContext) -> None:
    """Tile the result in rows x vectors; a block of sums stays in registers while it grows in half precision.

    Before:  sums[b, i, j, h] += x[i, 2 k + h] * w[2 k + h, j];  total[i, j, h] += float32(sums[b, i, j, h])
             out[i, j] = half(total[i, j, 0] + total[i, j, 1])
    After:   for jo, io:
               total[ii, ji, h] = 0
               for b: { sums[ii, ji, h] = 0;  for k: sums[ii, ji, h] += x[i, 2 k + h] * w[jo, k, ji, h]
                        total += float32(sums) }
               out[i, j] = epilogue(total[ii, ji, 0] + total[ii, ji, 1])

    Rows of a convolution are the pixels of a line.
    """
    sch = context.sch
    sums = blocks_of_kind(context, Anchor.HALF)[0]
    total = next(iter(blocks_of_kind(context, Anchor.HALF_TOTAL)), None)
    for producer in sch.get_producers(sums):
        schedule_injective(context, producer)
    (output,) = sch.get_output_blocks()
    *_, rows, columns = context.sizes(sch.get_loops(output))
    tile = vector_tile(rows, columns, _columns(context), context)
    widths = divisors(columns // tile.lanes, tile.vectors)
    tile = choose_tile(context, tile, rows, columns, widths=widths)
    weights = _pack(context, sums, tile.columns)
    stay = buffer_bytes(weights) <= context.target.l2_bytes * context.cpu.half.weights_share
    stay = context.choose("weights_stay", (False, True), stay)
    order, unrolled = _order(context, output, weights, tile, stay)
    blocks: list[LoopHandle] = []
    if total is not None:
        sch.compute_at(total, order[-1], preserve_unit_loops=True)
        blocks = reduction_first(context, total)
    sch.compute_at(sums, (blocks or order)[-1], preserve_unit_loops=True)
    steps = reduction_first(context, sums)
    totals = [] if total is None else [total, sch.decompose_reduction(total, blocks[0])]
    start = sch.decompose_reduction(sums, steps[0])
    size = prod(context.sizes(order)) * tile.rows * tile.columns
    context.parallelize_tiles(order, size * prod(weights.static_shape or (1,)) // columns)
    _prefetch_results(context, output, sch.get_loops(start)[-len(own_loops(context, start)) - len(blocks) - 1], tile)
    for handle in (sums, *totals[:1]):
        sch.set_scope(handle, 0, "local")
        _join_halves(context, handle)
    for loop in (loop for handle in totals for loop in _vectorize(context, handle, 2 * tile.lanes)):
        # Converted from memory, vectors of halves cost one operation less each than from registers.
        sch.annotate(loop, ROLLED, 1)
    unrolled += _vectorize(context, start, 2 * tile.lanes)
    *inner, column, _ = own_loops(context, sums)
    vectors, lane = sch.split(column, [None, tile.lanes])
    sch.tensorize(lane, half_multiply_add(2 * tile.lanes))
    for loop in (*unrolled, *inner, vectors):
        if not context.is_symbolic(loop):
            sch.unroll(loop)
    step = unroll_steps(context, steps[-1], tile.rows * tile.vectors)
    if not stay and context.choose("fetch_weights", (False, True), True):
        panel = prod(weights.static_shape or (0,)) // columns * tile.columns
        sch.annotate(step, PREFETCH, {weights.name: panel})


def _order(
    context: ScheduleContext, output: BlockHandle, weights: Buffer, tile: RegisterTile, stay: bool
) -> tuple[list[LoopHandle], list[LoopHandle]]:
    """The loops over tiles, and those of a tile around its vectors.

    A panel of weights meets all rows of a block, or all lines of an image, before the next panel's turn; or a tile of
    rows all panels, where those stay in the near caches.
    """
    sch = context.sch
    *order, row, column = sch.get_loops(output)
    column_outer, vector, lane = sch.split(column, [None, tile.vectors, tile.lanes])
    place = 1
    if weights.ndim == _PRODUCT_RANK and not stay:
        row_block, row = sch.split(row, [None, _rows_in_block(context, row, weights, tile)])
        order.append(row_block)
        place = len(order)
    row_outer, row_inner = sch.split(row, [None, tile.rows])
    order.append(row_outer)
    order.insert(len(order) if stay else place, column_outer)
    sch.reorder(*order, row_inner, vector, lane)
    sch.vectorize(lane)
    return order, [row_inner, vector]


def _prefetch_results(context: ScheduleContext, output: BlockHandle, tiles: LoopHandle, tile: RegisterTile) -> None:
    """Fetch the places of a tile's results before its sums are computed, where results leave the near caches."""
    result = context.block(output).writes[0].buffer
    width = const_value(result.shape[-1])
    are_far = buffer_bytes(result) > context.target.l2_bytes * context.cpu.prefetch.results_share
    if context.choose("fetch_results", (False, True), are_far):
        context.sch.annotate(tiles, PREFETCH, {result.name: [tile.columns, 0, tile.rows, width]})


def _rows_in_block(context: ScheduleContext, rows: LoopHandle, weights: Buffer, tile: RegisterTile) -> int:
    """How many rows meet a panel of weights in turn: about equal blocks that stay in the second cache level."""
    depth = (weights.static_shape or (1,))[0] * weights.dtype.itemsize
    most = max(1, int(context.target.l2_bytes * context.cpu.half.rows_share) // (depth * tile.rows))
    tiles = -(-context.sizes([rows])[0] // tile.rows)
    return -(-tiles // -(-tiles // most)) * tile.rows


def _pack(context: ScheduleContext, sums: BlockHandle, width: int) -> Buffer:
    """The weights in panels, two steps side by side.

    Before: `w[..., k, j]`; after: `w[j // width, ..., k // 2, j % width * 2 + k % 2]`.
    """
    load = constant_factor(context, sums)
    assert load is not None
    buffer = load.buffer

    def arrange(*i: PrimExpr) -> tuple[PrimExpr, ...]:
        *rest, step, column = i
        return (column // width, *rest, step // 2, column % width * 2 + step % 2)

    context.pack(sums, buffer, IndexMap.of(arrange, buffer.ndim))
    return buffer


def _join_halves(context: ScheduleContext, handle: BlockHandle) -> None:
    """Keep the two halves of each sum side by side in one dimension: `c[..., j, h]` becomes `c[..., j * 2 + h]`."""
    buffer = context.block(handle).writes[0].buffer
    index_map = IndexMap.of(lambda *i: (*i[:-2], i[-2] * 2 + i[-1]), buffer.ndim)
    context.sch.transform_layout(handle, buffer.name, index_map)


def _vectorize(context: ScheduleContext, handle: BlockHandle, lanes: int) -> list[LoopHandle]:
    """The two innermost loops of a stage, columns and halves, in vectors; gives the loops of rows around them."""
    sch = context.sch
    *rest, column, half = own_loops(context, handle)
    vector, lane = sch.split(sch.fuse(column, half), [None, lanes])
    sch.vectorize(lane)
    sch.unroll(vector)
    return rest


TEMPLATE = Template(
    "half-product",
    "blocks of sums in half-precision registers, totals in single precision in the first cache level",
    _matches,
    schedule_half_product,
)
