"""Measuring in turns: what is counted, and what a disturbance leaves out."""

from __future__ import annotations

import itertools

import pytest

from tilewright.cli import measure


class Clock:
    """A competitor whose samples are given."""

    def __init__(self, *samples: float) -> None:
        self._samples = itertools.cycle(samples)

    def sample(self, count: int) -> list[float]:
        return [next(self._samples)]


class Watch:
    """Says for each pair of looks whether nobody was there."""

    def __init__(self, *alone: bool) -> None:
        self._alone = iter(alone)

    def look(self) -> float:
        return 1.0

    def was_alone(self, *looks: float) -> bool:
        assert looks == (1.0, 1.0)
        return next(self._alone)


def test_without_a_watch_every_round_counts() -> None:
    timing = measure.measure({"one": Clock(9.0, 1.0, 2.0, 3.0)}, 3)["one"]
    assert timing.samples == [1.0, 2.0, 3.0]
    assert (timing.median_ms, timing.min_ms, timing.disturbed) == (2.0, 1.0, [])


def test_disturbed_rounds_are_repeated_and_do_not_count() -> None:
    timing = measure.measure({"one": Clock(1.0)}, 2, watch=Watch(False, True, False, True), patience=3)["one"]
    assert timing.samples == [1.0, 1.0]
    assert timing.disturbed == [1.0, 1.0]


@pytest.mark.parametrize("patience", [1, 2])
def test_patience_ends(patience: int) -> None:
    timing = measure.measure({"one": Clock(1.0)}, 2, watch=Watch(*[False] * 9), patience=patience)["one"]
    assert timing.samples == [1.0] * (2 * patience)
    assert timing.disturbed == []


def test_quiet_rounds_of_one_are_not_compared_with_disturbed_ones_of_another() -> None:
    clocks = {"one": Clock(1.0, 1.0, 1.0), "two": Clock(1.0, 1.4, 1.4)}
    # Rounds: one, two; two, one. The first competitor was alone once, the second never.
    timings = measure.measure(clocks, 2, watch=Watch(True, False, False, False))
    assert [timing.samples for timing in timings.values()] == [[1.0, 1.0], [1.4, 1.4]]
    assert [timing.disturbed for timing in timings.values()] == [[], []]
    assert [(timing.rounds_alone, timing.rounds) for timing in timings.values()] == [(1, 2), (0, 2)]


def test_a_few_quiet_rounds_of_all_are_enough() -> None:
    clocks = {"one": Clock(*[1.0] * 9), "two": Clock(*[2.0] * 9)}
    alone = [True, True, True, True, True, True, False, False]
    timings = measure.measure(clocks, 4, watch=Watch(*alone))
    assert [len(timing.samples) for timing in timings.values()] == [3, 3]
    assert [len(timing.disturbed) for timing in timings.values()] == [1, 1]
