"""Measuring on this machine: what is timed on all processors is not disturbed by what is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.tune.test_tuner import FakeMeasurer, _task
from tilewright.lower.kernel import CompiledKernel
from tilewright.support.errors import UserError
from tilewright.tune import measure, tuner
from tilewright.tune.builder import BuildRequest
from tilewright.tune.measure import LocalMeasurer
from tilewright.tune.runner import Timing, Trial
from tilewright.tune.space import Point
from tilewright.tune.task import Task

POINTS: list[Point] = [{"rows": rows} for rows in (1, 2, 4, 8)]
BROKEN = 2


class FakeChild:
    """Stands for a process that builds or runs candidates: says what it was asked."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def ask(self, request: object, seconds: float) -> object:
        if isinstance(request, BuildRequest):
            self.log.append("build")
            if request.kernel.answers.get("rows") == BROKEN:
                raise UserError("too wide")
            return CompiledKernel(b"", {})
        assert isinstance(request, Trial)
        self.log.append("run")
        return Timing(2.0, 4.0, 0.0)

    def close(self) -> None: ...


@pytest.fixture
def measurer(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[LocalMeasurer, list[str]]]:
    def make(cpus: int) -> tuple[LocalMeasurer, list[str]]:
        log: list[str] = []
        monkeypatch.setattr(measure, "usable_cpus", lambda: frozenset(range(cpus)))
        monkeypatch.setattr(measure, "build_candidate", lambda request: CompiledKernel(b"", {}))
        monkeypatch.setattr(measure, "Child", lambda *words, **options: FakeChild(log))
        return LocalMeasurer(), log

    return make


def _of_cores(cores: int) -> Task:
    task = _task()
    return replace(task, target=task.target.replace(cores=cores))


@pytest.mark.parametrize("cpus", [1, 2])
def test_all_are_built_before_the_first_is_timed_on_all_processors(
    measurer: Callable[[int], tuple[LocalMeasurer, list[str]]], cpus: int
) -> None:
    measuring, log = measurer(cpus)
    found = list(measuring.measure(_of_cores(cpus), POINTS))
    assert log == ["build"] * 4 + ["run"] * 3
    assert [item.seconds for item in found] == [2.0, None, 2.0, 2.0]
    assert [item.error for item in found][1] == "build: too wide"


def test_where_a_processor_is_left_some_are_built_while_others_are_timed(
    measurer: Callable[[int], tuple[LocalMeasurer, list[str]]],
) -> None:
    measuring, log = measurer(2)
    first = next(iter(measuring.measure(_of_cores(1), POINTS)))
    assert first.seconds == 2.0 and first.reference == 4.0 and "run" in log


def test_points_are_looked_for_ahead_unless_that_disturbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "usable_cpus", lambda: frozenset(range(2)))
    here = LocalMeasurer()
    assert tuner._may_think(here, _of_cores(1))
    assert not tuner._may_think(here, _of_cores(2))
    assert tuner._may_think(FakeMeasurer(), _of_cores(2)), "elsewhere nothing is disturbed"
