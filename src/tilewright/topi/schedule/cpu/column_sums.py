"""The schedule of sums over rows: one sum a column, where neighbouring columns lie side by side in memory.

Gradients of biases, scales and statistics are such sums. A column at a time would read a vector of each row, and rows
lie far apart: what is read next is what lies next only if all columns of a few rows come before the rows that follow.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.visit import pre_order, uses_any
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.tiling import divisors

_ROWS = 8
"""Rows that are added up in registers before the sums are stored,"""
_ROWS_OF_SEVERAL = 2
"""where several arrays are read: a processor reads few places in memory ahead."""
_LEAST_STEPS = 4
"""Times so many rows that are worth it."""
_LEAST_SHARED = 1024
"""Rows a thread that are worth sums of its own."""
_SHARE_OF_CACHE = 4
"""The sums of a block of columns take at most one part of so many of the first cache level."""


def fits(
    context: ScheduleContext, sums: BlockHandle, reduced: list[LoopHandle], column: LoopHandle, length: int
) -> bool:
    """Whether columns are enough for the order to matter, or rows for all threads, and what is stored is shared."""
    if any(context.is_symbolic(loop) for loop in (*reduced, column)):
        return False
    rows, columns = context.sizes(reduced), context.sizes([column])[0]
    least = _rows_of_step(context, sums)
    vectors = 1 if len(rows) == 1 and _parts(context, rows[0]) > 1 else 2
    return columns >= vectors * length and rows[-1] >= least and prod(rows) >= _LEAST_STEPS * least


def _rows_of_step(context: ScheduleContext, sums: BlockHandle) -> int:
    block = context.block(sums)
    steps = [item.var for item in block.iters if item.kind is IterKind.REDUCE]
    written = {region.buffer for region in block.writes}
    loads = [item for item in pre_order(block.body) if isinstance(item, BufferLoad) and item.buffer not in written]
    arrays = {item.buffer for item in loads if any(uses_any(index, steps) for index in item.indices)}
    return _ROWS if len(arrays) < 2 else _ROWS_OF_SEVERAL


def schedule_column_sums(
    context: ScheduleContext, sums: BlockHandle, outer: list[LoopHandle], reduced: list[LoopHandle], length: int
) -> None:
    """Add a few rows at a time to the sums of many columns.

    Before:  for c: for r: S[c] += A[r, c]
    After:   for block of columns: S[block] = 0
               for r in steps of 8: for c of the block in vectors: S[c] += A[r, c] + A[r + 1, c] + ... + A[r + 7, c]

    `length` is how many columns are taken at once. Threads share what is outside, blocks of columns, or, of many rows,
    parts of the rows, whose sums are added up in their order.
    """
    work = prod(context.sizes([*outer, *reduced]))
    others, (columns,) = prod(context.sizes(outer[:-1])), context.sizes(outer[-1:])
    parts = 1 if others > 1 or len(reduced) > 1 else _parts(context, context.sizes(reduced)[0])
    if parts == 1:
        vectors = vectors_of_block(context, sums, columns, length, pieces=others)
        context.parallelize(schedule_rows(context, sums, outer, reduced, length, vectors), work)
        return
    sch = context.sch
    part, _ = sch.split(reduced[0], [parts, None])
    partial = sch.rfactor(part, 0)
    column, own, row = sch.get_loops(partial)
    vectors = vectors_of_block(context, partial, columns, length, pieces=parts)
    context.parallelize(schedule_rows(context, partial, [own, column], [row], length, vectors)[:1], work)
    column, part = sch.get_loops(sums)
    _, lane = sch.split(column, [None, length])
    sch.reorder(part, lane)
    start = sch.decompose_reduction(sums, part)
    sch.vectorize(lane)
    sch.vectorize(sch.get_loops(start)[-1])


def schedule_rows(
    context: ScheduleContext,
    sums: BlockHandle,
    outer: list[LoopHandle],
    reduced: list[LoopHandle],
    length: int,
    vectors: int,
) -> list[LoopHandle]:
    """Blocks of so many vectors of columns, a few rows at a time; gives the loops outside, over blocks too."""
    sch = context.sch
    *others, column = outer
    block, vector, lane = sch.split(column, [None, vectors, length])
    (size,) = context.sizes(reduced[-1:])
    most = _rows_of_step(context, sums)
    even = max(divisors(size, most))
    step, row = sch.split(reduced[-1], [None, even if 2 * even > most else most])
    sch.reorder(*others, block, *reduced[:-1], step, vector, row, lane)
    start = sch.decompose_reduction(sums, [*reduced[:-1], step][0])
    sch.unroll(row)
    sch.vectorize(lane)
    sch.vectorize(sch.get_loops(start)[-1])
    return [*others, block]


def _parts(context: ScheduleContext, rows: int) -> int:
    """Into how many parts rows are divided for threads, each of which reads memory of its own."""
    return max(divisors(rows, context.target.cores)) if rows >= _LEAST_SHARED * context.target.cores else 1


def vectors_of_block(context: ScheduleContext, sums: BlockHandle, columns: int, length: int, pieces: int) -> int:
    """How many vectors a block of columns has: all that stay in the cache, or fewer where cores would be idle."""
    item = context.block(sums).writes[0].buffer.dtype.itemsize
    most = max(1, context.target.l1_bytes // (_SHARE_OF_CACHE * length * item))
    vectors, blocks = -(-columns // length), -(-context.target.cores // pieces)
    return max(divisors(vectors, max(1, min(most, vectors // blocks))))
