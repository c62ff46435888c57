"""The tuning loop: budgets, resuming, the default first, failures, interrupts; on made-up measurements."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.tune import toy
from tilewright.lower import database as database_module
from tilewright.lower.cost import work_of
from tilewright.lower.database import Database
from tilewright.lower.kernel import Kernel
from tilewright.support.errors import UserError
from tilewright.tune import tuner as tuner_module
from tilewright.tune.cost import RandomModel
from tilewright.tune.measure import Measurement
from tilewright.tune.space import Point, Space, key_of
from tilewright.tune.task import Task
from tilewright.tune.tuner import SEARCHES, Progress, TuneOptions, tune


class ToyTask(Task):
    """A task whose space is the toy's."""

    def space(self) -> Space:
        return toy.ToySpace()


def _task(name: str = "tw_matmul_0", uses: int = 1) -> Task:
    func = toy.matmul()
    return ToyTask(Kernel(name, func.replace(name=name), work_of(func)), toy.TARGET, uses)


@dataclass
class FakeMeasurer:
    """Times by formula; remembers what it was asked; may be interrupted."""

    asked: list[tuple[str, Point]] = field(default_factory=list)
    interrupt_after: int = 1 << 30

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        for point in points:
            if len(self.asked) >= self.interrupt_after:
                raise KeyboardInterrupt
            self.asked.append((task.key, point))
            seconds = toy.seconds(point)
            default = toy.seconds(task.space().default)
            yield Measurement(point, seconds, default, None if seconds else "run: crash")

    def close(self) -> None: ...


OPTIONS = TuneOptions(trials=24, batch=8, model=RandomModel, confirm=0)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "tune.db") as made:
        yield made


class NoisyMeasurer(FakeMeasurer):
    """One by which the default schedule is five percent quicker than itself, and all others are slower."""

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        default = key_of(task.space().default)
        for point in points:
            yield Measurement(point, 0.95 if key_of(point) == default else 1.2, 1.0)


def test_the_default_schedule_gains_nothing_over_itself(database: Database) -> None:
    [item] = tune([_task()], database, OPTIONS, measurer=NoisyMeasurer()).tasks
    assert item.gain == 1.0 and item.best_seconds == item.default_seconds


@dataclass
class InterruptedMeasurer(FakeMeasurer):
    """A measurer beside which someone presses control and C."""

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        for result in super().measure(task, points):
            if len(self.asked) == 11:
                signal.raise_signal(signal.SIGINT)
            yield result


def test_a_real_interrupt_ends_it_after_the_candidate_at_hand(database: Database) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        report = tune([_task()], database, OPTIONS, measurer=InterruptedMeasurer())
        assert report.stopped and report.trials == database.count() == 11
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_default_comes_first_and_the_budget_is_kept(database: Database) -> None:
    measurer = FakeMeasurer()
    report = tune([_task()], database, OPTIONS, measurer=measurer)
    assert measurer.asked[0][1] == toy.ToySpace().default
    assert report.trials == len(measurer.asked) == database.count() == 24
    [item] = report.tasks
    assert item.best_seconds <= item.default_seconds
    assert report.after <= report.before
    assert len(item.history) == 24 and item.history == sorted(item.history, reverse=True)


def test_tuning_again_starts_from_the_database(database: Database) -> None:
    first, second = FakeMeasurer(), FakeMeasurer()
    tune([_task()], database, OPTIONS, measurer=first)
    report = tune([_task()], database, OPTIONS, measurer=second)
    earlier = {key_of(point) for _, point in first.asked}
    assert not earlier & {key_of(point) for _, point in second.asked}
    assert database.count() == 48
    assert report.tasks[0].trials == 48


