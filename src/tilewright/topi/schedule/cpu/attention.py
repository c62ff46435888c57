"""The schedule of attention: a block of queries at a time, whose scores stay in the first cache level."""

from __future__ import annotations

from math import prod

from tilewright.tir.annotations import Anchor
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.cpu.anchors import blocks_of_kind
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
from tilewright.topi.schedule.template import Template, apply_first_legal

_BLOCK_STAGES = ("scores", "max", "powers", "total", "factor")
"""What is computed for a block of queries at a time, in order."""


def _matches(context: ScheduleContext) -> str | None:
    if not blocks_of_kind(context, Anchor.ATTENTION):
        return "no attention"
    stages = {handle.name for handle in context.sch.blocks()}
    if not {"attention_keys", "attention_values"} <= stages:
        # Without elements there are no such stages.
        return "no elements"
    sizes = [context.sizes(context.sch.get_loops(_stage(context, name))) for name in ("products", "mixed")]
    return "no elements" if 0 in map(prod, sizes) else None


def _stage(context: ScheduleContext, name: str) -> BlockHandle:
    return context.sch.get_block(f"attention_{name}")


def schedule_attention(context: ScheduleContext) -> None:
    """Every stage of a block of queries, one after the other.

    for batch, head:
        keys[d, j], values[j, e] = ...                                  (of this head, as the products read them)
        for block of queries:
            for panel of keys, tile of queries:
                acc[i, j] = 0;  for d: acc[i, j] += query[i, d] * keys[d, j]
                scores[i, j] = acc[i, j] * scale + mask[i, j]
            max[i], exp[i, j], total[i] = ...                            (vectors of neighbouring keys)
            for tile of queries, panel of values:
                acc[i, e] = 0;  for j: acc[i, e] += exp[i, j] * values[j, e]
                out[i, e] = acc[i, e] / total[i]
    """
    sch = context.sch
    batch, row, head, column = sch.get_loops(sch.get_block("attention"))
    queries, width = context.sizes([row, column])
    (keys,) = context.sizes(sch.get_loops(_stage(context, "powers"))[-1:])
    rows = _queries_in_block(context, queries, keys)
    score_tile, value_tile = (_choose_tile(context, rows, columns, rows < queries) for columns in (keys, width))
    packed_keys = _padded(context, "products", "keys", score_tile)
    packed_values = _padded(context, "mixed", "values", value_tile)
    block, inner = sch.split(row, [None, rows])
    sch.reorder(batch, head, block, inner, column)
    weighted_values = _schedule_product(context, "mixed", [inner, column], value_tile)
    for name in reversed(_BLOCK_STAGES):
        sch.compute_at(_stage(context, name), block, preserve_unit_loops=name == "scores")
    scores = _stage(context, "scores")
    if len(context.block(scores).reads) == 1:
        # Past the last key products of zeros are there to be scaled, for nobody; a mask has nothing there.
        sch.over_compute(scores, 3, score_tile.columns)
    score_loops = loops_below(context, _stage(context, "scores"), block)[-2:]
    products = _schedule_product(context, "products", score_loops, score_tile, panels_outside=True)
    for name in _BLOCK_STAGES[1:]:
        handle = _stage(context, name)
        vectorize = vectorize_reduction if context.block(handle).is_reduction else vectorize_last
        vectorize(context, handle, loops_below(context, handle, block))
    heads = prod(context.sizes([batch, head]))

    def by_head(trial: ScheduleContext) -> None:
        _pack_by_head(trial, packed_keys, packed_values, head)
        trial.parallelize([batch, head], heads * trial.cpu.parallel.least_work)

    def by_block(trial: ScheduleContext) -> None:
        for handle in (packed_keys, packed_values):
            schedule_injective(trial, handle)
        trial.parallelize([batch, head, block], heads * queries * keys * width)

    fills_cores = heads % context.target.cores == 0 or heads >= 4 * context.target.cores
    # Where heads share padded keys and values, it may not prove that each reads only what it has packed itself.
    apply_first_legal([*([by_head] if fills_cores else []), by_block], context)
    unroll_reduction(context, weighted_values, value_tile)
    unroll_reduction(context, products, score_tile)


