"""The schedule of products of bytes and bfloat16 on matrix tiles (AMX)."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tilewright.tir.annotations import WOVEN
from tilewright.tir.buffer import Buffer
from tilewright.tir.machine import TILE_SCOPE
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.intrinsics.tiles import COLUMNS, MOST_ROWS, REGISTERS, ROW_BYTES, TileProduct, has_tile_product
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.cpu.anchors import contraction_template
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.narrow_product import Product, find_product, pack_columns
from tilewright.topi.schedule.cpu.prefetch import add_prefetch
from tilewright.topi.schedule.cpu.register_tiles import reduction_size, row_axis
from tilewright.topi.schedule.cpu.tiling import divisors, vector_length

_MOST_UNROLLED = 4


class _Covered(NamedTuple):
    """A product that matrix tiles cover: the position of the loop over its rows, and how tiles cover it."""

    product: Product
    row: int
    extents: list[int]
    tiles: TileProduct


def _matches(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> str | None:
    covered = _cover(context, anchor, output)
    return covered if isinstance(covered, str) else None


def _cover(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> _Covered | str:
    """How tiles of one size cover a contraction, else why they do not."""
    product = find_product(context, anchor)
    if product is None:
        return "no product of narrow operands with constant columns"
    if product.apart:
        return "columns of groups or phases, which tiles do not change between"
    if not has_tile_product(context.target, product.rows.dtype, product.columns.dtype):
        return f"no matrix tiles of {product.rows.dtype} and {product.columns.dtype} on this processor"
    rank = sum(item.kind is IterKind.SPATIAL for item in context.block(output).iters)
    extents = context.extents(context.sch.get_loops(output)[:rank])
    if extents is None or prod(extents) == 0:
        return "sizes are open or zero"
    row = row_axis(context, anchor, extents)
    tiles = None if row is None else _block_of_tiles(context, product, extents[row])
    if row is None or tiles is None:
        return "tiles of one size do not cover it"
    return _Covered(product, row, extents, tiles)


def schedule_amx_product(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> None:
    """Blocks of matrix tiles in tile registers.

    Before:  c[i, j] += int32(a[i, k]) * int32(w[k, j]);  out[i, j] = epilogue(c[i, j])
    After:   for io, jo:
               tiles[ii, ji] = 0;  for ko: tiles[ii, ji] += a[i, 64 ko ..] * w[jo, 64 ko ..]     (tile registers)
               c[ii, ji] = tiles[ii, ji];  out[i, j] = epilogue(c[ii, ji])

    A block is stored while the next one begins, tile by tile, and its epilogue runs while that is multiplied, some rows
    in each step: tiles leave vectors idle.
    """
    sch = context.sch
    covered = _cover(context, anchor, output)
    assert not isinstance(covered, str)
    tiles = covered.tiles
    for producer in sch.get_producers(anchor):
        schedule_injective(context, producer)
    work = prod(covered.extents) * reduction_size(context, anchor) // (tiles.group * 4)
    stay = _weights_stay(context, anchor, covered.product)
    pack_columns(context, anchor, covered.product, COLUMNS, tiles.group)
    store = sch.cache_write(anchor, 0, TILE_SCOPE)
    alone = anchor.name == output.name
    result = store if alone else output
    run, attach = _in_runs(context, _loops_over_blocks(context, result, covered, stay), work)
    if not alone:
        sch.compute_at(store, attach)
        _vectorize_rows(context, result)
    sch.compute_at(anchor, attach)
    panel = reduction_size(context, anchor) * tiles.across * COLUMNS
    reduction, spatial = _reduction_outside(context, anchor, attach, tiles)
    if context.choose("fetch_weights", (False, True), not stay):
        # Tiles are loaded as they are used: nothing else asks for weights from beyond the second cache level in time.
        weights = context.sch.func.params[next(iter(context.packing))]
        assert isinstance(weights, Buffer)
        add_prefetch(context, reduction[-1], {weights.name: panel})
    if run is not None:
        sch.parallel(run)
    multiply = sch.tensorize(spatial[0], tiles.multiply)
    sch.tensorize(loops_below(context, store, attach)[0], tiles.store)
    if context.extent(attach) == 1:
        return
    stages = [0, 1] if alone else [0, 1, 1]
    if _alternate_direction(context, multiply, reduction, tiles):
        stages.insert(0, 0)
    if context.choose("woven", (False, True), True):
        sch.software_pipeline(attach, stages)
        sch.annotate(attach, WOVEN, 1)


def _weights_stay(context: ScheduleContext, anchor: BlockHandle, product: Product) -> bool:
    """Whether all weights stay in the second cache level."""
    weights = reduction_size(context, anchor) * product.width * product.columns.dtype.itemsize
    return weights <= context.target.l2_bytes * context.cpu.amx.weights_share


def _loops_over_blocks(
    context: ScheduleContext, result: BlockHandle, covered: _Covered, stay: bool
) -> list[LoopHandle]:
    """Split the loops of the result by blocks of tiles; gives the loops over blocks, outermost first."""
    sch, tiles = context.sch, covered.tiles
    loops = sch.get_loops(result)
    column_outer, column_inner = sch.split(loops[-1], [None, tiles.across * COLUMNS])
    row_outer, row_inner = sch.split(loops[covered.row], [None, tiles.down * tiles.rows])
    order = [loop for n, loop in enumerate(loops[:-1]) if n != covered.row]
    order.append(row_outer)
    stays = context.choose("weights_stay", (False, True), stay)
    # Weights that stay near may meet one row after the other; each panel of others meets all rows before the next.
    order.insert(len(order) if stays else 0, column_outer)
    sch.reorder(*order, row_inner, column_inner)
    return order


def _reduction_outside(
    context: ScheduleContext, anchor: BlockHandle, attach: LoopHandle, tiles: TileProduct
) -> tuple[list[LoopHandle], list[LoopHandle]]:
    """The steps of the reduction around the tiles of a block; gives the loops of both."""
    sch = context.sch
    reduce_vars = {item.value for item in context.block(anchor).iters if item.kind is IterKind.REDUCE}
    below = loops_below(context, anchor, attach)
    reduction = [loop for loop in below if loop.var in reduce_vars]
    spatial = [loop for loop in below if loop.var not in reduce_vars]
    step, inside = sch.split(reduction[-1], [None, tiles.depth])
    sch.reorder(*reduction[:-1], step, *spatial, inside)
    return [*reduction[:-1], step], spatial


def _alternate_direction(
    context: ScheduleContext, multiply: BlockHandle, reduction: list[LoopHandle], tiles: TileProduct
) -> bool:
    """Let every second block of tiles begin its sums at the end; True if they have a block of their own for zeros now.

    Neighbouring blocks have the rows (or the weights) in common. Where the operands of a block fill the first cache
    level, what is left there of the common ones is the end.
    """
    sch = context.sch
    *others, step = reduction
    if any(context.extent(loop) != 1 for loop in others):
        return False
    lines = tiles.down * tiles.rows + tiles.across * COLUMNS
    sweep = (context.extent(step) or 0) * tiles.depth * tiles.row.itemsize * lines
    if not context.choose("to_and_fro", (False, True), sweep > context.target.l1_bytes * context.cpu.amx.sweep_share):
        return False
    sch.decompose_reduction(multiply, reduction[0])
    sch.zigzag(step)
    return True


def _in_runs(context: ScheduleContext, order: list[LoopHandle], work: int) -> tuple[LoopHandle | None, LoopHandle]:
    """The loop over runs of blocks of tiles, which cores share, if they do; and the loop over the blocks of a run."""
    sch, cores, extents = context.sch, context.target.cores, context.sizes(order)
    if cores < 2 or work < context.cpu.parallel.least_work or prod(extents) < 2:
        return None, sch.fuse(*order)
    # A run has all of some inner loops, or an even part of the innermost one.
    last = len(order) - 1
    places = {prod(extents[:n]): (n, 1) for n in range(last)}
    places |= {prod(extents[:-1]) * parts: (last, parts) for parts in divisors(extents[-1], extents[-1])}
    idle = {runs: max(context.cpu.amx.most_idle, -(-runs // cores) * cores / runs) for runs in places}
    enough = context.cpu.amx.runs_per_core * cores
    number, parts = places[min(idle, key=lambda runs: (idle[runs], runs < enough, runs))]
    if number < last:
        return (sch.fuse(*order[:number]) if number else None), sch.fuse(*order[number:])
    part, rest = sch.split(order[-1], [parts, None])
    return sch.fuse(*order[:-1], part), rest


def _vectorize_rows(context: ScheduleContext, result: BlockHandle) -> None:
    """The epilogue of a block of tiles: each row in vectors."""
    sch = context.sch
    inner = sch.get_loops(result)[-1]
    extent = context.extent(inner)
    assert extent is not None
    length = min(vector_length(extent, context.target.lanes(32)), context.target.lanes(32))
    vector, lane = sch.split(inner, [None, length])
    sch.vectorize(lane)
    if extent <= _MOST_UNROLLED * length:
        sch.unroll(vector)


def _block_of_tiles(context: ScheduleContext, product: Product, rows: int) -> TileProduct | None:
    """How tiles cover a product: all of one size, as many at a time as there are registers for."""
    group = 32 // product.rows.dtype.bits
    most = ROW_BYTES // product.rows.dtype.itemsize
    depth = max((n for n in divisors(product.depth, most) if n % group == 0), default=0)
    height = max(divisors(rows, MOST_ROWS))
    is_shallow = depth * product.rows.dtype.itemsize < context.cpu.amx.least_step_bytes
    if is_shallow or height < context.cpu.amx.least_rows or product.width % COLUMNS:
        return None
    shapes = [
        (down, across)
        for down in divisors(rows // height, 3)
        for across in divisors(product.width // COLUMNS, 3)
        if down * across + down + across <= REGISTERS
    ]
    down, across = max(shapes, key=lambda shape: (shape[0] * shape[1] / (shape[0] + shape[1]), shape))
    return TileProduct(product.rows.dtype, product.columns.dtype, height, depth, down, across)


TEMPLATE = contraction_template(
    "amx-product",
    "blocks of matrix tiles in tile registers, the epilogue of one block software-pipelined with the next",
    _matches,
    schedule_amx_product,
)
