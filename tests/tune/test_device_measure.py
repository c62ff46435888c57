"""Tuning on a device (OpenCL, on the CPU where there is no GPU): what is right is timed, the rest loses only itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
import tilewright.tune
from tests.codegen.on_device import require_opencl
from tilewright import te
from tilewright.compiler import Compilation
from tilewright.lower.database import Database
from tilewright.lower.kernel import CompiledKernel
from tilewright.runtime.device.devices import find_device
from tilewright.support.errors import TilewrightError, UnsupportedError, UserError
from tilewright.tune import device_runner
from tilewright.tune.builder import build_candidate
from tilewright.tune.device_measure import DeviceMeasurer
from tilewright.tune.device_runner import DeviceBench, DeviceBudget, DeviceLost, answer, check_alive
from tilewright.tune.measure import LocalMeasurer
from tilewright.tune.model import tune_model
from tilewright.tune.runner import Timing
from tilewright.tune.space import Point
from tilewright.tune.task import Task, extract_tasks

BUDGET = DeviceBudget(samples=2, cold_bytes=1 << 10)


def product(size: int = 16) -> bytes:
    """A product with constant weights and a ReLU: one kernel."""
    weights = (np.random.default_rng(0).standard_normal((size, size)) * 0.3).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size, size])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [size, size])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data: bytes = model.SerializeToString()
    return data


@pytest.fixture(scope="module")
def task() -> Task:
    require_opencl()
    (found,) = extract_tasks(Compilation(product(), "opencl").lowered)
    return found


@pytest.fixture(scope="module")
def default(task: Task) -> CompiledKernel:
    return build_candidate(task.request({}))


@pytest.fixture(scope="module")
def bench(task: Task, default: CompiledKernel) -> DeviceBench:
    return DeviceBench(task.kernel.func, task.target, default, BUDGET)


def test_a_candidate_is_checked_and_timed_beside_the_default(task: Task, bench: DeviceBench) -> None:
    point = task.space().canonical({"tile": task.space().questions["tile"].options[1]})
    timing = bench.measure(build_candidate(task.request(point)))
    assert bench.copies == 4, "weights are small, but launches still take copies in turn"
    assert 0 < timing.seconds < 1 and 0 < timing.reference < 1 and timing.error < 1e-5


def test_the_right_results_are_those_of_numpy(task: Task, bench: DeviceBench) -> None:
    x, w, result = (np.asarray(array) for array in bench.right)
    np.testing.assert_allclose(result, np.maximum(x @ w, 0.0), rtol=1e-5, atol=1e-5)


def test_wrong_results_are_no_times(default: CompiledKernel, bench: DeviceBench) -> None:
    spoiled = replace(default, code=default.code.replace(b"0.0f", b"0.5f"))
    assert spoiled.code != default.code
    with pytest.raises(TilewrightError, match="wrong result"):
        bench.measure(spoiled)


def test_a_kernel_that_writes_nothing_is_wrong(default: CompiledKernel, bench: DeviceBench) -> None:
    assert default.device is not None
    nothing = replace(default, device=replace(default.device, launches=()))
    with pytest.raises(TilewrightError, match="wrong result"):
        bench.measure(nothing)


class Broken:
    """A device on which nothing runs any more."""

    def wait(self) -> None:
        raise UserError("a kernel failed")


def test_an_error_after_which_nothing_runs_is_told_apart() -> None:
    require_opencl()
    error = UserError("no such kernel")
    assert check_alive(find_device("opencl"), error) is error
    lost = check_alive(Broken(), error)  # type: ignore[arg-type]
    assert isinstance(lost, DeviceLost) and lost.message == "no such kernel"


class Runner:
    """Stands for the process that owns the device: some requests break it."""

    def __init__(self, broken: set[int]) -> None:
        self.broken = broken
        self.asked = 0
        self.starts = 1

    def ask(self, request: object, seconds: float) -> object:
        self.asked += 1
        if self.asked in self.broken:
            raise DeviceLost("an illegal address")
        return Timing(1.0, 3.0, 0.0)

    def close(self) -> None:
        self.starts += 1


@pytest.fixture
def measurer() -> Iterator[DeviceMeasurer]:
    with DeviceMeasurer(1, budget=BUDGET) as made:
        yield made


def test_a_candidate_that_breaks_the_device_loses_only_itself(
    task: Task, measurer: DeviceMeasurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Point] = []

    def build(of: Task, point: Point) -> CompiledKernel:
        built.append(point)
        if point.get("tile") == "none":
            raise UserError("the device does not run it")
        return CompiledKernel(b"", {})

    monkeypatch.setattr(measurer, "_build", build)
    monkeypatch.setattr(measurer, "_runner", runner := Runner({2}))
    points: list[Point] = [{"tile": 1}, {"tile": 2}, {"tile": "none"}, {"tile": 4}]
    results = list(measurer.measure(task, points))
    assert [result.seconds for result in results] == [1.0, None, None, 1.0]
    assert [result.error for result in results] == [
        None,
        "run: an illegal address",
        "build: the device does not run it",
        None,
    ]
    assert runner.starts == 2, "the broken process is ended once"
    assert sorted(map(str, built)) == sorted(map(str, [{}, *points])), "each is built once, the default too"


def test_what_was_prepared_is_not_built_again(
    task: Task, measurer: DeviceMeasurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Point] = []
    monkeypatch.setattr(measurer, "_build", lambda of, point: built.append(point) or CompiledKernel(b"", {}))
    monkeypatch.setattr(measurer, "_runner", Runner(set()))
    measurer.prepare(task, [{"tile": 1}, {"tile": 2}])
    assert [result.seconds for result in measurer.measure(task, [{"tile": 1}, {"tile": 2}])] == [1.0, 1.0]
    assert len(built) == 3


def test_a_model_is_tuned_and_compiled_with_what_was_found(tmp_path: Path) -> None:
    require_opencl()
    model, path = product(), tmp_path / "tuned.db"
    seen: list[Any] = []
    report = tune_model(
        model,
        "opencl",
        trials=3,
        database=path,
        on_batch=lambda tasks, task, trials: seen.append(trials),
        on_exchange=lambda task, before, now: seen.append((before, now)),
    )
    (item,) = report.tasks
    assert report.trials == item.trials == 3 and item.failures == 0 and not report.stopped
    chosen = report.in_graph
    assert chosen is not None and chosen.trials > 6
    assert 0 < chosen.together <= min(chosen.default, chosen.alone)
    exchanges = [what for what in seen if isinstance(what, tuple)]
    assert max(what for what in seen if isinstance(what, int)) == 3
    assert exchanges and all(before == chosen.default for before, _ in exchanges)
    with Database(path) as database:
        (selected,) = database.selections()
        assert selected.task == item.task.key
        assert database.answers(selected.target) == {selected.task: dict(selected.answers)}
    x = np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)
    expected = tw.compile(model, target="opencl", database="shipped")(x)
    np.testing.assert_allclose(tw.compile(model, target="opencl", database=path)(x), expected, rtol=1e-4, atol=1e-5)


@tw.tune.template
def doubled(cfg: tw.tune.Config, n: int) -> Any:
    """A template of one's own whose loops are bound to threads."""
    a = te.placeholder((n,), name="a")
    b = te.compute((n,), lambda i: a[i] * 2.0, name="b")
    s = te.create_schedule(b.op)
    cfg.define_split("threads", b.op.axis[0], parts=2, most=64)
    block, thread = cfg.split("threads").apply(s, b, b.op.axis[0])
    s[b].bind(block, te.thread_axis("blockIdx.x"))
    s[b].bind(thread, te.thread_axis("threadIdx.x"))
    return s, [a, b]


