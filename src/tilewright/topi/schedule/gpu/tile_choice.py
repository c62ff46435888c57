"""Which tiles a product gets: candidates for a shape, ranked by an analytic model of a multiprocessor."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from tilewright.target import Target
from tilewright.target.machine import GpuParameters, gpu_parameters
from tilewright.topi.schedule.gpu.block_tile import VECTOR
from tilewright.topi.schedule.gpu.register_tiles import Tile

_RESULTS: Final = (
    (8, 8),
    (7, 8),
    (6, 8),
    (8, 4),
    (5, 8),
    (4, 8),
    (7, 4),
    (6, 4),
    (4, 4),
    (3, 4),
    (2, 8),
    (2, 4),
    (1, 4),
)
"""Rows and columns of one thread."""
_TRANSPOSED: Final = ((8, 8, 16, 128, 1), (8, 8, 16, 256, 1))
"""Rows and columns of a thread, steps, threads, and parts of tiles that may be transposed: others gained nothing."""
_MOST_THREADS: Final = 512
_MOST_HELD: Final = 4
_MOST_SHARES: Final = 128
_OPTIONS: Final = 64
"""Candidates that a tuner chooses from: the best by the model, and as many again at random."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known about a product: its sizes, and how its operands can be read."""

    batch: int
    rows: int
    columns: int
    depth: int
    item: int = 4
    """Bytes of an element of the operands."""
    row_lanes: int = VECTOR
    """Elements of the rows' operand that are copied at once."""
    column_lanes: int = VECTOR
    across: bool = False
    """Whether the rows' operand is copied along rows: a thread then has whole vectors of them, and gradients of weights
    are deep, so that blocks may share the steps."""
    is_matrix: bool = False
    """Whether the rows' operand is a matrix, by steps: words of it may be copied one by one."""


@functools.lru_cache(maxsize=256)
def ranked_tiles(shape: Shape, target: Target) -> tuple[Tile, ...]:
    """All tiles that fit, cheapest first. Layers of one shape ask again and again."""
    machine = gpu_parameters(target)
    tiles = list(_candidates(shape, target))
    if shape.across:
        tiles = [tile for tile in tiles if tile.rows % VECTOR == 0]
        tiles += [shared for tile in tiles for shared in _shared(shape, tile, target)]
    elif shape.is_matrix and target.capabilities.async_copies:
        sizes = [(tile.rows, tile.columns, tile.step, tile.threads, tile.parts) for tile in tiles]
        tiles += [replace(tile, transposed=1) for tile, size in zip(tiles, sizes, strict=True) if size in _TRANSPOSED]
    costs = [(cost(shape, tile, target, machine), tile) for tile in tiles]
    costs.sort(key=lambda item: item[0])
    return tuple(tile for _, tile in costs)


def tile_options(ranked: Sequence[Tile]) -> list[Tile]:
    """What a tuner may choose from: the best of a ranking, and some of the others."""
    rest = ranked[_OPTIONS:]
    return [*ranked[:_OPTIONS], *random.Random(0).sample(rest, min(_OPTIONS, len(rest)))]


