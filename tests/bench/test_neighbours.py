"""Noticing who else uses the core."""

from __future__ import annotations

import pytest

from bench import neighbours
from bench.peak import Peak, width_peak
from tilewright.target import Target


def test_a_core_adds_several_numbers_at_a_time() -> None:
    watch = neighbours.CoreWatch(Target("native"), calibration_seconds=0.01)
    assert 1e9 < watch.look() < 1e11


def test_a_narrower_core_than_the_widest_seen_has_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "width_peak", lambda target: Peak("width", 1.0, lambda: None))
    times = iter([0.0, 1.0, 0.0, 2.0, 0.0, 1.05])
    monkeypatch.setattr("time.thread_time", lambda: next(times))
    watch = neighbours.CoreWatch(Target("native"), calibration_seconds=0.0)
    shared, alone = watch.look(), watch.look()
    assert not watch.was_alone(shared)
    assert watch.was_alone(alone, 1.0)
    assert not watch.was_alone(alone, shared)


def test_the_width_of_a_core_is_no_less_than_one_addition_a_nanosecond() -> None:
    peak = width_peak(Target("native"))
    assert peak.work > 1e5
    peak.call()
