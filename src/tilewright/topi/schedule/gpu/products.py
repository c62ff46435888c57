"""Products and convolutions: brought to matrix form, then computed by the first template of `PRODUCTS` that fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from itertools import islice
from math import prod
from typing import Final

from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.expr import Call
from tilewright.ir.visit import find_all
from tilewright.target.tensor_cores import ROUNDED_PRODUCT, truncates_operands
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.warp_instructions import GROUP_PANELS, IN_PANELS
from tilewright.topi.intrinsics.tensor_core import COLUMNS, ROWS, WarpProduct, warp_product
from tilewright.topi.intrinsics.warp_group import ROWS as GROUP_ROWS
from tilewright.topi.intrinsics.warp_group import group_product
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.block_tile import VECTOR, residual_operands
from tilewright.topi.schedule.gpu.group_choice import LEAST_COLUMNS, group_cost, ranked_group_tiles, steps_at_a_time
from tilewright.topi.schedule.gpu.matrix_form import (
    MatrixForm,
    columns_of_result,
    find_product,
    has_matrix_form,
    lanes_along,
    matrix_form,
    result_lanes,
    second_product,
)
from tilewright.topi.schedule.gpu.private_tiles import keep_padding, private_tiles, schedule_private_tile
from tilewright.topi.schedule.gpu.register_tiles import Tile, schedule_tiles
from tilewright.topi.schedule.gpu.tensor_core import WarpTile, schedule_warp_tiles
from tilewright.topi.schedule.gpu.tile_choice import Shape, ranked_tiles, tile_options
from tilewright.topi.schedule.gpu.warp_choice import ranked_warp_tiles, warp_cost, warp_tiles
from tilewright.topi.schedule.gpu.warp_groups import (
    GroupTile,
    holds_residuals,
    is_constant_matrix,
    may_pack,
    schedule_group_tiles,
)
from tilewright.topi.schedule.template import PassedOver, Template, TemplateChoice, apply_first, apply_first_legal

_TRIED = 8
"""Tiles that are tried: the first whose steps can all be shown to be right is taken."""
_LEAST_THREADS = 16
"""Threads of a block that tiles need."""
_LARGE_PRODUCT = ROUNDED_PRODUCT
"""Products from which on warp groups are taken without being asked for: below, all is over in a few microseconds."""
_MANY_ROWS = 4
"""Tiles of rows for each multiprocessor from which on rows are many."""
_LEAST_COPY = 4
"""Bytes that a thread copies to shared memory while it goes on."""
_WORDS = 4
"""Words that a thread copies at once."""
_TILE_OF_TWO, _COLUMNS_OF_TWO = (1, 4, 1), 128
"""Groups, copies and parts of a tile of two products, and columns up to which registers have the sums of both."""
_VECTOR_BYTES = 16
"""Bytes that a thread writes at once."""
_LEAST_ACROSS = 32
"""Rows of a product from which on threads read vectors of rows."""
_GROUP_OPTIONS = 24
"""Tiles of warp groups that a tuner chooses from."""


def tileable_output(context: ScheduleContext, anchor: BlockHandle) -> BlockHandle | str:
    """The stage that gives the result of a product: the product itself, or its epilogue; or why it cannot be tiled."""
    block = context.block(anchor)
    product = find_product(block) if block.is_reduction else None
    if product is None:
        return "it is no product of two operands of known sizes"
    if context.target.max_threads < _LEAST_THREADS:
        return "blocks of the target are too small"
    sides = min(product.size(product.row), product.size(product.column))
    machine = context.gpu.product
    if sides < machine.least_side or product.size(product.depth) < machine.least_depth:
        return "rows, columns or steps are too few for tiles"
    consumers = context.sch.get_consumers(anchor)
    if len(consumers) == 1 and has_matrix_form(context, anchor, consumers[0]):
        return consumers[0]
    return anchor if has_matrix_form(context, anchor, anchor) else "it has no matrix form"


@dataclass(slots=True)
class ProductContext(ScheduleContext):
    """A product with its epilogue being scheduled, and what is known of it."""

    anchor: BlockHandle = field(kw_only=True)
    output: BlockHandle = field(kw_only=True)
    """The stage that gives the result: the product itself, or its epilogue."""
    forms: dict[tuple[bool, bool], tuple[ScheduleContext, MatrixForm]] = field(default_factory=dict)
    """The product in matrix form, on copies of the schedule: with constant columns by steps, and by columns; alone, and
    with the other product that its epilogue reads."""
    group_tile: GroupTile | str = "not looked at yet"
    """The tile of warp groups that is the best for it, or why there is none."""

    def form(self, steps_last: bool = False, together: bool = False) -> tuple[ScheduleContext, MatrixForm]:
        """The product in matrix form, with the schedule that it is in.

        `together`: with another product of bytes that its epilogue reads.
        """
        second = _second_of_bytes(self) if together else None
        kind = steps_last, second is not None
        if kind not in self.forms:
            trial = ScheduleContext(self.sch.copy(), self.target, dict(self.packing), self.choices)
            self.forms[kind] = trial, matrix_form(trial, self.anchor, self.output, steps_last, second)
        return self.forms[kind]

    def choose_tile(
        self,
        name: str,
        options: Sequence[tuple[int, ...]],
        fitting: Iterable[tuple[int, ...]],
        default: tuple[int, ...] | None = None,
    ) -> tuple[int, ...]:
        """A tile, by the model (the first option, if nothing else is said) or by the tuner.

        One of `fitting` that was found when the model ranked otherwise is an option too.
        """
        given = self.choices.given.get(name)
        late = [] if given is None or given in options else [tile for tile in fitting if tile == given]
        return self.choose_again(name, [*options, *late], options[0] if default is None else default)


def schedule_product(
    context: ScheduleContext, anchor: BlockHandle, output: BlockHandle, before: Sequence[PassedOver] = ()
) -> tuple[TemplateChoice, BlockHandle]:
    """Schedule a product with its epilogue; the choice has no name where no template could.

    Gives the choice, and the stage that it ends with: where no template takes an epilogue which makes one result of two
    columns, this is left for a kernel of its own.
    """
    product = ProductContext(
        context.sch, context.target, context.packing, context.choices, anchor=anchor, output=output
    )
    if context.target.is_software:
        keep_padding(product, anchor)
    product.group_tile = _choose_group_tile(product)
    choice = apply_first(PRODUCTS, product, before)
    if not choice.name and output != anchor and has_matrix_form(context, anchor, anchor):
        return schedule_product(context, anchor, anchor, choice.passed_over)
    context.take(product)
    return replace(choice, stage=anchor.name), output


# ---------------------------------------------------------------- warp groups


def _operand_types(product: ProductContext) -> tuple[DataType, DataType]:
    operands = find_product(product.block(product.anchor))
    assert operands is not None
    return operands.rows.buffer.dtype, operands.columns.buffer.dtype


def _second_of_bytes(product: ProductContext) -> BlockHandle | None:
    """Another product of the same types that the epilogue reads, where these are bytes: registers have both sums."""
    second = second_product(product, product.anchor, product.output)
    operands = None if second is None else find_product(product.block(second))
    types = _operand_types(product)
    if operands is None or types[0].bits != 8 or types[0].is_float:
        return None
    return second if types == (operands.rows.buffer.dtype, operands.columns.buffer.dtype) else None


def _why_not_group_product(product: ProductContext) -> str | None:
    """Why warp groups cannot compute a product, whatever its tile; None where they may."""
    operands = find_product(product.block(product.anchor))
    assert operands is not None
    dtype = operands.rows.buffer.dtype
    item = group_product(product.target, dtype, operands.columns.buffer.dtype, LEAST_COLUMNS)
    if item is None:
        return "the target has no warp groups for these operands"
    if dtype is FLOAT32 and not product.target.has_feature("tf32"):
        return "tf32 is not allowed"
    if product.block(product.anchor).writes[0].buffer.dtype is not item.total:
        return f"the accumulator is not {item.total}"
    if operands.size(operands.row) < GROUP_ROWS // 2 or operands.size(operands.column) < LEAST_COLUMNS:
        return "rows or columns are too few"
    is_shallow = operands.size(operands.depth) < item.steps // 4
    return "the reduction is too short" if is_shallow else None


def _choose_group_tile(product: ProductContext) -> GroupTile | str:
    """The tile of warp groups for a product; or why another template is to compute it.

    Asked before the table is: a tuner may want warp groups where the model does not, and the other way round.
    """
    reason = _why_not_group_product(product)
    if reason is not None:
        return reason
    context, form = product.form(steps_last=True, together=True)
    dtype, second = _operand_types(product)
    order = _operand_order(context, form, dtype)
    if order is None or (form.second is not None and _operand_order(context, form.second, dtype) is None):
        return "too few elements of the operands are neighbours along the steps to be copied in passing"
    panels, across = order
    if panels and form.column_count < GROUP_PANELS[0] // 2:
        return "panels would be mostly empty"
    steps = steps_at_a_time(dtype)
    # Of two products one comes after the other: they take as long as one of the steps of both.
    depth = form.depth if form.second is None else sum(-(-n.depth // steps) * steps for n in (form, form.second))
    sizes = (form.batch, form.row_count, form.column_count, depth)
    is_constant = is_constant_matrix(context, form) and not panels
    plain = ranked_group_tiles(*sizes, dtype, panels, is_constant, product.target)
    ranked = _with_residuals(context, form, plain, dtype, is_constant)
    if form.second is not None:
        ranked = [tile for tile in ranked if (tile.groups, tile.stages, tile.parts) == _TILE_OF_TWO]
        ranked = [tile for tile in ranked if tile.columns <= _COLUMNS_OF_TWO]
    if not ranked:
        return "no tile fits shared memory"
    is_large = prod(sizes) >= _LARGE_PRODUCT
    if dtype is FLOAT32 and not is_large:
        return "operands of small products are not rounded to tf32"  # Other instructions do that by themselves.
    cost = group_cost(*sizes, dtype, is_constant, ranked[0], product.target)
    # Of many rows warp groups are always the quicker ones; few, of one or two steps, are over before they have begun.
    # In between, one whole step is enough.
    tiles = form.batch * form.row_count / (GROUP_ROWS * product.target.cores)
    # Copies of single words take the time of whole vectors: whole steps of them gain nothing.
    last, lanes = len(context.block(form.rows).iters) - 1, _LEAST_COPY // dtype.itemsize
    by_words = dtype.bits == 8 and lanes_along(context, form.rows, last, 2 * lanes, reads_only=True) <= lanes
    has_many_rows = tiles >= _MANY_ROWS and not by_words
    is_shallow = depth < 2 * steps and (tiles < 1 or depth % steps > 0)
    pays = has_many_rows or (not is_shallow and cost < warp_cost(*sizes, dtype, product.target))
    pays = pays and is_large
    options = [(), *(astuple(tile) for tile in ranked[:_GROUP_OPTIONS])]
    default = options[1] if pays else ()
    answer = product.choose_tile("group_tile", options, map(astuple, ranked), default)
    if not answer:
        return "the product is small" if not is_large else "single warps are estimated to be quicker"
    tile = GroupTile(*answer)
    item = group_product(product.target, dtype, second, tile.columns, panels, across)
    return "there is no instruction of this width" if item is None else tile


def _with_residuals(
    context: ScheduleContext, form: MatrixForm, ranked: Sequence[GroupTile], dtype: DataType, is_constant: bool
) -> Sequence[GroupTile]:
    """Tiles, cheapest first, with what it costs where there is no room in registers for what the epilogue reads."""
    operands = list(residual_operands(context, form).values())
    if not operands:
        return ranked
    target = context.target
    bytes_read = sum(operands) * form.batch * form.row_count * form.column_count / target.cores
    waiting = bytes_read / context.gpu.group_tile.residual_bytes_per_cycle
    in_rows = context.block(form.output).writes[0].buffer.dtype.bits < FLOAT32.bits

    sizes = (form.batch, form.row_count, form.column_count, form.depth)

    def cost(tile: GroupTile) -> float:
        plain = group_cost(*sizes, dtype, is_constant, tile, target)
        return plain if holds_residuals(form, tile, operands, in_rows, target) else plain + waiting

    return sorted(ranked, key=cost)


def _operand_order(context: ScheduleContext, form: MatrixForm, dtype: DataType) -> tuple[bool, bool] | None:
    """Whether columns are neighbours in the second operand, and rows in the first, not steps.

    None if threads cannot copy neighbours of either while they go on.
    """
    last = len(context.block(form.rows).iters) - 1
    most, least = 16 // dtype.itemsize, max(1, _LEAST_COPY // dtype.itemsize)
    rows = [lanes_along(context, form.rows, last - n, most, reads_only=True) for n in (0, 1)]
    columns = [lanes_along(context, form.columns, last - n, most, reads_only=True) for n in (0, 1)]
    may_lie_across = dtype.name in IN_PANELS
    across = rows[1] > rows[0]
    panels = columns[0] > columns[1]
    if not may_lie_across and (across or panels):
        return None
    if min(rows[across], columns[not panels]) < least:
        return None
    return panels, across


def _lies_across(context: ScheduleContext, copy: BlockHandle, dtype: DataType) -> bool:
    """Whether more rows of a rows' operand of words are neighbours (to be copied at once) than steps are."""
    last = len(context.block(copy).iters) - 1
    steps, rows = (lanes_along(context, copy, last - n, _WORDS, reads_only=True) for n in (0, 1))
    return dtype is FLOAT32 and rows > steps


