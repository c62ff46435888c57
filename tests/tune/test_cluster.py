"""Measuring on a Ray cluster: the same results as local processes; a stand-in for Ray where it is not installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tilewright as tw
from tests.requirements import need
from tilewright import te
from tilewright.lower.database import Database
from tilewright.support.errors import MissingDependencyError, UserError
from tilewright.target import Target
from tilewright.tune import cluster
from tilewright.tune.cluster import ClusterMeasurer
from tilewright.tune.cost import RandomModel
from tilewright.tune.measure import Limits, LocalMeasurer, Measurement, Measurer
from tilewright.tune.runner import Budget
from tilewright.tune.space import Key, Point, key_of
from tilewright.tune.task import Task
from tilewright.tune.tuner import TuneOptions, tune

TARGET = Target("native").replace(cores=1)
BUDGET = Budget(sample_seconds=1e-5, samples=2)


@tw.tune.template
def product(cfg, size):  # type: ignore[no-untyped-def]
    a, b = te.placeholder((size, size), name="a"), te.placeholder((size, size), name="b")
    k = te.reduce_axis((0, size), name="k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    s = te.create_schedule(c.op)
    y, x = c.op.axis
    cfg.define_split("rows", y, parts=2, most=8)
    cfg.define_split("columns", x, parts=2, most=16)
    yo, yi = cfg["rows"].apply(s, c, y)
    xo, xi = cfg["columns"].apply(s, c, x)
    s[c].reorder(yo, xo, c.op.reduce_axis[0], yi, xi)
    return s, [a, b, c]


@pytest.fixture
def task() -> Task:
    made: Task = product.task(16, target=TARGET)
    return made


class FakeRay:
    """What is used of Ray, in this process: a task runs when its result is asked for."""

    def __init__(self, cpus: int = 2) -> None:
        self.cpus = cpus
        self.connected: list[tuple[str, dict[str, object]]] = []
        self.cancelled = 0
        self.lost = False
        self.exceptions = SimpleNamespace(RayError=ConnectionResetError)

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str, **options: object) -> None:
        if address == "nowhere":
            raise ConnectionError("nobody there\nmore lines")
        self.connected.append((address, options))

    def shutdown(self) -> None:
        self.connected.append(("closed", {}))

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": self.cpus}}, {"Alive": False, "Resources": {"CPU": 99.0}}]

    def remote(self, max_retries: int) -> Callable[[Callable[..., object]], Any]:
        def wrap(function: Callable[..., object]) -> Any:
            def later(*arguments: object) -> Callable[[], object]:
                return lambda: function(*(item() if callable(item) else item for item in arguments))

            return SimpleNamespace(remote=later, options=lambda num_cpus: SimpleNamespace(remote=later))

        return wrap

    def put(self, value: object) -> object:
        return value

    def get(self, reference: Callable[[], object]) -> object:
        if self.lost:
            raise ConnectionResetError("the node died\nwith many words")
        return reference()

    def cancel(self, reference: object) -> None:
        self.cancelled += 1


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    made = FakeRay()
    monkeypatch.setattr(cluster, "_ray", lambda: made)
    yield made
    for module in ("tilewright.tune.builder", "tilewright.tune.runner"):
        cluster._child(module, Limits().memory_bytes).close()
    cluster._child.cache_clear()


def test_candidates_are_built_and_run_by_tasks(ray: FakeRay, task: Task) -> None:
    points: list[Point] = [{}, {"rows": (4, 4), "columns": (2, 8)}]
    with ClusterMeasurer("local", workers=2, budget=BUDGET) as measurer:
        results = list(measurer.measure(task, points))
    assert [result.answers for result in results] == points
    assert all(result.error is None and result.seconds and result.reference for result in results)
    assert ray.connected[0][0] == "local" and ray.connected[0][1]["num_cpus"] == 2
    assert ray.connected[-1][0] == "closed" and ray.cancelled == 0


def test_what_is_not_wanted_any_more_is_called_off(ray: FakeRay, task: Task) -> None:
    with ClusterMeasurer(budget=BUDGET) as measurer:
        results = measurer.measure(task, [{}, {"rows": (4, 4)}, {"rows": (2, 8)}])
        assert next(results).error is None
        assert isinstance(results, Generator)
        results.close()
    assert ray.cancelled == 2


def test_failures_are_the_candidates_own(ray: FakeRay, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    with ClusterMeasurer(budget=BUDGET, limits=Limits(build_seconds=1e-3)) as measurer:
        [late] = measurer.measure(task, [{"rows": (4, 4)}])
    assert late.error == "build: took more than 0.001 s"
    with ClusterMeasurer(budget=BUDGET, limits=Limits(run_seconds=1e-3)) as measurer:
        [late] = measurer.measure(task, [{"rows": (4, 4)}])
    assert late.error == "run: took more than 0.001 s"
    ray.lost = True
    with ClusterMeasurer(budget=BUDGET) as measurer:
        [lost] = measurer.measure(task, [{"rows": (4, 4)}])
    assert lost.error == "run: no machine kept it: the node died"


def test_machines_of_another_kind_end_the_tuning(ray: FakeRay, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "is_host", property(lambda self: False))
    with ClusterMeasurer(budget=BUDGET) as measurer, pytest.raises(UserError, match="cannot run programs for"):
        list(measurer.measure(task, [{}]))


def test_clusters_that_will_not_do(ray: FakeRay, task: Task) -> None:
    with pytest.raises(UserError, match="no Ray cluster answers: nobody there") as caught:
        ClusterMeasurer("nowhere")
    assert caught.value.where == "nowhere"
    with pytest.raises(UserError, match="at least 1"):
        ClusterMeasurer("local", workers=0)
    with pytest.raises(UserError, match="for a local cluster only"):
        ClusterMeasurer("head:6379", workers=2)
    large: Task = product.task(16, target=TARGET.replace(cores=4))
    with ClusterMeasurer() as measurer, pytest.raises(UserError, match=r"has 4 cores, but no machine .* more than 2"):
        list(measurer.measure(large, [{}]))


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"tilewright\[cluster\]"):
        ClusterMeasurer()


@dataclass
class Replay:
    """Builds and runs by another measurer, with times from a table: so a guided search asks for the same again."""

    measurer: Measurer
    times: dict[Key, float | None]

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        for result in self.measurer.measure(task, points):
            assert result.error is None
            yield Measurement(result.answers, self.times[key_of(result.answers)], 1e-3)

    def close(self) -> None: ...


@pytest.mark.slow
def test_a_cluster_of_two_workers_finds_what_local_processes_find(task: Task, tmp_path: Path) -> None:
    need("ray")
    options = TuneOptions(trials=14, seed=5, model=RandomModel, confirm=0)
    with Database(tmp_path / "local.db") as database, LocalMeasurer(budget=BUDGET) as local:
        tune([task], database, options, measurer=local)
        first = {key_of(record.answers): record.relative for record in database.records()}
    found = []
    with LocalMeasurer(budget=BUDGET) as local, ClusterMeasurer("local", workers=2, budget=BUDGET) as ours:
        for name, measurer in (("a", local), ("b", ours)):
            with Database(tmp_path / f"{name}.db") as database:
                times = {key: None if value is None else value * 1e-3 for key, value in first.items()}
                tune([task], database, options, measurer=Replay(measurer, times))
                found.append([(key_of(record.answers), record.seconds, record.number) for record in database.records()])
    assert found[0] == found[1]
    assert {key for key, _, _ in found[0]} == set(first) and len(first) == 14
