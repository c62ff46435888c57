"""Templates of attention, in order: on tensor cores, by tiles of scores in threads, by whole rows of scores."""

from __future__ import annotations

from math import prod
from typing import Final

from tilewright.ir.dtype import FLOAT32
from tilewright.target import Target
from tilewright.target.machine import gpu_parameters
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.tir.machine import find_instruction
from tilewright.tir.row_instructions import held_product
from tilewright.topi.intrinsics.group_rows import PANEL, ROWS
from tilewright.topi.intrinsics.tensor_core import WarpProduct, warp_product
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.attention.by_threads import (
    ThreadsTile,
    map_to_threads,
    preferred_tile,
    tile_options,
    why_not_threads,
)
from tilewright.topi.schedule.gpu.attention.by_warp_groups import (
    COPYING,
    WarpGroupsTile,
    map_to_warp_groups,
    turns_of,
    whole_panels,
)
from tilewright.topi.schedule.gpu.attention.by_warps import WarpsTile, map_to_warps
from tilewright.topi.schedule.gpu.attention.costs import few_queries_cost
from tilewright.topi.schedule.gpu.attention.sizes import AttentionSizes, Stages, operands_of
from tilewright.topi.schedule.gpu.attention.whole_rows import row_options, schedule_whole_rows
from tilewright.topi.schedule.template import Template

_WARPS = tuple(
    WarpsTile(rows, warps, keys, stages, slices)
    for rows, warps, slices in (
        *((16, 1, slices) for slices in (8, 4, 2, 1)),
        *((16, 2, slices) for slices in (4, 2, 1)),
        *((16, 4, 1), (16, 8, 1), (32, 2, 1), (32, 4, 1)),
    )
    for keys in (16, 32, 64, 128)
    for stages in (2, 3)
    if keys > 16 or slices > 1
)
_PARTS = tuple(
    WarpsTile(16, 1, keys, stages, slices, parts)
    for slices in (2, 4, 8)
    for keys in (16, 32)
    for stages in (2, 3)
    for parts in (2, 4, 8, 16, 32, 64)
)
"""Where queries are few and keys many."""
_GROUPS = tuple(
    WarpGroupsTile(groups, keys, stages, copying, behind)
    for copying, behind in ((0, 0), (1, 0), (1, 1))
    for groups in ((1, 2, 3) if copying == 0 else COPYING)
    for keys in (32, 64, 96, 128)
    for stages in (2, 3)
)


def _stages(context: ScheduleContext) -> Stages:
    return {handle.name: context.block(handle) for handle in context.sch.blocks()}


def _sizes(context: ScheduleContext) -> AttentionSizes | str:
    """The sizes of a kernel that is an attention, or why it is none that templates take."""
    stages = _stages(context)
    if not any(ANCHOR.of(block) is Anchor.ATTENTION for block in stages.values()):
        return "the kernel is no attention"
    if [handle.name for handle in context.sch.get_output_blocks()] != ["attention"]:
        return "other stages follow the attention"
    return AttentionSizes.of(stages) or "sizes are symbolic or zero"


def _known_sizes(context: ScheduleContext) -> AttentionSizes:
    sizes = _sizes(context)
    assert isinstance(sizes, AttentionSizes)
    return sizes


# ---------------------------------------------------------------- tensor cores


def _instruction(context: ScheduleContext) -> WarpProduct | str:
    """The instruction that multiplies an attention's operands, or why there is none."""
    dtype = operands_of(_stages(context))[0].dtype
    if dtype.bits != 16 and not (dtype is FLOAT32 and context.target.has_feature("tf32")):
        return "tf32 is not allowed" if dtype is FLOAT32 else f"no tensor cores for {dtype}"
    return warp_product(context.target, dtype, dtype) or f"the target has no tensor cores for {dtype}"


def _tiles(context: ScheduleContext, sizes: AttentionSizes, item: WarpProduct) -> list[WarpsTile | WarpGroupsTile]:
    target = context.target
    options = [*_WARPS, *(tile for tile in _PARTS if tile.fills_parts(sizes))]
    warps = [tile for tile in options if tile.shared_bytes(sizes, item) <= target.shared_bytes]
    return [*warps, *(tile for tile in _GROUPS if _fits(sizes, item, tile, target))] if warps else []


def _why_not_tensor_cores(context: ScheduleContext) -> str | None:
    sizes = _sizes(context)
    if isinstance(sizes, str):
        return sizes
    item = _instruction(context)
    if isinstance(item, str):
        return item
    return None if _tiles(context, sizes, item) else "tiles do not fit shared memory"


def _schedule_on_tensor_cores(context: ScheduleContext) -> None:
    sizes, item = _known_sizes(context), _instruction(context)
    assert isinstance(item, WarpProduct)
    tiles = _tiles(context, sizes, item)
    default = next(tile for tile in (*_preferred(sizes, item, context.target), *tiles) if tile in tiles)
    answer = context.choose("attention_tile", [tile.answer for tile in tiles], default.answer)
    chosen = next(tile for tile in tiles if tile.answer == answer)
    if isinstance(chosen, WarpsTile):
        map_to_warps(context, sizes, item, chosen)
    else:
        map_to_warp_groups(context, sizes, item, chosen)


