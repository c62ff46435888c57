"""Operands of large products that lie the other way round: they are turned before the product reads them.

A register tile reads one step of the reduction after the other, a few rows and a panel of columns of each. Where a
matrix is given transposed, as in gradients of products, neighbours of one step are a whole row of memory apart, and lie
in the same lines of a cache as others. A copy costs as much as one row or column of the product.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.packing import constant_parameters


def turn_operands(context: ScheduleContext, anchor: BlockHandle) -> None:
    """Let a product of computed matrices read copies of those that lie the other way round.

    Before: `c[i, j] += a[k, i] * b[j, k]`; after: `c[i, j] += turned_a[i, k] * turned_b[k, j]`.
    """
    for load in _turned_loads(context, anchor):
        names = [item.var for item in context.block(anchor).iters]
        *outer, first, second = (names.index(index) for index in load.indices)  # type: ignore[arg-type]
        order = (*outer, second, first)

        def arrange(*i: PrimExpr, order: tuple[int, ...] = order) -> tuple[PrimExpr, ...]:
            return tuple(i[place] for place in order)

        context.sch.reindex_cache_read(anchor, load.buffer.name, "global", arrange)


def _turned_loads(context: ScheduleContext, anchor: BlockHandle) -> list[BufferLoad]:
    """Loads of computed matrices, too large for the first cache level, whose last two axes are the other way round."""
    block = context.block(anchor)
    spatial = [item for item in block.iters if item.kind is IterKind.SPATIAL]
    steps = [item.var for item in block.iters if item.kind is IterKind.REDUCE]
    if ANCHOR.of(block) is not Anchor.MATMUL or len(spatial) < 2 or len(steps) != 1:
        return []
    row, column = (item.var for item in spatial[-2:])
    held = constant_parameters(context.sch.func)
    found: list[BufferLoad] = []
    loads = [item for item in find_all(block.body, BufferLoad) if item.buffer is not block.writes[0].buffer]
    for load in loads:
        shape = load.buffer.static_shape
        if shape is None or load.buffer in held or not all(type(index) is Var for index in load.indices):
            continue
        wrong = (steps[0], row) if uses_any(load, [row]) else (column, steps[0])
        if (
            tuple(load.indices[-2:]) != wrong
            or prod(shape[-2:]) * load.buffer.dtype.itemsize <= context.target.l1_bytes
        ):
            continue
        if _reuse(context, anchor, load) >= context.cpu.register_tile.rows_for_copy:
            found.append(load)
    return found


def _reuse(context: ScheduleContext, anchor: BlockHandle, load: BufferLoad) -> int:
    """How often the product reads each element of an operand."""
    others = [item for item in context.block(anchor).iters if not uses_any(load, [item.var])]
    return prod(const_value(item.domain.extent) or 1 for item in others)
