"""Extents of a program: numbers, symbols of an activation, and arithmetic over these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tilewright.runtime.core.shapes import evaluate

Extent = int | str
_MOST_KNOWN: Final = 256
"""Sets of symbols whose shapes are remembered; more of them are computed anew."""


def extent_in(extent: Extent, symbols: Sequence[int]) -> int:
    """An extent over the symbols of an activation."""
    if isinstance(extent, int):
        return extent
    if extent[1:].isdecimal():
        return symbols[int(extent[1:])]
    value = evaluate(extent, {f"s{number}": size for number, size in enumerate(symbols)})
    assert value is not None
    return value


class ViewShape:
    """The element where a view begins, its dimensions, and how many elements they have: -1 where one is negative.

    They are computed once for each set of symbols: runs of a model mostly have the same.
    """

    __slots__ = ("_dims", "_known", "_start", "fixed")

    def __init__(self, start: Extent, dims: Sequence[Extent]) -> None:
        self._start = start
        self._dims = dims
        self._known: dict[tuple[int, ...], tuple[int, tuple[int, ...], int]] = {}
        is_fixed = all(isinstance(extent, int) for extent in (start, *dims))
        self.fixed = self._computed(()) if is_fixed else None
        """What it is, where no symbol decides it."""

    def at(self, symbols: list[int]) -> tuple[int, tuple[int, ...], int]:
        """What it is for the symbols of an activation."""
        values = tuple(symbols)
        found = self._known.get(values)
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[values] = self._computed(values)
        return found

    def _computed(self, symbols: Sequence[int]) -> tuple[int, tuple[int, ...], int]:
        dims = tuple([extent_in(extent, symbols) for extent in self._dims])
        count = 1
        for dim in dims:
            count *= dim
        return extent_in(self._start, symbols), dims, -1 if any(dim < 0 for dim in dims) else count
