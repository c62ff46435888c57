"""The schedule of attention: a few queries at a time, whose scores stay in the near caches."""

from __future__ import annotations

from math import prod

from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import PARALLEL_WORK, ScheduleContext, loops_below
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.reduction import vectorize_last, vectorize_reduction
from tilewright.topi.schedule.cpu.register_tiles import schedule_tile, unroll_reduction
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import (
    Columns,
    RegisterTile,
    divisors,
    padded_tile,
    padded_widths,
    register_tile,
)

_SCORES_SHARE = 0.5
"""The part of the first cache level for the scores of a block of queries and their powers."""
_MOST_QUERIES = 32


def is_attention(context: ScheduleContext) -> bool:
    """Whether a kernel is an attention."""
    return any(ANCHOR.of(context.block(handle)) is Anchor.ATTENTION for handle in context.sch.blocks())


def schedule_attention(context: ScheduleContext) -> None:
    """Every stage of a block of queries, one after the other.

    for batch, head:
        keys[d, j], values[j, e] = ...                                  (of this head, as the products read them)
        for block of queries:
            for panel of keys, tile of queries:
                acc[i, j] = 0;  for d: acc[i, j] += query[i, d] * keys[d, j]
                scores[i, j] = acc[i, j] * scale + mask[i, j]
            max[i], powers[i, j], total[i] = ...                         (vectors of neighbouring keys)
            for tile of queries, panel of values:
                acc[i, e] = 0;  for j: acc[i, e] += powers[i, j] * values[j, e]
                out[i, e] = acc[i, e] / total[i]
    """
    sch = context.sch
    stage = {handle.name: handle for handle in sch.blocks()}
    output = stage["attention"]
    batch, row, head, column = sch.get_loops(output)
    queries, width = context.sizes([row, column])
    (keys,) = context.sizes(sch.get_loops(stage["attention_powers"])[-1:])
    if prod(context.sizes(sch.get_loops(stage["attention_products"]))) == 0 or queries * width == 0:
        for handle in sch.blocks():
            if not context.block(handle).is_reduction:
                schedule_injective(context, handle)
        return
    lanes = context.lanes(output)
    rows = _queries_in_block(context, queries, keys)
    first, second = (_choose_tile(context, rows, columns) for columns in (keys, width))
    for name, operand, register in (("products", "keys", first), ("mixed", "values", second)):
        stage[f"attention_{operand}"] = _padded(
            context, stage[f"attention_{name}"], stage[f"attention_{operand}"], register
        )
    block, inner = sch.split(row, [None, rows])
    sch.reorder(batch, head, block, inner, column)
    tile, *_ = _tile(context, [inner, column], second)
    sch.compute_at(stage["attention_mixed"], tile)
    mixed = schedule_tile(context, stage["attention_mixed"], tile, second)
    for name in ("factor", "total", "powers", "max", "scores"):
        sch.compute_at(stage[f"attention_{name}"], block, preserve_unit_loops=name == "scores")
    scores = stage["attention_scores"]
    tile, *_ = _tile(context, loops_below(context, scores, block)[-2:], first, panels_outside=True)
    sch.compute_at(stage["attention_products"], tile)
    products = schedule_tile(context, stage["attention_products"], tile, first)
    for name in ("max", "powers", "total", "factor"):
        handle = stage[f"attention_{name}"]
        vectorize = vectorize_reduction if context.block(handle).is_reduction else vectorize_last
        vectorize(context, handle, loops_below(context, handle, block))
    packed = [stage["attention_keys"], stage["attention_values"]]
    heads = context.sizes([batch, head])
    share = prod(heads) % context.target.cores == 0 or prod(heads) >= 4 * context.target.cores
    if share:
        for handle in packed:
            sch.compute_at(handle, head, preserve_unit_loops=True)
        _turn(context, loops_below(context, packed[0], head)[-2:], lanes)
        vectorize_last(context, packed[1], loops_below(context, packed[1], head))
        context.parallelize([batch, head], prod(heads) * PARALLEL_WORK)
    else:
        for handle in packed:
            schedule_injective(context, handle)
        context.parallelize([batch, head, block], prod(heads) * queries * keys * width)
    unroll_reduction(context, mixed, second)
    unroll_reduction(context, products, first)


def _queries_in_block(context: ScheduleContext, queries: int, keys: int) -> int:
    """How many queries go through each stage together."""
    most = max(1, int(context.target.l1_bytes * _SCORES_SHARE) // (2 * 4 * keys))
    default = min(queries, _MOST_QUERIES, max(8, 1 << (most.bit_length() - 1)))
    return context.choose("queries", sorted({min(queries, n) for n in (4, 8, 16, 32, 64)} | {default}), default)


def _padded(context: ScheduleContext, product: BlockHandle, operand: BlockHandle, tile: RegisterTile) -> BlockHandle:
    """The stage that one of the products reads its columns from: whole tiles, with zeros past the last column.

    Guarded sums would not stay in registers.
    """
    sch = context.sch
    columns = context.extent(sch.get_loops(product)[-2])
    if columns is None or columns % tile.columns == 0:
        return operand
    copy, crop = sch.pad_einsum(product, [1, 1, 1, tile.columns, 1])
    sch.compute_inline(operand)
    sch.compute_inline(crop)
    return copy


def _choose_tile(context: ScheduleContext, rows: int, columns: int) -> RegisterTile:
    """The register tile of a product of some queries: of whole vectors, the last of which may be padded."""
    output = context.sch.get_block("attention")
    lanes, registers = context.lanes(output), context.target.vector_registers
    if columns % lanes:
        item = context.block(output).writes[0].buffer.dtype.itemsize
        near = Columns(item, are_near=True, in_panels=False)
        tile = padded_tile(rows, columns, padded_widths(columns, lanes), registers, lambda width: near)
        return choose_tile(context, tile, rows, columns)
    # Others than the analytic one leave nothing over.
    tile = register_tile(rows, columns, lanes, registers)
    heights, widths = divisors(rows, registers), divisors(columns // tile.lanes, registers)
    return choose_tile(context, tile, rows, columns, heights=heights, widths=widths)


def _turn(context: ScheduleContext, loops: list[LoopHandle], lanes: int) -> None:
    """Two loops that write along one axis and read along the other, in squares: what is read is used while near."""
    sch = context.sch
    lengths = [lanes if size is None else min(lanes, size) for size in map(context.extent, loops)]
    pairs = [sch.split(loop, [None, length]) for loop, length in zip(loops, lengths, strict=True)]
    sch.reorder(*(outer for outer, _ in pairs), *(inner for _, inner in pairs))
    sch.vectorize(pairs[-1][1])


def _tile(
    context: ScheduleContext, loops: list[LoopHandle], tile: RegisterTile, *, panels_outside: bool = False
) -> list[LoopHandle]:
    """Two loops in register tiles: gives the inner one of the loops over tiles, and those inside a tile."""
    sch = context.sch
    row, column = loops
    row_outer, row_inner = sch.split(row, [None, tile.rows])
    panel, vector, lane = sch.split(column, [None, tile.vectors, tile.lanes])
    outer = [panel, row_outer] if panels_outside else [row_outer, panel]
    sch.reorder(*outer, row_inner, vector, lane)
    sch.unroll(row_inner)
    sch.unroll(vector)
    sch.vectorize(lane)
    return [outer[-1], row_inner, vector, lane]
