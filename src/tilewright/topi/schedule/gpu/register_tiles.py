"""Matrix products in tiles: operands in shared memory, results in registers, the reduction in slices."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import partial
from math import gcd

from tilewright.ir.expr import PrimExpr
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.gpu.block_tile import (
    VECTOR,
    BlockTile,
    bind_blocks,
    place_sum_of_parts,
    slice_steps,
    write_lanes,
)
from tilewright.topi.schedule.gpu.matrix_form import MatrixForm, lanes_along, pad_form
from tilewright.topi.schedule.gpu.shared_steps import share_steps

_UNROLLED = 4
"""Vectors of steps that are written out in the innermost loop."""
_SUM_BYTES = 4
"""Bytes of a sum at the least: half precision is summed in single."""


@dataclass(frozen=True, slots=True)
class Tile(BlockTile):
    """How a product is divided: results of a thread, threads of a block, steps at a time."""

    rows: int
    """Rows that a thread computes; they lie `row_threads` apart."""
    columns: int
    """Columns that a thread computes, in vectors that lie `column_threads` vectors apart."""
    row_threads: int
    column_threads: int
    slices: int = 1
    """Groups of threads that take a part of the steps each."""
    step: int = 16
    """Steps that are in shared memory at a time."""
    stages: int = 2
    """Copies of the operands' tiles in shared memory: one is computed with, the others are on their way."""
    cluster: int = 1
    """Blocks of a cluster that take a part of the steps each."""
    shares: int = 1
    """Blocks that take a share of the steps each, and leave their sums in memory: a second kernel adds them up."""
    transposed: int = 0
    """Whether rows are neighbours in shared memory, though steps are in memory: threads copy words. A thread then has
    the values of one step at a time in registers, and fewer of them are read from the same bank."""

    @property
    def workers(self) -> tuple[int, int]:
        """Threads along rows and along columns."""
        return self.row_threads, self.column_threads

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.row_threads * self.column_threads * self.slices

    @property
    def answer(self) -> tuple[int, ...]:
        """The tile as numbers, for choices; those of one share are what they were before there were several."""
        numbers = astuple(self)
        return numbers if self.transposed else numbers[:-1] if self.shares > 1 else numbers[:-2]

    def shared_bytes(self, item: int, reused: bool = True) -> int:
        """Bytes of shared memory that a block needs for operands of some bytes an element.

        `reused`: whether the sums of slices take the place of the operands' tiles.
        """
        staged = self.stages * (self.block_rows * (self.step + VECTOR) + self.step * self.block_columns) * item
        sums = self.slices * self.block_rows * self.block_columns if self.parts > 1 else 0
        added = sums * max(item, _SUM_BYTES)
        return max(staged, added) if reused else staged + added


def schedule_tiles(context: ScheduleContext, form: MatrixForm, tile: Tile, across: bool = False) -> None:
    """Compute a product in matrix form by tiles.

    `across`: rows of the rows' operand are neighbours, not steps. Its tile then lies as that of the columns does, and a
    thread has vectors of rows; so it is where the tile is transposed.

    for blocks of rows, of columns:
        for steps:  (the copies for later steps are under way meanwhile)
            rows_shared = rows;  columns_shared = columns
            for threads (slice, row, column): for k of the slice: acc[i, j] += rows_shared[i, k] * columns_shared[k, j]
        partial[slice] = acc                        (shared memory; not with one slice)
        for threads: result = epilogue(sum of the slices)
    """
    sch = context.sch
    across = across or bool(tile.transposed)
    pad_form(context, form, tile.block_rows, tile.block_columns, tile.step * tile.cluster * tile.shares)
    if tile.shares > 1:
        form = share_steps(context, form, tile.shares)
    sums = slice_steps(context, form, tile)
    if tile.parts == 1:
        block_column = _place_output(context, form, tile, across)
        sch.compute_at(sums, block_column, preserve_unit_loops=True)
    else:
        spread = partial(_spread, context, tile)
        block_column, written = place_sum_of_parts(context, form, sums, tile, spread)
        _bind_tile(context, tile, loops_below(context, written, block_column), across)
    # After the placement: regions of the plain arrangement are boxes under any guard.
    _give_threads_places(context, sums, tile, across)
    step = _schedule_sums(context, form, sums, block_column, tile, across)
    if tile.stages > 1 and (context.extent(step) or 0) > 1:
        sch.software_pipeline(step, [0, 0, tile.stages - 1])
    _spread_copy(context, form.rows, step, tile, across)
    _spread_copy(context, form.columns, step, tile)


