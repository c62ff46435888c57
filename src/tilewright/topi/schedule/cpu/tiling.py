"""Choosing tile sizes from the target's numbers, not from tables."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tilewright.target import Target

_COLUMN_LOAD_COST = 3
"""A vector of columns (weights) streams from the second cache level; row values stay in the first."""


def divisors(number: int, limit: int) -> list[int]:
    """The divisors of a number up to a limit, ascending."""
    return [d for d in range(1, min(number, limit) + 1) if number % d == 0]


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """Rows x columns of accumulators that stay in registers; columns are a vector."""

    rows: int
    columns: int


def register_tile(rows: int, columns: int, lanes: int, registers: int) -> RegisterTile:
    """The tile of a contraction with the best ratio of arithmetic to loads that fits the register file.

    Accumulators (rows x column vectors) + one row of column vectors + a broadcast value must fit. Sizes divide the
    extents where good divisors exist, so that no tile is partial; otherwise the columns take whole vectors and
    leave a tail.
    """
    best = RegisterTile(1, min(columns, lanes))
    best_score = -1.0
    for width in _column_candidates(columns, lanes, registers):
        vectors = ceil(width / lanes)
        filled = columns / (ceil(columns / width) * vectors * lanes)
        for height in divisors(rows, registers):
            if height * vectors + vectors + 1 > registers:
                break
            reuse = height * vectors / (height + _COLUMN_LOAD_COST * vectors)
            # With few accumulators the latency of each multiply-add shows: a chain needs about eight in flight.
            overlap = min(1.0, height * vectors / 8)
            score = reuse * filled * overlap
            if score > best_score + 1e-9:
                best, best_score = RegisterTile(height, width), score
    return best


def _column_candidates(columns: int, lanes: int, registers: int) -> list[int]:
    limit = lanes * max(1, registers // 2)
    exact = [d for d in divisors(columns, limit) if d % lanes == 0 or d == columns]
    if exact:
        return exact
    near = [d for d in divisors(columns, limit) if d >= lanes]
    return near or [min(columns, lanes * n) for n in (1, 2, 4)]


def vector_length(extent: int, lanes: int, most: int = 4) -> int:
    """How many elements of an innermost loop to take at once: whole vectors, dividing the extent where possible."""
    if extent <= lanes:
        return extent
    for count in range(most, 0, -1):
        if extent % (lanes * count) == 0:
            return lanes * count
    return lanes


def lanes_of(target: Target, bits: int) -> int:
    """Elements of a width in one vector register."""
    return max(1, target.lanes(max(8, bits)))