def test_times_of_another_compiler_are_measured_anew(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its best candidates come first, right after the default schedule; its times, wrong by now, count no more."""
    tune([_task()], database, OPTIONS, measurer=FakeMeasurer())
    ranked = sorted((item for item in database.records() if item.ok), key=lambda item: item.worth)
    default = key_of(toy.ToySpace().default)
    best = [key_of(item.answers) for item in ranked if key_of(item.answers) != default]
    for module in (database_module, tuner_module):
        monkeypatch.setattr(module, "compiler_name", lambda: "another")
    measurer = SlowerMeasurer()
    [item] = tune([_task()], database, OPTIONS, measurer=measurer).tasks
    asked = [key_of(point) for _, point in measurer.asked]
    assert asked[0] == default
    assert asked[1:7] == best[:6]
    assert item.trials == 24 and item.gain == 1.0
    assert all(record.compiler == "another" for record in database.current(item.task.key, str(item.task.target)))
    assert database.answers(str(item.task.target)) == {}


class SlowerMeasurer(FakeMeasurer):
    """A compiler whose default schedule nothing beats."""

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        for result in super().measure(task, points):
            yield Measurement(result.answers, 2.0, 1.0)


def test_an_interrupt_keeps_what_was_measured(database: Database) -> None:
    report = tune([_task()], database, OPTIONS, measurer=FakeMeasurer(interrupt_after=12))
    assert report.stopped
    assert database.count() == report.trials == 12


def test_trials_go_where_they_pay(database: Database) -> None:
    """Of two tasks of the same kind the one that a model runs a hundred times gets more trials."""
    often, seldom = _task("tw_often_0", uses=100), _task("tw_seldom_0")
    measurer = FakeMeasurer()
    tune([often, seldom], database, TuneOptions(trials=48, batch=4, model=RandomModel), measurer=measurer)
    counts = {key: sum(name == key for name, _ in measurer.asked) for key in (often.key, seldom.key)}
    assert counts[often.key] > counts[seldom.key] > 0


def test_a_task_that_is_exhausted_ends(database: Database) -> None:
    options = TuneOptions(trials=10_000, batch=16, early_stop=20, model=RandomModel)
    report = tune([_task()], database, options, measurer=FakeMeasurer())
    assert report.tasks[0].finished
    assert report.tasks[0].best_seconds == 1.0
    assert report.trials < 200


@dataclass
class RefusingMeasurer(FakeMeasurer):
    """Nothing of one task runs: a kernel that its device refuses."""

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        for result in super().measure(task, points):
            yield Measurement(result.answers, None, None, "build: refused") if task.key == "tw_bad_0" else result


def test_a_task_of_which_not_even_the_default_runs_is_left(database: Database) -> None:
    measurer = RefusingMeasurer()
    report = tune([_task("tw_bad_0"), _task("tw_good_0")], database, OPTIONS, measurer=measurer)
    assert [item.trials for item in report.tasks] == [8, 16]
    assert report.tasks[0].finished and report.tasks[0].gain == 1.0


def test_failures_are_recorded(database: Database) -> None:
    tune([_task()], database, TuneOptions(trials=500, search="grid"), measurer=FakeMeasurer())
    failed = [item for item in database.records() if not item.ok]
    assert failed and all(item.error == "run: crash" for item in failed)


@pytest.mark.parametrize("search", SEARCHES)
def test_all_searches(database: Database, search: str) -> None:
    options = TuneOptions(trials=16, search=search, model=RandomModel)
    seen: list[int] = []

    def watch(tasks: Sequence[Progress], item: Progress, trials: int) -> None:
        seen.append(trials)

    tune([_task()], database, options, measurer=FakeMeasurer(), on_batch=watch)
    assert seen[-1] == 16


@pytest.mark.parametrize(
    "options",
    [
        TuneOptions(trials=0),
        TuneOptions(trials=-1),
        TuneOptions(batch=0),
        TuneOptions(search="luck"),
        TuneOptions(early_stop=0),
        TuneOptions(confirm=-1),
    ],
)
def test_bad_options(database: Database, options: TuneOptions) -> None:
    with pytest.raises(UserError):
        tune([_task()], database, options, measurer=FakeMeasurer())


def test_a_machine_that_drifts_does_not_mislead(database: Database) -> None:
    """Times of one half of the trials are three times those of the other: the best point is the same."""

    class Drifting(FakeMeasurer):
        def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
            for number, item in enumerate(super().measure(task, points)):
                factor = 3.0 if number % 2 else 1.0
                seconds = None if item.seconds is None else item.seconds * factor
                yield Measurement(item.answers, seconds, (item.reference or 0.0) * factor, item.error)

    options = TuneOptions(trials=200, search="grid")
    steady = tune([_task("tw_steady_0")], database, options, measurer=FakeMeasurer()).tasks[0]
    drifting = tune([_task("tw_drifting_0")], database, options, measurer=Drifting()).tasks[0]
    assert drifting.best == steady.best
    assert drifting.history == pytest.approx(steady.history)
    best = database.best("tw_drifting_0", str(toy.TARGET))
    assert best is not None and best.answers == steady.best


def test_a_lucky_candidate_is_found_out(database: Database) -> None:
    """The first measurement of one point is far too quick: it does not stay the best."""

    class Lucky(FakeMeasurer):
        def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
            for item in super().measure(task, points):
                known = sum(point == item.answers for _, point in self.asked)
                lucky = item.answers == {"rows": 1, "columns": 1, "inside": False} and known == 1
                yield Measurement(item.answers, 1e-3 if lucky else item.seconds, item.reference, item.error)

    options = TuneOptions(trials=500, search="grid", batch=16)
    item = tune([_task()], database, options, measurer=Lucky()).tasks[0]
    assert item.best["rows"] == 8 and item.best["columns"] == 16
    assert item.best_seconds == pytest.approx(1.0)
    best = database.best("tw_matmul_0", str(toy.TARGET))
    assert best is not None and best.answers == item.best