def _split_rows(context: ScheduleContext, tile: Tile, row: LoopHandle, across: bool) -> tuple[LoopHandle, ...]:
    """The loop over the threads of a tile's rows, and those over the rows of a thread (as `_row_places` has them)."""
    if across:
        turn, thread, lane = context.sch.split(row, [tile.rows // VECTOR, tile.row_threads, VECTOR])
        return thread, turn, lane
    turn, thread = context.sch.split(row, [tile.rows, tile.row_threads])
    return thread, turn


def _vector_places(place: PrimExpr, threads: int) -> tuple[PrimExpr, ...]:
    """Where vectors of a thread are: as far apart as there are threads."""
    width = threads * VECTOR
    return place // width, place % width // VECTOR, place % VECTOR


def _row_places(row: PrimExpr, tile: Tile, across: bool) -> tuple[PrimExpr, ...]:
    """Where a row is: those of a thread (vectors of them if `across`) lie as far apart as there are threads."""
    threads = tile.row_threads
    return _vector_places(row, threads) if across else (row // threads, row % threads)


def _give_threads_places(context: ScheduleContext, sums: BlockHandle, tile: Tile, across: bool) -> None:
    """Arrange the sums so that each thread has indices of its own: then they are seen to be private to threads."""

    def arrange(*index: PrimExpr) -> tuple[PrimExpr, ...]:
        *outer, row, column = index
        return (*outer, *_row_places(row, tile, across), *_vector_places(column, tile.column_threads))

    buffer = context.block(sums).writes[0].buffer
    context.sch.transform_layout(sums, buffer.name, IndexMap.of(arrange, buffer.ndim))


def _place_output(context: ScheduleContext, form: MatrixForm, tile: Tile, across: bool) -> LoopHandle:
    """The loops of the result: blocks of threads, and what each thread writes; gives the last of blocks."""
    sch = context.sch
    lanes = lanes_along(context, form.output, len(context.block(form.output).iters) - 1, VECTOR)
    *batch, row, column = sch.get_loops(form.output)
    block_row, row_tile = sch.split(row, [None, tile.block_rows])
    row_thread, *row_inner = _split_rows(context, tile, row_tile, across)
    block_column, column_inner, column_thread, lane = sch.split(
        column, [None, tile.columns // VECTOR, tile.column_threads, VECTOR]
    )
    sch.reorder(block_row, block_column, row_thread, column_thread, *row_inner, column_inner, lane)
    sch.bind(row_thread, "threadIdx.y")
    sch.bind(column_thread, "threadIdx.x")
    for loop in (*row_inner, column_inner):
        sch.unroll(loop)
    write_lanes(context, lane, lanes)
    bind_blocks(context, [*batch, block_row, block_column])
    return block_column


def _spread(context: ScheduleContext, tile: Tile, outer: LoopHandle, inner: LoopHandle) -> None:
    """Divide two nested loops over all threads of a block, the inner one to neighbouring threads.

    Only the outer loop is guarded, if any: the guard is of the very index that counts rows of what is copied, so that
    its range is seen.
    """
    sch = context.sch
    width, threads = context.extent(inner), tile.threads
    assert width is not None
    if threads % width == 0:
        own, part = sch.split(outer, [None, threads // width])
        place = sch.fuse(part, inner) if threads > width else inner
    else:
        across = gcd(width, threads)
        turn, near = sch.split(inner, [None, across])
        row, part = sch.split(outer, [None, threads // across])
        sch.reorder(row, turn, part, near)
        own = sch.fuse(row, turn)
        place = sch.fuse(part, near)
    loops = sch.split(place, [tile.slices, tile.row_threads, tile.column_threads])
    for loop, axis in zip(loops, ("threadIdx.z", "threadIdx.y", "threadIdx.x"), strict=True):
        sch.bind(loop, axis)
    sch.unroll(own)


def _bind_tile(context: ScheduleContext, tile: Tile, loops: list[LoopHandle], across: bool) -> None:
    """The loops (slice,) row, column of a stage over the threads, as the sums lie in them."""
    sch = context.sch
    *outer, row, column = loops
    row_thread, *row_inner = _split_rows(context, tile, row, across)
    column_inner, column_thread, lane = sch.split(column, [tile.columns // VECTOR, tile.column_threads, VECTOR])
    sch.reorder(row_thread, column_thread, *row_inner, column_inner, lane)
    _bind_parts(context, tile, outer[-1])
    sch.bind(row_thread, "threadIdx.y")
    sch.bind(column_thread, "threadIdx.x")
    for loop in (*row_inner, column_inner):
        sch.unroll(loop)
    sch.vectorize(lane)


def _bind_parts(context: ScheduleContext, tile: Tile, part: LoopHandle) -> None:
    """The loop over parts of the steps, over the blocks of a cluster and slices of threads."""
    rank, own = context.sch.split(part, [tile.cluster, tile.slices])
    if tile.cluster > 1:
        context.sch.bind(rank, "clusterIdx.x")
    context.sch.bind(own, "threadIdx.z")


def _schedule_sums(
    context: ScheduleContext, form: MatrixForm, sums: BlockHandle, block_column: LoopHandle, tile: Tile, across: bool
) -> LoopHandle:
    """The loops of the sums: steps outside, then threads, then what a thread adds up; gives the loop over steps."""
    sch = context.sch
    # One loop for each iterator: the slice, the product of a batch, row, column, steps.
    below = loops_below(context, sums, block_column)
    parts: list[LoopHandle] = []
    place = block_column
    if tile.parts > 1:
        rank = below.pop(0)
        if tile.slices > 1:
            rank, own = sch.split(rank, [tile.cluster, tile.slices])
            parts = [own]
        place = rank
    if form.batch > 1:
        place = below.pop(0)
        sch.reorder(place, *parts, *below)
    row, column, *steps = below
    if tile.parts == 1:
        step, group, inside = sch.split(steps[0], [None, tile.step // VECTOR, VECTOR])
    else:
        # All steps at once leave no loop over them.
        step = steps[0] if len(steps) > 1 else sch.add_unit_loop((*parts, row)[0])
        group, inside = sch.split(steps[-1], [None, VECTOR])
    row_thread, *row_inner = _split_rows(context, tile, row, across)
    column_inner, column_thread, lane = sch.split(column, [tile.columns // VECTOR, tile.column_threads, VECTOR])
    threads = [*parts, row_thread, column_thread]
    results = [column_inner, lane, *row_inner] if tile.transposed else [*row_inner, column_inner, lane]
    sch.reorder(step, *threads, group, inside, *results)
    start = sch.decompose_reduction(sums, step)
    for copy in (form.rows, form.columns):
        sch.set_scope(copy, 0, "shared")
        sch.compute_at(copy, step, preserve_unit_loops=True)
    _lay_out(context, form, sums, tile, across)
    for operand, loop in ((form.rows, inside if across else group), (form.columns, inside)):
        copy = sch.cache_read(sums, context.block(operand).writes[0].buffer.name, "local")
        sch.compute_at(copy, loop)
        *outer, last = loops_below(context, copy, loop)
        sch.vectorize(last)
        for loop in outer:
            sch.unroll(loop)
    _write_out(context, tile, [group, inside], row_inner, [column_inner, lane])
    first = loops_below(context, start, place)
    axes = ("threadIdx.z", "threadIdx.y", "threadIdx.x")[-len(threads) :]
    for loop, axis in zip(threads, axes, strict=True):
        sch.bind(loop, axis)
        # The loops of the start are the same, less those of one iteration.
        if context.extent(first[0]) == context.extent(loop):
            sch.bind(first.pop(0), axis)
    for loop in first:
        sch.unroll(loop)
    if tile.cluster > 1:
        sch.bind(rank, "clusterIdx.x")
    return step


def _write_out(
    context: ScheduleContext, tile: Tile, steps: list[LoopHandle], rows: list[LoopHandle], columns: list[LoopHandle]
) -> None:
    """Unroll the loops over the products of a thread."""
    sch = context.sch
    group, inside = steps
    if (context.extent(group) or 0) > _UNROLLED:
        _, group = sch.split(group, [None, _UNROLLED])
    if tile.transposed:
        # Rows to and fro inside columns: each product has an operand of the one before it, and two of the three that it
        # reads are all that the registers give in a cycle.
        rows = [sch.fuse(*rows)]
        sch.zigzag(rows[0])
    for loop in (group, inside, *rows, *columns):
        sch.unroll(loop)


def _lay_out(context: ScheduleContext, form: MatrixForm, sums: BlockHandle, tile: Tile, across: bool) -> None:
    """Arrange the operands' tiles by threads: rows of one thread and its vectors of columns are then boxes."""

    def rows(*index: PrimExpr) -> tuple[PrimExpr, ...]:
        *outer, row, k = index
        places = _row_places(row, tile, across)
        return (*outer, k, *places) if across else (*outer, *places, k)

    def columns(*index: PrimExpr) -> tuple[PrimExpr, ...]:
        *outer, column = index
        return (*outer, *_vector_places(column, tile.column_threads))

    for copy, arrange in ((form.rows, rows), (form.columns, columns)):
        buffer = context.block(copy).writes[0].buffer
        context.sch.transform_layout(sums, buffer.name, IndexMap.of(arrange, buffer.ndim))
    if not across:
        context.sch.storage_align(form.rows, 0, -2, 2 * VECTOR, VECTOR)
    elif tile.transposed:
        context.sch.storage_align(form.rows, 0, -4, 8 * VECTOR, VECTOR)


def _spread_copy(
    context: ScheduleContext, copy: BlockHandle, step: LoopHandle, tile: Tile, across: bool = False
) -> None:
    """Copy a tile of an operand to shared memory at each step, all threads together.

    `across`: neighbours lie along the outer one of the tile's loops.
    """
    *_, outer, inner = loops_below(context, copy, step)
    if across and tile.transposed:
        # A warp copies eight steps of four rows: whole sectors of memory, and all banks of shared memory.
        turn, near = context.sch.split(inner, [None, gcd(2 * VECTOR, tile.step)])
        context.sch.reorder(turn, outer, near)
        _spread(context, tile, turn, context.sch.fuse(outer, near))
        return
    lanes = lanes_along(context, copy, len(context.block(copy).iters) - (2 if across else 1), VECTOR)
    if across:
        context.sch.reorder(inner, outer)
        outer, inner = inner, outer
    if lanes == 1:
        _spread(context, tile, outer, inner)
        return
    vector, lane = context.sch.split(inner, [None, lanes])
    _spread(context, tile, outer, vector)
    context.sch.vectorize(lane)
