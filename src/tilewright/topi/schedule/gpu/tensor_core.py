"""Matrix products on tensor cores: operands staged in shared memory, fragments in the registers of warps.

    for blocks of rows, of columns:
        for steps:  (the copies for later steps are under way meanwhile)
            rows_shared = rows;  columns_shared = columns                      16 bytes a thread, cp.async
            for warps (row, column): for k in 32 bytes of steps:
                a = fragments of rows_shared;  b = fragments of columns_shared   (ldmatrix)
                for tiles of 16 x 8: acc += a * b                                (mma)
        for warps, threads: result = epilogue(acc)

The sums lie in registers as the instruction leaves them; the epilogue works on them there.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.tir.buffer import Buffer
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.intrinsics.tensor_core import COLUMNS, ROWS, Layout, WarpProduct
from tilewright.topi.schedule.cpu.context import CpuContext
from tilewright.topi.schedule.cpu.register_tiles import loops_below
from tilewright.topi.schedule.gpu.matrix_form import MatrixForm, lanes_along, pad_form

_WARP_AXES = ("threadIdx.z", "threadIdx.y")


@dataclass(frozen=True, slots=True)
class WarpTile:
    """How a product is divided over warps: rows and columns of a warp, warps of a block, steps at a time."""

    rows: int
    columns: int
    row_warps: int
    column_warps: int
    step: int
    stages: int = 3
    """Copies of the operands' tiles in shared memory: one is computed with, the others are on their way."""

    @property
    def block_rows(self) -> int:
        """Rows that a block of threads computes."""
        return self.rows * self.row_warps

    @property
    def block_columns(self) -> int:
        """Columns that a block of threads computes."""
        return self.columns * self.column_warps

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.row_warps * self.column_warps

    def shared_bytes(self, item: WarpProduct) -> int:
        """Shared memory that a block needs: rows are padded by 16 bytes against bank conflicts."""
        size = item.row.itemsize
        rows = self.block_rows * (self.step * size + 16)
        columns = self.step * (self.block_columns * size + 16)
        return self.stages * (rows + columns)