def _why_not_warp_groups(product: ProductContext) -> str | None:
    return product.group_tile if isinstance(product.group_tile, str) else None


def _neighbours(context: ScheduleContext, form: MatrixForm, dtype: DataType, tile: GroupTile) -> int:
    """Neighbouring columns of a thread: as many as it writes at once; four times as many divide those of a tile."""
    written = FLOAT32 if tile.parts > 1 else context.block(form.output).writes[0].buffer.dtype
    most = 8 if dtype.bits == 16 else _VECTOR_BYTES // written.itemsize
    while most > 4 and tile.columns % (4 * most):
        most //= 2
    return max(4, result_lanes(context, form.output, most, form.paired) * form.paired)


def _schedule_by_warp_groups(product: ProductContext) -> None:
    assert isinstance(product.group_tile, GroupTile)
    context, form = product.form(steps_last=True, together=True)
    dtype, second = _operand_types(product)
    order = _operand_order(context, form, dtype)
    assert order is not None
    item = group_product(product.target, dtype, second, product.group_tile.columns, *order)
    assert item is not None
    if not item.panels:
        item = replace(item, neighbours=_neighbours(context, form, dtype, product.group_tile))
    is_packed = is_constant_matrix(context, form) and not item.panels
    item = replace(item, packed=is_packed and may_pack(form.depth, item.steps, product.group_tile, product.target))
    schedule_group_tiles(context, form, item, product.group_tile)
    product.take(context)


