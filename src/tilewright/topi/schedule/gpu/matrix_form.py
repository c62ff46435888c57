"""Products of any kind as plain matrix products: `c[b, m, n] += rows[b, m, k] * columns[b, k, n]`.

Convolutions, dense layers and batched products differ in how they index their operands. `matrix_form` gives the
product operands of its own, by copies that are computed wherever the schedule places them (in shared memory: what is
known as implicit GEMM), and makes one iterator each of what rows, columns and steps are counted by.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import add, const, floormod, mul
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import Add, Call, Cast, Mul, PrimExpr, Range, Select, Var, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import find_all, rewrite_nodes, substitute, uses_any
from tilewright.tir.analysis.linear import linear
from tilewright.tir.annotations import KEPT
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.passes.flatten_buffers import row_major_strides
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.stmt import Block, BufferStore, IterKind, LoopKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.packing import constant_parameters


@dataclass(slots=True)
class MatrixForm:
    """A product in matrix form.

    The loops of the anchor and of the result are (batch,) row, column (, step), those of `rows` (batch,) row, step and
    those of `columns` (batch,) step, column.
    """

    anchor: BlockHandle
    rows: BlockHandle
    """The block that copies the rows' operand."""
    columns: BlockHandle
    """The block that copies the columns' operand."""
    output: BlockHandle
    """The block that gives the result, the epilogue included."""
    batch: int
    """How many products there are; 1 without a loop over them."""
    row_count: int
    column_count: int
    depth: int
    paired: int = 1
    """Neighbouring columns of the product that each column of the result is made of."""
    second: MatrixForm | None = None
    """Another product whose sums the result is made of, if the two are computed together."""


@dataclass(frozen=True, slots=True)
class Product:
    """What a block multiplies: the loads, and the numbers of its iterators by what they count."""

    rows: BufferLoad
    columns: BufferLoad
    batch: tuple[int, ...]
    row: tuple[int, ...]
    column: tuple[int, ...]
    depth: tuple[int, ...]
    sizes: tuple[int, ...]
    """The extents of all iterators."""

    def size(self, group: Sequence[int]) -> int:
        """How many values some iterators have together."""
        return prod(self.sizes[number] for number in group)


def find_product(block: Block) -> Product | None:
    """The product of two operands that a block sums, or None: constant extents, each step counted in both operands."""
    body = block.body
    if not isinstance(body, BufferStore) or not isinstance(body.value, Add) or len(block.writes) != 1:
        return None
    term = body.value.b
    sizes = [const_value(item.domain.extent) for item in block.iters]
    factors = _factors(term)
    if factors is None or any(size is None or size < 1 for size in sizes):
        return None
    loads = [_load(item) for item in factors]
    if loads[0] is None or loads[1] is None or loads[0].buffer is loads[1].buffer:
        return None
    spatial = [n for n, item in enumerate(block.iters) if item.kind is IterKind.SPATIAL and (sizes[n] or 0) > 1]
    if not spatial:
        return None
    last = block.iters[spatial[-1]].var
    rows, columns = loads[0], loads[1]
    if uses_any(rows, [last]):
        rows, columns = columns, rows
    groups: dict[str, list[int]] = {"batch": [], "row": [], "column": [], "depth": []}
    for number, item in enumerate(block.iters):
        in_rows, in_columns = uses_any(rows, [item.var]), uses_any(columns, [item.var])
        if item.kind is IterKind.REDUCE:
            if not (in_rows and in_columns) and sizes[number] != 1:
                return None
            groups["depth"].append(number)
        elif item.kind is not IterKind.SPATIAL:
            return None
        elif sizes[number] == 1:
            groups["row"].append(number)
        else:
            groups["batch" if in_rows and in_columns else "row" if in_rows else "column"].append(number)
    product = Product(
        rows,
        columns,
        tuple(groups["batch"]),
        tuple(groups["row"]),
        tuple(groups["column"]),
        tuple(_steps_in_order(block, groups["depth"], rows)),
        tuple(size or 0 for size in sizes),
    )
    proper = all(product.size(group) > 1 for group in (product.row, product.column, product.depth))
    return product if proper and uses_any(columns, [last]) else None