def cluster_room(target: Target, cluster: int) -> int:
    """How many multiprocessors blocks find room on where each cluster of them is in one group, of which some are odd.

    An H200 with 132 of them runs 66 clusters of 2 at once, but only 30 of 4 and 15 of 8.
    """
    if cluster <= 2:
        return target.cores
    group = gpu_parameters(target).multiprocessor.cluster_group
    return max(1, target.cores - target.cores % group - group // 2)


def _candidates(shape: Shape, target: Target) -> Iterator[Tile]:
    most = min(_MOST_THREADS, target.max_threads)
    for rows, columns in _RESULTS:
        for row_threads, column_threads in product((1, 2, 4, 8, 16, 32), (2, 4, 8, 16)):
            tall, wide = rows * row_threads, columns * column_threads
            if (tall >= 2 * shape.rows and tall > 8) or (wide >= 2 * shape.columns and wide > 2 * VECTOR):
                continue
            tiles = -(-shape.rows // tall) * -(-shape.columns // wide) * shape.batch
            clusters = [1]
            if target.has_clusters and tall <= shape.rows and shape.columns % wide == 0:
                # Several blocks for a tile where tiles alone would leave multiprocessors idle.
                fitting = [count for count in (2, 4, 8) if tiles * count <= cluster_room(target, count)]
                clusters += [count for count in fitting if tall >= count]
            for slices in (1, 2, 4, 8, 16):
                threads = row_threads * column_threads * slices
                if not min(32, most) <= threads <= most:
                    continue
                for step, cluster in product((8, 16, 32, 64, 128), clusters):
                    if step < slices * VECTOR or (step >= 2 * shape.depth and step > 8):
                        continue
                    if cluster > 1 and cluster * step * 2 > shape.depth:
                        continue
                    tile = _staged(
                        Tile(rows, columns, row_threads, column_threads, slices, step, 1, cluster), shape, target
                    )
                    if tile is not None:
                        yield tile


def _shared(shape: Shape, tile: Tile, target: Target) -> Iterator[Tile]:
    """A tile with shares of the steps."""
    blocks = -(-shape.rows // tile.block_rows) * -(-shape.columns // tile.block_columns)
    if shape.batch == 1 and tile.parts == 1:
        for shares in share_counts(blocks, shape.depth, tile.step, target):
            yield replace(tile, shares=shares)


def share_counts(blocks: int, depth: int, step: int, target: Target) -> list[int]:
    """By how many blocks the steps of each tile may be shared so that some blocks run on every multiprocessor."""
    filling = {held * target.cores // blocks for held in range(1, _MOST_HELD + 1)}
    return sorted(shares for shares in filling if 1 < shares <= min(_MOST_SHARES, depth // (4 * step)))


def _staged(tile: Tile, shape: Shape, target: Target) -> Tile | None:
    """A tile with as many stages as there is room for; None where there is none for it."""
    if not target.capabilities.async_copies:
        return tile if tile.shared_bytes(shape.item, reused=False) <= target.shared_bytes else None
    for stages, room in ((4, target.shared_bytes // 2), (3, target.shared_bytes // 2), (2, target.shared_bytes)):
        deep = replace(tile, stages=stages)
        if deep.shared_bytes(shape.item) <= room:
            return deep
    return None


def cost(shape: Shape, tile: Tile, target: Target, machine: GpuParameters) -> float:
    """Cycles that a product takes by a tile: products, bytes from the second-level cache, and what each step costs.

    The numbers were fitted to some 1800 measured kernels of 103 products on an H200: 14 % off in the mean, and what it
    likes best is 4 % slower than the best measured.
    """
    core, costs = machine.multiprocessor, machine.thread_tile
    steps = -(-shape.depth // (tile.step * tile.cluster * tile.shares))
    tiles = -(-shape.rows // tile.block_rows) * -(-shape.columns // tile.block_columns) * shape.batch * tile.shares
    waves = -(-tiles * tile.cluster // cluster_room(target, tile.cluster))
    results = tile.rows * tile.columns
    registers = results + 3 * tile.rows + tile.columns + 40
    needed = tile.shared_bytes(shape.item, target.capabilities.shared_reuse)
    held = min(
        target.shared_bytes // (needed + core.block_shared_bytes) or 1,
        core.registers // (tile.threads * registers) or 1,
        core.resident_threads // tile.threads,
    )
    together = min(waves, held)
    alone = costs.alone if together < waves and together == 1 else 1.0
    rounds, rest = divmod(waves, together)
    products = rounds * together / _efficiency(tile, together, machine)
    if rest:
        # The last blocks of a multiprocessor hide less of each other's latencies.
        products += rest / _efficiency(tile, rest, machine)
    products *= tile.block_rows * tile.block_columns * steps * tile.step / core.fma_per_cycle * alone
    loaded = waves * (tile.block_rows + tile.block_columns) * steps * tile.step * shape.item
    fetched = loaded / costs.l2_bytes_per_cycle
    row_lanes = 1 if tile.transposed else shape.row_lanes
    copies = tile.step * (tile.block_rows / row_lanes + tile.block_columns / shape.column_lanes) / 32
    combined = tile.block_rows * tile.block_columns * tile.slices * costs.partial_sum if tile.parts > 1 else 0.0
    combined *= costs.remote_sum if tile.cluster > 1 else 1.0
    turns = waves / together
    started = costs.start + costs.turn * -(-waves // together) + (costs.cluster_meeting if tile.cluster > 1 else 0.0)
    busy = max(products + waves * steps * copies * costs.copy, fetched) * (costs.transposed if tile.transposed else 1.0)
    added = added_cycles(shape.rows * shape.columns, tile.shares, target) if tile.shares > 1 else 0.0
    written = tile.block_rows * tile.block_columns * costs.result
    return busy + turns * (combined + steps * costs.step + written) + started + added


def added_cycles(results: int, shares: int, target: Target) -> float:
    """Cycles of the kernel that adds up the sums of blocks that share the steps."""
    costs = gpu_parameters(target).group_tile
    return costs.second_kernel + results * shares * 4 / (costs.added_bytes_per_cycle * target.cores)


def _efficiency(tile: Tile, blocks: int, machine: GpuParameters) -> float:
    """The part of its peak that a multiprocessor reaches with some blocks at a time."""
    core, costs = machine.multiprocessor, machine.thread_tile
    results, warps = tile.rows * tile.columns, blocks * tile.threads / 32
    # A result needs a value of each operand from shared memory: the larger the thread's tile, the fewer of them.
    efficiency: float = results / (results + costs.operand_reads * (tile.rows + tile.columns) + costs.step_reads)
    efficiency *= min(1.0, warps / costs.hiding_warps) ** costs.hiding_exponent
    # A warp has one partition of a multiprocessor.
    return min(efficiency, costs.partition_efficiency * warps / core.partitions)
