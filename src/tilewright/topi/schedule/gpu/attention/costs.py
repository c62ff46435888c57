"""What an attention costs, in cycles of a multiprocessor: by this, blocks that share keys are ranked."""

from __future__ import annotations

from tilewright.target import Target
from tilewright.target.machine import gpu_parameters
from tilewright.topi.intrinsics.tensor_core import COLUMNS, WarpProduct
from tilewright.topi.schedule.gpu.attention.by_warps import WarpsTile
from tilewright.topi.schedule.gpu.attention.sizes import AttentionSizes, round_up


def few_queries_cost(sizes: AttentionSizes, item: WarpProduct, tile: WarpsTile, target: Target) -> float:
    """An attention of few queries by warps that share keys, in slices and parts.

    What takes time is the way of keys and values to the multiprocessors, the work of a warp on its keys of a tile, and,
    where there are parts, a second kernel.
    """
    machine = gpu_parameters(target)
    costs, added = machine.warp_tile, machine.group_tile
    rows = round_up(sizes.queries, tile.rows * tile.warps)
    blocks = sizes.batch * sizes.heads * rows // (tile.rows * tile.warps) * tile.parts
    keys = tile.keys * tile.slices
    steps = -(-sizes.keys // (tile.parts * keys))
    copied = keys * (sizes.depth + sizes.width) * item.row.itemsize / costs.l2_bytes_per_cycle
    products = tile.keys * (sizes.depth + sizes.width) // (COLUMNS * item.depth)
    # The first tile waits for its keys; of the others, copies and products overlap.
    worked = costs.fragments + products * costs.product
    step = max(copied, worked, costs.copy_latency) + costs.step
    total = costs.start + costs.copy_latency + worked + -(-blocks // target.cores) * steps * step
    if tile.slices > 1:
        total += costs.result * tile.rows * tile.warps * sizes.width / (32 * tile.warps)
    if tile.parts > 1:
        left = sizes.batch * sizes.heads * sizes.queries * tile.parts * sizes.width * 4
        total += added.second_kernel + left / (added.added_bytes_per_cycle * target.cores)
    return total
