"""The schedule of matrix products in half precision: blocks of sums in registers, their total in the nearest memory."""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import const_value
from tilewright.ir.visit import find_all
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.intrinsics.half import half_double, half_multiply_add
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.dot_product import vector_tile
from tilewright.topi.schedule.cpu.questions import choose_tile
from tilewright.topi.schedule.cpu.register_tiles import loops_below
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors
from tilewright.topi.schedule.packing import constant_parameters

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
    _pack(context, sums, tile.columns)
    column_outer, vector, lane = sch.split(loops[-1], [None, tile.vectors, lanes])
    row_block, row_outer, row_inner = sch.split(
        loops[-2], [None, _tiles_in_block(context, pairs, loops[-2], tile), tile.rows]
    )
    order = [*loops[:-2], row_block, column_outer, row_outer]
    sch.reorder(*order, row_inner, vector, lane)
    sch.compute_at(total, row_outer, preserve_unit_loops=True)
    sch.set_scope(total, 0, "local")
    block, *spatial = _reduction_first(context, total, row_outer)
    sch.compute_at(sums, block, preserve_unit_loops=True)
    sch.set_scope(sums, 0, "local")
    sch.compute_at(pairs, row_block)
    _double(context, loops_below(context, pairs, row_block)[-1], lanes)
    depth, *inner = _reduction_first(context, sums, block)
    start = sch.decompose_reduction(total, block)
    for handle in (start, total):
        _vectorize(context, spatial if handle is total else loops_below(context, start, row_outer), lanes)
    start = sch.decompose_reduction(sums, depth)
    _vectorize(context, loops_below(context, start, block), lanes)
    vectors, lane_inner = sch.split(inner[-1], [None, lanes])
    sch.tensorize(lane_inner, half_multiply_add(lanes))
    for loop in (*inner[:-1], vectors, row_inner, vector):
        if context.extent(loop) is not None:
            sch.unroll(loop)
    sch.vectorize(lane)
    context.parallelize(order[: len(order) - 2], prod(extents))


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


def _pack(context: ScheduleContext, sums: BlockHandle, width: int) -> None:
    """Arrange constant weights in panels: `w[k, j]` becomes `w[j // width, k, j % width]`."""
    constants = constant_parameters(context.sch.func)
    for load in find_all(context.block(sums).body, BufferLoad):
        if load.buffer in constants and load.buffer.ndim == 2:
            index_map = IndexMap.of(lambda k, j: (j // width, k, j % width), 2)
            context.sch.transform_layout(sums, load.buffer.name, index_map)
            context.packing[constants[load.buffer]] = index_map
            return


def _reduction_first(context: ScheduleContext, handle: BlockHandle, attach: LoopHandle) -> list[LoopHandle]:
    """The loops of a sum below a loop, with the reduction (its last iterator) outermost."""
    below = loops_below(context, handle, attach)
    context.sch.reorder(below[-1], *below[:-1])
    return [below[-1], *below[:-1]]


def _vectorize(context: ScheduleContext, loops: list[LoopHandle], lanes: int) -> None:
    """The innermost loop in vectors, short outer ones unrolled."""
    sch = context.sch
    *rest, lane = loops
    extent = context.extent(lane)
    if extent is not None and extent > lanes:
        vector, lane = sch.split(lane, [None, lanes])
        rest.append(vector)
    sch.vectorize(lane)
