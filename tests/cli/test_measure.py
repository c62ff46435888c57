"""Measuring in turns: what is counted, and by which clock."""

from __future__ import annotations

import itertools

from tilewright.cli import measure


class Clock:
    """A competitor whose samples are given."""

    def __init__(self, *samples: float) -> None:
        self._samples = itertools.cycle(samples)

    def sample(self, count: int) -> list[float]:
        return [next(self._samples)]


def test_every_round_counts() -> None:
    timing = measure.measure({"one": Clock(9.0, 1.0, 2.0, 3.0)}, 3)["one"]
    assert timing.samples == [1.0, 2.0, 3.0]
    assert (timing.median_ms, timing.min_ms) == (2.0, 1.0)


def test_calls_are_timed_by_a_clock_of_choice() -> None:
    ticks, calls = itertools.count(0.0, 0.5), []
    assert measure.LocalSampler(lambda: calls.append(1), lambda: next(ticks)).sample(2) == [500.0, 500.0]
    assert len(calls) == 3, "the first is not counted"