def _preferred(sizes: AttentionSizes, item: WarpProduct, target: Target) -> list[WarpsTile | WarpGroupsTile]:
    """Tiles from the best one on, as measured on an H200; not all of them need to fit.

    Large tiles read keys and values less often, if there is work for all cores; where queries are few, slices share
    the keys, and blocks, where a second kernel costs less than they gain.
    """
    machine, cores = gpu_parameters(target).attention, target.cores
    heads = sizes.batch * sizes.heads
    blocks = {rows: heads * -(-sizes.queries // rows) for rows in (16, 64, 128)}
    is_long = sizes.keys >= machine.many_keys
    tiles: list[WarpsTile | WarpGroupsTile] = []
    depth, width = whole_panels(sizes)
    if 2 * blocks[64] >= cores:
        if width > 2 * PANEL:
            # Two groups share tiles that are short, because registers are full of queries and sums.
            tiles.append(WarpGroupsTile(2 if blocks[128] >= cores else 1, 32))
        # Where queries see keys up to a diagonal, most blocks see fewer than the average, and one is alone on a core:
        # unless it takes turns, long and short ones.
        overlapped = WarpGroupsTile(2, 128, 2, 1, 1)
        seen = sizes.seen_keys if sizes.diagonals is None else sizes.seen_keys // 2
        if prod(turns_of(sizes, overlapped, cores)) > 1:
            seen = min(sizes.keys, 2 * sizes.seen_keys)
        if width == 2 * PANEL and seen >= machine.overlapped_keys and blocks[128] >= cores:
            tiles.append(overlapped)
        tiles += [WarpGroupsTile(1, keys) for keys in ((128, 96, 32) if depth == PANEL else (64, 32))]
        many = blocks[128] >= 2 * cores or (is_long and 2 * blocks[128] >= cores)
        if many and sizes.width <= machine.two_tile_values:
            tiles.append(WarpsTile(32, 4, 64 if sizes.width <= PANEL else 32))
        tiles.append(WarpsTile(16, 4, 64 if sizes.width <= PANEL else 32))
    slices = 8 if 4 * blocks[16] < cores else 4
    while slices > 1 and sizes.keys <= 16 * slices:
        slices //= 2
    few = [WarpsTile(16, 1, 32, 2, slices), *(tile for tile in _PARTS if (tile.keys, tile.stages) == (32, 2))]
    return [*tiles, *sorted(few, key=lambda tile: few_queries_cost(sizes, item, tile, target))]


def _fits(sizes: AttentionSizes, item: WarpProduct, tile: WarpGroupsTile, target: Target) -> bool:
    """Whether warp groups can have a tile: a head's elements fill more than half of panels, and keys fill a tile."""
    name = item.row.name
    depth, width = whole_panels(sizes)
    is_mostly_full = 2 * sizes.depth > depth and 2 * sizes.width > width
    has_vectors = sizes.depth % item.lanes == 0 and sizes.width % item.lanes == 0
    if item.row.bits != 16 or not is_mostly_full or not has_vectors or sizes.keys < tile.keys:
        return False
    if tile.registers(sizes) > tile.most_registers:
        return False
    if not tile.behind and tile.keys == depth:
        # Queries and exponentials have as many registers: ptxas of CUDA 13.0 may then give them the same ones.
        return False
    if tile.copying and (sizes.queries <= (tile.groups - 1) * ROWS or sizes.keys <= tile.keys):
        # Groups without queries would wait for no one, and there is nothing to copy ahead.
        return False
    needed = held_product(name, True, tile.keys, PANEL), held_product(name, False, width, tile.keys)
    has_products = all(find_instruction(product).is_on(target) for product in needed)
    return has_products and tile.shared_bytes(sizes) <= target.shared_bytes


# ---------------------------------------------------------------- threads


def _why_not_threads(context: ScheduleContext) -> str | None:
    sizes = _sizes(context)
    if isinstance(sizes, str):
        return sizes
    many = context.gpu.attention.many_queries * context.target.cores
    is_many = sizes.batch * sizes.heads * sizes.queries >= many
    if not is_many and row_options(context, sizes):
        return "queries are few, and shared memory holds their whole rows of scores"
    return why_not_threads(sizes, operands_of(_stages(context))[0], context.target)


def _schedule_on_threads(context: ScheduleContext) -> None:
    sizes = _known_sizes(context)
    options = [tile.answer for tile in tile_options(sizes, context.target)]
    answer = context.choose("attention_threads", options, preferred_tile(sizes, context.target).answer)
    map_to_threads(context, sizes, ThreadsTile(*answer))


def _why_not_whole_rows(context: ScheduleContext) -> str | None:
    sizes = _sizes(context)
    if isinstance(sizes, str):
        return sizes
    return None if row_options(context, sizes) else "sizes are no whole tiles, or shared memory does not hold the rows"


def _schedule_whole_rows(context: ScheduleContext) -> None:
    schedule_whole_rows(context, _known_sizes(context))


TEMPLATES: Final = (
    Template(
        "attention_tensor_core",
        "online softmax; scores are fragments in registers between two products on tensor cores",
        _why_not_tensor_cores,
        _schedule_on_tensor_cores,
    ),
    Template(
        "attention_threads",
        "online softmax in float32; tiles of scores in the registers of threads",
        _why_not_threads,
        _schedule_on_threads,
    ),
    Template(
        "attention_whole_rows",
        "all scores of a block of queries in registers and shared memory",
        _why_not_whole_rows,
        _schedule_whole_rows,
    ),
)
