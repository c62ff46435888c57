"""Tuning a whole model: with either cost model, and errors before anything is measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.integration.small_models import FLOAT, classifier, model
from tilewright.compiler import Compilation
from tilewright.lower.database import Database
from tilewright.options import CompileOptions
from tilewright.support.errors import MissingDependencyError, UserError
from tilewright.tune.measure import Measurement
from tilewright.tune.model import tune_model
from tilewright.tune.space import Point
from tilewright.tune.task import Task, extract_tasks

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


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "float16"},
        {"winograd": False},
        {"infinities": True},
        {"unchecked": True},
        {"shapes": {"x": (2, 8)}},
        {"specialize": [{"n": 3}]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_tuned_is_what_the_same_options_compile(changes: dict[str, Any], tmp_path: Path) -> None:
    """A product, a 3 x 3 convolution and an index: each option changes some kernel."""
    content, options = _many_kernels(), CompileOptions(**changes)
    compilation = Compilation(content, threads=1, options=options)
    assert {kernel.symbol for kernel in compilation.kernels} != {
        kernel.symbol for kernel in Compilation(content, threads=1).kernels
    }
    tuned: list[Task] = []
    tune_model(
        content,
        threads=1,
        trials=1,
        search="random",
        in_graph=False,
        options=replace(options, database=tmp_path / "t.db"),
        measurer=Counting(),
        on_tasks=tuned.extend,
    )
    assert tuned and {task.key for task in tuned} == {task.key for task in extract_tasks(compilation.lowered)}


def _many_kernels() -> bytes:
    """y = relu(x w) picked by i; z = a convolution of an image."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t"]),
        helper.make_node("Relu", ["t"], ["r"]),
        helper.make_node("Gather", ["r", "i"], ["y"], axis=1),
        helper.make_node("Conv", ["image", "f"], ["z"], pads=[1, 1, 1, 1]),
    ]
    generator = np.random.default_rng(0)
    weights = {
        "w": generator.standard_normal((8, 32)).astype(np.float32),
        "f": generator.standard_normal((64, 64, 3, 3)).astype(np.float32),
    }
    inputs = {"x": (FLOAT, ("n", 8)), "i": (TensorProto.INT64, (3,)), "image": (FLOAT, (1, 64, 14, 14))}
    outputs = {"y": (FLOAT, None), "z": (FLOAT, None)}
    return bytes(model(nodes, inputs, outputs, weights).SerializeToString())
