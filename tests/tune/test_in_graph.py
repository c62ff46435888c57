"""Choosing kernels in their model: exchanges that clearly help stay, noise and failures do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tune.test_device_measure import product
from tilewright.compiler import Compilation
from tilewright.lower.database import Database
from tilewright.lower.kernel import CompiledKernel
from tilewright.lower.model import LoweredModel
from tilewright.lower.records import Record
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.tune import in_graph
from tilewright.tune.child import ChildFailed
from tilewright.tune.device_runner import DeviceLost
from tilewright.tune.graph_runner import AS_COMPILED, GraphModel, GraphTrial
from tilewright.tune.in_graph import InGraph, choose_in_graph
from tilewright.tune.space import Point
from tilewright.tune.task import Task, extract_tasks

TIMES = {"a": {AS_COMPILED: 5.0, 0: 4.0, 1: 3.5, 2: 6.0}, "b": {AS_COMPILED: 2.0, 0: 2.5, 1: 3.0}}


class Made:
    """Builds nothing."""

    def prepare(self, task: Task, points: Sequence[Point]) -> None: ...

    def code(self, task: Task, point: Point) -> CompiledKernel:
        if point.get("tile") == 99:
            raise UserError("no option any more")
        return CompiledKernel(b"default" if point.get("tile") == 50 else b"other", {})


class Session:
    """Made-up times of a model of two kernels; `a` with its candidate 1 makes `b` slower."""

    trials = 0

    def __init__(self, model: GraphModel) -> None:
        self.model = model

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *unused: object) -> None: ...

    def seconds(self, chosen: Mapping[str, int], times: int = 1) -> float:
        a, b = (chosen.get(key, AS_COMPILED) for key in "ab")
        return TIMES["a"][a] + TIMES["b"][b] + (1.0 if a == 1 and b == AS_COMPILED else 0.0)


@pytest.fixture
def lowered() -> LoweredModel:
    return Compilation(product(), "opencl").lowered


@pytest.fixture
def tasks(lowered: LoweredModel) -> list[Task]:
    (found,) = extract_tasks(lowered)
    return [replace(found, kernel=replace(found.kernel, symbol=name)) for name in "ab"]


@pytest.fixture
def database(tmp_path: Path, tasks: list[Task]) -> Iterator[Database]:
    target = str(tasks[0].target)
    with Database(tmp_path / "x.db") as made:
        for key, count in (("a", 3), ("b", 2)):
            # The times alone are in the order of the numbers.
            made.add([Record(key, target, {"tile": n}, 1.0 + n, reference=10.0, number=n) for n in range(count)])
        made.add([Record("b", target, {"tile": 99}, 0.5, reference=10.0), Record("b", target, {"tile": 7}, None, "no")])
        yield made


def _chosen(lowered: LoweredModel, tasks: list[Task], database: Database, keep: int = 6) -> InGraph:
    return choose_in_graph(lowered, tasks, database, Made(), keep=keep)  # type: ignore[arg-type]


def test_what_is_quickest_in_the_model_is_chosen(
    lowered: LoweredModel, tasks: list[Task], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_graph, "_Session", Session)
    result = _chosen(lowered, tasks, database)
    # Alone, candidate 0 of each is the quickest; in the model `b` is best as compiled, and then `a` by candidate 0.
    assert (result.default, result.alone, result.together) == (7.0, 6.5, 6.0)
    assert result.exchanged == 1
    target = str(tasks[0].target)
    assert {item.task: dict(item.answers) for item in database.selections(target)} in (
        {"a": {"tile": 0}, "b": {}},
        {"a": {"tile": 1}, "b": {"tile": 0}},
    )
    assert not database.answers(target)["b"] or database.answers(target)["a"] == {"tile": 1}


def test_only_the_best_few_are_tried(
    lowered: LoweredModel, tasks: list[Task], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[GraphModel] = []

    class Seen(Session):
        def __init__(self, model: GraphModel) -> None:
            super().__init__(model)
            models.append(model)

    monkeypatch.setattr(in_graph, "_Session", Seen)
    _chosen(lowered, tasks, database, keep=2)
    # Of the two best of `b` one cannot be built any more.
    assert {key: len(codes) for key, codes in models[0].candidates.items()} == {"a": 2, "b": 1}
    (weights,) = models[0].constants
    assert weights.shape == (16, 16) and models[0].places == {(0, 1): 0}


def test_noise_changes_nothing(
    lowered: LoweredModel, tasks: list[Task], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noisy(Session):
        count = 0

        def seconds(self, chosen: Mapping[str, int], times: int = 1) -> float:
            Noisy.count += 1
            # The default is never slower when it is looked at closely.
            return 1.0 if times > 1 and not any(n != AS_COMPILED for n in chosen.values()) else 1.0 + 1e-3 * Noisy.count

    monkeypatch.setattr(in_graph, "_Session", Noisy)
    result = _chosen(lowered, tasks, database)
    assert result.together == result.default == 1.0 and result.exchanged == 0
    assert all(item.answers == {} for item in database.selections())
    assert database.answers(str(tasks[0].target)) == {"a": {}, "b": {}}


class Child:
    """Stands for the process of a model: what a test says comes of each request."""

    def __init__(self, module: str) -> None:
        self.requests: list[object] = []
        self.is_running = False

    def ask(self, request: object, seconds: float) -> object:
        self.requests.append(request)
        self.is_running = True
        if isinstance(request, GraphModel):
            return []
        assert isinstance(request, GraphTrial)
        number = request.chosen.get("a")
        if number == 1:
            self.is_running = False
            raise ChildFailed("died: SIGSEGV")
        if number == 2:
            raise DeviceLost("an illegal address")
        if number == 3:
            raise UserError("cannot be exchanged")
        return [2.0, 1.0]

    def close(self) -> None:
        self.is_running = False


def test_trials_that_fail_are_infinitely_slow_and_the_model_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_graph, "Child", Child)
    session = in_graph._Session("model")  # type: ignore[arg-type]
    session._model = GraphModel(None, {}, [], {})  # type: ignore[arg-type]
    times = [session.seconds({"a": number}) for number in (0, 1, 0, 2, 0, 3, 0)]
    assert times == [1.0, float("inf"), 1.0, float("inf"), 1.0, float("inf"), 1.0]
    child = session._child
    assert isinstance(child, Child)
    kinds = ["model" if isinstance(request, GraphModel) else "trial" for request in child.requests]
    # Loaded first, after the death and after the device was lost; an ordinary refusal costs nothing.
    assert kinds == ["model", "trial", "trial", "model", "trial", "trial", "model", "trial", "trial", "trial"]


def test_a_model_that_fails_as_compiled_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead(Child):
        def ask(self, request: object, seconds: float) -> object:
            raise CompilerBug("nothing runs")

    monkeypatch.setattr(in_graph, "Child", Dead)
    with pytest.raises(CompilerBug):
        in_graph._Session(GraphModel(None, {}, [], {})).seconds({})  # type: ignore[arg-type]


def test_models_that_are_no_straight_run_are_left_alone(lowered: LoweredModel, database: Database) -> None:
    symbolic = replace(lowered, info=replace(lowered.info, symbols=("n",)))
    with pytest.raises(UnsupportedError, match="known sizes"):
        _chosen(symbolic, [], database)
    machine = replace(lowered, program=object())  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="control flow"):
        _chosen(machine, [], database)
    assert database.selections() == []


def test_the_default_itself_is_no_candidate(tasks: list[Task]) -> None:
    points: list[Point] = [{"tile": 50}, {"tile": 1}, {"tile": 99}]
    found, codes = in_graph._built(tasks[0], points, Made(), b"default")  # type: ignore[arg-type]
    assert found == [{"tile": 1}] and [code.code for code in codes] == [b"other"]
