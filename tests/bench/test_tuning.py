"""The comparison of searches, on made-up times: each candidate is measured once, curves and summaries are right."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from bench import figures, tuning, tuning_quality, tuning_runs
from tests.requirements import need
from tests.tune.test_tuner import FakeMeasurer, _task
from tilewright.lower.database import Database
from tilewright.tune.cost import Matrix, RandomModel, Vector
from tilewright.tune.measure import Measurement
from tilewright.tune.space import Point, key_of
from tilewright.tune.task import Task
from tilewright.tune.tuner import TuneOptions

QUICK = {
    "random": TuneOptions(search="random"),
    "genetic": TuneOptions(search="genetic"),
    "annealing, rank": TuneOptions(search="annealing", model=RandomModel),
    "evolution, rank": TuneOptions(search="evolution", model=RandomModel),
}


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[tuning_runs.Table, FakeMeasurer]]:
    measurer = FakeMeasurer()
    with Database(tmp_path / "t.db") as database:
        yield tuning_runs.Table(_task(), database, measurer), measurer


def _run(table: tuning_runs.Table, options: TuneOptions, trials: int) -> tuning_runs.Run:
    found = tuning_runs.run_search(table, options, trials)
    assert found is not None
    return found


def _curve(table: tuning_runs.Table, options: TuneOptions, trials: int) -> tuning_runs.Curve:
    run = _run(table, options, trials)
    return tuning_runs.curve_of(run, dict(zip(map(key_of, run.points), table.speed_ups(run.points), strict=True)))


def test_a_candidate_is_measured_once(asked: tuple[tuning_runs.Table, FakeMeasurer], tmp_path: Path) -> None:
    table, measurer = asked
    first = _run(table, QUICK["random"], 20)
    again = _run(table, QUICK["random"], 20)
    assert first.points == again.points and len(first.points) == 20
    # What looked best when it was measured was measured twice.
    asked_for = [key_of(point) for _, point in measurer.asked]
    assert len(set(asked_for)) == table.fresh == 20
    best, twice = 0.0, []
    for point, value in zip(first.points, table.speed_ups(first.points), strict=True):
        if value is not None and value > best:
            best = value
            twice.append(key_of(point))
    assert sorted(key for key in set(asked_for) if asked_for.count(key) == 2) == sorted(twice)
    with Database(tmp_path / "t.db") as database:
        other = tuning_runs.Table(_task(), database, measurer)
        assert _run(other, QUICK["random"], 20).points == first.points
        assert other.fresh == 0 and len(measurer.asked) == len(asked_for)


class Lucky(FakeMeasurer):
    """The first time of a point is by chance ten times too good."""

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        for result in super().measure(task, points):
            again = [key_of(point) for _, point in self.asked].count(key_of(result.answers)) > 1
            lucky = result.seconds is not None and not again and result.answers == task.space().default
            yield replace(result, seconds=result.seconds / 10) if lucky and result.seconds else result


def test_luck_does_not_count(tmp_path: Path) -> None:
    task = _task()
    with Database(tmp_path / "t.db") as database:
        table = tuning_runs.Table(task, database, Lucky())
        assert table.speed_ups([task.space().default]) == [1.0]
        [record] = database.records()
        assert record.relative == 1.0


def test_a_small_space_ends_the_search(asked: tuple[tuning_runs.Table, FakeMeasurer]) -> None:
    curve = _curve(asked[0], TuneOptions(search="grid"), 1000)
    assert 72 <= len(curve.best) < 1000
    assert curve.best[-1] == max(curve.best) > 1.0


def test_a_run_can_be_stopped(asked: tuple[tuning_runs.Table, FakeMeasurer]) -> None:
    assert tuning_runs.run_search(asked[0], QUICK["random"], 20, stop=lambda: True) is None
    assert not asked[1].asked


def test_runs_are_kept(asked: tuple[tuning_runs.Table, FakeMeasurer], tmp_path: Path) -> None:
    path = tmp_path / "t.runs.gz"
    assert tuning_runs.load_runs(path) == {}
    runs = {"a": _run(asked[0], QUICK["random"], 5)}
    tuning_runs.save_runs(path, runs)
    assert tuning_runs.load_runs(path) == runs
    [job] = tuning_runs.jobs_of([_task()], {"random": QUICK["random"]}, 1, 5)
    tuning_runs.save_runs(path, {job.name: runs["a"]})
    # What is known is not run again: there is no process to run it.
    assert tuning_runs.run_all([job], tmp_path / "t.db", 0, 0.0, print) == {job.name: runs["a"]}


def test_summary_and_figure(asked: tuple[tuning_runs.Table, FakeMeasurer], tmp_path: Path) -> None:
    found = {name: [_curve(asked[0], base, 16)] for name, base in QUICK.items()}
    summary = tuning._summary([found], "random")
    assert summary["speed_up"] == round(found["random"][0].best[-1], 4)
    assert summary["trials_to_random_best"] == found["random"][0].best.index(found["random"][0].best[-1]) + 1
    need("matplotlib")
    data = {
        "machine": {"llvm_cpu": "some"},
        "trials": 16,
        "seeds": 1,
        "searches": {name: {} for name in QUICK},
        "tasks": {"task": {name: [tuning.steps_of(curve.best) for curve in curves] for name, curves in found.items()}},
    }
    (tmp_path / "tuning.json").write_text(json.dumps(data), encoding="utf-8")
    assert figures.draw_all(tmp_path) == [tmp_path / "tuning.png"]
    lines = figures.draw_searches(figures.pyplot(), data).axes[0].lines
    assert [len(line.get_ydata()) for line in lines] == [16] * len(QUICK)
    assert max(line.get_ydata()[-1] for line in lines) == pytest.approx(1.0)


def test_curves() -> None:
    curve = tuning_runs.Curve([0.5, 1.0, 1.0, 1.2], 0.0)
    assert [curve.trials_to(level) for level in (0.5, 1.0, 1.1, 2.0)] == [1, 2, 4, None]
    assert tuning.steps_of([0.5, 1.0, 1.0, 1.2]) == [(1, 0.5), (2, 1.0), (4, 1.2)]
    assert tuning.steps_of([0.5, 0.5]) == [(1, 0.5), (2, 0.5)] and tuning.steps_of([]) == []
    assert figures._every_trial([(1, 0.5), (2, 1.0), (4, 1.2)], 6) == [0.5, 1.0, 1.0, 1.2, 1.2, 1.2]


class Sum:
    """A cost model that knows that small features are quick, and which tasks it was shown."""

    shown: ClassVar[list[set[str]]] = []

    def fit(self, features: Matrix, scores: Vector, tasks: list[str]) -> None:
        self.shown.append(set(tasks))

    def predict(self, features: Matrix) -> Vector:
        return -features.sum(axis=1)


def test_quality_is_of_programs_that_the_model_has_not_seen() -> None:
    random = np.random.default_rng(0)
    known = []
    for task in ("a", "b", "c"):
        features = random.random((200, 3)).astype(np.float32)
        known.append(tuning_quality.Programs(task, features, tuple(map(float, features.sum(axis=1)))))
    Sum.shown.clear()
    found = tuning_quality.other_tasks(Sum, known, ["a", "b"])
    assert Sum.shown == [{"b", "c"}, {"a", "c"}]
    assert found == {"pairwise_accuracy": 1.0, "recall_at_30": 1.0, "programs": 200}
    assert tuning_quality.same_task(Sum, known, seeds=1)["programs"] == 200 - tuning_quality.LEARNED
    guess = tuning_quality.other_tasks(RandomModel, known, ["a", "b", "c"])
    assert 0.3 < guess["pairwise_accuracy"] < 0.7 and guess["recall_at_30"] < 0.4
