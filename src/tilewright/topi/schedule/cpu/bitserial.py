"""The schedule of bit-serial products: counts of meeting bits in registers, one pair of planes at a time."""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import Call, PrimExpr, const_value
from tilewright.ir.visit import find_all
from tilewright.tir.annotations import Anchor
from tilewright.tir.buffer import Buffer
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.intrinsics.bits import GROUP, popcount_dot
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.anchors import blocks_of_kind
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.prefetch import buffer_bytes
from tilewright.topi.schedule.cpu.staged_products import constant_factor, own_loops, reduction_first
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors
from tilewright.topi.schedule.cpu.unrolling import unroll_steps
from tilewright.topi.schedule.template import Template

_STEP = 3
"""Instructions on a vector of a tile: bits meet, are counted and added."""
_COLUMN_LOAD = 0.25
"""Loading a vector of weights, in instructions: loads have units of their own. A word that is spread counts as one."""
_SPARE_REGISTERS = 3
"""Registers beside sums, columns and a row: what is counted, and a constant."""


def _matches(context: ScheduleContext) -> str | None:
    """Counts of bits with constant weights in whole vectors, and one result."""
    sums = blocks_of_kind(context, Anchor.BITSERIAL)
    if not sums:
        return "no pairs of bit planes"
    if len(context.sch.get_output_blocks()) != 1:
        return "several outputs"
    if constant_factor(context, sums[0]) is None:
        return "no constant weights"
    columns = const_value(context.block(sums[0]).writes[0].buffer.shape[-1])
    if columns is None or columns % context.target.lanes(32):
        return "columns are not whole vectors"
    return "no elements" if prod(context.sizes(context.sch.get_loops(sums[0]))) == 0 else None


def schedule_bitserial(context: ScheduleContext) -> None:
    """Tile the result in rows x vectors; the count of each pair of planes grows in registers.

    Before:  sums[p, i, j] += popcount(x[i, p // B, k] & w[p % B, k, j]);  total[i, j] += sums[p, i, j] << shift(p)
             out[i, j] = epilogue(total[i, j])
    After:   for jo, io:
               total[ii, ji] = 0
               for p: { sums[ii, ji] = 0;  for k: sums[ii, ji] += popcount(x[i, ..] & w[jo, .., k, ji])
                        total += sums << shift(p) }
               out[i, j] = epilogue(total[ii, ji])

    A single pair has no total. Rows of a convolution are the pixels of a line.
    """
    sch = context.sch
    sums = blocks_of_kind(context, Anchor.BITSERIAL)[0]
    total = next(iter(blocks_of_kind(context, Anchor.BITSERIAL_TOTAL)), None)
    for producer in sch.get_producers(sums):
        schedule_injective(context, producer)
    (output,) = sch.get_output_blocks()
    extents = context.sizes(sch.get_loops(output))
    tile = _tile(context, extents)
    # Each element of the result counts the bits of so many pairs of words.
    pairs_of_words = prod(context.sizes(sch.get_loops(sums))) // (prod(extents) * GROUP)
    weights = _pack(context, sums, tile.columns)
    order, unrolled = _order(context, output, weights, tile)
    pairs: list[LoopHandle] = []
    if total is not None:
        sch.compute_at(total, order[-1], preserve_unit_loops=True)
        pairs = reduction_first(context, total)
    sch.compute_at(sums, (pairs or order)[-1], preserve_unit_loops=True)
    steps = reduction_first(context, sums)
    totals = [] if total is None else [total, sch.decompose_reduction(total, pairs[0])]
    step, word = sch.split(steps[-1], [None, GROUP])
    own = own_loops(context, sums)
    sch.reorder(step, *own, word)
    start = sch.decompose_reduction(sums, [*steps[:-1], step][0])
    context.parallelize_tiles(order, prod(extents) * pairs_of_words)
    for handle in (sums, *totals[:1]):
        sch.set_scope(handle, 0, "local")
    for handle in (*totals, start):
        unrolled += _vectorize(context, handle, tile.lanes)
    vectors, lane = sch.split(own[-1], [None, tile.lanes])
    sch.tensorize(lane, popcount_dot(context.target, _mode(context, sums)))
    for loop in (*unrolled, *own[:-1], vectors):
        if not context.is_symbolic(loop):
            sch.unroll(loop)
    unroll_steps(context, step, tile.rows * tile.vectors * _STEP)