def test_templates_of_ones_own_are_tuned_on_devices(tmp_path: Path) -> None:
    require_opencl()
    task = doubled.task(64, target="opencl")
    with Database(tmp_path / "z.db") as database:
        options = tw.tune.TuneOptions(trials=2, search="bayesian", confirm=0)
        report = tw.tune.tune([task], database, options)
        assert report.trials == 2 and report.tasks[0].failures == 0
        module = doubled.build(64, target="opencl", database=database)
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    module(x, y)
    np.testing.assert_array_equal(y, 2 * x)


def test_requests_are_answered_from_the_same_bench(task: Task, default: CompiledKernel) -> None:
    trial = device_runner.DeviceTrial(task.kernel.func, task.target, default, default, BUDGET)
    first = answer(trial)
    (bench,) = device_runner._benches.values()
    second = answer(trial)
    assert device_runner._benches == {(task.key, str(task.target)): bench}
    assert first.seconds > 0 and second.seconds > 0
    device_runner._benches.clear()


def test_measurers_for_cpus_do_not_take_kernels_for_devices(task: Task) -> None:
    with (
        LocalMeasurer(1) as measurer,
        pytest.raises(UnsupportedError, match="'opencl' are measured where the device is"),
    ):
        list(measurer.measure(task, [{}]))


def test_no_device_no_tuning(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="CUDA"):
        tune_model(product(), "cuda -arch=sm_90a", trials=2, database=tmp_path / "x.db")
