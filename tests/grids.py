"""Tests of many combinations of parameters: `make test` runs a few of them, `make test-all` all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from itertools import combinations

import pytest


def rare(*values: object) -> list[object]:
    """Parameters of tests that are run with the random ones."""
    return [pytest.param(value, marks=pytest.mark.fuzz) for value in values]


def leave_out_of_grids(items: Sequence[pytest.Item]) -> None:
    """Mark the tests of each `@pytest.mark.grid` that `make test` does without as fuzz."""
    grids: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if isinstance(item, pytest.Function) and "grid" in marks and "fuzz" not in marks:
            grids[item.nodeid.partition("[")[0]].append(item)
    for tests in grids.values():
        kept = covering([_place(test) for test in tests])
        for number, test in enumerate(tests):
            if number not in kept:
                test.add_marker(pytest.mark.fuzz)


def _place(test: pytest.Function) -> tuple[Hashable, ...]:
    """The coordinates of a test: what it has of each `parametrize`, whose names are one axis."""
    names = [mark.args[0] for mark in test.iter_markers("parametrize")]
    axes = [[name.strip() for name in (axis.split(",") if isinstance(axis, str) else axis)] for axis in names]
    return tuple(tuple(id(test.callspec.params[name]) for name in axis) for axis in axes)


def covering(places: Sequence[tuple[Hashable, ...]]) -> set[int]:
    """Which of the points of a grid have together every value of two axes, or every pair of values of more axes."""
    axes = [axis for axis in zip(*places, strict=True) if len(set(axis)) > 1]
    groups = list(combinations(axes, 1 if len(axes) <= 2 else 2))
    parts: list[set[object]] = [
        {(place, *(axis[number] for axis in group)) for place, group in enumerate(groups)}
        for number in range(len(places))
    ]
    missing: set[object] = set().union(*parts)
    kept: set[int] = set() if missing else set(range(len(places)))
    times: Counter[object] = Counter()
    """How often each value is met: of points that bring as much, the one with the rarest values is next."""
    while missing:
        best = max(
            range(len(places)),
            key=lambda number: (len(parts[number] & missing), -sum(times[item] for item in enumerate(places[number]))),
        )
        kept.add(best)
        times.update(enumerate(places[best]))
        missing -= parts[best]
    return kept
