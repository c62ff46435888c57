"""Choosing tile sizes from the target's numbers, not from tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.target.machine import CpuParameters
from tilewright.target.machine.cpu import TileCosts

_REGISTERS_AT_ONCE = 4
_LONG_ROW = 128
"""Registers full that a row has at least whose tail does not count."""
_LONG = 16
_USEFUL_ROWS = 4
_MANY_ROWS, _MANY_VECTORS = 64, 16


def divisors(number: int, limit: int) -> list[int]:
    """The divisors of a number up to a limit, ascending."""
    return [d for d in range(1, min(number, limit) + 1) if number % d == 0]


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """Accumulators that stay in registers: rows x (vectors of lanes) columns."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Elements across."""
        return self.vectors * self.lanes


def register_tile(
    rows: int,
    columns: int,
    lanes: int,
    registers: int,
    machine: CpuParameters,
    heights: Sequence[int] = (),
    widths: Sequence[int] = (),
) -> RegisterTile:
    """The tile of a contraction with the best ratio of arithmetic to loads that fits the register file.

    Accumulators (rows x vectors) + one row of column vectors + values of rows must fit. Tiles that leave nothing
    over are preferred; otherwise the last ones are partial, with masked columns. `heights` are the numbers of rows to
    choose from, ascending, where not all will do, `widths` the elements of vectors, where there is a choice.
    """
    widths = widths or [vector_width(columns, lanes)]
    best = RegisterTile(1, 1, widths[0])
    best_score = -1.0
    costs, in_flight = machine.register_tile, machine.core.fma_in_flight
    for width in widths:
        for vectors in _widths(rows, columns, width, registers):
            for height in heights or _heights(rows, registers):
                if height * vectors + vectors + min(height, machine.register_tile.row_registers) > registers:
                    break
                reuse = height * vectors / (height + costs.column_load * vectors)
                # With few accumulators the latency of each multiply-add shows.
                overlap = min(1.0, height * vectors / in_flight)
                filled = _filled(rows, height, costs) * _filled(columns, vectors * width, costs)
                # A narrower vector does less in the same time.
                score = reuse * overlap * filled * width / widths[0]
                if score > best_score + 1e-9:
                    best, best_score = RegisterTile(height, vectors, width), score
    return best


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the weights of a tile's columns come from: the first cache level, or the second; how large each is."""

    item: int
    are_near: bool
    in_panels: bool
    """Whether they meet all rows before the next columns, which are fetched meanwhile."""


def padded_tile(
    rows: int,
    columns: int,
    widths: Sequence[int],
    registers: int,
    source: Callable[[int], Columns],
    machine: CpuParameters,
    heights: Sequence[int] = (),
    whole_panels: bool = False,
) -> RegisterTile:
    """The tile of a contraction whose weights are padded to whole vectors: the one with the least work in all.

    The last tiles are smaller then, and nothing is tested inside of any: what they cost is added up. With
    `whole_panels` the last columns are computed as a whole panel. `widths` are the elements of vectors to choose from,
    widest first; `source` says for a number of columns where their weights come from; `heights` as for
    `register_tile`. Times are in multiply-adds, from what tiles took on an Emerald Rapids core
    (45 kernels of nine models with up to eleven tiles each).
    """
    best, least = RegisterTile(1, 1, widths[0]), float("inf")
    for width in widths:
        whole = -(-columns // width)
        for vectors in range(1, min(registers // 2, whole) + 1):
            columns_of = source(vectors * width)
            for height in heights or range(1, min(rows, registers) + 1):
                if height * vectors + vectors + min(height, machine.register_tile.row_registers) > registers:
                    break
                work = sum(
                    count * times * _step(high, wide, width, columns_of, machine)
                    for high, count in _parts(rows, height)
                    for wide, times in ([(vectors, -(-whole // vectors))] if whole_panels else _parts(whole, vectors))
                )
                for is_partial in (rows % height, whole % vectors, columns % width):
                    work *= machine.register_tile.smaller_tiles if is_partial else 1.0
                if work < least - 1e-9:
                    best, least = RegisterTile(height, vectors, width), work
    return best


def _step(height: int, vectors: int, width: int, columns: Columns, machine: CpuParameters) -> float:
    """The time of one step of a tile's sums: what it computes or waits for, and what it loads."""
    core, costs = machine.core, machine.register_tile
    waiting = 0.0 if columns.are_near else vectors * width * columns.item / core.l2_bytes_per_fma
    fetched = columns.in_panels and not columns.are_near
    loads = height + (costs.fetched_column if fetched else costs.column) * vectors
    return max(height * vectors, core.fma_in_flight, waiting) + loads


def _parts(extent: int, size: int) -> list[tuple[int, int]]:
    """The sizes of tiles that cover an extent, each with how many there are."""
    return [(part, count) for part, count in ((size, extent // size), (extent % size, 1)) if part and count]


def _heights(rows: int, registers: int) -> list[int]:
    """Candidates for the rows of a tile: divisors where one is of a useful size, else anything."""
    exact = divisors(rows, registers)
    return exact if rows < _USEFUL_ROWS or exact[-1] >= _USEFUL_ROWS else list(range(1, registers))


def _widths(rows: int, columns: int, width: int, registers: int) -> list[int]:
    """Candidates for the vectors across a tile: divisors where the columns are whole vectors, else anything.

    In a large product one partial panel among many costs less than a tile of the wrong shape.
    """
    whole = -(-columns // width)
    exact = divisors(whole, registers // 2)
    large = rows >= _MANY_ROWS and whole >= _MANY_VECTORS
    if columns % width == 0 and not large and (whole < _USEFUL_ROWS or exact[-1] > 1):
        return exact
    return list(range(1, min(registers // 2, whole) + 1))


def _filled(extent: int, tile: int, costs: TileCosts) -> float:
    """The share of useful work when an extent is covered by tiles; a partial last tile also costs code."""
    if extent % tile == 0:
        return 1.0
    return costs.partial_tile * extent / (-(-extent // tile) * tile)


def padded_widths(columns: int, lanes: int) -> list[int]:
    """Elements of vectors to choose from where columns past the last one may be computed too, widest first."""
    if columns <= lanes // 4:
        return [columns]
    return [width for width in (lanes, lanes // 2, lanes // 4) if width > 1] or [1]


def vector_width(extent: int, lanes: int) -> int:
    """Elements of one vector along an axis.

    A full register, unless a short axis is covered without a tail by half or quarter ones: a masked tail is cheap only
    beside many full vectors.
    """
    if extent < _LONG * lanes:
        for width in (lanes, lanes // 2, lanes // 4):
            if width > 1 and extent % width == 0:
                return width
    return min(extent, lanes)


def vector_length(extent: int, lanes: int) -> int:
    """How many elements of an innermost loop to take at once: up to four registers, dividing where possible.

    Computations of several registers hide each other's latency; beside many of those a tail is nothing.
    """
    if extent <= lanes:
        return extent
    if extent >= _LONG_ROW * lanes:
        return _REGISTERS_AT_ONCE * lanes
    for count in (_REGISTERS_AT_ONCE, 2, 1):
        if extent % (lanes * count) == 0:
            return lanes * count
    return lanes