def schedule_warp_tiles(context: CpuContext, form: MatrixForm, item: WarpProduct, tile: WarpTile) -> None:
    """Compute a product in matrix form by tiles of warps."""
    sch = context.sch
    pad_form(context, form, tile.block_rows, tile.block_columns, tile.step)
    anchor = form.anchor
    for copy in (form.rows, form.columns):
        sch.set_scope(copy, 0, "shared")
    sch.set_scope(anchor, 0, "local")
    block_column = _place_output(context, form, tile)
    sch.compute_at(anchor, block_column, preserve_unit_loops=True)
    # After the placement: regions of the plain arrangement are boxes under any guard.
    _arrange(context, anchor, context.block(anchor).writes[0].buffer, item.sums_layout)
    step = _schedule_sums(context, form, item, tile, block_column)
    for copy in (form.rows, form.columns):
        _stage(context, copy, step, tile, item.lanes)
        # Rows of shared memory lie so that 8 of them, 16 bytes each, are in different banks.
        size = item.row.itemsize
        sch.storage_align(copy, 0, -2, 32 // size, 16 // size)
    if tile.stages > 1 and (context.extent(step) or 0) > 1:
        sch.software_pipeline(step, [0, 0, tile.stages - 1])


def _arrange(context: CpuContext, block: BlockHandle, buffer: Buffer, layout: Layout) -> None:
    context.sch.transform_layout(block, buffer.name, IndexMap.of(layout, buffer.ndim))


def _place_output(context: CpuContext, form: MatrixForm, tile: WarpTile) -> LoopHandle:
    """The loops of the result: blocks of threads, warps, threads as the sums lie in them; gives the last of blocks."""
    sch = context.sch
    lanes = lanes_along(context, form.output, len(context.block(form.output).iters) - 1, 2)
    *batch, row, column = sch.get_loops(form.output)
    block_row, rest_row = sch.split(row, [None, tile.block_rows])
    block_column, rest_column = sch.split(column, [None, tile.block_columns])
    sch.reorder(block_row, block_column, rest_row, rest_column)
    element = _divide_tile(context, tile, rest_row, rest_column)
    if lanes == 2:
        sch.vectorize(element)
    else:
        sch.unroll(element)
    outer = [*batch, block_row, block_column]
    for loop, axis in zip(reversed(outer), ("blockIdx.x", "blockIdx.y", "blockIdx.z"), strict=False):
        sch.bind(loop, axis)
    return block_column


def _divide_tile(context: CpuContext, tile: WarpTile, row: LoopHandle, column: LoopHandle) -> LoopHandle:
    """Loops over a block's tile by warps and threads, each with what it holds; gives the loop over neighbours."""
    sch = context.sch
    row_warp, row_tile, half, row_thread = sch.split(row, [tile.row_warps, tile.rows // ROWS, 2, 8])
    column_warp, column_tile, column_thread, element = sch.split(
        column, [tile.column_warps, tile.columns // COLUMNS, 4, 2]
    )
    sch.reorder(row_warp, column_warp, row_thread, column_thread, row_tile, half, column_tile, element)
    for loop in (row_tile, half, column_tile):
        sch.unroll(loop)
    for loop, axis in zip((row_warp, column_warp), _WARP_AXES, strict=True):
        sch.bind(loop, axis)
    sch.bind(sch.fuse(row_thread, column_thread), "threadIdx.x")
    return element


def _schedule_sums(
    context: CpuContext, form: MatrixForm, item: WarpProduct, tile: WarpTile, block_column: LoopHandle
) -> LoopHandle:
    """The loops of the sums: steps outside, then warps, then fragments; gives the loop over steps."""
    sch = context.sch
    anchor = form.anchor
    *_, row, column, k = loops_below(context, anchor, block_column)
    step, slab, k_inside = sch.split(k, [None, tile.step // item.depth, item.depth])
    sch.reorder(step, row, column, slab, k_inside)
    start = sch.decompose_reduction(anchor, step)
    row_warp, row_tile, row_inside = sch.split(row, [tile.row_warps, tile.rows // ROWS, ROWS])
    column_warp, column_tile, column_inside = sch.split(column, [tile.column_warps, tile.columns // COLUMNS, COLUMNS])
    sch.reorder(row_warp, column_warp, slab, row_tile, column_tile, row_inside, column_inside, k_inside)
    own = context.block(anchor).writes[0].buffer
    operands = [region.buffer for region in context.block(anchor).reads if region.buffer is not own]
    shared_rows = context.block(form.rows).writes[0].buffer
    for buffer in operands:
        is_rows = buffer.name == shared_rows.name
        fragment = sch.cache_read(anchor, buffer.name, "local")
        sch.compute_at(fragment, slab, preserve_unit_loops=True)
        _load_fragment(context, fragment, item, slab, is_rows)
    sch.tensorize(row_inside, item.multiply)
    for loop in (slab, row_tile, column_tile):
        sch.unroll(loop)
    for loop, axis in zip((row_warp, column_warp), _WARP_AXES, strict=True):
        sch.bind(loop, axis)
    *_, first_row, first_column = loops_below(context, start, block_column)
    sch.unroll(_divide_tile(context, tile, first_row, first_column))
    return step


def _load_fragment(
    context: CpuContext, fragment: BlockHandle, item: WarpProduct, slab: LoopHandle, is_rows: bool
) -> None:
    """Fill the fragments of an operand: by the instruction, or element by element where there is none."""
    sch = context.sch
    buffer = context.block(fragment).writes[0].buffer
    layout = item.rows_layout if is_rows else item.columns_layout
    *_, first, second = loops_below(context, fragment, slab)
    sch.transform_layout(fragment, buffer.name, IndexMap.of(layout, buffer.ndim))
    intrinsic = item.load_rows if is_rows else item.load_columns
    sizes = (ROWS, item.depth) if is_rows else (item.depth, 2 * COLUMNS)
    outer_first, inner_first = sch.split(first, [None, sizes[0]])
    outer_second, inner_second = sch.split(second, [None, sizes[1]])
    sch.reorder(outer_first, outer_second, inner_first, inner_second)
    for loop in (outer_first, outer_second):
        sch.unroll(loop)
    if intrinsic is not None:
        sch.tensorize(inner_first, intrinsic)
        return
    half = item.depth // 2
    step_half, step_thread, element = sch.split(inner_first, [2, half // item.group, item.group])
    column_tile, column_thread = sch.split(inner_second, [2, COLUMNS])
    sch.reorder(column_thread, step_thread, column_tile, step_half, element)
    for loop in (column_tile, step_half, element):
        sch.unroll(loop)
    sch.bind(sch.fuse(column_thread, step_thread), "threadIdx.x")


def _stage(context: CpuContext, copy: BlockHandle, step: LoopHandle, tile: WarpTile, most: int) -> None:
    """Copy a tile of an operand to shared memory at each step, all threads together, 16 bytes each where possible."""
    sch = context.sch
    lanes = lanes_along(context, copy, len(context.block(copy).iters) - 1, most)
    sch.compute_at(copy, step, preserve_unit_loops=True)
    *_, outer, inner = loops_below(context, copy, step)
    lane: LoopHandle | None = None
    if lanes > 1:
        inner, lane = sch.split(inner, [None, lanes])
    place = sch.fuse(outer, inner)
    loops = sch.split(place, [None, tile.row_warps, tile.column_warps, 32])
    for loop, axis in zip(loops[1:], (*_WARP_AXES, "threadIdx.x"), strict=True):
        sch.bind(loop, axis)
    sch.unroll(loops[0])
    if lane is not None:
        sch.vectorize(lane)


__all__ = ["WarpTile", "schedule_warp_tiles"]