def _schedule_product(
    context: ScheduleContext, name: str, loops: list[LoopHandle], tile: RegisterTile, *, panels_outside: bool = False
) -> list[LoopHandle]:
    """A product in register tiles under the loops of the stage that reads it; gives the loops of its reduction."""
    innermost = _tile(context, loops, tile, panels_outside=panels_outside)
    product = _stage(context, name)
    context.sch.compute_at(product, innermost)
    return schedule_tile(context, product, innermost, tile)


def _pack_by_head(context: ScheduleContext, keys: BlockHandle, values: BlockHandle, head: LoopHandle) -> None:
    """Keys and values of a head in the order in which products read them, where the head's turn comes."""
    for handle in (keys, values):
        context.sch.compute_at(handle, head, preserve_unit_loops=True)
    _transpose_in_squares(
        context, loops_below(context, keys, head)[-2:], context.lanes(context.sch.get_block("attention"))
    )
    vectorize_last(context, values, loops_below(context, values, head))


def _queries_in_block(context: ScheduleContext, queries: int, keys: int) -> int:
    """How many queries go through each stage together."""
    most = max(1, int(context.target.l1_bytes * context.cpu.attention.scores_share) // (2 * 4 * keys))
    default = min(queries, context.cpu.attention.most_queries, max(8, 1 << (most.bit_length() - 1)))
    return context.choose("queries", sorted({min(queries, n) for n in (4, 8, 16, 32, 64)} | {default}), default)


def _padded(context: ScheduleContext, product_name: str, operand_name: str, tile: RegisterTile) -> BlockHandle:
    """The stage that one of the products reads its columns from: whole tiles, with zeros past the last column.

    Guarded sums would not stay in registers.
    """
    sch = context.sch
    product, operand = _stage(context, product_name), _stage(context, operand_name)
    columns = context.extent(sch.get_loops(product)[-2])
    if columns is not None and columns % tile.columns == 0:
        return operand
    copy, crop = sch.pad_einsum(product, [1, 1, 1, tile.columns, 1])
    sch.compute_inline(operand)
    sch.compute_inline(crop)
    return copy


def _choose_tile(context: ScheduleContext, rows: int, columns: int, others_follow: bool) -> RegisterTile:
    """The register tile of a product of some queries: of whole vectors, the last of which may be padded.

    Where other queries follow, tiles end where they begin: blocks of queries are computed at the same time.
    """
    output = context.sch.get_block("attention")
    lanes, registers = context.lanes(output), context.target.vector_registers
    if columns % lanes:
        item = context.block(output).writes[0].buffer.dtype.itemsize
        near = Columns(item, are_near=True, in_panels=False)
        heights = divisors(rows, registers) if others_follow else []
        widths = padded_widths(columns, lanes)
        tile = padded_tile(rows, columns, widths, registers, lambda width: near, context.cpu, heights)
        return choose_tile(context, tile, rows, columns, heights=heights)
    # Others than the analytic one leave nothing over.
    tile = register_tile(rows, columns, lanes, registers, context.cpu)
    heights, widths = divisors(rows, registers), divisors(columns // tile.lanes, registers)
    return choose_tile(context, tile, rows, columns, heights=heights, widths=widths)


def _transpose_in_squares(context: ScheduleContext, loops: list[LoopHandle], lanes: int) -> None:
    """Two loops that write along one axis and read along the other, in squares: what is read is used while near."""
    sch = context.sch
    lengths = [lanes if size is None else min(lanes, size) for size in map(context.extent, loops)]
    pairs = [sch.split(loop, [None, length]) for loop, length in zip(loops, lengths, strict=True)]
    sch.reorder(*(outer for outer, _ in pairs), *(inner for _, inner in pairs))
    sch.vectorize(pairs[-1][1])


def _tile(context: ScheduleContext, loops: list[LoopHandle], tile: RegisterTile, *, panels_outside: bool) -> LoopHandle:
    """Two loops in register tiles: gives the inner one of the loops over tiles."""
    sch = context.sch
    row, column = loops
    row_outer, row_inner = sch.split(row, [None, tile.rows])
    panel, vector, lane = sch.split(column, [None, tile.vectors, tile.lanes])
    outer = [panel, row_outer] if panels_outside else [row_outer, panel]
    sch.reorder(*outer, row_inner, vector, lane)
    sch.unroll(row_inner)
    sch.unroll(vector)
    sch.vectorize(lane)
    return outer[-1]


TEMPLATE = Template(
    "attention",
    "a block of queries goes through all stages while its scores stay in the first cache level",
    _matches,
    schedule_attention,
)
