"""Kernels chosen in their model on a CPU: what is quickest there is selected, and nothing that makes it slower."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.small_models import FLOAT, classifier, one_node
from tilewright.compiler import Compilation
from tilewright.lower.database import Database, Record
from tilewright.runtime.executor import Executable
from tilewright.support.errors import UnsupportedError
from tilewright.tune import in_model, turns
from tilewright.tune.in_model import choose_in_model
from tilewright.tune.space import Point
from tilewright.tune.task import Task, extract_tasks
from tilewright.tune.turns import Times


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "tuned.db") as made:
        yield made


@pytest.fixture(scope="module")
def compilation(tmp_path_factory: pytest.TempPathFactory) -> Compilation:
    path = tmp_path_factory.mktemp("model") / "classifier.onnx"
    path.write_bytes(classifier().SerializeToString())
    return Compilation(path, threads=1)


def _measured(task: Task, database: Database) -> list[Point]:
    """Two records that beat the default schedule, the quicker one first, and one that does not."""
    space = task.space()
    points: list[Point] = list(dict.fromkeys(map(_frozen, (space.settle(p) for p in space.neighbours(space.default)))))
    points = [dict(point) for point in points][:3]
    assert len(points) == 3, "the kernel should have that many schedules"
    for point, seconds in zip(points, (0.6, 0.8, 1.2), strict=True):
        database.add([Record(task.key, str(task.target), point, seconds, None, 1.0)])
    return points


def _frozen(point: Point) -> tuple[tuple[str, object], ...]:
    return tuple(point.items())


def _times(monkeypatch: pytest.MonkeyPatch, kernels: list[dict[str, float]], whole: list[float]) -> None:
    def made_up(models: Sequence[Executable], parts: object = None) -> Times:
        return Times(tuple(kernels[: len(models)]), tuple(whole[: len(models)]), 1)

    monkeypatch.setattr(in_model, "time_in_turns", made_up)


@pytest.mark.parametrize(
    ("in_turns", "whole", "wanted"),
    [
        ((1.0, 0.9, 0.7), (10.0, 9.9, 9.7), 1),  # the second is better in the model
        ((1.0, 0.7, 0.9), (10.0, 9.7, 9.7), 0),
        ((1.0, 0.995, 1.1), (10.0, 9.9, 9.95), 0),  # neither clearly, but the model is quicker with the first
        ((1.0, 1.2, 1.1), (10.0, 10.2, 10.1), None),  # none
        ((1.0, 0.9, 0.7), (10.0, 10.5, 10.1), None),  # the model as a whole says otherwise
    ],
)
def test_what_is_selected(
    compilation: Compilation,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    in_turns: tuple[float, ...],
    whole: tuple[float, ...],
    wanted: int | None,
) -> None:
    tasks = extract_tasks(compilation.lowered)
    points = _measured(tasks[0], database)
    others = dict.fromkeys((task.key for task in tasks[1:]), 1.0)
    _times(monkeypatch, [{**others, tasks[0].key: seconds} for seconds in in_turns], list(whole))
    report = choose_in_model(compilation.lowered, 1, tasks, database)
    assert report.default == 10.0 and report.together <= report.default
    selected = {item.task: item.answers for item in database.selections()}
    assert selected.keys() == {task.key for task in tasks}
    assert selected[tasks[0].key] == ({} if wanted is None else points[wanted])
    assert not any(selected[key] for key in others)


def test_for_real(
    compilation: Compilation, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(turns, "SECONDS", 0.0)
    tasks = extract_tasks(compilation.lowered)
    points = _measured(tasks[0], database)
    report = choose_in_model(compilation.lowered, 1, tasks, database)
    assert 0 < report.together <= report.default and report.trials == 3 * turns.TURNS
    selected = {item.task: item.answers for item in database.selections()}
    assert selected[tasks[0].key] in ({}, points[0], points[1])
    compiled = Compilation(compilation.request.model, threads=1, database=str(tmp_path / "tuned.db"))
    kernel = next(kernel for kernel in compiled.kernels if kernel.symbol == tasks[0].key)
    assert kernel.answers == selected[tasks[0].key]


def test_models_of_unknown_sizes_are_told(database: Database) -> None:
    source = one_node("Relu", {"x": (FLOAT, ["n", 8])})
    lowered = Compilation(bytes(source.SerializeToString()), threads=1).lowered
    with pytest.raises(UnsupportedError, match="known sizes"):
        choose_in_model(lowered, 1, [], database)
