"""Computed columns of large products that lie the other way round: they are turned before the product reads them.

A register tile reads one step of the reduction after the other, and a panel of columns of each. Where the matrix is
given transposed, as weights of linear layers in training, neighbouring columns are a whole row of memory apart. A copy
costs as much as one row of the product. (Rows that lie the other way round are turned by the computation itself, and
constant columns when the model is compiled.)
"""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.annotations import ANCHOR, KEPT, Anchor
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.packing import constant_parameters

_MATRICES_PER_CORE = 4
"""Matrices of a batch that keep cores at work to the end."""


def turn_columns(context: ScheduleContext, anchor: BlockHandle) -> None:
    """Let a product of computed matrices read a copy of columns that lie the other way round.

    Before: `c[i, j] += a[i, k] * b[j, k]`; after: `c[i, j] += a[i, k] * turned[k, j]`.
    """
    for load in _turned_loads(context, anchor):
        names = [item.var for item in context.block(anchor).iters]
        *outer, first, second = (names.index(index) for index in load.indices)  # type: ignore[arg-type]
        order = (*outer, second, first)

        def arrange(*i: PrimExpr, order: tuple[int, ...] = order) -> tuple[PrimExpr, ...]:
            return tuple(i[place] for place in order)

        context.sch.reindex_cache_read(anchor, load.buffer.name, "global", arrange)


def turned_by_batch(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> list[BlockHandle]:
    """Transposed copies of the matrices of a batch that had better be made one by one, right before each is read.

    Not where matrices are too few for all cores, or one is for several products.
    """
    rank, cores = context.block(output).writes[0].buffer.ndim, context.target.cores
    sizes = (context.extents(context.sch.get_loops(output)[:rank]) or [])[:-2]
    if ANCHOR.of(context.block(anchor)) is not Anchor.MATMUL or prod(sizes) < 2:
        return []
    if cores > 1 and prod(sizes) < _MATRICES_PER_CORE * cores:
        return []
    copies = [handle for handle in context.sch.get_producers(anchor) if KEPT.is_on(context.block(handle))]
    return [handle for handle in copies if context.extents(context.sch.get_loops(handle)[:-2]) == sizes]


def turn_in_batch(context: ScheduleContext, copy: BlockHandle, batch: list[LoopHandle]) -> None:
    """Make the copy of a matrix inside the loops over matrices, in squares; where there are none, of all matrices."""
    if not batch:
        schedule_injective(context, copy)
        return
    sch = context.sch
    sch.compute_at(copy, batch[-1], preserve_unit_loops=True)
    row, column = sch.get_loops(copy)[-2:]
    side = context.lanes(copy)
    row_outer, row_inner = sch.split(row, [None, side])
    column_outer, lane = sch.split(column, [None, side])
    sch.reorder(row_outer, column_outer, row_inner, lane)
    sch.vectorize(lane)


def _turned_loads(context: ScheduleContext, anchor: BlockHandle) -> list[BufferLoad]:
    """Loads of computed columns, too many for the first cache level, whose last two axes are the other way round."""
    block = context.block(anchor)
    spatial = [item for item in block.iters if item.kind is IterKind.SPATIAL]
    steps = [item.var for item in block.iters if item.kind is IterKind.REDUCE]
    if ANCHOR.of(block) is not Anchor.MATMUL or len(spatial) < 2 or len(steps) != 1:
        return []
    column = spatial[-1].var
    held = constant_parameters(context.sch.func)
    found: list[BufferLoad] = []
    loads = [item for item in find_all(block.body, BufferLoad) if item.buffer is not block.writes[0].buffer]
    for load in loads:
        shape = load.buffer.static_shape
        if shape is None or load.buffer in held or not all(type(index) is Var for index in load.indices):
            continue
        if any(other.buffer is load.buffer for other in loads if other is not load):
            # A matrix times itself: a copy would be read by rows as well.
            continue
        large = prod(shape[-2:]) * load.buffer.dtype.itemsize > context.target.l1_bytes
        if not large or tuple(load.indices[-2:]) != (column, steps[0]):
            continue
        if _reuse(context, anchor, load) >= context.cpu.register_tile.rows_for_copy:
            found.append(load)
    return found


def _reuse(context: ScheduleContext, anchor: BlockHandle, load: BufferLoad) -> int:
    """How often the product reads each element of an operand."""
    others = [item for item in context.block(anchor).iters if not uses_any(load, [item.var])]
    return prod(const_value(item.domain.extent) or 1 for item in others)
