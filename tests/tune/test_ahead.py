"""Looking for points ahead: in a thread, once a task, and without a change of what is found."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.tune import toy
from tilewright.lower.cost import work_of
from tilewright.lower.database import Database
from tilewright.lower.kernel import Kernel
from tilewright.tune.ahead import Ahead
from tilewright.tune.cost import RandomModel
from tilewright.tune.measure import Measurement
from tilewright.tune.space import Key, Point, Space, key_of
from tilewright.tune.task import Task
from tilewright.tune.tuner import TuneOptions, tune


def test_points_are_looked_for_in_the_background() -> None:
    started, wanted = threading.Event(), threading.Event()
    threads: list[str] = []

    def find(task: str, count: int) -> list[Point]:
        threads.append(threading.current_thread().name)
        started.set()
        assert wanted.wait(10)
        return [{task: number} for number in range(count)]

    with Ahead(find) as ahead:
        ahead.begin("a", 3)
        assert started.wait(10)
        wanted.set()
        assert ahead.points("a", 2) == [{"a": 0}, {"a": 1}]
        assert ahead.points("b", 1) == [{"b": 0}]
    assert threads[0].startswith("tilewright-search")
    assert threads[1] == threading.main_thread().name


def test_a_task_is_looked_at_once_until_its_points_are_taken() -> None:
    asked: list[int] = []

    def find(task: list[int], count: int) -> list[Point]:
        asked.append(count)
        return [{}] * count

    task = [0]
    with Ahead(find) as ahead:
        ahead.begin(task, 2)
        ahead.begin(task, 5)
        assert len(ahead.points(task, 8)) == 2
        assert len(ahead.points(task, 8)) == 8
    assert asked == [2, 8]


def test_errors_of_the_search_reach_the_caller() -> None:
    def find(task: str, count: int) -> list[Point]:
        raise ValueError(task)

    with Ahead(find) as ahead:
        ahead.begin("bad", 1)
        with pytest.raises(ValueError, match="bad"):
            ahead.points("bad", 1)


class _ToyTask(Task):
    def space(self) -> Space:
        return toy.ToySpace()


class _Formula:
    """Times by formula; remembers the order of what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Key]] = []

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        """The times of some points."""
        default = toy.seconds(task.space().default)
        for point in points:
            self.asked.append((task.key, key_of(point)))
            seconds = toy.seconds(point)
            yield Measurement(point, seconds, default, None if seconds else "run: crash")

    def close(self) -> None:
        """Nothing to give back."""


@pytest.mark.parametrize("search", ["evolution", "random"])
def test_the_tuner_measures_the_same_points_in_the_same_order(
    search: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    func = toy.matmul()
    names = [f"tw_matmul_{number}" for number in range(3)]
    tasks = [_ToyTask(Kernel(name, func.replace(name=name), work_of(func)), toy.TARGET) for name in names]
    options = TuneOptions(trials=60, batch=4, model=RandomModel, confirm=0, search=search)  # type: ignore[arg-type]
    orders = []
    for number in range(2):
        measurer = _Formula()
        with Database(tmp_path / f"{number}.db") as database:
            tune(tasks, database, options, measurer=measurer)
        orders.append(measurer.asked)
        monkeypatch.setattr(Ahead, "begin", lambda *unused: None)
    assert orders[0] == orders[1]
    assert len(orders[0]) == 60
