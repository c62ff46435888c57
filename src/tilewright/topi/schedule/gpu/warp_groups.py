"""Large matrix products on Hopper's tensor cores: warp groups multiply what lies in shared memory.

for blocks of rows, of columns:
    for 64 steps:  (the copies for later steps are under way meanwhile, and so are the products of this one)
        rows_shared = rows;  columns_shared = columns                   swizzled rows of 128 bytes, cp.async;
                                                                        by steps, or by rows and columns (across)
        for warp groups: acc += rows_shared * columns_shared            (wgmma: 64 rows, all columns of the block)
    done = acc                                                          (when all products are)
    for threads: result = epilogue(done)

Threads have neighbouring sums in short pieces. Where these would be less than a sector of the cache, sums go through
shared memory, so that the epilogue reads and writes whole rows.

Where a block has a multiprocessor to itself, a warp group of its own copies (`specialize_warps`), so that the others
need not meet at every step. Blocks then compute several tiles one after the other (persistent blocks), if all have as
many: the operands of the next tile are copied while the results of one are written. A constant second operand is stored
as shared memory has its tiles, so that one thread copies each of them at once (bulk copies).

With several parts each block has a part of the steps and leaves its sums in memory; a kernel of its own adds them up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Final

from tilewright.ir.expr import PrimExpr, Select
from tilewright.ir.visit import find_all
from tilewright.target import Target
from tilewright.tir.annotations import LATE, PRODUCERS
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.intrinsics.warp_group import ROWS, GroupProduct
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.gpu.block_tile import bind_blocks, residual_operands, write_lanes
from tilewright.topi.schedule.gpu.matrix_form import MatrixForm, lanes_along, pad_form, result_lanes
from tilewright.topi.schedule.gpu.shared_steps import share_steps
from tilewright.topi.schedule.packing import constant_parameters

_REGISTERS = 65536
"""Registers of a multiprocessor."""
_SPARE_REGISTERS = 30
"""Registers of a thread beside its sums, when they are done."""
_SPECIALIZED_STAGES, _SPECIALIZED_COLUMNS = 4, 128
_SPECIALIZED = {1: (248, 248), 2: (72, 216), 3: (80, 144)}
"""Registers of a thread that copies, and of one that computes, for so many groups that compute: all together. Where
one computes there are enough for both."""
_CONSUMER_SPARE = 40
"""Registers of a thread that computes beside its sums."""
_SECTOR_BYTES = 32
"""Bytes that the cache takes at once: pieces of them cost as much as the whole."""
_ROW_VECTOR = 16
"""Bytes of a row that a thread writes at once."""
_ROW_APART = 8
"""Sums between rows in shared memory: four rows of eight sums are in all banks."""
_FEW_STEPS = 2
"""Steps that take no longer than reading what the epilogue needs."""
_BARRIER_BYTES = 16
"""Bytes of the barriers of a stage."""
_PACKED_COLUMNS = 32
"""Columns that lie together where the second operand is packed."""
_ROW_BYTES = 128
"""Bytes of a row in shared memory: the steps of an operand that are there at a time."""


@dataclass(frozen=True, slots=True)
class GroupTile:
    """How a product is divided over warp groups."""

    groups: int
    """Warp groups of a block: each has 64 rows."""
    columns: int
    """Columns of a block, and of each product."""
    stages: int = 4
    """Copies of the operands' tiles: one is read, one may still be read, the others are on their way."""
    together: int = 1
    """Rows of blocks that are computed before the next column, if they divide: what they share stays in the cache."""
    parts: int = 1
    """Blocks that share the steps of a tile; a second kernel adds up their sums."""

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return ROWS * self.groups

    @property
    def threads(self) -> int:
        """Threads of the groups."""
        return 128 * self.groups

    def rows_layout(self, lanes: int) -> Callable[..., tuple[PrimExpr, ...]]:
        """Elements [..., i, j] as [..., tile, tile, thread, turn, lane], threads along rows."""
        rows, vectors = self.threads * lanes // self.columns, self.columns // lanes

        def layout(*index: PrimExpr) -> tuple[PrimExpr, ...]:
            *outer, i, j = index
            thread = i % rows * vectors + j % self.columns // lanes
            return (*outer, i // self.rows, j // self.columns, thread, i % self.rows // rows, j % lanes)

        return layout

    @property
    def shared_bytes(self) -> int:
        """Shared memory that a block needs."""
        return self.stages * ((self.rows + self.columns) * _ROW_BYTES + _BARRIER_BYTES)


def schedule_group_tiles(context: ScheduleContext, form: MatrixForm, item: GroupProduct, tile: GroupTile) -> None:
    """Compute a product in matrix form by warp groups, and a second one of the same result before it."""
    sch = context.sch
    if item.packed:
        _pack_columns(context, form, item, tile)
    products = [form] if form.second is None else [form.second, form]
    for part in products:
        pad_form(context, part, tile.rows, tile.columns, item.steps * tile.parts)
    if item.packed and find_all(context.block(form.columns).body, Select):
        sch.promise_padding(form.columns)
    if tile.parts > 1:
        products = [form := share_steps(context, form, tile.parts)]
    in_rows = _writes_in_rows(context, form, item, tile)
    others = _other_operands(context, form, tile, in_rows)
    finished = [_keep_sums(context, part) for part in products]
    staged = context.block(finished[-1]).writes[0].buffer.name
    sums = sch.cache_read(form.output, staged, "shared") if in_rows else None
    steps = -(-form.depth // item.steps)
    batch = prod(context.sizes(sch.get_loops(form.output)[:-2]))
    turns = rounds_of(batch, form.row_count, form.column_count, tile, steps, context.target)
    place = place_output(context, form.output, item, tile, in_rows, form.paired, turns)
    if sums is not None:
        _stage_sums(context, form.output, sums, item, tile, place)
    for part, done in zip(products, finished, strict=True):
        for stage in (done, part.anchor):
            sch.compute_at(stage, place, preserve_unit_loops=True)
    for other in others:
        # Bytes take few registers: they are on their way before a product that is over soon.
        is_small = context.block(other).writes[0].buffer.dtype.itemsize == 1 and steps <= _FEW_STEPS
        sch.compute_at(other, place, preserve_unit_loops=True, index=-2 if is_small else None)
    lanes = _row_lanes(context, form.output, tile)
    own = tile.rows_layout(lanes) if in_rows else item.vectors_layout
    for other in others:
        _arrange(context, other, own)
    for part, done in zip(products, finished, strict=True):
        _schedule_steps(context, part, done, item, tile, place)
    for other in others:
        *_, row, column = loops_below(context, other, place)
        if in_rows:
            _divide_rows(context, lanes, tile, row, column)
        else:
            sch.vectorize(divide_tile(context, item, tile, row, column))
    if turns != ONE_ROUND:
        sch.parallel(place)


def _keep_sums(context: ScheduleContext, form: MatrixForm) -> BlockHandle:
    """Tiles of the operands in shared memory, sums in registers; gives the stage that copies these when complete."""
    for copy in (form.rows, form.columns):
        context.sch.set_scope(copy, 0, "shared")
    context.sch.set_scope(form.anchor, 0, "local")
    return context.sch.cache_write(form.anchor, 0, "local")


def _arrange(context: ScheduleContext, stage: BlockHandle, layout: Callable[..., tuple[PrimExpr, ...]]) -> None:
    """What a stage writes, in a layout."""
    buffer = context.block(stage).writes[0].buffer
    context.sch.transform_layout(stage, buffer.name, IndexMap.of(layout, buffer.ndim))


def _schedule_steps(
    context: ScheduleContext,
    form: MatrixForm,
    done: BlockHandle,
    item: GroupProduct,
    tile: GroupTile,
    place: LoopHandle,
) -> None:
    """The steps of a product inside a loop over blocks: copies of the operands, and what warp groups add up."""
    sch, anchor = context.sch, form.anchor
    for stage in (anchor, done):
        _arrange(context, stage, item.sums_layout)
    *_, row, column, k = loops_below(context, anchor, place)
    step, inside = sch.split(k, [None, item.steps])
    sch.reorder(step, row, column, inside)
    for copy in (form.rows, form.columns):
        sch.compute_at(copy, step, preserve_unit_loops=True)
    # After the placement: regions of the plain arrangement are boxes.
    for copy, layout in ((form.rows, item.rows_layout), (form.columns, item.columns_layout)):
        _arrange(context, copy, layout)
    _schedule_sums(context, anchor, done, item, tile, place, step, row)
    _overlap(context, form, item, tile, step)


def _overlap(context: ScheduleContext, form: MatrixForm, item: GroupProduct, tile: GroupTile, step: LoopHandle) -> None:
    """Copies of the operands for later steps, while products of this one go on; by a group of its own where it pays."""
    sch = context.sch
    steps = context.extent(step) or 0
    producers = producer_registers(tile, steps, context.target)
    for copy in (form.rows, form.columns):
        if item.packed and copy == form.columns:
            _stage_packed(context, copy, step, item)
            continue
        across = item.across if copy == form.rows else not item.panels
        stage_tile(context, copy, step, item, 1 if producers else tile.groups, across)
        sch.storage_swizzle(copy, 0)
    # One step has nothing to hide behind, but its copies need no registers on their way.
    sch.software_pipeline(step, [0, 0, max(1, min(steps, tile.stages - 2))])
    sch.annotate(step, LATE, 1)
    if producers:
        sch.annotate(step, PRODUCERS, list(producers))


def producer_registers(tile: GroupTile, steps: int, target: Target) -> tuple[int, int] | None:
    """Registers of a thread that copies and of one that computes, where a warp group of its own copies for the others.

    Where several blocks share a multiprocessor, one computes while another waits, and there is nothing to gain; nor is
    there where products are short (few columns). Four copies of the tiles where several groups have all steps: with
    other numbers, places in windows of images take the copying threads too long. One group has half as many places.
    """
    registers = _SPECIALIZED.get(tile.groups)
    alone = 2 * tile.shared_bytes > target.shared_bytes
    may_have_more = tile.parts > 1 or tile.groups == 1
    usual = tile.stages == _SPECIALIZED_STAGES or (may_have_more and tile.stages > _SPECIALIZED_STAGES)
    if registers is None or not alone or not usual or steps <= tile.stages:
        return None
    if tile.columns < _SPECIALIZED_COLUMNS:
        return None
    return registers if tile.columns // 2 + _CONSUMER_SPARE <= registers[1] else None


@dataclass(frozen=True, slots=True)
class Rounds:
    """Tiles that a block computes one after the other, so many along rows (or the batch) by so many along columns."""

    rows: int
    columns: int

    @property
    def count(self) -> int:
        """How many there are."""
        return self.rows * self.columns


ONE_ROUND: Final = Rounds(1, 1)


def rounds_of(batch: int, rows: int, columns: int, tile: GroupTile, steps: int, target: Target) -> Rounds:
    """What each block computes of some products, where a warp group copies what the next tile needs in the meantime.

    All blocks have as many tiles. Where that cannot be, each has one, and multiprocessors that are done take another.
    """
    row_blocks, column_blocks = -(-rows // tile.rows), -(-columns // tile.columns)
    if producer_registers(tile, steps, target) is None or steps % tile.stages:
        return ONE_ROUND
    outer = batch * row_blocks // gcd(tile.together, row_blocks)
    wanted = -(-batch * row_blocks * column_blocks // target.cores)
    divided = [Rounds(n, wanted // n) for n in range(1, wanted + 1) if wanted % n == 0]
    return next((one for one in divided if outer % one.rows == 0 and column_blocks % one.columns == 0), ONE_ROUND)


def _other_operands(context: ScheduleContext, form: MatrixForm, tile: GroupTile, in_rows: bool) -> list[BlockHandle]:
    """Copies to registers of what the epilogue reads for each result (`residual_operands`).

    With results in rows the sums are in shared memory by then.
    """
    residuals = residual_operands(context, form) if form.paired == 1 else {}
    if not holds_residuals(form, tile, list(residuals.values()), in_rows, context.target):
        return []
    sch = context.sch
    copies = [sch.reindex(form.output, name) for name in residuals]
    for copy in copies:
        sch.set_scope(copy, 0, "local")
    return copies


def holds_residuals(form: MatrixForm, tile: GroupTile, sizes: Sequence[int], in_rows: bool, target: Target) -> bool:
    """Whether there are registers for what the epilogue reads for each result: operands of so many bytes an element.

    Fewer blocks on a multiprocessor would cost more.
    """
    if form.row_count % tile.rows or form.column_count % tile.columns or tile.parts > 1:
        return False
    sums, copied = tile.columns // 2, len(sizes) * tile.columns * max(sizes, default=0) // 8
    registers = (max(sums, copied) if in_rows else sums + copied) + _SPARE_REGISTERS
    held = max(1, target.shared_bytes // tile.shared_bytes)
    return registers * held * tile.groups * 128 <= _REGISTERS


def _writes_in_rows(context: ScheduleContext, form: MatrixForm, item: GroupProduct, tile: GroupTile) -> bool:
    """Whether the epilogue gets its sums from shared memory, along rows: four threads have less than a sector of one.

    Not where a warp group copies for the others: it does not meet them. Bytes are written as the sums lie: rows of them
    are short, and the way through shared memory costs more than it saves (`python -m bench.gpu_quantized`).
    """
    dtype = context.block(form.output).writes[0].buffer.dtype
    if dtype.itemsize == 1 or form.paired > 1:
        return False
    steps = -(-form.depth // item.steps)
    if 4 * item.vector * dtype.itemsize >= _SECTOR_BYTES or tile.parts > 1 or form.column_count % tile.columns:
        return False
    if producer_registers(tile, steps, context.target) is not None:
        return False
    lanes = _row_lanes(context, form.output, tile)
    if tile.threads % max(1, tile.columns // lanes):
        return False
    whole = lanes_along(context, form.output, len(context.block(form.output).iters) - 1, lanes) == lanes
    return whole and tile.rows * (tile.columns + _ROW_APART) * 4 <= context.target.shared_bytes // 2


def _stage_sums(
    context: ScheduleContext,
    output: BlockHandle,
    sums: BlockHandle,
    item: GroupProduct,
    tile: GroupTile,
    place: LoopHandle,
) -> None:
    """Copy sums to shared memory as they lie in threads; rows start in different banks. Threads read whole vectors."""
    sch = context.sch
    buffer = context.block(sums).writes[0].buffer
    *_, thread, _lane = sch.get_loops(output)
    vector = sch.cache_read(output, buffer.name, "local")
    sch.compute_at(vector, thread)
    sch.vectorize(sch.get_loops(vector)[-1])
    sch.compute_at(sums, place, preserve_unit_loops=True)
    *_, row, column = loops_below(context, sums, place)
    sch.vectorize(divide_tile(context, item, tile, row, column))
    sch.storage_align(sums, 0, buffer.ndim - 2, 4 * _ROW_APART, _ROW_APART)


def place_output(
    context: ScheduleContext,
    output: BlockHandle,
    item: GroupProduct,
    tile: GroupTile,
    in_rows: bool = False,
    paired: int = 1,
    turns: Rounds = ONE_ROUND,
) -> LoopHandle:
    """The loops of the result: blocks of threads, warp groups, threads as the sums lie in them, or along rows."""
    sch = context.sch
    lanes = result_lanes(context, output, item.vector, paired)
    *batch, row, column = sch.get_loops(output)
    block_row, rest_row = sch.split(row, [None, tile.rows])
    block_column, rest_column = sch.split(column, [None, tile.columns // paired])
    outer_row, block_row = sch.split(block_row, [None, gcd(tile.together, context.extent(block_row) or 1)])
    sch.reorder(outer_row, block_column, block_row, rest_row, rest_column)
    if in_rows:
        _divide_rows(context, _row_lanes(context, output, tile), tile, rest_row, rest_column)
    else:
        write_lanes(context, divide_tile(context, item, tile, rest_row, rest_column, paired), lanes)
    row_turn, outer_row = sch.split(sch.fuse(*batch, outer_row) if batch else outer_row, [turns.rows, None])
    column_turn, block_column = sch.split(block_column, [turns.columns, None])
    sch.reorder(outer_row, block_column, block_row, row_turn, column_turn)
    bind_blocks(context, [outer_row, block_column, block_row])
    return block_row if turns == ONE_ROUND else sch.fuse(row_turn, column_turn)


def _row_lanes(context: ScheduleContext, output: BlockHandle, tile: GroupTile) -> int:
    """Results of a row that a thread writes at once: in a narrow tile its share of them, so that all threads write."""
    return min(_ROW_VECTOR // context.block(output).writes[0].buffer.dtype.itemsize, tile.columns // 2)


def _divide_rows(context: ScheduleContext, lanes: int, tile: GroupTile, row: LoopHandle, column: LoopHandle) -> None:
    """Loops over a block's tile: neighbouring threads have neighbouring vectors of a row (`GroupTile.rows_layout`)."""
    sch = context.sch
    vector, lane = sch.split(column, [None, lanes])
    turn, group, thread = sch.split(sch.fuse(row, vector), [None, tile.groups, 128])
    sch.unroll(turn)
    sch.bind(group, "threadIdx.y")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(lane)


def divide_tile(
    context: ScheduleContext, item: GroupProduct, tile: GroupTile, row: LoopHandle, column: LoopHandle, paired: int = 1
) -> LoopHandle:
    """Loops over a block's tile by warp groups and threads; gives the loop over neighbours.

    `paired`: each column is made of so many of the sums.
    """
    sch = context.sch
    group, warp, half, row_thread = sch.split(row, [tile.groups, 4, 2, 8])
    part, column_thread, element = sch.split(column, [None, 4, item.vector // paired])
    sch.reorder(group, warp, row_thread, column_thread, part, half, element)
    for loop in (part, half):
        sch.unroll(loop)
    sch.bind(group, "threadIdx.y")
    sch.bind(sch.fuse(warp, row_thread, column_thread), "threadIdx.x")
    return element


def _schedule_sums(
    context: ScheduleContext,
    anchor: BlockHandle,
    done: BlockHandle,
    item: GroupProduct,
    tile: GroupTile,
    place: LoopHandle,
    step: LoopHandle,
    row: LoopHandle,
) -> None:
    """The loops of the sums: steps outside, then warp groups."""
    sch = context.sch
    start = sch.decompose_reduction(anchor, step)
    group, row_inside = sch.split(row, [tile.groups, ROWS])
    sch.bind(group, "threadIdx.y")
    sch.tensorize(row_inside, item.multiply)
    *_, first_row, first_column = loops_below(context, start, place)
    sch.unroll(divide_tile(context, item, tile, first_row, first_column))
    *_, last_row, _ = loops_below(context, done, place)
    last_group, last_inside = sch.split(last_row, [tile.groups, ROWS])
    sch.bind(last_group, "threadIdx.y")
    sch.tensorize(last_inside, item.finish)


def is_constant_matrix(context: ScheduleContext, form: MatrixForm) -> bool:
    """Whether the second operand is a constant with an axis of columns and one of steps, which nothing else reads."""
    reads = context.block(form.columns).reads
    if len(reads) != 1 or reads[0].buffer not in constant_parameters(context.sch.func):
        return False
    source = reads[0].buffer
    readers = [b for b in context.sch.blocks() if any(read.buffer is source for read in context.block(b).reads)]
    shape = (*([form.batch] if form.batch > 1 else []), form.column_count, form.depth)
    return source.static_shape == shape and readers == [form.columns]


def may_pack(depth: int, steps: int, tile: GroupTile, target: Target) -> bool:
    """Whether a constant matrix may be stored as its tiles lie in shared memory, with zeros past the last column.

    A thread then copies a tile at once. `steps` are those that are there at a time.
    """
    if tile.columns % _PACKED_COLUMNS or depth % (steps * tile.parts):
        return False
    return producer_registers(tile, depth // (steps * tile.parts), target) is not None


def _pack_columns(context: ScheduleContext, form: MatrixForm, item: GroupProduct, tile: GroupTile) -> None:
    """Store the second operand as its tiles lie in shared memory."""
    (region,) = context.block(form.columns).reads
    number = constant_parameters(context.sch.func)[region.buffer]

    def arrange(*index: PrimExpr) -> tuple[PrimExpr, ...]:
        *outer, column, step = index
        chunk, _, *places = item.columns_layout(step, column)
        return (*outer, chunk, column // tile.columns, column % tile.columns // (8 * item.eights), *places)

    index_map = IndexMap.of(arrange, region.buffer.ndim)
    context.sch.transform_layout(form.columns, region.buffer.name, index_map)
    before = context.packing.get(number)
    packed = index_map if before is None else IndexMap(before.inputs, index_map.apply(before.outputs))
    context.packing[number] = packed


def _stage_packed(context: ScheduleContext, copy: BlockHandle, step: LoopHandle, item: GroupProduct) -> None:
    """Copy a packed tile at each step: all of it lies in a row, here and there."""
    sch = context.sch
    *_, k, column = loops_below(context, copy, step)
    chunk, lane = sch.split(k, [None, item.lanes])
    span, quarter, eight, part = sch.split(column, [None, 4, item.eights, 2])
    sch.reorder(span, eight, chunk, quarter, part, lane)
    turn, thread = sch.split(sch.fuse(span, eight, chunk, quarter, part), [None, 128])
    sch.bind(thread, "threadIdx.x")
    sch.unroll(turn)
    sch.vectorize(lane)


def stage_tile(
    context: ScheduleContext, copy: BlockHandle, step: LoopHandle, item: GroupProduct, groups: int, across: bool
) -> None:
    """Copy a tile of an operand to shared memory at each step, some groups together, 16 bytes a thread where possible.

    `across`: neighbours lie along the outer one of the tile's loops.
    """
    sch = context.sch
    lanes = lanes_along(context, copy, len(context.block(copy).iters) - (2 if across else 1), item.lanes)
    *_, outer, inner = loops_below(context, copy, step)
    if across:
        sch.reorder(inner, outer)
        outer, inner = inner, outer
    lane: LoopHandle | None = None
    # Rows of shared memory one after the other, so that places in them are those of threads, whatever their number.
    row = gcd(item.steps, context.extent(inner) or 1)
    panel, inner = sch.split(inner, [None, row])
    lanes = gcd(lanes, row)
    if lanes > 1:
        inner, lane = sch.split(inner, [None, lanes])
    sch.reorder(panel, outer, inner)
    turn, group, thread = sch.split(sch.fuse(panel, outer, inner), [None, groups, 128])
    if groups > 1:
        sch.bind(group, "threadIdx.y")
    sch.bind(thread, "threadIdx.x")
    sch.unroll(turn)
    if lane is not None:
        sch.vectorize(lane)