def _factors(term: PrimExpr) -> tuple[PrimExpr, PrimExpr] | None:
    """What a term multiplies: two elements, two words of bytes, or two words of bits that meet."""
    if isinstance(term, Mul):
        # What is the same for all elements of a step is no operand.
        for item, other in ((term.a, term.b), (term.b, term.a)):
            if not find_all(other, BufferLoad):
                return _factors(item)
        return term.a, term.b
    if isinstance(term, Call) and term.name == "dot4":
        return term.args[0], term.args[1]
    counted = term.value if isinstance(term, Cast) else term
    met = counted.args[0] if isinstance(counted, Call) and counted.name == "popcount" else None
    if isinstance(met, Call) and met.name in ("bitwise_and", "bitwise_xor"):
        return met.args[0], met.args[1]
    return None


def _load(item: PrimExpr) -> BufferLoad | None:
    inner = item.value if isinstance(item, Cast) else item
    return inner if isinstance(inner, BufferLoad) else None


def _steps_in_order(block: Block, depth: Sequence[int], rows: BufferLoad) -> list[int]:
    """The reduction's iterators, what runs through neighbouring elements of the rows last."""
    inner = [n for n in depth if uses_any(rows.indices[-1], [block.iters[n].var])]
    return [*(n for n in depth if n not in inner), *inner]


