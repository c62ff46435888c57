"""Which tiles of warp groups a product gets: candidates for a shape, ranked by an analytic model.

Its numbers are fitted to a hundred tiles of twenty-five products, measured on an H200: 15% off in the mean, and what it
likes best is one percent slower than the best measured.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Final

from tilewright.ir.dtype import DataType
from tilewright.target import Target
from tilewright.target.machine import gpu_parameters
from tilewright.target.machine.gpu import GroupTile as GroupCosts
from tilewright.tir.warp_instructions import GROUP_COLUMNS, GROUP_PANELS
from tilewright.topi.intrinsics.warp_group import ROWS
from tilewright.topi.schedule.gpu.warp_groups import GroupTile, may_pack, producer_registers, rounds_of

LEAST_COLUMNS: Final = 16
"""Columns of a product from which on warp groups may compute it."""
_STAGES: Final = 4
"""Copies of the operands' tiles where more or less make no difference."""
_MOST_STAGES: Final = 6
"""Copies of the operands' tiles at most, where the threads that compute copy or several groups compute."""
_TOGETHER: Final = 8
"""Rows of blocks that run together."""


def steps_at_a_time(dtype: DataType) -> int:
    """Steps of operands that are in shared memory at a time: rows of 128 bytes."""
    return 128 // dtype.itemsize


@cache
def ranked_group_tiles(
    batch: int,
    rows: int,
    columns: int,
    depth: int,
    dtype: DataType,
    panels: bool,
    is_constant: bool,
    target: Target,
) -> tuple[GroupTile, ...]:
    """The tiles that fit a target, cheapest first. `is_constant`: the second operand is a constant matrix."""
    widths = GROUP_PANELS if panels else [width for width in GROUP_COLUMNS if width >= LEAST_COLUMNS]
    steps = -(-depth // steps_at_a_time(dtype))
    tiles = [
        GroupTile(groups, width, stages, _TOGETHER, parts)
        for groups, width, stages, parts in product((1, 2, 3), widths, (3, 4, 5, 6, 7, 8), (1, 2, 4, 8, 16, 32, 64))
        if parts == 1 or steps >= 2 * parts
    ]
    fitting = [tile for tile in tiles if tile.shared_bytes <= target.shared_bytes and _is_usual(tile, steps, target)]
    costs = {tile: group_cost(batch, rows, columns, depth, dtype, is_constant, tile, target) for tile in fitting}
    return tuple(sorted(fitting, key=lambda tile: (costs[tile], _unusual_stages(tile, steps, target))))


def _unusual_stages(tile: GroupTile, steps: int, target: Target) -> int:
    """How far from the best a number of copies is: where a warp group copies for the others, more hide more."""
    is_specialized = producer_registers(tile, -(-steps // tile.parts), target) is not None
    return -tile.stages if is_specialized else abs(tile.stages - _STAGES)


def _is_usual(tile: GroupTile, steps: int, target: Target) -> bool:
    """Whether the model knows a tile: of three groups, or one with many copies of tiles, where another group copies."""
    has_many = tile.stages > _MOST_STAGES
    is_special = has_many or tile.groups > 2
    return not (has_many and tile.groups > 1) and (not is_special or bool(producer_registers(tile, steps, target)))


def group_cost(
    batch: int,
    rows: int,
    columns: int,
    depth: int,
    dtype: DataType,
    is_constant: bool,
    tile: GroupTile,
    target: Target,
) -> float:
    """Cycles that a product takes by a tile of warp groups; blocks that fit a multiprocessor together share it.

    `is_constant`: the second operand is a constant matrix, which may be stored in whole tiles.
    """
    machine = gpu_parameters(target)
    core, costs = machine.multiprocessor, machine.group_tile
    blocks = batch * -(-rows // tile.rows) * -(-columns // tile.columns) * tile.parts
    steps = -(-depth // (steps_at_a_time(dtype) * tile.parts))
    if producer_registers(tile, steps, target) is not None:
        is_packed = is_constant and may_pack(depth, steps_at_a_time(dtype), tile, target)
        each = _specialized_cost(steps, dtype, tile, columns % tile.columns > 0 and not is_packed, costs)
        turns = rounds_of(batch * tile.parts, rows, columns, tile, steps, target).count
        total = -(-blocks // target.cores) * each - (turns - 1) * costs.specialized_overlap
    else:
        held = max(1, target.shared_bytes // (tile.shared_bytes + core.block_shared_bytes))
        held = min(held, max(1, core.registers // (128 * tile.groups * (tile.columns // 2 + 48))))
        rounds, rest = divmod(-(-blocks // target.cores), held)
        ragged = columns % tile.columns > 0
        total = rounds * _round_cost(steps, dtype, tile, held, ragged, costs)
        if rest:
            total += _round_cost(steps, dtype, tile, rest, ragged, costs)
    if tile.parts > 1:
        added = costs.added_bytes_per_cycle * target.cores
        total += costs.second_kernel + batch * rows * columns * tile.parts * 4 / added
    return total


def _specialized_cost(steps: int, dtype: DataType, tile: GroupTile, ragged: bool, costs: GroupCosts) -> float:
    """Cycles of a block in which one warp group copies for the others: they hardly wait for a single copy.

    Products, copies from the cache, and shared memory (which takes copies and gives products their operands) go on at
    once: what takes longest decides. Sums of parts are written as they are, in twice as many bytes as usual results.
    `ragged`: tiles of columns do not divide them, and threads copy these.
    """
    work = tile.rows * tile.columns * steps_at_a_time(dtype) / costs.products(dtype.itemsize)
    copied, read = (tile.rows + tile.columns) * 128, tile.groups * (ROWS + tile.columns) * 128
    shared = (copied + read) / costs.specialized_shared_bytes_per_cycle
    busy = max(work, copied / costs.specialized_l2_bytes_per_cycle, shared)
    results = tile.rows * tile.columns / costs.specialized_results_per_cycle * (2 if tile.parts > 1 else 1)
    return costs.specialized_start + steps * busy * (costs.specialized_ragged if ragged else 1) + results


def _round_cost(steps: int, dtype: DataType, tile: GroupTile, together: int, ragged: bool, costs: GroupCosts) -> float:
    """Cycles of some blocks that share a multiprocessor, from their start to their end.

    `ragged`: tiles of columns do not divide them.
    """
    work = tile.rows * tile.columns * steps_at_a_time(dtype) / costs.products(dtype.itemsize)
    fetched = (tile.rows + tile.columns) * 128 / costs.l2_bytes_per_cycle
    read = tile.groups * (ROWS + tile.columns) * 128 / costs.shared_bytes_per_cycle
    # The latency of copies is never quite hidden behind the rest.
    waiting = costs.latency(dtype.itemsize) / (tile.stages - 2)
    taken = (together * max(work, fetched, read), waiting)
    busy = float(sum(cycles**costs.overlap for cycles in taken) ** (1 / costs.overlap))
    results = tile.rows * tile.columns / costs.results_per_cycle
    slower = costs.ragged_results_8_bit if ragged and dtype.itemsize == 1 else 1.0
    return costs.start + steps * (busy + costs.step) + results * slower
