"""Places of values in one piece of memory, such that those alive at the same time do not overlap."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Protocol

ALIGNMENT = 64
_MOST_ROUNDS = 32
_MOST_COMPARISONS = 2_000_000


class Value(Protocol):
    """What is placed: so many bytes, alive from a first step to a last."""

    size: int
    first: int
    last: int
    offset: int


def aligned(size: int) -> int:
    """A size rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def lower_bound(values: Sequence[Value]) -> int:
    """The most bytes that live at one step."""
    change: dict[int, int] = {}
    for value in values:
        change[value.first] = change.get(value.first, 0) + aligned(value.size)
        change[value.last + 1] = change.get(value.last + 1, 0) - aligned(value.size)
    live = most = 0
    for step in sorted(change):
        live += change[step]
        most = max(most, live)
    return most


def place_values(values: Sequence[Value]) -> int:
    """Give each value an offset such that values alive at the same time do not overlap; returns the total.

    Orders are tried until one reaches the lower bound: by size, by size times lifetime, by time, from the end. Within
    each, the values that stick out at the top are placed first the next time round: they then get the low places, and
    smaller ones find gaps around them. For large models orders in time come first, by a way that compares nothing.
    """
    sized = [value for value in values if value.size > 0]
    orders: list[Callable[[Value], tuple[int, ...]]] = [
        lambda value: (-value.size, value.first),
        lambda value: (-aligned(value.size) * (value.last - value.first + 1), value.first),
        lambda value: (value.first, -value.size),
        lambda value: (-value.last, -value.size),
    ]
    bound = lower_bound(sized)
    # A placement compares each value with those placed before it; large models get fewer rounds.
    rounds = max(1, min(_MOST_ROUNDS, _MOST_COMPARISONS // (len(sized) ** 2 + 1)))
    best: tuple[int, list[int]] | None = None
    if rounds == 1:
        orders = orders[:2]
        for backwards in (False, True):
            total = _place_by_time(sized, backwards)
            if best is None or total < best[0]:
                best = (total, [value.offset for value in sized])
    for order in orders:
        if best is not None and best[0] <= bound:
            break
        queue = sorted(sized, key=order)
        for _ in range(rounds):
            total = _place_in_order(queue)
            if best is None or total < best[0]:
                best = (total, [value.offset for value in sized])
            if total <= bound:
                break
            below = [value for value in queue if value.offset + aligned(value.size) < total]
            queue = [value for value in queue if value.offset + aligned(value.size) >= total] + below
    assert best is not None
    for value, offset in zip(sized, best[1], strict=True):
        value.offset = offset
    return best[0]


def _place_by_time(values: Sequence[Value], backwards: bool) -> int:
    """Best fit as values begin to live, or, backwards, as they end: what nothing living takes is kept by its size."""
    gaps = _Gaps()
    living: list[tuple[int, int, int]] = []
    spans = [(-value.last, -value.first) if backwards else (value.first, value.last) for value in values]
    for number in sorted(range(len(values)), key=lambda number: (spans[number][0], -values[number].size)):
        first, last = spans[number]
        while living and living[0][0] < first:
            _, start, end = heappop(living)
            gaps.give(start, end)
        size = aligned(values[number].size)
        start = values[number].offset = gaps.take(size)
        heappush(living, (last, start, start + size))
    return gaps.most


class _Gaps:
    """What is free below the end of what is taken, by where it begins, where it ends, and its size."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._sizes: list[tuple[int, int]] = []
        self._end = 0
        self.most = 0
        """The furthest end there has been."""

    def take(self, size: int) -> int:
        """The smallest gap of that size, or what is after all that is taken."""
        at = bisect_left(self._sizes, (size, 0))
        if at == len(self._sizes):
            start, self._end = self._end, self._end + size
            self.most = max(self.most, self._end)
            return start
        _, start = self._sizes[at]
        end = self._ends[start]
        self._remove(start, end)
        if start + size < end:
            self._add(start + size, end)
        return start

    def give(self, start: int, end: int) -> None:
        """What was taken is free."""
        if start in self._starts:
            before = self._starts[start]
            self._remove(before, start)
            start = before
        if end in self._ends:
            after = self._ends[end]
            self._remove(end, after)
            end = after
        if end == self._end:
            self._end = start
        else:
            self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        self._ends[start], self._starts[end] = end, start
        insort(self._sizes, (end - start, start))

    def _remove(self, start: int, end: int) -> None:
        del self._ends[start], self._starts[end]
        del self._sizes[bisect_left(self._sizes, (end - start, start))]


def _place_in_order(values: Sequence[Value]) -> int:
    """Best fit: each value in the smallest gap between those alive at the same time, or after them."""
    placed = _Placed()
    total = 0
    for number, value in enumerate(values):
        size = aligned(value.size)
        best, best_gap, end = -1, 0, 0
        for offset, _, other_end, _, _ in placed.alive(value.first, value.last):
            gap = offset - end
            if gap >= size and (best < 0 or gap < best_gap):
                best, best_gap = end, gap
            if other_end > end:
                end = other_end
        value.offset = end if best < 0 else best
        placed.add(value, number)
        total = max(total, value.offset + size)
    return total


_Entry = tuple[int, int, int, int, int]
"""A value that has a place: its offset, its number, where it ends, and the first and the last step that it lives."""


class _Placed:
    """Values that have a place, by when they are alive: in a model of many steps most are not at the same time.

    Time is cut in pieces of 1, 2, 4, ... steps. A value is in the one or two pieces that it touches of those that are
    about as long as it lives.
    """

    def __init__(self) -> None:
        self._levels: dict[int, dict[int, list[_Entry]]] = {}

    def add(self, value: Value, number: int) -> None:
        """A value has a place."""
        level = (value.last - value.first).bit_length()
        pieces = self._levels.setdefault(level, {})
        entry = (value.offset, number, value.offset + aligned(value.size), value.first, value.last)
        for piece in {value.first >> level, value.last >> level}:
            pieces.setdefault(piece, []).append(entry)

    def alive(self, first: int, last: int) -> list[_Entry]:
        """Those alive at any of some steps, by their offsets."""
        found: set[_Entry] = set()
        for level, pieces in self._levels.items():
            touched = range(first >> level, (last >> level) + 1)
            for piece in touched if len(touched) < len(pieces) else [item for item in pieces if item in touched]:
                found.update([entry for entry in pieces.get(piece, ()) if entry[3] <= last and entry[4] >= first])
        return sorted(found)
