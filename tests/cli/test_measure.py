"""Measuring in turns: what is counted, and by which clock."""

from __future__ import annotations

import itertools

import pytest

from tilewright.cli import measure


def test_calls_are_timed_by_a_clock_of_choice() -> None:
    ticks, calls = itertools.count(0.0, 0.5), []
    assert measure.LocalSampler(lambda: calls.append(1), lambda: next(ticks)).sample(2) == [500.0, 500.0]
    assert len(calls) == 3, "the first is not counted"


def test_a_pause_is_before_each_call_and_not_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(measure.time, "sleep", slept.append)
    ticks = iter([0.0, 0.5, 1.0, 1.5])
    assert measure.LocalSampler(lambda: None, lambda: next(ticks), 0.02).sample(2) == [500.0, 500.0]
    assert slept == [0.02, 0.02]
