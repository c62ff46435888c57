"""Which tiles a product on tensor cores gets: candidates for a shape, ranked by an analytic model.

Its numbers are fitted to 1300 tiles of 47 products, measured on an H200: what it likes best is 3% slower than the best
that was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from math import inf
from typing import Final

from tilewright.ir.dtype import DataType
from tilewright.target import Target
from tilewright.target.machine import gpu_parameters
from tilewright.target.machine.gpu import GpuParameters
from tilewright.topi.intrinsics.tensor_core import WarpProduct, warp_product
from tilewright.topi.schedule.gpu.block_tile import VECTOR
from tilewright.topi.schedule.gpu.tensor_core import WarpTile
from tilewright.topi.schedule.gpu.tile_choice import added_cycles, cluster_room, share_counts

_SIDES: Final = (16, 32, 64, 128)
_MOST_RESULTS: Final = 64 * 64
"""Sums of one warp: 128 registers of each thread."""
_LEAST_STAGES: Final = 3
"""Copies of the tiles of a block that has a share of the steps, at the least."""
_OPTIONS: Final = 48
"""Candidates that a tuner chooses from."""


@cache
def ranked_warp_tiles(
    batch: int, rows: int, columns: int, depth: int, item: WarpProduct, target: Target
) -> tuple[WarpTile, ...]:
    """The tiles that fit a target, cheapest first."""
    machine = gpu_parameters(target)
    tiles: Sequence[WarpTile] = warp_tiles(item, target)
    if item.across and batch == 1:
        tiles = [*tiles, *(shared for tile in tiles for shared in _shared(rows, columns, depth, tile, target))]
    costs = [(_cost(batch, rows, columns, depth, item, tile, target, machine), tile) for tile in tiles]
    costs.sort(key=lambda entry: entry[0])
    ranked = [tile for _, tile in costs]
    # Some of those that sum up all steps in one place, and of those by clusters, are among the options in any case.
    plain = [tile for tile in ranked if tile.parts == 1][: _OPTIONS // 4]
    clustered = [tile for tile in ranked if tile.cluster > 1][: _OPTIONS // 4]
    return tuple(dict.fromkeys([*ranked[:_OPTIONS], *plain, *clustered]))


def _shared(rows: int, columns: int, depth: int, tile: WarpTile, target: Target) -> Iterator[WarpTile]:
    """A tile with shares of the steps: gradients of weights are deep."""
    blocks = -(-rows // tile.block_rows) * -(-columns // tile.block_columns)
    if tile.parts == 1 and tile.stages >= _LEAST_STAGES:
        for shares in share_counts(blocks, depth, tile.step, target):
            yield replace(tile, shares=shares)


@cache
def warp_tiles(item: WarpProduct, target: Target) -> tuple[WarpTile, ...]:
    """All tiles that fit a target."""
    return tuple(_all_tiles(item, target))


def _all_tiles(item: WarpProduct, target: Target) -> Iterator[WarpTile]:
    clusters = (1, 2, 4, 8) if target.has_feature("sm_90") else (1,)
    for rows, columns in product(_SIDES, _SIDES):
        if rows * columns > _MOST_RESULTS:
            continue
        for row_warps, column_warps, slices in product((1, 2, 4), (1, 2, 4), (1, 2, 4, 8)):
            if not 2 <= row_warps * column_warps * slices <= 8 or (slices > 1 and column_warps > 1):
                continue
            for slabs, stages, cluster in product((1, 2, 4, 8), (2, 3, 4, 5), clusters):
                if slabs % slices:
                    continue
                tile = WarpTile(rows, columns, row_warps, column_warps, slabs * item.depth, stages, slices, cluster)
                if tile.parts > 1 and tile.block_rows * tile.block_columns < tile.threads * cluster * VECTOR:
                    continue
                if tile.shared_bytes(item) <= target.shared_bytes and tile.threads <= target.max_threads:
                    yield tile


def _cost(
    batch: int,
    rows: int,
    columns: int,
    depth: int,
    item: WarpProduct,
    tile: WarpTile,
    target: Target,
    machine: GpuParameters,
) -> float:
    """Cycles that a product takes by a tile."""
    core, costs = machine.multiprocessor, machine.warp_tile
    size = item.row.itemsize
    blocks = batch * -(-rows // tile.block_rows) * -(-columns // tile.block_columns) * tile.cluster * tile.shares
    steps = -(-depth // (tile.step * tile.cluster * tile.shares))
    results = tile.rows * tile.columns
    registers = results // 32 + (tile.rows + tile.columns) * item.depth * size // 128 + 48
    held = min(
        max(1, target.shared_bytes // (tile.shared_bytes(item) + core.block_shared_bytes)),
        max(1, core.registers // (registers * tile.threads)),
        max(1, core.resident_threads // tile.threads),
    )
    cores = cluster_room(target, tile.cluster)
    together = min(held, -(-blocks // cores))
    waves = -(-blocks // (cores * together))
    # Fragments come from shared memory: larger tiles of a warp read less for each product.
    warps = tile.row_warps * tile.column_warps
    reads = (tile.rows + tile.columns) * warps * tile.step * size / costs.shared_bytes_per_cycle
    work = tile.block_rows * tile.block_columns * tile.step / costs.products(size)
    copies = (tile.block_rows + tile.block_columns) * tile.step * size / costs.l2_bytes_per_cycle
    alone = tile.step / tile.slices / item.depth * (costs.fragments + results / 128 * costs.product)
    waiting = (costs.copy_latency + together * copies) / max(1, tile.stages - 1)
    # What takes longest decides, but the others are never quite hidden behind it.
    taken = (together * work, together * reads, together * copies, alone, waiting)
    busy = sum(cycles**costs.overlap for cycles in taken) ** (1 / costs.overlap)
    end = tile.block_rows * tile.block_columns * (2 * tile.slices + 2 if tile.parts > 1 else 2) / 64
    end += tile.block_rows * tile.block_columns / tile.threads * costs.result
    if tile.cluster > 1:
        end += costs.cluster_meeting + tile.block_rows * tile.block_columns * tile.slices * (costs.remote_sum - 1) / 64
    step = costs.step + (costs.odd_stages if tile.stages & (tile.stages - 1) else 0.0)
    total = waves * (costs.start + steps * (busy + step) + end)
    if tile.shares > 1:
        total += added_cycles(rows * columns, tile.shares, target)
    return float(total)


def warp_cost(batch: int, rows: int, columns: int, depth: int, dtype: DataType, target: Target) -> float:
    """Cycles that a product of elements of one type takes by the best tile of warps."""
    item = warp_product(target, dtype, dtype)
    if item is None:
        return inf
    best = ranked_warp_tiles(batch, rows, columns, depth, item, target)[0]
    return _cost(batch, rows, columns, depth, item, best, target, gpu_parameters(target))
