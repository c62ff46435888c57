"""Algorithms chosen in their model: what is clearly quicker is taken and kept, and measured once for a compiler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.integration.small_models import FLOAT, model, one_node
from tests.tune.test_model import Counting
from tilewright.compiler import Compilation
from tilewright.graph.choices import GraphQuestion, graph_answers
from tilewright.graph.passes import choose_algorithm, transposed_convolution
from tilewright.lower.database import Database
from tilewright.runtime.core.executor import Executable
from tilewright.support.errors import UnsupportedError
from tilewright.tune import algorithms, tuner, turns
from tilewright.tune.algorithms import Algorithms, choose_algorithms, measured_answers
from tilewright.tune.model import tune_model
from tilewright.tune.turns import Comparison, Times

FIRST, OTHERS = ("x", "first"), ("second", "third")


def _network() -> bytes:
    """Two equal convolutions of 3 x 3, and one that the layout of the image joins."""
    rng = np.random.default_rng(0)
    weights = {
        name: (rng.standard_normal(shape) * 0.2).astype(np.float32)
        for name, shape in (("w0", (16, 3, 3, 3)), ("w1", (16, 16, 3, 3)), ("w2", (16, 16, 3, 3)))
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "w1"], ["c"], name="second", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c", "w2"], ["y"], name="third", pads=[1, 1, 1, 1]),
    ]
    source = model(nodes, {"x": (FLOAT, [1, 3, 12, 12])}, {"y": (FLOAT, [1, 16, 12, 12])}, weights)
    return bytes(source.SerializeToString())


NETWORK = _network()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "tuned.db") as made:
        yield made


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same estimate on all machines."""
    for module in (choose_algorithm, transposed_convolution):
        monkeypatch.setattr(module, "best_tile", lambda size, target: None)
    monkeypatch.setattr(choose_algorithm, "is_plain_possible", lambda size, target: False)


