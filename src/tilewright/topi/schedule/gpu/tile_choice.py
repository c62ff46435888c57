"""Which tiles a product gets: candidates for a shape, ranked by an analytic model of a multiprocessor."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from tilewright.target import Target
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
_REGISTERS: Final = 65536
"""Registers of a multiprocessor."""
_RESIDENT: Final = 2048
"""Threads that a multiprocessor holds."""
_MOST_THREADS: Final = 512
_LANES: Final = 128
"""Products that a multiprocessor finishes in a cycle."""
_QUARTERS: Final = 4
"""Parts of a multiprocessor that work on warps of their own."""
_FETCHED: Final = 17.5
"""Bytes that a multiprocessor gets from the second-level cache in a cycle."""
_COPIED: Final = 5.9
"""Cycles that a warp's copy instruction and its addresses take."""
_COMBINED: Final = 0.091
"""Cycles that one partial sum takes, written and read again."""
_STEP: Final = 143.0
"""Cycles of a step beside its products: the barrier, and the first values from shared memory."""
_START: Final = 3080.0
"""Cycles of a kernel beside its steps."""
_TURN: Final = 205.0
"""Cycles until a block that follows another one has its first operands."""
_MEETING: Final = 3000.0
"""Cycles that it costs the blocks of a cluster to meet, twice."""
_REMOTE: Final = 2.0
"""How much longer a sum takes from the shared memory of another block than from a block's own."""
_ALONE: Final = 1.05
"""How much longer products take where one block after the other has a multiprocessor to itself."""
_GROUP: Final = 16
"""Multiprocessors of a group: the blocks of a cluster are in one."""
_SPARE_SHARED: Final = 1024
"""Bytes of shared memory that a block costs beside what it asks for."""
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


@functools.lru_cache(maxsize=256)
def ranked_tiles(shape: Shape, target: Target) -> tuple[Tile, ...]:
    """All tiles that fit, cheapest first. Layers of one shape ask again and again."""
    costs = [(cost(shape, tile, target), tile) for tile in _candidates(shape, target)]
    costs.sort(key=lambda item: item[0])
    return tuple(tile for _, tile in costs)


def tile_options(ranked: Sequence[Tile]) -> list[Tile]:
    """What a tuner may choose from: the best of a ranking, and some of the others."""
    rest = ranked[_OPTIONS:]
    return [*ranked[:_OPTIONS], *random.Random(0).sample(rest, min(_OPTIONS, len(rest)))]


def cluster_room(cores: int, cluster: int) -> int:
    """How many multiprocessors blocks find room on where each cluster of them is in one group, of which some are odd.

    An H200 with 132 of them runs 66 clusters of 2 at once, but only 30 of 4 and 15 of 8.
    """
    return cores if cluster <= 2 else max(1, cores - cores % _GROUP - _GROUP // 2)


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
                fitting = [count for count in (2, 4, 8) if tiles * count <= cluster_room(target.cores, count)]
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


def _staged(tile: Tile, shape: Shape, target: Target) -> Tile | None:
    """A tile with as many stages as there is room for; None where there is none for it."""
    if not target.capabilities.async_copies:
        return tile if tile.shared_bytes(shape.item, reused=False) <= target.shared_bytes else None
    for stages, room in ((4, target.shared_bytes // 2), (3, target.shared_bytes // 2), (2, target.shared_bytes)):
        deep = replace(tile, stages=stages)
        if deep.shared_bytes(shape.item) <= room:
            return deep
    return None


def cost(shape: Shape, tile: Tile, target: Target) -> float:
    """Cycles that a product takes by a tile: products, bytes from the second-level cache, and what each step costs.

    The numbers were fitted to some 1700 measured kernels of 40 layers on an H200: a tenth off in the mean, and what it
    likes best is 5 % slower than the best measured.
    """
    steps = -(-shape.depth // (tile.step * tile.cluster))
    tiles = -(-shape.rows // tile.block_rows) * -(-shape.columns // tile.block_columns) * shape.batch
    waves = -(-tiles * tile.cluster // cluster_room(target.cores, tile.cluster))
    results = tile.rows * tile.columns
    registers = results + 3 * tile.rows + tile.columns + 40
    needed = tile.shared_bytes(shape.item, target.capabilities.shared_reuse)
    held = min(
        target.shared_bytes // (needed + _SPARE_SHARED) or 1,
        _REGISTERS // (tile.threads * registers) or 1,
        _RESIDENT // tile.threads,
    )
    together = min(waves, held)
    alone = _ALONE if together < waves and together == 1 else 1.0
    warps = together * tile.threads / 32
    # A result needs a value of each operand from shared memory: the larger the thread's tile, the fewer of them.
    efficiency: float = results / (results + 1.9 * (tile.rows + tile.columns) + 1.6) * min(1.0, warps / 7.5) ** 0.42
    # A warp has a quarter of a multiprocessor.
    efficiency = min(efficiency, 0.9 * warps / _QUARTERS)
    products = waves * tile.block_rows * tile.block_columns * steps * tile.step / _LANES / efficiency * alone
    fetched = waves * (tile.block_rows + tile.block_columns) * steps * tile.step * shape.item / _FETCHED
    copies = tile.step * (tile.block_rows / shape.row_lanes + tile.block_columns / shape.column_lanes) / 32
    combined = tile.block_rows * tile.block_columns * tile.slices * _COMBINED if tile.parts > 1 else 0.0
    combined *= _REMOTE if tile.cluster > 1 else 1.0
    turns = waves / together
    started = _START + _TURN * -(-waves // together) + (_MEETING if tile.cluster > 1 else 0.0)
    return max(products + waves * steps * copies * _COPIED, fetched) + turns * (combined + steps * _STEP) + started
