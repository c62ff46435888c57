"""Matrix products on tensor cores: operands staged in shared memory, fragments in the registers of warps.

    for blocks of rows, of columns:
        for steps:  (the copies for later steps are under way meanwhile)
            rows_shared = rows;  columns_shared = columns                      16 bytes a thread, cp.async
            for warps (slice, row, column): for k in 32 bytes of steps:
                a = fragments of rows_shared;  b = fragments of columns_shared   (ldmatrix)
                for tiles of 16 x 8: acc += a * b                                (mma)
        for warps, threads: result = epilogue(acc)

The sums lie in registers as the instruction leaves them; the epilogue works on them there. With several slices warps
share the steps between two copies, and their sums are added up through shared memory first.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import partial

from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.intrinsics.tensor_core import COLUMNS, ROWS, WarpProduct
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.gpu.block_tile import (
    BlockTile,
    bind_blocks,
    place_sum_of_parts,
    residual_operands,
    slice_steps,
    write_lanes,
)
from tilewright.topi.schedule.gpu.matrix_form import MatrixForm, lanes_along, pad_form
from tilewright.topi.schedule.gpu.shared_steps import share_steps


@dataclass(frozen=True, slots=True)
class WarpTile(BlockTile):
    """How a product is divided over warps: rows and columns of a warp, warps of a block, steps at a time."""

    rows: int
    columns: int
    row_warps: int
    column_warps: int
    """Warps side by side; 1 where warps share the steps."""
    step: int
    stages: int = 3
    """Copies of the operands' tiles in shared memory: one is computed with, the others are on their way."""
    slices: int = 1
    """Groups of warps that take a part of the steps each."""
    cluster: int = 1
    """Blocks of a cluster that take a part of the steps each."""
    shares: int = 1
    """Blocks that take a share of the steps each, and leave their sums in memory: a second kernel adds them up."""

    @property
    def answer(self) -> tuple[int, ...]:
        """The tile as numbers, for choices; those of one share are what they were before there were several."""
        numbers = astuple(self)
        return numbers if self.shares > 1 else numbers[:-1]

    @property
    def workers(self) -> tuple[int, int]:
        """Warps along rows and along columns."""
        return self.row_warps, self.column_warps

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.row_warps * self.column_warps * self.slices

    @property
    def warps(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """The two axes of warps, and how many there are along each: slices (or rows of warps) and the rest."""
        if self.slices > 1:
            return ("threadIdx.z", self.slices), ("threadIdx.y", self.row_warps)
        return ("threadIdx.z", self.row_warps), ("threadIdx.y", self.column_warps)

    def shared_bytes(self, item: WarpProduct) -> int:
        """Shared memory that a block needs: rows are padded against bank conflicts (`_row_padding`)."""
        size = item.row.itemsize
        shapes = [
            (self.step, self.block_rows) if item.across else (self.block_rows, self.step),
            (self.block_columns, self.step) if item.steps_last else (self.step, self.block_columns),
        ]
        loads = (item.load_rows, item.load_columns)
        rows, columns = (
            count * _padded_row(width * size, *_row_padding(load is None))
            for (count, width), load in zip(shapes, loads, strict=True)
        )
        sums = self.slices * self.block_rows * (self.block_columns + 8) * 4 if self.parts > 1 else 0
        return max(self.stages * (rows + columns), sums)


def _row_padding(by_element: bool) -> tuple[int, int]:
    """What rows of shared memory are as long as, in bytes: a multiple of the first and the second more.

    An instruction reads 8 rows, 16 bytes of each; threads one by one read four rows, 8 words of each. Either way all
    are in different banks.
    """
    return (128, 32) if by_element else (32, 16)


def _padded_row(size: int, multiple: int, more: int) -> int:
    """Bytes of a row with its padding."""
    return size + (more - size) % multiple


def schedule_warp_tiles(context: ScheduleContext, form: MatrixForm, item: WarpProduct, tile: WarpTile) -> None:
    """Compute a product in matrix form by tiles of warps."""
    sch = context.sch
    pad_form(context, form, tile.block_rows, tile.block_columns, tile.step * tile.cluster * tile.shares)
    if tile.shares > 1:
        form = share_steps(context, form, tile.shares)
    sums = slice_steps(context, form, tile)
    for copy in (form.rows, form.columns):
        sch.set_scope(copy, 0, "shared")
    others = _residuals(context, form, item, tile)
    if tile.parts == 1:
        place = _place_output(context, form, item, tile)
        sch.compute_at(sums, place, preserve_unit_loops=True)
    else:
        place = _place_sum_of_slices(context, form, sums, item, tile)
    for other in others:
        sch.compute_at(other, place, preserve_unit_loops=True)
    # After the placement: regions of the plain arrangement are boxes under any guard.
    for stage in (sums, *others):
        buffer = context.block(stage).writes[0].buffer
        layout = item.vectors_layout if stage in others else item.sums_layout
        sch.transform_layout(stage, buffer.name, IndexMap.of(layout, buffer.ndim))
    step = _schedule_sums(context, form, sums, item, tile, place)
    loads = (item.load_rows, item.load_columns)
    for copy, across, load in zip((form.rows, form.columns), (item.across, item.steps_last), loads, strict=True):
        _stage(context, copy, step, tile, item.lanes, across)
        multiple, more = _row_padding(load is None)
        sch.storage_align(copy, 0, -2, multiple // item.row.itemsize, more // item.row.itemsize)
    for other in others:
        *_, row, column = loops_below(context, other, place)
        sch.vectorize(_divide_tile(context, item, tile, row, column))
    if tile.stages > 1 and (context.extent(step) or 0) > 1:
        sch.software_pipeline(step, [0, 0, tile.stages - 1])


def _residuals(context: ScheduleContext, form: MatrixForm, item: WarpProduct, tile: WarpTile) -> list[BlockHandle]:
    """Copies to registers of what the epilogue of a product of bytes reads for each result (`residual_operands`)."""
    is_whole = form.row_count % tile.block_rows == 0 and form.column_count % tile.block_columns == 0
    if not item.steps_last or tile.parts > 1 or not is_whole:
        return []
    names = [name for name, size in residual_operands(context, form).items() if size == 1]
    copies = [context.sch.reindex(form.output, name) for name in names]
    for copy in copies:
        context.sch.set_scope(copy, 0, "local")
    return copies


def _place_output(context: ScheduleContext, form: MatrixForm, item: WarpProduct, tile: WarpTile) -> LoopHandle:
    """The loops of the result: blocks of threads, warps, threads as the sums lie in them; gives the last of blocks."""
    sch = context.sch
    lanes = lanes_along(context, form.output, len(context.block(form.output).iters) - 1, item.vector)
    *batch, row, column = sch.get_loops(form.output)
    block_row, rest_row = sch.split(row, [None, tile.block_rows])
    block_column, rest_column = sch.split(column, [None, tile.block_columns])
    sch.reorder(block_row, block_column, rest_row, rest_column)
    element = _divide_tile(context, item, tile, rest_row, rest_column)
    write_lanes(context, element, lanes)
    bind_blocks(context, [*batch, block_row, block_column])
    return block_column


def _place_sum_of_slices(
    context: ScheduleContext, form: MatrixForm, sums: BlockHandle, item: WarpProduct, tile: WarpTile
) -> LoopHandle:
    """The loops of the result where slices are added up: vectors of it over all threads; gives the last of blocks."""
    sch = context.sch
    block_column, written = place_sum_of_parts(context, form, sums, tile, partial(_spread, context, tile))
    *_, part, written_row, written_column = loops_below(context, written, block_column)
    element = _divide_tile(context, item, tile, written_row, written_column)
    sch.vectorize(element)
    written_rank, written_part = sch.split(part, [tile.cluster, tile.slices])
    if tile.cluster > 1:
        sch.bind(written_rank, "clusterIdx.x")
    if tile.slices > 1:
        sch.bind(written_part, "threadIdx.z")
    if tile.cluster == 1:
        # Blocks of a cluster hold equal parts, which padded rows would not be.
        sch.storage_align(written, 0, -2, 32, 8)
    return block_column


def _divide_tile(
    context: ScheduleContext, item: WarpProduct, tile: WarpTile, row: LoopHandle, column: LoopHandle
) -> LoopHandle:
    """Loops over a block's tile by warps and threads, each with what it holds; gives the loop over neighbours."""
    sch = context.sch
    row_warp, row_tile, half, row_thread = sch.split(row, [tile.row_warps, tile.rows // ROWS, 2, 8])
    column_warp, column_tile, column_thread, element = sch.split(
        column, [tile.column_warps, tile.columns // item.columns, 4, item.vector]
    )
    sch.reorder(row_warp, column_warp, row_thread, column_thread, row_tile, half, column_tile, element)
    for loop in (row_tile, half, column_tile):
        sch.unroll(loop)
    _bind_warps(context, tile, row_warp, column_warp)
    sch.bind(sch.fuse(row_thread, column_thread), "threadIdx.x")
    return element


def _bind_warps(context: ScheduleContext, tile: WarpTile, row_warp: LoopHandle, column_warp: LoopHandle) -> None:
    if tile.slices > 1:
        # Slices have one of the two axes of warps; there is one warp along columns.
        context.sch.bind(row_warp, "threadIdx.y")
        return
    context.sch.bind(row_warp, "threadIdx.z")
    context.sch.bind(column_warp, "threadIdx.y")


def _schedule_sums(
    context: ScheduleContext, form: MatrixForm, sums: BlockHandle, item: WarpProduct, tile: WarpTile, place: LoopHandle
) -> LoopHandle:
    """The loops of the sums: steps outside, then warps, then fragments; gives the loop over steps."""
    sch = context.sch
    # One loop for each iterator: the slice, the product of a batch, row, column, steps.
    below = loops_below(context, sums, place)
    parts: list[LoopHandle] = []
    if tile.parts > 1:
        rank, own = sch.split(below.pop(0), [tile.cluster, tile.slices])
        place = rank
        if tile.cluster > 1:
            sch.bind(rank, "clusterIdx.x")
        parts = [own]
    if form.batch > 1:
        outer = below.pop(0)
        sch.reorder(outer, *parts, *below)
        place = outer
    row, column, *steps = below
    if tile.parts == 1:
        step, slab, k_inside = sch.split(steps[0], [None, tile.step // item.depth, item.depth])
    else:
        # All steps at once leave no loop over them.
        step = steps[0] if len(steps) > 1 else sch.add_unit_loop(parts[0])
        slab, k_inside = sch.split(steps[-1], [None, item.depth])
    sch.reorder(step, *parts, row, column, slab, k_inside)
    start = sch.decompose_reduction(sums, step)
    row_warp, row_tile, row_inside = sch.split(row, [tile.row_warps, tile.rows // ROWS, ROWS])
    width = item.columns
    column_warp, column_tile, column_inside = sch.split(column, [tile.column_warps, tile.columns // width, width])
    sch.reorder(row_warp, column_warp, slab, row_tile, column_tile, row_inside, column_inside, k_inside)
    for copy, is_rows in ((form.rows, True), (form.columns, False)):
        fragment = sch.cache_read(sums, context.block(copy).writes[0].buffer.name, "local")
        sch.compute_at(fragment, slab, preserve_unit_loops=True)
        if item.across if is_rows else item.steps_last:
            # After the placement, as that of sums.
            sch.compute_at(copy, step, preserve_unit_loops=True)
            buffer = context.block(copy).writes[0].buffer
            layout = item.across_layout if is_rows else item.shared_layout
            sch.transform_layout(copy, buffer.name, IndexMap.of(layout, buffer.ndim))
        _load_fragment(context, fragment, item, slab, is_rows)
    sch.tensorize(row_inside, item.multiply)
    for loop in (slab, row_tile, column_tile):
        sch.unroll(loop)
    _bind_warps(context, tile, row_warp, column_warp)
    *first_parts, first_row, first_column = loops_below(context, start, place)
    sch.unroll(_divide_tile(context, item, tile, first_row, first_column))
    if tile.slices > 1:
        sch.bind(parts[0], "threadIdx.z")
        sch.bind(first_parts[-1], "threadIdx.z")
    return step


def _load_fragment(
    context: ScheduleContext, fragment: BlockHandle, item: WarpProduct, slab: LoopHandle, is_rows: bool
) -> None:
    """Fill the fragments of an operand: by the instruction, or element by element where there is none."""
    sch = context.sch
    buffer = context.block(fragment).writes[0].buffer
    layout = item.rows_layout if is_rows else item.columns_layout
    *_, first, second = loops_below(context, fragment, slab)
    sch.transform_layout(fragment, buffer.name, IndexMap.of(layout, buffer.ndim))
    intrinsic = item.load_rows if is_rows else item.load_columns
    sizes = (ROWS, item.depth) if is_rows else (item.depth, item.columns if item.steps_last else 2 * COLUMNS)
    outer_first, inner_first = sch.split(first, [None, sizes[0]])
    outer_second, inner_second = sch.split(second, [None, sizes[1]])
    sch.reorder(outer_first, outer_second, inner_first, inner_second)
    for loop in (outer_first, outer_second):
        sch.unroll(loop)
    if intrinsic is not None:
        sch.tensorize(inner_first, intrinsic)
        return
    steps, others = (inner_second, inner_first) if is_rows else (inner_first, inner_second)
    step_half, step_thread, element = sch.split(steps, [2, item.depth // 2 // item.group, item.group])
    other_half, other_thread = sch.split(others, [2, COLUMNS])
    sch.reorder(other_thread, step_thread, other_half, step_half, element)
    for loop in (other_half, step_half, element):
        sch.unroll(loop)
    sch.bind(sch.fuse(other_thread, step_thread), "threadIdx.x")


def _spread(context: ScheduleContext, tile: WarpTile, outer: LoopHandle, inner: LoopHandle) -> None:
    """Divide two nested loops over all threads of a block, the inner one to neighbouring threads.

    Where the inner loop fits the threads, the outer one alone is guarded: by the very index that counts rows.
    """
    sch = context.sch
    (first, many), (second, few) = tile.warps
    rows, width, threads = context.extent(outer), context.extent(inner), tile.threads
    if rows and width and threads % width == 0 and rows % (threads // width) == 0:
        own, part = sch.split(outer, [None, threads // width])
        place = sch.fuse(part, inner)
    else:
        own, place = sch.split(sch.fuse(outer, inner), [None, threads])
    loops = sch.split(place, [many, few, 32])
    for loop, axis in zip(loops, (first, second, "threadIdx.x"), strict=True):
        sch.bind(loop, axis)
    sch.unroll(own)


def _stage(
    context: ScheduleContext, copy: BlockHandle, step: LoopHandle, tile: WarpTile, most: int, across: bool
) -> None:
    """Copy a tile of an operand to shared memory at each step, all threads together, 16 bytes each where possible.

    `across`: it is there already, and the loop over steps is the outer one, though neighbours lie along it.
    """
    sch = context.sch
    lanes = lanes_along(context, copy, len(context.block(copy).iters) - (2 if across else 1), most)
    if not across:
        sch.compute_at(copy, step, preserve_unit_loops=True)
    *_, outer, inner = loops_below(context, copy, step)
    if across:
        sch.reorder(inner, outer)
        outer, inner = inner, outer
    lane: LoopHandle | None = None
    if lanes > 1:
        inner, lane = sch.split(inner, [None, lanes])
    _spread(context, tile, outer, inner)
    if lane is not None:
        sch.vectorize(lane)