class MadeUp:
    """Made-up times in the place of measured ones: of nodes in each model of a comparison, and of whole models."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, times: dict[tuple[str, ...], Sequence[float]], whole: Sequence[float]
    ) -> None:
        self.times, self.whole = times, whole
        self.models: list[int] = []
        self._monkeypatch = monkeypatch
        self._others = 0
        monkeypatch.setattr(algorithms, "time_in_chunks", self.chunks)
        monkeypatch.setattr(algorithms, "compare_in_turns", self.compare)

    def chunks(self, *arguments: Any) -> Times:
        self._others = 0
        with self._monkeypatch.context() as patch:
            patch.setattr(turns, "time_in_turns", self.time)
            return turns.time_in_chunks(*arguments)

    def time(self, models: Sequence[Executable], parts: Any, seconds: float | None) -> Times:
        # The machine is slower in every later comparison.
        speed = 1.0 + 0.5 * len(self.models)
        questions: Sequence[GraphQuestion] = parts.args[0]
        found = [
            {item.key: speed * self.times[item.nodes][at] for item in questions if at < len(self.times[item.nodes])}
            for at in (0, *range(self._others + 1, self._others + len(models)))
        ]
        self.models.append(len(models))
        self._others += len(models) - 1
        return Times(tuple(found), tuple(found), tuple(speed * 5.0 for _ in models), len(models))

    def compare(self, first: Executable, second: Executable, seconds: float | None, until_clear: bool) -> Comparison:
        self.models.append(2)
        gain = self.whole[0] / self.whole[1]
        return Comparison(self.whole[0], self.whole[1], ((gain,), (gain,)))


def _compilation(database: Database) -> Compilation:
    return Compilation(NETWORK, threads=1, database=database)


def _chosen(report: Algorithms | None) -> dict[tuple[str, ...], str]:
    assert report is not None
    return {item.question.nodes: item.answer for item in report.choices}


def test_questions_of_the_network(database: Database) -> None:
    found = {item.nodes: item for item in _compilation(database).questions}
    assert found.keys() == {FIRST, OTHERS}
    assert found[OTHERS].options == ("direct", "winograd2", "winograd3", "winograd4")
    assert found[FIRST].options == ("apart", "together") and found[FIRST].default == "together"


@pytest.mark.parametrize(
    ("others", "first", "whole", "expected"),
    [
        # Times as estimated, and of the alternatives: the quickest is taken.
        ((1.0, 0.9, 0.8, 0.7), (1.0, 1.1), (5.0, 4.0, 4.0, 4.0), ("winograd4", "together")),
        ((1.0, 0.7, 0.8, 0.9), (1.0, 0.5), (5.0, 4.0, 4.0, 4.0), ("winograd2", "apart")),
        # Noise: not by two parts in a hundred.
        ((1.0, 0.985, 0.99, 0.985), (1.0, 0.99), (5.0, 4.0, 4.0, 4.0), ("direct", "together")),
        # The model as a whole says otherwise, or hardly gains.
        ((1.0, 0.9, 0.8, 0.7), (1.0, 0.5), (5.0, 5.5, 4.0, 4.0), ("direct", "together")),
        ((1.0, 0.9, 0.8, 0.7), (1.0, 0.5), (5.0, 4.96, 4.0, 4.0), ("direct", "together")),
    ],
)
def test_what_is_chosen(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    others: Sequence[float],
    first: Sequence[float],
    whole: Sequence[float],
    expected: tuple[str, str],
) -> None:
    made_up = MadeUp(monkeypatch, {OTHERS: others, FIRST: first}, whole)
    steps: list[str] = []
    compilation = _compilation(database)
    report = choose_algorithms(compilation, database, on_step=steps.append)
    assert report is not None and _chosen(report) == dict(zip((OTHERS, FIRST), expected, strict=True))
    assert steps[0] == "trying 4 forms of the model for 2 choices"
    changed = {item.question.key: item.answer for item in report.changed}
    assert report.estimated == 5.0 and report.chosen == pytest.approx(whole[1] if changed else 5.0)
    assert made_up.models[0] == 4 and report.trials == sum(made_up.models)
    assert measured_answers(database.answers(str(compilation.target))).keys() == changed.keys()
    # All of it is known now, also what is as estimated: the next compilation takes it, and nothing is asked again.
    again = _compilation(database)
    assert graph_answers(again.request.answers) == changed
    winograd = expected[0] != "direct"
    assert any("winograd" in kernel.symbol for kernel in again.kernels) == winograd
    assert any("transpose_nn_conv2d" in kernel.symbol for kernel in again.kernels) == (expected[1] == "together")
    assert choose_algorithms(again, database) is None
    # Another compiler has other kernels: it measures once more, from the estimates on.
    monkeypatch.setattr(algorithms, "kernel_sources", lambda: "of another compiler")
    assert _chosen(choose_algorithms(again, database)) == _chosen(report)


def test_what_does_not_fit_the_memory_at_once_is_tried_later(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithms, "most_models", lambda lowered: 1)
    made_up = MadeUp(monkeypatch, {OTHERS: (1.0, 0.9, 0.8, 0.7), FIRST: (1.0, 0.5)}, (5.0, 4.0))
    report = choose_algorithms(_compilation(database), database)
    assert report is not None and made_up.models == [2, 2, 2, 2]
    # The last one was measured when the machine was slower: what counts is its time by the default's beside it.
    assert _chosen(report) == {OTHERS: "winograd4", FIRST: "apart"}
    found = {item.question.nodes: item for item in report.choices}[OTHERS]
    alternatives = dict(zip(found.question.alternatives, (0.9, 0.8, 0.7), strict=True))
    assert found.seconds == pytest.approx({"direct": 1.0, **alternatives})


def test_questions_of_an_alternative_are_asked_when_it_is_chosen(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {"w": np.ones((16, 16, 4, 4), np.float32)}
    source = one_node(
        "ConvTranspose", {"x": (FLOAT, [1, 16, 8, 8])}, weights=weights, strides=[2, 2], pads=[1, 1, 1, 1]
    )
    compilation = Compilation(bytes(source.SerializeToString()), threads=1, database=database)
    (asked,) = compilation.questions
    assert (asked.options, asked.default) == (("apart", "together"), "apart")
    # The convolution of all phases may be computed by Winograd's algorithm.
    made_up = MadeUp(monkeypatch, {("the_node",): (1.0, 0.5, 0.4, 0.25)}, (5.0, 4.0, 4.0, 4.0))
    report = choose_algorithms(compilation, database)
    assert report is not None
    assert [item.answer for item in report.choices] == ["together", "winograd4"]
    assert made_up.models == [2, 4, 2]
    taken = Compilation(bytes(source.SerializeToString()), threads=1, database=database)
    assert any("winograd" in kernel.symbol for kernel in taken.kernels)


def test_alternatives_for_one_node_are_tried_in_different_models() -> None:
    questions = [
        GraphQuestion("a", ("x", "y", "z"), "x", ("n1",)),
        GraphQuestion("b", ("x", "y"), "y", ("n1", "n2")),
        GraphQuestion("c", ("x", "y"), "x", ("n3",)),
    ]
    assert algorithms._combined(questions) == [{"a": "y", "c": "y"}, {"a": "z"}, {"b": "x"}]
    assert algorithms._combined([]) == []


def test_for_real(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SECONDS", 0.0)
    report = choose_algorithms(_compilation(database), database)
    assert report is not None and 0 < report.chosen <= report.estimated
    for item in report.choices:
        assert item.seconds.keys() == set(item.question.options), "everything was measured"
        assert all(seconds > 0 for seconds in item.seconds.values())
    assert len(database.selections()) == 2


def test_models_that_cannot_be_tried_are_told(database: Database) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], name="conv"),
        helper.make_node("Relu", ["n"], ["z"], name="relu"),
    ]
    source = model(
        nodes,
        {"x": (FLOAT, [1, 3, 8, 8]), "n": (FLOAT, ["n"])},
        {"y": (FLOAT, [1, 8, 6, 6]), "z": (FLOAT, ["n"])},
        {"w": np.ones((8, 3, 3, 3), np.float32)},
    )
    with pytest.raises(UnsupportedError, match="known sizes"):
        choose_algorithms(Compilation(bytes(source.SerializeToString()), threads=1, database=database), database)
    special = Compilation(NETWORK, threads=1, database=database, specialize=[{}])
    with pytest.raises(UnsupportedError, match="specialized"):
        choose_algorithms(special, database)


def test_tuning_a_model_begins_with_its_algorithms(
    database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(turns, "SECONDS", 0.0)
    monkeypatch.setattr(tuner, "local_measurer", lambda tasks: Counting())
    MadeUp(monkeypatch, {OTHERS: (1.0, 0.9, 0.8, 0.7), FIRST: (1.0, 1.1)}, (5.0, 4.0, 4.0, 4.0))
    seen: list[str] = []
    options: dict[str, Any] = {"threads": 1, "trials": 1, "search": "random", "database": database}
    report = tune_model(
        NETWORK,
        **options,
        on_algorithms=lambda text: seen.append("algorithms"),
        on_tasks=lambda tasks: seen.extend(task.label for task in tasks),
    )
    assert _chosen(report.algorithms) == {OTHERS: "winograd4", FIRST: "together"}
    assert seen[0] == "algorithms" and "nn_conv2d_winograd" in seen, "kernels are those of the algorithms"
    assert report.algorithms is not None and report.in_graph is not None
    assert report.seconds > report.algorithms.seconds
    # The next one goes on with them, also without choosing in the model; another database knows nothing of them.
    for place, expected in ((database, True), (tmp_path / "other.db", False)):
        labels: list[str] = []
        again = tune_model(
            NETWORK,
            **{**options, "database": place},
            in_graph=False,
            on_tasks=lambda tasks, labels=labels: labels.extend(task.label for task in tasks),
        )
        assert again.algorithms is None and ("nn_conv2d_winograd" in labels) == expected


def test_an_interrupt_ends_tuning(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*unused: object, **unused_too: object) -> Times:
        raise KeyboardInterrupt

    monkeypatch.setattr(algorithms, "time_in_chunks", interrupted)
    report = tune_model(NETWORK, threads=1, trials=1, search="random", database=database)
    assert report.stopped and not report.tasks and database.selections() == []
