"""Matrix products in tiles of single threads: each reads its operands itself, and no thread waits for another.

For devices that a processor plays: an access of memory takes as long as ten multiplications there, whichever memory it
is, and a barrier longer than all that it saves.
"""

from __future__ import annotations

from itertools import product
from math import prod

from tilewright.tir.annotations import KEPT
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.gpu.matrix_form import MatrixForm, Product, pad_form

_ROWS = (8, 7, 6, 5, 4, 3, 2, 1)
_COLUMNS = (8, 4, 2, 1)
_THREADS = 16
"""Threads of a block."""
_BROKEN_LINE = 1.5
"""How much longer accesses take where rows of a thread are of several lines."""
_OPTIONS = 8
"""Tiles that a tuner chooses from."""


def private_tiles(form: MatrixForm, operands: Product) -> list[tuple[int, int]]:
    """Rows and columns of a thread, the best first: few accesses for each product, few products of zeros.

    Rows that are neighbours in an image's line are read by indices that differ by a constant.
    """
    line = operands.sizes[operands.row[-1]] if operands.row else 1

    def cost(tile: tuple[int, int]) -> float:
        rows, columns = tile
        accesses = (rows + columns) / (rows * columns)
        wasted = -(-form.row_count // rows) * rows / form.row_count
        wasted *= -(-form.column_count // columns) * columns / form.column_count
        return accesses * wasted * (1.0 if line % rows == 0 else _BROKEN_LINE)

    return sorted(product(_ROWS, _COLUMNS), key=cost)[:_OPTIONS]


def keep_padding(context: ScheduleContext, anchor: BlockHandle) -> None:
    """Mark the padded image that a product reads as a stage of its own: borders are then not tested at each step."""
    for producer in context.sch.get_producers(anchor):
        if "pad" in producer.name and not KEPT.of(context.block(producer)):
            context.sch.annotate(producer, KEPT, 1)


def schedule_private_tile(context: ScheduleContext, form: MatrixForm, operands: Product, tile: tuple[int, int]) -> None:
    """Compute a product in matrix form by tiles of single threads.

    for threads:
        for k: { r[i] = rows[i, k]; c[j] = columns[k, j]; acc[i, j] += r[i] * c[j] }
        result = epilogue(acc)
    """
    sch = context.sch
    pad_form(context, form, *tile, 1)
    sch.set_scope(form.anchor, 0, "local")
    *batch, row, column = sch.get_loops(form.output)
    row, row_inner = sch.split(row, [None, tile[0]])
    column, column_inner = sch.split(column, [None, tile[1]])
    sch.reorder(row, column, row_inner, column_inner)
    thread = _spread(context, [*batch, row, column])
    sch.compute_at(form.anchor, thread, preserve_unit_loops=True)
    *_, rows, columns, step = loops_below(context, form.anchor, thread)
    sizes = [operands.sizes[number] for number in operands.depth if operands.sizes[number] > 1]
    steps = sch.split(step, sizes) if len(sizes) > 1 and prod(sizes) == context.extent(step) else [step]
    sch.reorder(*steps, rows, columns)
    start = sch.decompose_reduction(form.anchor, steps[0])
    for copy in (form.rows, form.columns):
        sch.set_scope(copy, 0, "local")
        sch.compute_at(copy, steps[-1])
        _unroll(context, loops_below(context, copy, steps[-1]))
    _unroll(context, [rows, columns, row_inner, column_inner, *loops_below(context, start, thread)])


def _spread(context: ScheduleContext, loops: list[LoopHandle]) -> LoopHandle:
    """Divide loops over blocks of a few threads: there are no more than a processor's cores to run them."""
    sch = context.sch
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    block, thread = sch.split(fused, [None, min(_THREADS, context.target.max_threads, *context.sizes([fused]))])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return thread


def _unroll(context: ScheduleContext, loops: list[LoopHandle]) -> None:
    for loop in loops:
        if (context.extent(loop) or 0) > 1:
            context.sch.unroll(loop)
