"""Products whose steps several blocks share: each leaves its sums in memory, and a kernel of its own adds them up."""

from __future__ import annotations

from dataclasses import replace

from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.gpu.matrix_form import MatrixForm, result_lanes

_THREADS = 128
"""Threads of a block that adds up sums."""
_AXES = ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x")
_VECTOR = 4
"""Sums that a thread adds up at once."""


def share_steps(context: ScheduleContext, form: MatrixForm, parts: int) -> MatrixForm:
    """The product of each part of the steps, in matrix form; the sum of the parts, with the epilogue, is scheduled."""
    sch = context.sch
    *_, k = sch.get_loops(form.anchor)
    part, _ = sch.split(k, [parts, None])
    partial = sch.rfactor(part, 0)
    written = sch.cache_write(partial, 0, "local")
    _add_parts(context, form)
    batch = parts if form.batch == 1 else form.batch
    depth = -(-form.depth // parts)
    return replace(form, anchor=partial, output=written, batch=batch, depth=depth, paired=1)


def _add_parts(context: ScheduleContext, form: MatrixForm) -> None:
    """The sum of the parts with the epilogue: a vector of neighbours a thread."""
    sch = context.sch
    lanes = result_lanes(context, form.output, _VECTOR, form.paired)
    *batch, row, column = sch.get_loops(form.output)
    vector, lane = sch.split(column, [None, lanes])
    across = context.extent(vector) or 1
    width = max(count for count in range(1, _THREADS + 1) if across % count == 0)
    block_row, row_thread = sch.split(row, [None, _THREADS // width])
    block_column, thread = sch.split(vector, [None, width])
    sch.reorder(block_row, block_column, row_thread, thread, lane)
    sch.set_scope(form.anchor, 0, "local")
    sch.compute_at(form.anchor, thread, preserve_unit_loops=True)
    *others, own, part = loops_below(context, form.anchor, thread)
    sch.reorder(part, *others, own)
    sch.unroll(part)
    start = sch.decompose_reduction(form.anchor, part)
    for loop in (own, loops_below(context, start, thread)[-1], lane) if lanes > 1 else ():
        sch.vectorize(loop)
    outer = [sch.fuse(*batch, block_row) if batch else block_row, block_column]
    for loop, axis in zip((*outer, row_thread, thread), _AXES, strict=True):
        sch.bind(loop, axis)
