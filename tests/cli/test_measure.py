"""Measuring in turns: what is counted, and by which clock."""

from __future__ import annotations

import itertools

from tilewright.cli import measure


def test_calls_are_timed_by_a_clock_of_choice() -> None:
    ticks, calls = itertools.count(0.0, 0.5), []
    assert measure.LocalSampler(lambda: calls.append(1), lambda: next(ticks)).sample(2) == [500.0, 500.0]
    assert len(calls) == 3, "the first is not counted"
