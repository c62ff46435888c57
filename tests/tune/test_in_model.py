"""Kernels chosen in their model on a CPU: what is quickest there is selected, and nothing that makes it slower."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.small_models import FLOAT, classifier, one_node
from tilewright.compiler import Compilation
from tilewright.lower.database import Database
from tilewright.lower.records import Record
from tilewright.support.errors import UnsupportedError
from tilewright.tune import in_model, turns
from tilewright.tune.in_model import choose_in_model
from tilewright.tune.space import Point
from tilewright.tune.task import Task, extract_tasks
from tilewright.tune.turns import Comparison, Times


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
    points: list[Point] = list(dict.fromkeys(_frozen(space.canonical(p)) for p in space.neighbours(space.default)))
    points = [dict(point) for point in points][:3]
    assert len(points) == 3, "the kernel should have that many schedules"
    for point, seconds in zip(points, (0.6, 0.8, 1.2), strict=True):
        database.add([Record(task.key, str(task.target), point, seconds, None, 1.0)])
    return points


def _frozen(point: Point) -> tuple[tuple[str, object], ...]:
    return tuple(point.items())


class Form:
    """Stands for a compiled model: what its kernels were answered."""

    def __init__(self, lowered: object, threads: int, answers: Mapping[str, Point]) -> None:
        self.answers = answers


class MadeUp:
    """Made-up times in the place of measured ones: of kernels in each form, and what forms gain as a whole."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        kernels: Sequence[Mapping[str, float]],
        gain: Callable[[Mapping[str, Point]], float],
    ) -> None:
        self.kernels, self.gain = kernels, gain
        self.tried: list[set[str]] = []
        monkeypatch.setattr(in_model, "_compiled", Form)
        monkeypatch.setattr(in_model, "time_in_chunks", self.times)
        monkeypatch.setattr(in_model, "compare_in_turns", self.compare)

    def times(self, first: Form, others: Sequence[object], most: int, parts: object, seconds: float | None) -> Times:
        parts_of = tuple(dict(item) for item in self.kernels[: len(others) + 1])
        surely = (parts_of[0], *({name: 1.005 * found for name, found in item.items()} for item in parts_of[1:]))
        return Times(parts_of, surely, tuple(sum(item.values()) for item in parts_of), 1)

    def compare(self, first: Form, second: Form, *, seconds: float | None, until_clear: bool) -> Comparison:
        assert not first.answers and second.answers
        self.tried.append(set(second.answers))
        gain = self.gain(second.answers)
        return Comparison(10.0, 10.0 / gain, ((gain,) * 40, (gain,) * 40))


@pytest.mark.parametrize(
    ("in_turns", "gain", "wanted"),
    [
        ((1.0, 0.9, 0.7), 1.03, 1),  # the second is better in the model
        ((1.0, 0.7, 0.9), 1.03, 0),
        ((1.0, 0.998, 0.992), 1.03, None),  # neither surely
        ((1.0, 1.2, 1.1), 1.03, None),  # none
        ((1.0, 0.9, 0.7), 1.005, None),  # the model as a whole hardly gains
        ((1.0, 0.9, 0.7), 0.99, None),
    ],
)
def test_what_is_selected(
    compilation: Compilation,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    in_turns: tuple[float, ...],
    gain: float,
    wanted: int | None,
) -> None:
    tasks = extract_tasks(compilation.lowered)
    points = _measured(tasks[0], database)
    others = dict.fromkeys((task.key for task in tasks[1:]), 1.0)
    MadeUp(monkeypatch, [{**others, tasks[0].key: seconds} for seconds in in_turns], lambda answers: gain)
    report = choose_in_model(compilation.lowered, 1, tasks, database)
    assert report.together == (report.default if wanted is None else pytest.approx(10.0 / gain))
    assert report.exchanged == (wanted != 0)
    selected = {item.task: item.answers for item in database.selections()}
    assert selected.keys() == {task.key for task in tasks}
    assert selected[tasks[0].key] == ({} if wanted is None else points[wanted])
    assert not any(selected[key] for key in others)


@pytest.mark.parametrize("harmful", [0, 1, 2, 3])
def test_where_all_together_is_slower_the_most_promising_half_is_tried(
    compilation: Compilation, database: Database, monkeypatch: pytest.MonkeyPatch, harmful: int
) -> None:
    """Some kernels look quicker than they are; the more one seems to save, the longer it is tried."""
    task = extract_tasks(compilation.lowered)[0]
    tasks = [replace(task, kernel=replace(task.kernel, symbol=f"{task.key}_{number}")) for number in range(4)]
    for task in tasks:
        _measured(task, database)
    keys = [task.key for task in tasks]
    alone = {key: 0.6 + 0.05 * place for place, key in enumerate(keys)}
    bad = keys[harmful]
    made_up = MadeUp(
        monkeypatch,
        [dict.fromkeys(keys, 1.0), alone, dict.fromkeys(keys, 1.0)],
        lambda answers: 0.98 if bad in answers else 1.05,
    )
    report = choose_in_model(compilation.lowered, 1, tasks, database)
    assert made_up.tried == [set(keys[:count]) for count in (4, 2, 1)[: 2 if harmful >= 2 else 3]]
    taken = {item.task for item in database.selections() if item.answers}
    assert taken == set(made_up.tried[-1]) - {bad} and bool(taken) == (harmful > 0)
    assert (report.together < report.default) == bool(taken)


def test_what_promises_too_little_is_not_tried(
    compilation: Compilation, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = extract_tasks(compilation.lowered)
    _measured(tasks[0], database)
    long = {task.key: 100.0 for task in tasks[1:]}
    kernels = [{**long, tasks[0].key: seconds} for seconds in (1.0, 0.8, 0.9)]
    made_up = MadeUp(monkeypatch, kernels, lambda answers: 1.5)
    choose_in_model(compilation.lowered, 1, tasks, database)
    assert made_up.tried == [] and not any(item.answers for item in database.selections())


def test_for_real(
    compilation: Compilation, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(turns, "SECONDS", 0.0)
    tasks = extract_tasks(compilation.lowered)
    points = _measured(tasks[0], database)
    report = choose_in_model(compilation.lowered, 1, tasks, database)
    assert 0 < report.together <= report.default and report.trials >= 3 * turns.TURNS
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
