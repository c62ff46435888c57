"""Tuning a whole model: with either cost model, and errors before anything is measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.small_models import classifier
from tilewright.lower.database import Database
from tilewright.support.errors import MissingDependencyError, UserError
from tilewright.tune.measure import Measurement
from tilewright.tune.model import tune_model
from tilewright.tune.space import Point
from tilewright.tune.task import Task

MODEL = bytes(classifier().SerializeToString())


class Counting:
    """Made-up times: the more answers differ from the default, the slower."""

    def __init__(self) -> None:
        self.asked = 0

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        default = task.space().default
        for point in points:
            self.asked += 1
            yield Measurement(point, 1.0 + sum(default.get(name) != value for name, value in point.items()), 1.0)

    def close(self) -> None: ...


def test_the_neural_model_needs_no_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    measurer = Counting()
    report = tune_model(MODEL, threads=1, trials=40, cost_model="neural", database=tmp_path / "t.db", measurer=measurer)
    assert report.trials == 40 and report.after == report.before > 0
    with Database(tmp_path / "t.db") as database:
        assert database.count() == 40


def test_missing_trees_are_told_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    measurer = Counting()
    with pytest.raises(MissingDependencyError, match="xgboost-cpu") as caught:
        tune_model(MODEL, threads=1, trials=16, database=tmp_path / "t.db", measurer=measurer)
    assert "--cost-model neural" in (caught.value.hint or "")
    assert measurer.asked == 0
    # A search without a model needs none.
    tune_model(MODEL, threads=1, trials=16, search="random", database=tmp_path / "t.db", measurer=measurer)
    assert measurer.asked >= 16


def test_unknown_cost_models(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown cost model 'oracle'"):
        tune_model(MODEL, threads=1, cost_model="oracle", database=tmp_path / "t.db")
