"""What tiles of threads and tiles of warps have in common: sizes that follow from others, how parts are added."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.gpu.matrix_form import MatrixForm, lanes_along

VECTOR = 4
"""Elements of float32 that one instruction moves."""


class BlockTile(ABC):
    """What a block has of a product: rows and columns of each of its threads (or warps), some steps at a time."""

    __slots__ = ()

    rows: int
    columns: int
    step: int
    """Steps that are in shared memory at a time."""
    slices: int
    """Groups of threads that take a part of the steps each."""
    cluster: int
    """Blocks of a cluster that take a part of the steps each."""

    @property
    @abstractmethod
    def workers(self) -> tuple[int, int]:
        """Threads (or warps) along rows and along columns."""

    @property
    def parts(self) -> int:
        """Parts of the steps that are summed up separately."""
        return self.slices * self.cluster

    @property
    def block_rows(self) -> int:
        """Rows that a block of threads computes."""
        return self.rows * self.workers[0]

    @property
    def block_columns(self) -> int:
        """Columns that a block of threads computes."""
        return self.columns * self.workers[1]


def slice_steps(context: ScheduleContext, form: MatrixForm, tile: BlockTile) -> BlockHandle:
    """The block that sums products in registers: the product itself, or its part for each slice of the steps."""
    sch = context.sch
    if tile.parts == 1:
        sch.set_scope(form.anchor, 0, "local")
        return form.anchor
    *_, k = sch.get_loops(form.anchor)
    block, step, part, inside = sch.split(k, [tile.cluster, None, tile.slices, tile.step // tile.slices])
    sch.reorder(block, part, step, inside)
    partial = sch.rfactor(sch.fuse(block, part), 1 if form.batch > 1 else 0)
    sch.set_scope(partial, 0, "shared")
    sch.cache_write(partial, 0, "local")
    return partial


def place_sum_of_parts(
    context: ScheduleContext,
    form: MatrixForm,
    sums: BlockHandle,
    tile: BlockTile,
    spread: Callable[[LoopHandle, LoopHandle], object],
) -> tuple[LoopHandle, BlockHandle]:
    """The loops of the result where parts are added up: vectors of it over all threads, by `spread`.

    Gives the last loop over blocks, and the stage that writes parts to shared memory there.
    """
    sch = context.sch
    lanes = lanes_along(context, form.output, len(context.block(form.output).iters) - 1, VECTOR)
    *batch, row, column = sch.get_loops(form.output)
    block_row, row_inner = sch.split(row, [None, tile.block_rows])
    block_column, vector, lane = sch.split(column, [None, tile.block_columns // VECTOR, VECTOR])
    sch.reorder(block_row, block_column, row_inner, vector, lane)
    sch.set_scope(form.anchor, 0, "local")
    sch.compute_at(form.anchor, vector, preserve_unit_loops=True)
    *_, m, n, part = loops_below(context, form.anchor, vector)
    held, own = sch.split(part, [tile.cluster, tile.slices])
    sch.reorder(held, own, m, n)
    sch.unroll(held)
    sch.unroll(own)
    start = sch.decompose_reduction(form.anchor, held)
    sch.vectorize(n)
    sch.vectorize(loops_below(context, start, vector)[-1])
    write_lanes(context, lane, lanes)
    bind_blocks(context, [*batch, block_row, block_column])
    (written,) = sch.get_consumers(sums)
    sch.compute_at(written, block_column, preserve_unit_loops=True)
    sch.compute_at(sums, block_column, preserve_unit_loops=True)
    # Tiles are whole until here: threads that have nothing to do would hide that all of them is read.
    if tile.cluster > 1:
        # Each block gives some rows: neighbouring threads then read neighbours of another block's memory.
        rank, row_inner = sch.split(row_inner, [tile.cluster, None])
        sch.bind(rank, "clusterIdx.x")
    spread(row_inner, vector)
    return block_column, written


def residual_operands(context: ScheduleContext, form: MatrixForm) -> dict[str, int]:
    """What the epilogue reads beside the sums, an element for each result, by name: bytes of an element.

    A compiler does not read anything before a result is written that it might overlap: read on the way, each vector
    would be waited for. Templates copy them to registers first.
    """
    block = context.block(form.output)
    *_, row, column = (item.var for item in block.iters)
    producers = context.sch.get_producers(form.output)
    computed = {region.buffer for handle in producers for region in context.block(handle).writes}
    loads = {load for load in find_all(block.body, BufferLoad) if load.buffer not in computed}
    return {
        load.buffer.name: load.buffer.dtype.itemsize
        for load in sorted(loads, key=lambda load: load.buffer.name)
        if uses_any(load, [row]) and uses_any(load, [column]) and sum(load.buffer is x.buffer for x in loads) == 1
    }


def write_lanes(context: ScheduleContext, lane: LoopHandle, lanes: int) -> None:
    """A loop over neighbouring results, as vectors of so many."""
    if lanes < (context.extent(lane) or 1):
        turn, lane = context.sch.split(lane, [None, lanes])
        context.sch.unroll(turn)
    context.sch.vectorize(lane)


def bind_blocks(context: ScheduleContext, outer: list[LoopHandle]) -> None:
    """Loops over blocks, the last of them first."""
    for loop, axis in zip(reversed(outer), ("blockIdx.x", "blockIdx.y", "blockIdx.z"), strict=False):
        context.sch.bind(loop, axis)