def _mode(context: ScheduleContext, sums: BlockHandle) -> str:
    """How the bits of the planes meet."""
    names = {item.name for item in find_all(context.block(sums).body, Call)}
    return "and" if "bitwise_and" in names else "xor"


def _tile(context: ScheduleContext, extents: list[int]) -> RegisterTile:
    """The register tile with the least work in all; columns are whole vectors, the last tile of rows may be smaller."""
    columns, lanes = extents[-1], context.target.lanes(32)
    rows = extents[-2] if len(extents) > 1 else 1
    registers, costs = context.target.vector_registers - _SPARE_REGISTERS, context.cpu.dot_product
    best, least = RegisterTile(1, 1, lanes), float("inf")
    widths = divisors(columns // lanes, costs.most_vectors)
    for vectors in widths:
        for height in range(1, min(rows, registers) + 1):
            if height * vectors + vectors + 1 > registers:
                break
            parts = ((height, rows // height), (rows % height, 1))
            work = sum(count * _step(part, vectors, costs.in_flight) for part, count in parts if part) / vectors
            if work < least - 1e-9:
                best, least = RegisterTile(height, vectors, lanes), work
    return choose_tile(context, best, rows, columns, widths=widths)


def _step(rows: int, vectors: int, in_flight: int) -> float:
    """Instructions of a step of a tile: counting, or what waiting for the sums comes to, and words that are spread."""
    return max(_STEP * rows * vectors, in_flight) + rows + _COLUMN_LOAD * vectors


def _order(
    context: ScheduleContext, output: BlockHandle, weights: Buffer, tile: RegisterTile
) -> tuple[list[LoopHandle], list[LoopHandle]]:
    """The loops over tiles, and those of a tile around its vectors."""
    sch = context.sch
    *outer, column = sch.get_loops(output)
    column_outer, vector, lane = sch.split(column, [None, tile.vectors, tile.lanes])
    inner = [vector]
    if outer:
        row_outer, row_inner = sch.split(outer.pop(), [None, tile.rows])
        outer.append(row_outer)
        inner = [row_inner, vector]
    stay = buffer_bytes(weights) <= context.target.l2_bytes * context.cpu.dot_product.weights_share
    stay = context.choose("weights_stay", (False, True), stay)
    outer.insert(len(outer) if stay else min(1, max(0, len(outer) - 1)), column_outer)
    sch.reorder(*outer, *inner, lane)
    sch.vectorize(lane)
    return outer, inner


def _pack(context: ScheduleContext, sums: BlockHandle, width: int) -> Buffer:
    """The weights in panels, plane by plane, with the bytes of a word side by side.

    Before: `w[kh, kw, b, k, j]`; after: `w[j // width, b, kh, kw, k // 4, j % width * 4 + k % 4]`.
    """
    load = constant_factor(context, sums)
    assert load is not None
    buffer = load.buffer

    def arrange(*i: PrimExpr) -> tuple[PrimExpr, ...]:
        *taps, plane, byte, column = i
        return (column // width, plane, *taps, byte // GROUP, column % width * GROUP + byte % GROUP)

    context.pack(sums, buffer, IndexMap.of(arrange, buffer.ndim))
    return buffer


def _vectorize(context: ScheduleContext, handle: BlockHandle, lanes: int) -> list[LoopHandle]:
    """The innermost loop of a stage in vectors; gives the loops around it."""
    sch = context.sch
    *rest, column = own_loops(context, handle)
    vector, lane = sch.split(column, [None, lanes])
    sch.vectorize(lane)
    return [*rest, vector]


TEMPLATE = Template(
    "bitserial",
    "counts of the bits of two planes that meet, in registers, a pair of planes after the other",
    _matches,
    schedule_bitserial,
)
