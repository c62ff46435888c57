"""Noticing who else uses the core."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from bench import neighbours
from tilewright.target import Target
from tilewright.tune.peak import Peak, width_peak


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


def test_a_processor_that_was_taken_away_was_not_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(neighbours, "width_peak", lambda target: Peak("width", 1.0, lambda: None))
    times = itertools.count()
    monkeypatch.setattr("time.thread_time", lambda: float(next(times)))
    counters = tmp_path / "stat"
    monkeypatch.setattr(neighbours, "_COUNTERS", counters)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {1}, raising=False)

    def stolen(first: int, second: int) -> None:
        lines = [f"cpu{number} 9 9 9 9 9 9 9 {ticks} 0 0" for number, ticks in enumerate((first, second))]
        counters.write_text("\n".join(["cpu 9 9 9 9 9 9 9 77 0 0", *lines, "intr 5"]))

    stolen(5, 7)
    watch = neighbours.CoreWatch(Target("native"), calibration_seconds=0.0)
    looks = [watch.look()]
    for first, second in ((6, 7), (6, 8), (6, 8)):
        stolen(first, second)
        looks.append(watch.look())
    assert looks == [1.0, 1.0, 0.0, 1.0]
    assert not watch.was_alone(*looks[1:3])
    counters.unlink()
    assert neighbours.stolen_ticks() == 0


def test_the_width_of_a_core_is_no_less_than_one_addition_a_nanosecond() -> None:
    peak = width_peak(Target("native"))
    assert peak.work > 1e5
    peak.call()
