"""How an attention is divided on tensor cores: over warps, or over warp groups where a GPU has them."""

from __future__ import annotations

from tilewright.ir.dtype import FLOAT32
from tilewright.tir.machine import find_instruction
from tilewright.tir.row_instructions import held_product
from tilewright.topi.intrinsics.group_rows import PANEL
from tilewright.topi.intrinsics.tensor_core import WarpProduct, warp_product
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.attention_groups import AttentionGroups, divide_over_groups
from tilewright.topi.schedule.gpu.attention_stream import AttentionSizes
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


def schedule_attention_fragments(context: ScheduleContext, sizes: AttentionSizes) -> bool:
    """Compute an attention on tensor cores; False where the GPU does not have what it takes, or tf32 is not allowed.

    The schedule goes on with the program of `attention_stream.py`.
    """
    dtype = context.sch.func.buffers[0].dtype
    is_allowed = dtype.bits == 16 or (dtype is FLOAT32 and context.target.has_feature("tf32"))
    item = warp_product(context.target, dtype, dtype) if is_allowed else None
    if item is None:
        return False
    warps = [tile for tile in _WARPS if tile.shared_bytes(sizes, item) <= context.target.shared_bytes]
    groups = [tile for tile in _GROUPS if _fits(context, sizes, item, tile)]
    if not warps:
        return False
    options = [*(tile.answer for tile in warps), *(tile.answer for tile in groups)]
    answer = context.choose("attention_tile", options, _default(context, sizes, warps).answer)
    if len(answer) == len(warps[0].answer):
        divide_over_warps(context, sizes, item, AttentionWarps(*answer))
    else:
        divide_over_groups(context, sizes, item, AttentionGroups(*answer))
    return True


def _fits(context: ScheduleContext, sizes: AttentionSizes, item: WarpProduct, tile: AttentionGroups) -> bool:
    """Whether warp groups can have a tile: elements of a head are whole panels, and keys fill a tile."""
    name = item.row.name
    if item.row.bits != 16 or sizes.depth % PANEL or sizes.width not in (PANEL, 2 * PANEL) or sizes.keys < tile.keys:
        return False
    needed = held_product(name, True, tile.keys, PANEL), held_product(name, False, sizes.width, tile.keys)
    has_products = all(find_instruction(item).is_on(context.target) for item in needed)
    return has_products and tile.shared_bytes(sizes) <= context.target.shared_bytes


def _default(context: ScheduleContext, sizes: AttentionSizes, options: list[AttentionWarps]) -> AttentionWarps:
    """Large tiles where there is work for all cores: they read keys and values less often."""
    heads = sizes.batch * sizes.heads
    for rows, warps in ((32, 4), (16, 4), (16, 2), (16, 1)):
        wanted = AttentionWarps(rows, warps, 64)
        blocks = heads * -(-sizes.queries // (rows * warps))
        if wanted in options and (blocks >= 2 * context.target.cores or warps == 1):
            return wanted
    return options[0]