def has_matrix_form(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> bool:
    """Whether `matrix_form` takes a product and the stage that gives its result (the product itself, or its epilogue).

    All loops must be plain, and an epilogue must be elementwise, in the order of the product; it may make one result of
    two neighbouring columns.
    """
    sch = context.sch
    for handle in {anchor, output}:
        block, loops = context.block(handle), sch.get_loops(handle)
        own = all(len([b for b in sch.blocks() if loop in sch.get_loops(b)]) == 1 for loop in loops[:1])
        plain = len(loops) == len(block.iters) and all(
            item.value is loop.var and context.loop(loop).kind is LoopKind.SERIAL
            for item, loop in zip(block.iters, loops, strict=True)
        )
        if not plain or not own or len(block.writes) != 1:
            return False
    block = context.block(anchor)
    if find_product(block) is None:
        return False
    body = block.body
    assert isinstance(body, BufferStore)
    spatial = tuple(item.var for item in block.iters if item.kind is IterKind.SPATIAL)
    if tuple(body.indices) != spatial:
        return False
    if anchor == output:
        return True
    return not context.block(output).is_reduction and columns_of_result(context, anchor, output) > 0


def columns_of_result(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> int:
    """Neighbouring columns of a product that an epilogue makes one column of: 1 or 2; 0 if it reads them otherwise."""
    block, final = context.block(anchor), context.block(output)
    if anchor == output:
        return 1
    counts = [const_value(item.domain.extent) for item in block.iters if item.kind is IterKind.SPATIAL]
    results = [const_value(item.domain.extent) for item in final.iters]
    own = tuple(item.var for item in final.iters)
    buffer = block.writes[0].buffer
    places = [tuple(load.indices) for load in find_all(final.body, BufferLoad) if load.buffer is buffer]
    if results == counts:
        return int(all(place == own for place in places))
    if not own or results[:-1] != counts[:-1] or counts[-1] != 2 * (results[-1] or 0):
        return 0
    return 2 if all(place[:-1] == own[:-1] and _is_of_pair(place[-1], own[-1]) for place in places) else 0


def _is_of_pair(place: PrimExpr, column: Var) -> bool:
    """Whether a place is one of the two columns that a column of the result is made of."""
    form = linear(place)
    return dict(form.terms) == {column: 2} and form.constant in (0, 1)


def second_product(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> BlockHandle | None:
    """Another product of as many rows and columns that the epilogue of a product reads, and nothing else does."""
    own = find_product(context.block(anchor))
    if anchor == output or own is None or columns_of_result(context, anchor, output) != 1:
        return None
    found: list[BlockHandle] = []
    for handle in context.sch.get_producers(output):
        other = find_product(context.block(handle)) if handle != anchor else None
        if other is None or context.sch.get_consumers(handle) != [output]:
            continue
        same = all(own.size(a) == other.size(b) for a, b in ((own.row, other.row), (own.column, other.column)))
        if same and not own.batch and not other.batch and has_matrix_form(context, handle, output):
            found.append(handle)
    return found[0] if len(found) == 1 and columns_of_result(context, found[0], output) == 1 else None


def matrix_form(
    context: ScheduleContext,
    anchor: BlockHandle,
    output: BlockHandle,
    steps_last: bool = False,
    second: BlockHandle | None = None,
) -> MatrixForm:
    """Give a product matrix form (`has_matrix_form` says whether it has one), and a `second_product` if there is one.

    for n, y, x, c, r, s, k:                           rows[m, k] = image[...] where inside, else 0
        C[n, y, x, c] +=                        ->     columns[k, c] = weights[...]
            pad[n, y + r, x + s, k] * W[r, s, k, c]    for m, c, k: P[m, c] += rows[m, k] * columns[k, c]
                                                       for m, c: result[m, c] = epilogue(P[m, c])

    Constant operands are stored in the order of their copy (packed), so that the copy reads neighbours; with
    `steps_last` a constant columns' operand is stored by columns, so that steps are neighbours.
    """
    form, fused = _with_operands(context, anchor, output, steps_last)
    if second is not None:
        form.second, _ = _with_operands(context, second, output, steps_last)
    context.sch.fuse_iterators(form.output, fused)
    for part in (form, form.second):
        for handle in (part.rows, part.columns) if part is not None else ():
            _inline_producers(context, handle)
    return form


def _with_operands(
    context: ScheduleContext, anchor: BlockHandle, output: BlockHandle, steps_last: bool
) -> tuple[MatrixForm, list[list[int]]]:
    """A product in matrix form with copies of its operands, and which iterators of the result are to become one."""
    sch = context.sch
    block = context.block(anchor)
    product = find_product(block)
    assert product is not None
    paired = columns_of_result(context, anchor, output)
    axes = _Axes.of(block, product)
    _pack(context, anchor, product.rows, [n for group in axes.groups["rows"] for n in group])
    stored = (product.batch, product.column, product.depth) if steps_last else axes.groups["columns"]
    _pack(context, anchor, product.columns, [n for group in stored for n in group])
    sources = (product.rows.buffer, product.columns.buffer)
    rows = sch.reindex(anchor, sources[0].name)
    columns = sch.reindex(anchor, sources[1].name)
    written = sch.reindex(anchor, 0, "write")
    if anchor == output:
        output = written
    else:
        sch.compute_inline(written)
    for handle, name in ((rows, "rows"), (columns, "columns"), (anchor, "result")):
        buffer = context.block(handle).writes[0].buffer
        _flatten(context, anchor, buffer, axes.used[name], axes.groups[name], product)
    for handle, name in ((rows, "rows"), (columns, "columns")):
        sch.fuse_iterators(handle, axes.fused(name))
    everything = [product.batch, product.row, product.column, product.depth]
    sch.fuse_iterators(anchor, [list(group) for group in everything if group])
    batch, row_count, column_count, depth = (product.size(group) for group in everything)
    form = MatrixForm(anchor, rows, columns, output, batch, row_count, column_count, depth, paired)
    return form, axes.fused("result")


@dataclass(frozen=True, slots=True)
class _Axes:
    """The iterators of a product that its operands (`rows`, `columns`) and its `result` have, by their numbers."""

    used: dict[str, list[int]]
    groups: Mapping[str, Sequence[Sequence[int]]]
    """The same by the axes of matrices: of the batch, and two more."""

    @staticmethod
    def of(block: Block, product: Product) -> _Axes:
        def iterators(load: BufferLoad) -> list[int]:
            return [n for n, item in enumerate(block.iters) if uses_any(load, [item.var])]

        spatial = [n for n, item in enumerate(block.iters) if item.kind is IterKind.SPATIAL]
        used = {"rows": iterators(product.rows), "columns": iterators(product.columns), "result": spatial}
        groups = {
            "rows": (product.batch, product.row, product.depth),
            "columns": (product.batch, product.depth, product.column),
            "result": (product.batch, product.row, product.column),
        }
        return _Axes(used, groups)

    def fused(self, name: str) -> list[list[int]]:
        """The places of iterators that become one each."""
        used, groups = self.used[name], self.groups[name]
        parts = [[used.index(n) for n in group if n in used] for group in groups]
        first, *others = [part for part in parts if part]
        # Iterators of one value count nothing, whatever group they are in: they go with the first.
        idle = [place for place, n in enumerate(used) if all(n not in group for group in groups)]
        return [[*idle, *first], *others]


def _flatten(
    context: ScheduleContext,
    anchor: BlockHandle,
    buffer: Buffer,
    used: Sequence[int],
    groups: Sequence[Sequence[int]],
    product: Product,
) -> None:
    """Give a buffer, whose dimensions are iterators of the product, one dimension for each group of them."""

    def arrange(*places: PrimExpr) -> tuple[PrimExpr, ...]:
        at = dict(zip(used, places, strict=True))
        result: list[PrimExpr] = []
        for group in groups:
            position: PrimExpr | None = None
            for number in group:
                if number in at:
                    size = const(product.sizes[number])
                    position = at[number] if position is None else add(mul(position, size), at[number])
            if position is not None:
                result.append(position)
        return tuple(result)

    context.sch.transform_layout(anchor, buffer.name, IndexMap.of(arrange, len(used)))


def _inline_producers(context: ScheduleContext, copy: BlockHandle) -> None:
    """Compute the stages that a copy reads (padding, mostly) in the copy, where nothing else needs them."""
    sch = context.sch
    for producer in sch.get_producers(copy):
        block = context.block(producer)
        if not block.is_reduction and len(sch.get_consumers(producer)) == 1 and not KEPT.of(block):
            sch.compute_inline(producer)


def _pack(context: ScheduleContext, anchor: BlockHandle, load: BufferLoad, order: Sequence[int]) -> None:
    """Store a constant operand in the order of its copy: the dimensions that `order` (numbers of iterators) counts.

    Before: `w[column, step]`; after: `w[step, column]`.
    """
    constants = constant_parameters(context.sch.func)
    number = constants.get(load.buffer)
    iters = context.block(anchor).iters
    places = {index: axis for axis, index in enumerate(load.indices) if isinstance(index, Var)}
    axes = [places[iters[n].var] for n in order if iters[n].var in places]
    if number is None or sorted(axes) != list(range(load.buffer.ndim)) or axes == sorted(axes):
        return
    if sum(load.buffer in {item.buffer for item in context.block(b).reads} for b in context.sch.blocks()) != 1:
        return
    index_map = IndexMap.of(lambda *i: tuple(i[axis] for axis in axes), load.buffer.ndim)
    context.sch.transform_layout(anchor, load.buffer.name, index_map)
    context.packing[number] = index_map


def pad_form(context: ScheduleContext, form: MatrixForm, rows: int, columns: int, steps: int) -> None:
    """Make rows, columns and steps multiples of numbers: copies give zeros beyond the operands' ends.

    The result's block keeps its extents, and reads the part of the padded product that it needs.
    """
    sch = context.sch
    padding = [*([1] if form.batch > 1 else []), rows, columns, steps]
    if not form.row_count % rows and not form.column_count % columns and not form.depth % steps:
        return
    sch.pad_einsum(form.anchor, padding)
    form.rows, form.columns = (_padded_copy(context, form, copy) for copy in (form.rows, form.columns))
    for reader in sch.get_consumers(form.anchor):
        if reader == form.output:
            continue
        if sch.get_consumers(reader):
            sch.compute_inline(reader)
        else:
            form.output = reader


def _padded_copy(context: ScheduleContext, form: MatrixForm, copy: BlockHandle) -> BlockHandle:
    """The copy of an operand with zeros around it, made in one step."""
    (reader,) = context.sch.get_consumers(copy)
    if reader == form.anchor:
        return copy
    context.sch.compute_inline(copy)
    return reader


def result_lanes(context: ScheduleContext, output: BlockHandle, most: int, paired: int = 1) -> int:
    """How many neighbours of a row of the result can be written at once, for up to `most` columns of the product.

    Where each is made of two columns, how these are read does not count: they are in registers.
    """
    last = len(context.block(output).iters) - 1
    if paired == 1:
        return lanes_along(context, output, last, most)
    producers = context.sch.get_producers(output)
    sums = [region.buffer for handle in producers for region in context.block(handle).writes]
    return lanes_along(context, output, last, most // paired, apart=sums)


def lanes_along(
    context: ScheduleContext,
    handle: BlockHandle,
    number: int,
    most: int = 4,
    reads_only: bool = False,
    apart: Collection[Buffer] = (),
) -> int:
    """How many neighbours along an iterator can be read and written at once: each access moves on by one or not at all.

    1, or a power of two up to `most` such that vectors start at multiples of their size. `reads_only`: what is written
    does not count, as it will be arranged otherwise; nor does what is read of the buffers `apart`.
    """
    block = context.block(handle)
    item = block.iters[number]
    extent = const_value(item.domain.extent)
    lanes = most
    while lanes > 1:
        if extent is not None and extent % lanes == 0 and _is_vector(block, item.var, extent, lanes, reads_only, apart):
            return lanes
        lanes //= 2
    return 1


def _is_vector(block: Block, var: Var, extent: int, lanes: int, reads_only: bool, apart: Collection[Buffer]) -> bool:
    analyzer = Analyzer()
    for item in block.iters:
        if item.var is not var:
            analyzer.bind(item.var, item.domain)
    outer, lane = Var("outer"), Var("lane")
    analyzer.bind(outer, Range(const(0), const(extent // lanes)))
    analyzer.bind(lane, Range(const(0), const(lanes)))
    place = {var: add(mul(outer, const(lanes)), lane)}
    first = {var: mul(outer, const(lanes))}
    accesses: list[BufferLoad | BufferStore] = [
        load for load in find_all(block.body, BufferLoad) if load.buffer not in apart
    ]
    if not reads_only:
        accesses += find_all(block.body, BufferStore)
    for access in accesses:
        strides = row_major_strides(access.buffer.shape)
        position: PrimExpr = const(0)
        for index, stride in zip(access.indices, strides, strict=True):
            position = add(position, mul(index.astype(INDEX), stride))
        if not uses_any(position, [var]) and not isinstance(access, BufferStore):
            continue
        start = substitute(position, first)
        if not analyzer.prove_equal(substitute(position, place), add(start, lane)):
            return False
        if not analyzer.prove_equal(floormod(start, const(lanes)), const(0)):
            return False
    return all(
        not uses_any(analyzer.simplify(substitute(_without_data(item.condition), place)), [lane])
        for item in find_all(block.body, Select)
    )


def _without_data(condition: PrimExpr) -> PrimExpr:
    """A condition with nothing of the data that it looks at: that decides between values, not whether they exist."""
    data: dict[BufferLoad, Node] = {load: const(0, load.dtype) for load in find_all(condition, BufferLoad)}
    return rewrite_nodes(condition, data) if data else condition
