"""Products of 8-bit floats with scales of blocks on warp groups: each step of theirs is a block, scaled in registers.

for blocks of rows, of columns:
    for 128 steps:  (the copies for later steps are under way meanwhile)
        rows_shared = rows;  columns_shared = columns                   swizzled rows of 128 bytes, cp.async
        for warp groups: sums = rows_shared * columns_shared            (wgmma: 64 rows, all columns of the block)
        for threads: total += sums * scale                              (when the products are done)
    for threads: result = epilogue(total)
"""

from __future__ import annotations

from math import prod

from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.tir.buffer import Buffer
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.intrinsics.warp_group import ROWS, GroupProduct, group_product
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.gpu.rows import KernelContext
from tilewright.topi.schedule.gpu.warp_groups import GroupTile, divide_tile, place_output, stage_tile
from tilewright.topi.schedule.inline import inline_stages
from tilewright.topi.schedule.template import Template

_WIDTHS = (128, 64)
"""Columns of a block. A thread has two sums for each 128 of a warp group's rows and columns: more spill."""
_MOST_GROUPS = 2
_STAGES = 5
_TOGETHER = 8


def _stages_of(context: ScheduleContext) -> tuple[BlockHandle, BlockHandle] | None:
    """The sums of blocks, and their sum."""
    found = [
        [handle for handle in context.sch.blocks() if ANCHOR.of(context.block(handle)) is kind]
        for kind in (Anchor.SCALED, Anchor.SCALED_TOTAL)
    ]
    return (found[0][0], found[1][0]) if [len(item) for item in found] == [1, 1] else None


def _operands(context: ScheduleContext, sums: BlockHandle) -> tuple[Buffer, Buffer]:
    """Rows and columns, in the order in which they are multiplied."""
    block = context.block(sums)
    rows, columns = (item.buffer for item in block.reads if item.buffer is not block.writes[0].buffer)
    return rows, columns


def _scales(context: ScheduleContext, total: BlockHandle) -> list[Buffer]:
    """What sums are multiplied with: parameters of the kernel."""
    return [item.buffer for item in context.block(total).reads if item.buffer in context.sch.func.params]


def _product(context: ScheduleContext, sums: BlockHandle, columns: int) -> GroupProduct | None:
    first, second = _operands(context, sums)
    return group_product(context.target, first.dtype, second.dtype, columns)


def _why_not(context: KernelContext) -> str | None:
    stages = _stages_of(context)
    if stages is None:
        return "no sums of blocks with scales"
    sums, total = stages
    sizes = context.extents(context.sch.get_loops(sums))
    item = _product(context, sums, _WIDTHS[-1])
    if item is None:
        return "the target has no warp groups for these operands"
    if sizes is None or len(sizes) != 4 or sizes[-1] != item.steps:
        return "sizes are open, or a block is no step of warp groups"
    if _operands(context, sums)[0].static_shape != (sizes[1], sizes[0] * item.steps):
        return "the last block is a part"
    if sizes[1] % ROWS or sizes[2] % _WIDTHS[-1]:
        return "rows or columns are no whole tiles"
    outputs = context.sch.get_output_blocks()
    if len(outputs) != 1 or len(context.sch.get_loops(outputs[0])) != (3 if outputs[0] == total else 2):
        return "several results, or other axes than the product's"
    return None


