"""What the templates for dot-product and matrix instructions share: recognising their contraction, packing weights."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.dtype import DataType
from tilewright.ir.expr import Add, Cast, Mul, PrimExpr, Var, const_value
from tilewright.ir.visit import uses_any
from tilewright.tir.analysis.linear import linear
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.stmt import BufferStore, IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.packing import constant_parameters


@dataclass(frozen=True, slots=True)
class Product:
    """A sum of products of rows with constant columns: `c[..., j] += wide(rows[..., k]) * wide(columns[..., k, j])`."""

    rows: BufferLoad
    columns: BufferLoad
    column_axis: int
    """The dimension of the columns' buffer that counts columns."""
    depth_axis: int
    """The dimension that counts steps of the innermost reduction."""
    depth: int
    """The extent of the innermost reduction."""
    width: int
    """How many columns there are."""
    total: DataType
    apart: tuple[int, ...] = ()
    """The places of loops that have columns of their own: groups of channels, phases of a transposed convolution."""


def find_product(context: ScheduleContext, anchor: BlockHandle) -> Product | None:
    """The product that a contraction computes, if its columns are constant and its rows run along the reduction."""
    block = context.block(anchor)
    body = block.body
    spatial = [item for item in block.iters if item.kind is IterKind.SPATIAL]
    reduce = [item for item in block.iters if item.kind is IterKind.REDUCE]
    if not isinstance(body, BufferStore) or not isinstance(body.value, Add) or not spatial or not reduce:
        return None
    term = body.value.b
    if not isinstance(term, Mul):
        return None
    loads = [widened(item, body.value.dtype) for item in (term.a, term.b)]
    if loads[0] is None or loads[1] is None:
        return None
    column, inner = spatial[-1].var, reduce[-1].var
    rows, columns = loads[0], loads[1]
    if uses_any(rows, [column]):
        rows, columns = columns, rows
    constants = constant_parameters(context.sch.func)
    if uses_any(rows, [column]) or not runs_along(rows, inner) or columns.buffer not in constants:
        return None
    places = {item: n for n, item in enumerate(columns.indices) if isinstance(item, Var)}
    depth, width = const_value(reduce[-1].domain.extent), const_value(spatial[-1].domain.extent)
    if column not in places or inner not in places or depth is None or width is None:
        return None
    apart = tuple(n for n, item in enumerate(spatial[:-1]) if uses_any(columns, [item.var]))
    return Product(rows, columns, places[column], places[inner], depth, width, body.value.dtype, apart)


def runs_along(rows: BufferLoad, step: Var) -> bool:
    """Whether the steps of a reduction are neighbours in the last dimension of the rows."""
    *outer, last = rows.indices
    return not any(uses_any(index, [step]) for index in outer) and linear(last).terms.get(step) == 1


def widened(item: PrimExpr, total: DataType) -> BufferLoad | None:
    """The load of a narrow operand under its conversion."""
    if isinstance(item, Cast) and isinstance(item.value, BufferLoad) and item.dtype is total:
        return item.value
    return None


def pack_columns(context: ScheduleContext, anchor: BlockHandle, product: Product, width: int, group: int) -> None:
    """Arrange the constant columns in panels, with `group` steps of the reduction side by side for each column.

    Before: `w[kh, kw, ic, oc]`; after: `w[oc // width, kh, kw, ic // group, oc % width * group + ic % group]`.
    """
    column, depth = product.column_axis, product.depth_axis

    def arrange(*i: PrimExpr) -> tuple[PrimExpr, ...]:
        rest = [index for n, index in enumerate(i) if n not in (column, depth)]
        return (i[column] // width, *rest, i[depth] // group, i[column] % width * group + i[depth] % group)

    context.pack(anchor, product.columns.buffer, IndexMap.of(arrange, product.columns.buffer.ndim))