# ---------------------------------------------------------------- tensor cores


def _least_vector(product: ProductContext) -> int:
    """Neighbouring columns of a thread: more than two where the second operand has steps for neighbours, some copied
    at once: bytes that do or can, and other types that must.

    Fragments then come from shared memory by an instruction, which there is for columns of 16 bits only otherwise.
    """
    dtypes = _operand_types(product)
    if any(dtype.bits > 16 for dtype in dtypes):
        return 2
    context, form = product.form(steps_last=dtypes[0].bits == 8)
    last = len(context.block(form.columns).iters) - 1
    least = max(1, _LEAST_COPY // dtypes[1].itemsize)
    if dtypes[1].bits > 8 and lanes_along(context, form.columns, last, least) == least:
        return 2
    return 4 if lanes_along(context, form.columns, last - 1, least, reads_only=True) == least else 2


def _instruction(product: ProductContext) -> WarpProduct | str:
    """The instruction for a product in matrix form, or why there is none that is worth it."""
    if any(call.name == "popcount" for call in find_all(product.block(product.anchor).body, Call)):
        return "bits that two operands have in common are no products of elements"
    vector = _least_vector(product)
    context, form = product.form(steps_last=vector > 2)
    rows, columns = (context.block(copy).writes[0].buffer.dtype for copy in (form.rows, form.columns))
    accumulator = context.block(form.anchor).writes[0].buffer.dtype
    if rows is FLOAT32 and not context.target.has_feature("tf32"):
        return "tf32 is not allowed"
    item = warp_product(context.target, rows, columns, vector, _lies_across(context, form.rows, rows))
    if item is None:
        return "the target has no tensor cores for these operands"
    if accumulator is not item.total:
        return f"the accumulator is {accumulator}, not {item.total}"
    if form.row_count < ROWS // 2 or form.column_count < COLUMNS // 2:
        return "rows or columns are too few"
    if form.depth < item.depth:
        return "the reduction is too short"
    is_large = form.batch * form.row_count * form.column_count * form.depth >= ROUNDED_PRODUCT
    # First operands lie across in matrix products and gradients of kernels alone, whose operands the graph has rounded.
    return replace(item, rounded=item.across and is_large and truncates_operands(context.target))


def _why_not_tensor_cores(product: ProductContext) -> str | None:
    reason = _why_not_plain(product)
    if reason is not None:
        return reason
    item = _instruction(product)
    return item if isinstance(item, str) else None


def _schedule_on_tensor_cores(product: ProductContext) -> None:
    item = _instruction(product)
    assert isinstance(item, WarpProduct)
    context, form = product.form(item.steps_last)
    ranked = ranked_warp_tiles(form.batch, form.row_count, form.column_count, form.depth, item, context.target)
    options = [tile.answer for tile in ranked]
    fitting = (tile.answer for tile in warp_tiles(item, context.target))
    chosen = WarpTile(*product.choose_tile("warp_tile", options, fitting))
    plain = (tile for tile in ranked if tile.parts == 1 and tile.shares == 1)
    tiles = [chosen, *(tile for tile in ranked[:_TRIED] if tile != chosen), *islice(plain, 1)]
    written = context.block(form.output).writes[0].buffer.dtype
    widened = [_widened(item, tile, written) for tile in tiles]
    steps = [
        partial(schedule_warp_tiles, form=replace(form), item=own, tile=tile)
        for own, tile in zip(widened, tiles, strict=True)
    ]
    apply_first_legal(steps, context)
    product.take(context)


def _widened(item: WarpProduct, tile: WarpTile, written: DataType) -> WarpProduct:
    """A product whose threads have eight neighbouring columns, or sixteen that are written as bytes.

    Four times as many divide those of a warp. Sums that others add up go through shared memory, in short vectors.
    """
    if not item.steps_last:
        return item
    is_whole = tile.parts == 1 and tile.shares == 1
    most = [16] if is_whole and written.itemsize == 1 else []
    return replace(item, vector=next((count for count in (*most, 8) if tile.columns % (4 * count) == 0), item.vector))


# ---------------------------------------------------------------- threads


def _why_not_plain(product: ProductContext) -> str | None:
    """Why templates whose results are single columns of the product cannot compute it with its epilogue."""
    paired = columns_of_result(product, product.anchor, product.output)
    return "each result is made of two columns" if paired > 1 else None


def _why_not_private(product: ProductContext) -> str | None:
    if not product.target.is_software:
        return "shared memory of the target is nearer than other memory"
    return _why_not_plain(product)


def _schedule_by_threads(product: ProductContext) -> None:
    context, form = product.form()
    # A thread has whole vectors of rows then, of which a small product has none.
    is_tall = form.row_count >= _LEAST_ACROSS
    across = is_tall and _lies_across(context, form.rows, _operand_types(product)[0])
    tiles = _register_tiles(product, context, form, across)
    steps = [partial(schedule_tiles, form=replace(form), tile=tile, across=across) for tile in tiles]
    apply_first_legal(steps, context)
    product.take(context)


def _schedule_privately(product: ProductContext) -> None:
    operands = find_product(product.block(product.anchor))
    assert operands is not None
    context, form = product.form()
    options = private_tiles(form, operands)
    chosen = product.choose_tile("private_tile", options, options)
    tiles = [(chosen[0], chosen[1]), *(tile for tile in options if tile != chosen)]
    steps = [partial(schedule_private_tile, form=replace(form), operands=operands, tile=tile) for tile in tiles]
    apply_first_legal(steps, context)
    product.take(context)


def _register_tiles(product: ProductContext, context: ScheduleContext, form: MatrixForm, across: bool) -> list[Tile]:
    """The tile of a product, by the model or by the tuner, and what to take in its place."""
    item = context.target.shared_item(max(region.buffer.dtype.itemsize for region in context.block(form.anchor).reads))
    shape = Shape(
        form.batch,
        form.row_count,
        form.column_count,
        form.depth,
        item,
        lanes_along(context, form.rows, len(context.block(form.rows).iters) - (2 if across else 1), VECTOR, across),
        lanes_along(context, form.columns, len(context.block(form.columns).iters) - 1, VECTOR),
        across,
        _is_matrix(context, form),
    )
    ranked = ranked_tiles(shape, context.target)
    options = [tile.answer for tile in tile_options(ranked)]
    chosen = Tile(*product.choose_tile("tile", options, (tile.answer for tile in ranked)))
    return [chosen, *(tile for tile in ranked[:_TRIED] if tile != chosen)]


def _is_matrix(context: ScheduleContext, form: MatrixForm) -> bool:
    """Whether the rows' operand has an element of float32 for each row and step, as windows of images have not."""
    operands = [read.buffer for read in context.block(form.rows).reads if read.buffer.dtype is FLOAT32]
    return [prod(item.static_shape or ()) for item in operands] == [form.batch * form.row_count * form.depth]


PRODUCTS: Final = (
    Template(
        "warp_group_product",
        "warp groups multiply swizzled tiles of shared memory (wgmma), sums in registers",
        _why_not_warp_groups,
        _schedule_by_warp_groups,
    ),
    Template(
        "tensor_core_product",
        "warps multiply fragments in registers (mma), operands staged in shared memory",
        _why_not_tensor_cores,
        _schedule_on_tensor_cores,
    ),
    Template(
        "private_tile_product",
        "a tile of results in the registers of each thread, which reads its operands itself",
        _why_not_private,
        _schedule_privately,
    ),
    Template(
        "register_tile_product",
        "a tile of results in the registers of each thread, operands staged in shared memory",
        _why_not_plain,
        _schedule_by_threads,
    ),
)
"""Ways to compute a product that can be tiled, the fastest first; the last one fits all of a plain epilogue."""
