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
from tilewright.tir.warp_instructions import GROUP_COLUMNS, GROUP_PANELS
from tilewright.topi.intrinsics.warp_group import ROWS
from tilewright.topi.schedule.gpu.warp_groups import GroupTile

LEAST_COLUMNS: Final = 32
"""Columns of a product from which on warp groups may compute it."""
_PRODUCTS: Final = {2: 2000.0, 4: 1000.0}
"""Products that a multiprocessor finishes in a cycle, by the bytes of an element."""
_FETCHED: Final = 50.0
"""Bytes that a multiprocessor gets from the second-level cache in a cycle."""
_READ: Final = 58.0
"""Bytes that products get from shared memory in a cycle."""
_WRITTEN: Final = 3.3
"""Results that a block writes in a cycle."""
_LATENCY: Final = 790.0
"""Cycles from the start of a copy to its data."""
_STEP: Final = 5.0
"""Cycles that a step costs beside its work: waiting, the barrier, addresses."""
_START: Final = 2300.0
"""Cycles of a block beside its steps: starting, the first copies."""
_SECOND: Final = 3150.0
"""Cycles of the kernel that adds up parts beside its work."""
_ADDED: Final = 50.0
"""Bytes of parts that a multiprocessor adds up in a cycle."""
_STAGES: Final = 4
"""Copies of the operands' tiles where more or less make no difference."""
_TOGETHER: Final = 8
"""Rows of blocks that run together."""


@cache
def ranked_group_tiles(
    batch: int, rows: int, columns: int, depth: int, dtype: DataType, panels: bool, target: Target
) -> tuple[GroupTile, ...]:
    """The tiles that fit a target, cheapest first."""
    widths = GROUP_PANELS if panels else [width for width in GROUP_COLUMNS if width >= LEAST_COLUMNS]
    steps = -(-depth // (128 // dtype.itemsize))
    tiles = [
        GroupTile(groups, width, stages, _TOGETHER, parts)
        for groups, width, stages, parts in product((1, 2), widths, (3, 4, 5, 6), (1, 2, 4, 8, 16))
        if parts == 1 or steps >= 2 * parts
    ]
    fitting = [tile for tile in tiles if tile.shared_bytes <= target.shared_bytes]
    costs = {tile: group_cost(batch, rows, columns, depth, dtype, tile, target) for tile in fitting}
    return tuple(sorted(fitting, key=lambda tile: (costs[tile], abs(tile.stages - _STAGES))))


def group_cost(
    batch: int, rows: int, columns: int, depth: int, dtype: DataType, tile: GroupTile, target: Target
) -> float:
    """Cycles that a product takes by a tile of warp groups; blocks that fit a multiprocessor together share it."""
    blocks = batch * -(-rows // tile.rows) * -(-columns // tile.columns) * tile.parts
    held = max(1, target.shared_bytes // (tile.shared_bytes + 1024))
    held = min(held, max(1, 65536 // (128 * tile.groups * (tile.columns // 2 + 48))))
    rounds, rest = divmod(-(-blocks // target.cores), held)
    steps = -(-depth // (128 // dtype.itemsize * tile.parts))
    total = rounds * _round_cost(steps, dtype, tile, held)
    if rest:
        total += _round_cost(steps, dtype, tile, rest)
    if tile.parts > 1:
        total += _SECOND + batch * rows * columns * tile.parts * 4 / (_ADDED * target.cores)
    return total


def _round_cost(steps: int, dtype: DataType, tile: GroupTile, together: int) -> float:
    """Cycles of some blocks that share a multiprocessor, from their start to their end."""
    work = tile.rows * tile.columns * 128 / dtype.itemsize / _PRODUCTS[dtype.itemsize]
    fetched = (tile.rows + tile.columns) * 128 / _FETCHED
    read = tile.groups * (ROWS + tile.columns) * 128 / _READ
    busy = max(together * max(work, fetched, read), _LATENCY / (tile.stages - 2))
    return _START + steps * (busy + _STEP) + tile.rows * tile.columns / _WRITTEN
