"""Which tiles a product gets: candidates for a shape, ranked by an analytic model of a multiprocessor."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tilewright.target import Target
from tilewright.topi.schedule.gpu.tiles import VECTOR, Tile

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
_FETCHED: Final = 24.0
"""Bytes that a multiprocessor gets from the second-level cache in a cycle."""
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


def best_tile(shape: Shape, target: Target) -> Tile | None:
    """The tile that the model likes best, or None where the target has no room for any."""
    ranked = ranked_tiles(shape, target)
    return ranked[0] if ranked else None


def ranked_tiles(shape: Shape, target: Target) -> list[Tile]:
    """All tiles that fit, cheapest first."""
    found = [(cost(shape, tile, target), tile) for tile in _candidates(shape, target)]
    found.sort(key=lambda item: item[0])
    return [tile for _, tile in found]


def tile_options(ranked: list[Tile]) -> list[Tile]:
    """What a tuner may choose from: the best of a ranking, and some of the others."""
    rest = ranked[_OPTIONS:]
    return [*ranked[:_OPTIONS], *random.Random(0).sample(rest, min(_OPTIONS, len(rest)))]


def _candidates(shape: Shape, target: Target) -> Iterator[Tile]:
    has_async = target.kind == "cuda"
    most = min(_MOST_THREADS, target.max_threads)
    for rows, columns in _RESULTS:
        for row_threads in (1, 2, 4, 8, 16, 32):
            if rows * row_threads >= 2 * shape.rows and rows * row_threads > 8:
                continue
            for column_threads in (2, 4, 8, 16):
                if columns * column_threads >= 2 * shape.columns and columns * column_threads > 2 * VECTOR:
                    continue
                for slices in (1, 2, 4, 8, 16):
                    threads = row_threads * column_threads * slices
                    if not min(32, most) <= threads <= most:
                        continue
                    for step in (8, 16, 32, 64, 128):
                        if step < slices * VECTOR or (step >= 2 * shape.depth and step > 8):
                            continue
                        stages = (4 if step <= 16 else 3) if has_async else 1
                        tile = Tile(rows, columns, row_threads, column_threads, slices, step, stages)
                        if tile.shared_bytes(shape.item, has_async) <= target.shared_bytes:
                            yield tile


def cost(shape: Shape, tile: Tile, target: Target) -> float:
    """Cycles that a product takes by a tile: products, bytes from the second-level cache, and what each step costs."""
    steps = -(-shape.depth // tile.step)
    blocks = -(-shape.rows // tile.block_rows) * -(-shape.columns // tile.block_columns) * shape.batch
    waves = -(-blocks // target.cores)
    results = tile.rows * tile.columns
    registers = results + VECTOR * tile.rows + tile.columns + 40
    needed = tile.shared_bytes(shape.item, target.kind == "cuda")
    held = min(
        target.shared_bytes // (needed + _SPARE_SHARED) or 1,
        _REGISTERS // (tile.threads * registers) or 1,
        _RESIDENT // tile.threads,
    )
    together = min(waves, held)
    warps = together * tile.threads / 32
    # A result needs a value of each operand from shared memory: the larger the thread's tile, the fewer of them.
    efficiency: float = results / (results + 1.3 * (tile.rows + tile.columns) + 2) * min(1.0, warps / 8) ** 0.7
    products = waves * tile.block_rows * tile.block_columns * steps * tile.step / _LANES / efficiency
    fetched = waves * (tile.block_rows + tile.block_columns) * steps * tile.step * shape.item / _FETCHED
    copies = tile.step * (tile.block_rows / shape.row_lanes + tile.block_columns / shape.column_lanes) / tile.threads
    issued = waves * steps * copies * tile.threads / 32 * 6 / 4
    combined = waves / together * tile.block_rows * tile.block_columns * tile.slices / 64 if tile.slices > 1 else 0
    return max(products + issued, fetched) + 900 + combined + waves / together * steps * 40
