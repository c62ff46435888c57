"""The schedule of matrix products whose sums are too long for the caches: a part of every sum at a time."""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import PrimExpr, const_value
from tilewright.ir.visit import find_all
from tilewright.tir.annotations import ANCHOR, PREFETCH, Anchor
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.register_tiles import schedule_tile, unroll_reduction
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors, register_tile
from tilewright.topi.schedule.packing import constant_parameters

_CACHE_SHARE = 0.375
"""The part of the second cache level for the rows and a panel of weights, both of a part of the sum."""
_LEAST_DEPTH = 256
"""Steps of a part: sums are read and written once for each part."""
_LEAST_TILES = 4
"""Tiles of rows that make use of a panel of weights; fewer wait for the weights anyway."""
_ALIAS_BYTES = 4096
"""Rows at a multiple of this from each other fall on the same places of the first cache level,"""
_MOST_ALIASED = 6
"""which has room for so many of them beside the weights."""


def part_of_sum(context: ScheduleContext, anchor: BlockHandle) -> int | None:
    """Into parts of how many steps a product's sums are better divided; None if they are better left whole.

    That is where all rows with their whole depth are too much for the second cache level, but a good part is not.
    """
    block = context.block(anchor)
    shape = block.writes[0].buffer.static_shape
    reduce = [item for item in block.iters if item.kind is IterKind.REDUCE]
    if ANCHOR.of(block) is not Anchor.MATMUL or shape is None or len(reduce) != 1:
        return None
    if _weights(context, anchor) is None:
        return None
    rows, columns, depth = shape[-2], shape[-1], const_value(reduce[0].domain.extent)
    if len(shape) < 2 or prod(shape[:-2]) != 1 or depth is None or 0 in shape:
        return None
    target = context.target
    tile = _tile(context, anchor, rows, columns, depth)
    if rows < _LEAST_TILES * tile.rows:
        return None
    step = (rows + tile.columns) * block.writes[0].buffer.dtype.itemsize
    most = int(target.l2_bytes * _CACHE_SHARE) // step
    if most >= depth:
        return None
    parts = [n for n in divisors(depth, most) if n >= _LEAST_DEPTH]
    # Zero stands for the whole.
    return context.choose("sum_part", [0, *parts], max(parts)) or None if parts else None


def schedule_deep_product(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle, part: int) -> None:
    """Sums in parts of some steps: the part of all rows stays in the second cache level while it meets its weights.

    Before:  c[i, j] += a[i, k] * w[k, j];  out[i, j] = epilogue(c[i, j])
    After:   sum[i, j] = 0
             for part, jo, io:
               acc[ii, ji] = 0;  for k: acc[ii, ji] += a[i, part + k] * w[part, jo, k, ji]      (in registers)
               sum[i, j] += acc[ii, ji]
             out[i, j] = epilogue(sum[i, j])
    """
    sch = context.sch
    for producer in sch.get_producers(anchor):
        schedule_injective(context, producer)
    *outer, i, j, k = sch.get_loops(anchor)
    rows, columns, depth = context.sizes([i, j, k])
    tile = choose_tile(context, _tile(context, anchor, rows, columns, depth), rows, columns)
    _pack(context, anchor, part, tile.columns)
    parts, _ = sch.split(k, [None, part])
    partial = sch.rfactor(parts)
    *outer, i, j, parts = sch.get_loops(anchor)
    panel, vector, lane = sch.split(j, [None, tile.vectors, tile.lanes])
    row_outer, row_inner = sch.split(i, [None, tile.rows])
    sch.reorder(*outer, parts, panel, row_outer, row_inner, vector, lane)
    start = sch.decompose_reduction(anchor, parts)
    sch.compute_at(partial, row_outer, preserve_unit_loops=True)
    reduction = schedule_tile(context, partial, row_outer, tile)
    for loop in (row_inner, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    context.parallelize_tiles([panel, row_outer], rows * columns * depth)
    sch.vectorize(sch.get_loops(start)[-1])
    if output.name != anchor.name:
        schedule_injective(context, output)
    reduction = unroll_reduction(context, reduction, tile)
    names = [param.name for number, param in enumerate(sch.func.params) if number in context.packing]
    sch.annotate(reduction[-1], PREFETCH, dict.fromkeys(names, part * tile.columns))


def _tile(context: ScheduleContext, anchor: BlockHandle, rows: int, columns: int, depth: int) -> RegisterTile:
    """The register tile: of few rows where those would drive each other out of the first cache level."""
    lanes, registers = context.lanes(anchor), context.target.vector_registers
    stride = depth * context.block(anchor).writes[0].buffer.dtype.itemsize
    heights = range(1, min(rows, _MOST_ALIASED) + 1) if stride % _ALIAS_BYTES == 0 else ()
    return register_tile(rows, columns, lanes, registers, heights)


def _weights(context: ScheduleContext, anchor: BlockHandle) -> BufferLoad | None:
    """The constant matrix [k, j] of a product."""
    block = context.block(anchor)
    constants = constant_parameters(context.sch.func)
    *_, column, step = (item.var for item in block.iters)
    for load in find_all(block.body, BufferLoad):
        if load.buffer in constants and tuple(load.indices) == (step, column):
            return load
    return None


def _pack(context: ScheduleContext, anchor: BlockHandle, part: int, width: int) -> None:
    """Arrange weights as they are used: `w[k, j]` becomes `w[k // part, j // width, k % part, j % width]`."""
    weights = _weights(context, anchor)
    assert weights is not None

    def arrange(k: PrimExpr, j: PrimExpr) -> tuple[PrimExpr, ...]:
        return (k // part, j // width, k % part, j % width)

    index_map = IndexMap.of(arrange, 2)
    context.packing[constant_parameters(context.sch.func)[weights.buffer]] = index_map
    context.sch.transform_layout(anchor, weights.buffer.name, index_map)
