"""The schedule of products of bytes both of which are computed, as in attention: columns are packed as the kernel runs.

Dot-product instructions take four steps of the reduction side by side for each column. Weights are arranged so when a
model is compiled (`dot_product.py`); what is computed is copied to such panels first, which is little work where many
rows meet them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.ir.expr import Add, Mul, PrimExpr, const_value
from tilewright.ir.visit import uses_any
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.stmt import BufferStore, IterKind
from tilewright.topi.intrinsics.dot import DotInstruction, dot_instruction
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.anchors import contraction_template
from tilewright.topi.schedule.cpu.dot_product import schedule_dot_tile, vector_tile
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.narrow_product import runs_along, widened
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import divisors


@dataclass(frozen=True, slots=True)
class _Product:
    """`c[batch, i, j] += wide(rows[batch, i, k]) * wide(columns[batch, k, j])`, `batch` any number of axes."""

    columns: BufferLoad
    instruction: DotInstruction
    depth: int
    width: int


def _find(context: ScheduleContext, anchor: BlockHandle) -> _Product | str:
    """The product of two computed operands that a block is, or why it is none."""
    block = context.block(anchor)
    *spatial, reduce = block.iters
    body = block.body
    if reduce.kind is not IterKind.REDUCE or any(item.kind is not IterKind.SPATIAL for item in spatial):
        return "no product of matrices"
    if not isinstance(body, BufferStore) or not isinstance(body.value, Add) or not isinstance(body.value.b, Mul):
        return "no sum of products"
    rows, columns = (widened(item, body.value.dtype) for item in (body.value.b.a, body.value.b.b))
    if rows is None or columns is None:
        return "no product of narrow operands"
    *batch, row, column = (item.var for item in spatial)
    if uses_any(rows, [column]) or uses_any(columns, [row]) or not runs_along(rows, reduce.var):
        return "rows do not run along the reduction"
    if columns.indices != (*batch, reduce.var, column):
        return "columns are not a matrix for each matrix of rows"
    instruction = dot_instruction(context.target, rows.buffer.dtype, columns.buffer.dtype)
    if instruction is None:
        return f"no dot products of {rows.buffer.dtype} and {columns.buffer.dtype} on this processor"
    depth, width = const_value(reduce.domain.extent), const_value(spatial[-1].domain.extent)
    if depth is None or width is None or depth % instruction.group or width % instruction.lanes:
        return "sizes are no whole vectors"
    return _Product(columns, instruction, depth, width)


def _matches(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> str | None:
    """A product of bytes whose columns no parameter of the model holds."""
    product = _find(context, anchor)
    if isinstance(product, str):
        return product
    return "no elements" if prod(context.sizes(context.sch.get_loops(output))) == 0 else None


def _schedule(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> None:
    """A register tile around dot-product instructions, on packed columns.

    Before:  c[b, i, j] += int32(a[b, i, k]) * int32(w[b, k, j]);  out[b, i, j] = epilogue(c[b, i, j])
    After:   p[b, j // w, k // 4, j % w * 4 + k % 4] = w[b, k, j]
             for b, io, jo:
               acc[ii, ji] = 0;  for ko: acc[ii, ji] = dot(acc[ii, ji], a[b, i, 4 ko ..], p[b, jo, ko, ..])
               out[b, i, j] = epilogue(acc[ii, ji])
    """
    product = _find(context, anchor)
    assert isinstance(product, _Product)
    instruction = product.instruction
    sch = context.sch
    for producer in sch.get_producers(anchor):
        schedule_injective(context, producer)
    if anchor.name == output.name:
        output = sch.cache_write(anchor, 0, "local")
    loops = sch.get_loops(output)
    extents = context.sizes(loops)
    rows = extents[-2]
    steps = instruction.steps if product.depth % (instruction.group * instruction.steps) == 0 else 1
    tile = vector_tile(rows, product.width, instruction.lanes, context, steps > 1, not instruction.adds)
    widths = divisors(product.width // tile.lanes, context.cpu.dot_product.most_vectors)
    tile = choose_tile(context, tile, rows, product.width, widths=widths)
    _pack(context, anchor, product, tile.columns)
    row_outer, row_inner = sch.split(loops[-2], [None, tile.rows])
    column_outer, vector, lane = sch.split(loops[-1], [None, tile.vectors, tile.lanes])
    order = [*loops[:-2], column_outer, row_outer]
    sch.reorder(*order, row_inner, vector, lane)
    sch.compute_at(anchor, order[-1])
    schedule_dot_tile(context, anchor, order[-1], instruction, steps)
    for loop in (row_inner, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    context.parallelize_tiles(order, prod(extents) * product.depth // instruction.group)


def _pack(context: ScheduleContext, anchor: BlockHandle, product: _Product, width: int) -> None:
    """Copy the columns of each matrix to panels, with `group` steps of the reduction side by side for each column."""
    group = product.instruction.group

    def arrange(*i: PrimExpr) -> tuple[PrimExpr, ...]:
        *batch, _, column, step = i
        return (*batch, column // width, step // group, column % width * group + step % group)

    sch = context.sch
    copy = sch.reindex_cache_read(anchor, product.columns.buffer.name, "global", arrange)
    *batch, column, step = sch.get_loops(copy)
    panel, inside = sch.split(column, [None, width])
    steps, few = sch.split(step, [None, group])
    sch.reorder(*batch, panel, steps, inside, few)
    sch.unroll(few)
    context.parallelize([*batch, panel], prod(context.sizes([*batch, panel, steps, inside, few])))


TEMPLATE = contraction_template(
    "computed-columns",
    "a register tile around dot-product instructions, on columns that are packed as the kernel runs",
    _matches,
    _schedule,
)
