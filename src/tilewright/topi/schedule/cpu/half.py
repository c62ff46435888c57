"""The schedule of products and convolutions in half precision: blocks of sums in registers, totals in near memory."""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import const_value
from tilewright.ir.visit import find_all
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import PREFETCH, IterKind
from tilewright.topi.intrinsics.half import half_double, half_multiply_add
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.cpu.dot_product import vector_tile
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.prefetch import buffer_bytes
from tilewright.topi.schedule.cpu.questions import choose_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors
from tilewright.topi.schedule.packing import constant_parameters

_PRODUCT_RANK = 2
"""Dimensions of the weights of a matrix product."""
_WEIGHTS_SHARE = 0.25
"""The part of the second cache level that weights may take to count as staying there."""
_PAIRS_SHARE = 0.5
"""The part of the second cache level that the doubled values of a block of rows may take."""


def is_half_product(context: ScheduleContext) -> bool:
    """Whether a program is a product in half precision with one result."""
    found = [context.block(handle).annotations.get("anchor") for handle in context.sch.blocks()]
    return "half" in found and "half_total" in found and len(context.sch.get_output_blocks()) == 1


def schedule_half_product(context: ScheduleContext) -> None:
    """Tile the result in rows x vectors; a block of sums stays in registers while it grows in half precision.

    Before:  pairs[i, k, h] = x[i, k]
             sums[b, i, j] += pairs[i, k, j % 2] * w[k, j];  total[i, j] += float32(sums[b, i, j])
             out[i, j] = half(total[i, j])
    After:   for blocks of rows: { pairs = ...; for jo, io:
               total[ii, ji] = 0
               for b: { sums[ii, ji] = 0; for k: sums[ii, ji] += pairs[i, k] * w[jo, k, ji];  total += float32(sums) }
               out[i, j] = epilogue(total[ii, ji]) }

    Rows of a convolution are the pixels of a line; its image is doubled as a whole, before everything else.
    """
    sch = context.sch
    names = {context.block(handle).annotations.get("anchor"): handle for handle in sch.blocks()}
    sums, total = names["half"], names["half_total"]
    pairs = next(handle for handle in sch.get_producers(sums) if handle.name.startswith("half_pairs"))
    (output,) = sch.get_output_blocks()
    loops = sch.get_loops(output)
    extents = context.sizes(loops)
    lanes = context.target.lanes(16)
    tile = vector_tile(extents[-2], extents[-1], lanes, context.target.vector_registers - 2)
    widths = divisors(extents[-1] // lanes, tile.vectors)
    tile = choose_tile(
        context, tile, extents[-2], extents[-1], widths=widths, registers=context.target.vector_registers - 2
    )
    weights = _pack(context, sums, tile.columns)
    is_product = weights.ndim == _PRODUCT_RANK
    column_outer, vector, lane = sch.split(loops[-1], [None, tile.vectors, lanes])
    if is_product:
        row_block, row_outer, row_inner = sch.split(
            loops[-2], [None, _tiles_in_block(context, pairs, loops[-2], tile), tile.rows]
        )
        order = [*loops[:-2], row_block, column_outer, row_outer]
        shared = order[:-2]
    else:
        row_outer, row_inner = sch.split(loops[-2], [None, tile.rows])
        order = [*loops[:-2], row_outer]
        stay = buffer_bytes(weights) <= context.target.l2_bytes * _WEIGHTS_SHARE
        stay = context.choose("weights_stay", (False, True), stay)
        order.insert(len(order) if stay else 1, column_outer)
        shared = order
    sch.reorder(*order, row_inner, vector, lane)
    sch.compute_at(total, order[-1], preserve_unit_loops=True)
    sch.set_scope(total, 0, "local")
    blocks, spatial = _reduction_first(context, total, order[-1])
    sch.compute_at(sums, blocks[-1], preserve_unit_loops=True)
    sch.set_scope(sums, 0, "local")
    if is_product:
        sch.compute_at(pairs, row_block)
        _double(context, loops_below(context, pairs, row_block)[-1], lanes)
    else:
        _double_image(context, pairs, lanes)
    depth, inner = _reduction_first(context, sums, blocks[-1])
    start = sch.decompose_reduction(total, blocks[0])
    for handle in (start, total):
        _vectorize(context, spatial if handle is total else loops_below(context, start, order[-1]), lanes)
    start = sch.decompose_reduction(sums, depth[0])
    _vectorize(context, loops_below(context, start, blocks[-1]), lanes)
    vectors, lane_inner = sch.split(inner[-1], [None, lanes])
    sch.tensorize(lane_inner, half_multiply_add(lanes))
    for loop in (*inner[:-1], vectors, row_inner, vector):
        if context.extent(loop) is not None:
            sch.unroll(loop)
    sch.vectorize(lane)
    if not is_product and not stay and context.choose("fetch_weights", (False, True), True):
        panel = prod(weights.static_shape or (0,)) // extents[-1] * tile.columns
        sch.annotate(depth[-1], PREFETCH, {weights.name: panel})
    if is_product:
        context.parallelize(shared, prod(extents))
    else:
        context.parallelize_tiles(shared, prod(extents) * prod(weights.static_shape or (1,)) // extents[-1])


def _double_image(context: ScheduleContext, pairs: BlockHandle, lanes: int) -> None:
    """Write each value of an image twice, line by line; what it reads may be padded first."""
    sch = context.sch
    for producer in sch.get_producers(pairs):
        schedule_injective(context, producer)
    *outer, channel = sch.get_loops(pairs)
    extents = context.sizes(outer)
    work = prod(extents) * context.sizes([channel])[0]
    _double(context, channel, lanes)
    context.parallelize(outer[:2], work)


def _tiles_in_block(context: ScheduleContext, pairs: BlockHandle, rows: LoopHandle, tile: RegisterTile) -> int:
    """How many tiles of rows are doubled at a time: about equal blocks that stay in the second cache level."""
    extent = context.sizes([rows])[0]
    depth = const_value(context.block(pairs).iters[-1].domain.extent)
    assert depth is not None
    most = max(1, int(context.target.l2_bytes * _PAIRS_SHARE) // (depth * 2 * tile.rows))
    tiles = -(-extent // tile.rows)
    if context.target.cores > 1:
        # Blocks of rows are what cores share.
        most = min(most, max(1, tiles // (2 * context.target.cores)))
    return -(-tiles // -(-tiles // most))


def _double(context: ScheduleContext, loop: LoopHandle, lanes: int) -> None:
    """The loop that writes each value twice, a register at a time."""
    extent = context.extent(loop)
    if extent is not None and extent % lanes == 0:
        _, lane = context.sch.split(loop, [None, lanes])
        context.sch.tensorize(lane, half_double(lanes))


def _pack(context: ScheduleContext, sums: BlockHandle, width: int) -> Buffer:
    """The weights; constant ones in panels: `w[..., k, j]` becomes `w[j // width, ..., k, j % width]`."""
    constants = constant_parameters(context.sch.func)
    block = context.block(sums)
    column = [item.var for item in block.iters if item.kind is IterKind.SPATIAL][-1]
    (load,) = [
        item
        for item in find_all(block.body, BufferLoad)
        if item.indices[-1] is column and item.buffer is not block.writes[0].buffer
    ]
    if load.buffer in constants:
        index_map = IndexMap.of(lambda *i: (i[-1] // width, *i[:-1], i[-1] % width), load.buffer.ndim)
        context.sch.transform_layout(sums, load.buffer.name, index_map)
        context.packing[constants[load.buffer]] = index_map
    return load.buffer


def _reduction_first(
    context: ScheduleContext, handle: BlockHandle, attach: LoopHandle
) -> tuple[list[LoopHandle], list[LoopHandle]]:
    """The loops of a sum below a loop: those of the reduction, which come first now, and the others."""
    below = loops_below(context, handle, attach)
    count = sum(item.kind is IterKind.REDUCE for item in context.block(handle).iters)
    context.sch.reorder(*below[-count:], *below[:-count])
    return below[-count:], below[:-count]


def _vectorize(context: ScheduleContext, loops: list[LoopHandle], lanes: int) -> None:
    """The innermost loop in vectors, short outer ones unrolled."""
    sch = context.sch
    *rest, lane = loops
    extent = context.extent(lane)
    if extent is not None and extent > lanes:
        vector, lane = sch.split(lane, [None, lanes])
        rest.append(vector)
    sch.vectorize(lane)
