"""Register tiles and vector lengths for all templates: the analytic choice unless a tuner knows better."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.tiling import RegisterTile, vector_length

_LEAST_ACCUMULATORS = 4
"""Smaller tiles wait for every multiply-add, whatever the rest of the schedule is."""
_LEAST_FILLED = 0.6
_WORTH_ASKING = 1 << 12
"""Elements below which the length of a vector does not show."""


def choose_tile(
    context: ScheduleContext,
    tile: RegisterTile,
    rows: int,
    columns: int,
    *,
    heights: Sequence[int] = (),
    widths: Sequence[int] = (),
) -> RegisterTile:
    """A register tile: `tile`, the analytic choice, or another one of its vectors that fits the register file.

    Vectors across are asked for first. For other vectors than the analytic tile's, the proposal is as many rows as
    registers allow. `heights` and `widths` are the numbers of rows and vectors to choose from where not all will do.
    """
    registers = context.target.vector_registers
    shapes = [
        (height, vectors)
        for height, vectors in _shapes(tile, rows, columns, registers)
        if (not heights or height in heights) and (not widths or vectors in widths)
    ]
    across = sorted({vectors for _, vectors in shapes} | {tile.vectors})
    vectors = context.choose_again("tile_vectors", across, tile.vectors)
    fitting = sorted({height for height, width in shapes if width == vectors})
    proposed = tile.rows if vectors == tile.vectors else fitting[-1]
    height = context.choose_again("tile_rows", sorted({*fitting, proposed}), proposed)
    return RegisterTile(height, vectors, tile.lanes)


@lru_cache(maxsize=256)
def _shapes(tile: RegisterTile, rows: int, columns: int, registers: int) -> tuple[tuple[int, int], ...]:
    """(rows, vectors) of tiles that fit the registers and are not mostly empty."""
    whole = -(-columns // tile.lanes)
    enough = min(_LEAST_ACCUMULATORS, rows * whole, tile.rows * tile.vectors)
    shapes = []
    for vectors in range(1, min(registers // 2, whole) + 1):
        for height in range(1, min(rows, registers) + 1):
            filled = _filled(rows, height) * _filled(whole, vectors)
            if height * vectors + vectors + 1 <= registers and height * vectors >= enough and filled >= _LEAST_FILLED:
                shapes.append((height, vectors))
    return tuple(shapes)


def _filled(extent: int, tile: int) -> float:
    return extent / (-(-extent // tile) * tile)


def choose_vector_length(context: ScheduleContext, extent: int, lanes: int, work: int) -> int:
    """How many elements of an innermost loop to take at once: some registers full, without a tail if possible."""
    length = vector_length(extent, lanes)
    if work < _WORTH_ASKING or extent <= lanes:
        return length
    options = [lanes * count for count in (1, 2, 4, 8) if extent % (lanes * count) == 0 or extent >= 8 * lanes * count]
    return context.choose_again("vector", sorted({*options, length}), length)
