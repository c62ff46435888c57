"""The schedule of matrix products whose sums are too long for the caches: a part of every sum at a time."""

from __future__ import annotations

from functools import partial
from math import prod

from tilewright.ir.expr import PrimExpr, const_value
from tilewright.ir.visit import find_all
from tilewright.tir.annotations import PREFETCH, Anchor
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.anchors import contraction_template, kind_of
from tilewright.topi.schedule.cpu.contraction import schedule_contraction
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.register_tiles import schedule_tile, unroll_reduction
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors, register_tile
from tilewright.topi.schedule.packing import constant_parameters


def _matches(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> str | None:
    parts = _parts_of_sums(context, anchor)
    return parts if isinstance(parts, str) else None


def _parts_of_sums(context: ScheduleContext, anchor: BlockHandle) -> list[int] | str:
    """Into parts of how many steps a product's sums may be divided; else why they are better left whole.

    Parts pay where all rows with their whole depth are too much for the second cache level, but a good part is not.
    """
    block = context.block(anchor)
    shape = block.writes[0].buffer.static_shape
    reduce = [item for item in block.iters if item.kind is IterKind.REDUCE]
    if kind_of(context, anchor) is not Anchor.MATMUL or len(reduce) != 1:
        return "no matrix product"
    if _weights(context, anchor) is None:
        return "no constant weights [k, j]"
    depth = const_value(reduce[0].domain.extent)
    if shape is None or depth is None or 0 in shape:
        return "sizes are open or zero"
    if len(shape) < 2 or prod(shape[:-2]) != 1:
        return "a batch of products"
    rows, columns = shape[-2:]
    tile = _tile(context, anchor, rows, columns, depth)
    limits = context.cpu.split_k
    if rows < limits.least_row_tiles * tile.rows:
        return "few rows"
    step = (rows + tile.columns) * block.writes[0].buffer.dtype.itemsize
    most = int(context.target.l2_bytes * limits.operands_share) // step
    if most >= depth:
        return "all rows stay in the second cache level"
    return [n for n in divisors(depth, most) if n >= limits.least_depth] or "no divisor of the depth is a good part"


def schedule_split_k_product(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> None:
    """Sums in parts of some steps, or whole, where a tuner has found that better."""
    parts = _parts_of_sums(context, anchor)
    assert not isinstance(parts, str)
    # Zero stands for the whole.
    part = context.choose("sum_part", [0, *parts], max(parts))
    schedule = partial(_schedule_parts, part=part) if part else schedule_contraction
    schedule(context, anchor, output)


def _schedule_parts(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle, part: int) -> None:
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
    partial_sums = sch.rfactor(parts)
    *outer, i, j, parts = sch.get_loops(anchor)
    panel, vector, lane = sch.split(j, [None, tile.vectors, tile.lanes])
    row_outer, row_inner = sch.split(i, [None, tile.rows])
    sch.reorder(*outer, parts, panel, row_outer, row_inner, vector, lane)
    start = sch.decompose_reduction(anchor, parts)
    sch.compute_at(partial_sums, row_outer, preserve_unit_loops=True)
    reduction = schedule_tile(context, partial_sums, row_outer, tile)
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
    limits = context.cpu.split_k
    heights = range(1, min(rows, limits.most_aliased_rows) + 1) if stride % limits.alias_bytes == 0 else ()
    return register_tile(rows, columns, lanes, registers, context.cpu, heights)


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

    context.pack(anchor, weights.buffer, IndexMap.of(arrange, 2))


TEMPLATE = contraction_template(
    "split-k-product",
    "a part of every sum at a time: that part of all rows stays in the second cache level",
    _matches,
    schedule_split_k_product,
)
