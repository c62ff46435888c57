"""How an attention is divided on tensor cores: over warps, or over warp groups where a GPU has them."""

from __future__ import annotations

from tilewright.ir.dtype import FLOAT32
from tilewright.tir.machine import find_instruction
from tilewright.tir.row_instructions import held_product
from tilewright.topi.intrinsics.group_rows import PANEL
from tilewright.topi.intrinsics.tensor_core import WarpProduct, warp_product
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.attention_groups import AttentionGroups, divide_over_groups
from tilewright.topi.schedule.gpu.attention_operands import operands_of
from tilewright.topi.schedule.gpu.attention_tile import AttentionSizes
from tilewright.topi.schedule.gpu.attention_warps import AttentionWarps, divide_over_warps

_WARPS = tuple(
    AttentionWarps(rows, warps, keys, stages, slices)
    for rows, warps, slices in (
        *((16, 1, slices) for slices in (8, 4, 2, 1)),
        *((16, 2, slices) for slices in (4, 2, 1)),
        *((16, 4, 1), (16, 8, 1), (32, 2, 1), (32, 4, 1)),
    )
    for keys in (16, 32, 64, 128)
    for stages in (2, 3)
    if keys > 16 or slices > 1
)
_GROUPS = tuple(
    AttentionGroups(groups, keys, stages) for groups in (1, 2, 3) for keys in (64, 96, 128) for stages in (2, 3)
)
_LONG = 512
"""Keys from which on a block has many tiles of them."""
_MOST_OF_TWO_TILES = 96
"""Elements of values up to which a warp has registers for 32 queries."""


def schedule_attention_fragments(context: ScheduleContext, sizes: AttentionSizes) -> bool:
    """Compute an attention on tensor cores; False where the GPU does not have what it takes, or tf32 is not allowed.

    The schedule goes on with the program of `attention_stream.py`.
    """
    query, _, _ = operands_of({handle.name: context.block(handle) for handle in context.sch.blocks()})
    dtype = query.dtype
    is_allowed = dtype.bits == 16 or (dtype is FLOAT32 and context.target.has_feature("tf32"))
    item = warp_product(context.target, dtype, dtype) if is_allowed else None
    if item is None:
        return False
    warps = [tile for tile in _WARPS if tile.shared_bytes(sizes, item) <= context.target.shared_bytes]
    groups = [tile for tile in _GROUPS if _fits(context, sizes, item, tile)]
    if not warps:
        return False
    tiles: list[AttentionWarps | AttentionGroups] = [*warps, *groups]
    default = next(tile for tile in (*_preferred(context, sizes), *tiles) if tile in tiles)
    answer = context.choose("attention_tile", [tile.answer for tile in tiles], default.answer)
    if len(answer) == len(warps[0].answer):
        divide_over_warps(context, sizes, item, AttentionWarps(*answer))
    else:
        divide_over_groups(context, sizes, item, AttentionGroups(*answer))
    return True


def _preferred(context: ScheduleContext, sizes: AttentionSizes) -> list[AttentionWarps | AttentionGroups]:
    """Tiles from the best one on, as measured on an H200; not all of them need to fit.

    Large tiles read keys and values less often, if there is work for all cores; where queries are few, slices share
    the keys.
    """
    heads, cores = sizes.batch * sizes.heads, context.target.cores
    blocks = {rows: heads * -(-sizes.queries // rows) for rows in (16, 64, 128)}
    is_long = sizes.keys >= _LONG
    found: list[AttentionWarps | AttentionGroups] = []
    if 2 * blocks[64] >= cores:
        if is_long and sizes.width == PANEL and blocks[64] < 4 * cores:
            found.append(AttentionGroups(1, 128))
        found.append(AttentionGroups(1, 64))
        many = blocks[128] >= 2 * cores or (is_long and 2 * blocks[128] >= cores)
        if many and sizes.width <= _MOST_OF_TWO_TILES:
            found.append(AttentionWarps(32, 4, 64 if sizes.width <= PANEL else 32))
        found.append(AttentionWarps(16, 4, 64 if sizes.width <= PANEL else 32))
    slices = 8 if 4 * blocks[16] < cores else 4
    while slices > 1 and sizes.keys <= 16 * slices:
        slices //= 2
    return [*found, AttentionWarps(16, 1, 32, 2, slices)]


def _fits(context: ScheduleContext, sizes: AttentionSizes, item: WarpProduct, tile: AttentionGroups) -> bool:
    """Whether warp groups can have a tile: elements of a head are whole panels, and keys fill a tile."""
    name = item.row.name
    if item.row.bits != 16 or sizes.depth % PANEL or sizes.width not in (PANEL, 2 * PANEL) or sizes.keys < tile.keys:
        return False
    needed = held_product(name, True, tile.keys, PANEL), held_product(name, False, sizes.width, tile.keys)
    has_products = all(find_instruction(item).is_on(context.target) for item in needed)
    return has_products and tile.shared_bytes(sizes) <= context.target.shared_bytes