def _choose_tile(context: KernelContext, rows: int, columns: int) -> GroupTile:
    """The largest tile of which each multiprocessor has one; smaller ones where there are too few."""
    tiles = [
        GroupTile(groups, width, _STAGES, _TOGETHER)
        for width in _WIDTHS
        for groups in (_MOST_GROUPS, 1)
        if columns % width == 0 and rows % (groups * ROWS) == 0
    ]
    filling = [tile for tile in tiles if rows * columns // (tile.rows * tile.columns) >= context.target.cores]
    default = filling[0] if filling else tiles[-1]
    options = [(tile.groups, tile.columns) for tile in tiles]
    answer = context.choose_again("group_tile", options, (default.groups, default.columns))
    return next(tile for tile in tiles if (tile.groups, tile.columns) == answer)


def _schedule(context: KernelContext) -> None:
    inline_stages(context)
    sch = context.sch
    stages = _stages_of(context)
    assert stages is not None
    sums, total = stages
    _, rows, columns, _ = context.sizes(sch.get_loops(sums))
    tile = _choose_tile(context, rows, columns)
    item = _product(context, sums, tile.columns)
    assert item is not None
    copies = [sch.cache_read(sums, buffer.name, "shared") for buffer in _operands(context, sums)]
    (output,) = sch.get_output_blocks()
    if output == total:
        output = sch.cache_write(total, 0, "local")
    for stage in (sums, total):
        sch.set_scope(stage, 0, "local")
    done = sch.cache_write(sums, 0, "local")
    place = place_output(context, output, item, tile)
    sch.compute_at(total, place, preserve_unit_loops=True)
    row, column, step = loops_below(context, total, place)
    sch.reorder(step, row, column)
    start = sch.decompose_reduction(total, step)
    scales = [sch.cache_read(total, buffer.name, "shared") for buffer in _scales(context, total)]
    for stage in (done, sums, *copies, *scales):
        sch.compute_at(stage, step, preserve_unit_loops=True)
    for stage in (total, done, sums):
        buffer = context.block(stage).writes[0].buffer
        sch.transform_layout(stage, buffer.name, IndexMap.of(item.sums_layout, buffer.ndim))
    start_row, start_column = loops_below(context, start, place)
    for tile_row, tile_column in ((start_row, start_column), (row, column)):
        sch.unroll(divide_tile(context, item, tile, tile_row, tile_column))
    # Rows of columns in the order that gives threads neighbours.
    shared = context.block(copies[1]).writes[0].buffer
    sch.transform_layout(copies[1], shared.name, IndexMap.of(lambda j, k: item.columns_layout(k, j), 2))
    _schedule_sums(context, sums, done, item, tile, step)
    for copy in copies:
        stage_tile(context, copy, step, item, tile.groups, across=False)
        sch.storage_swizzle(copy, 0)
    for scale in scales:
        # One scale is a single thread's to copy.
        if prod(context.sizes(loops_below(context, scale, step))) > 1:
            stage_tile(context, scale, step, item, tile.groups, across=False)
    if (context.extent(step) or 0) > 1:
        last, count = tile.stages - 1, len(scales)
        places = [0, 1, count + 2, count + 3, *(2 + number for number in range(count)), count + 4]
        sch.software_pipeline(step, [0, 0, last, last, *(0 for _ in scales), last], places)


def _schedule_sums(
    context: ScheduleContext,
    sums: BlockHandle,
    done: BlockHandle,
    item: GroupProduct,
    tile: GroupTile,
    step: LoopHandle,
) -> None:
    """The products of a block, from zero on, and the wait for them."""
    sch = context.sch
    *_, row, _, _ = loops_below(context, sums, step)
    zeros = sch.decompose_reduction(sums, row)
    *_, first_row, first_column = loops_below(context, zeros, step)
    sch.unroll(divide_tile(context, item, tile, first_row, first_column))
    group, inside = sch.split(row, [tile.groups, ROWS])
    sch.bind(group, "threadIdx.y")
    sch.tensorize(inside, item.multiply)
    *_, last_row, _ = loops_below(context, done, step)
    group, inside = sch.split(last_row, [tile.groups, ROWS])
    sch.bind(group, "threadIdx.y")
    sch.tensorize(inside, item.finish)


TEMPLATE = Template(
    "scaled_group_product",
    "8-bit floats with scales of blocks: warp groups multiply a block at a time, whose sums are scaled in registers",
    _why_not,
    _schedule,
)
