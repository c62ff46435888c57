"""Tuning for the accelerator: cycles are counted, wrong results are no times, winners are confirmed on the hardware."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.integration.test_accel_models import SMALL, _data, _network
from tests.requirements import need
from tilewright.cli.tune import summary
from tilewright.compiler import Compilation
from tilewright.lower.database import Database
from tilewright.lower.kernel import CompiledKernel
from tilewright.support.errors import UserError
from tilewright.tune import accel_measure
from tilewright.tune.accel_measure import CycleMeasurer, device_measurer
from tilewright.tune.accel_runner import CycleBench, HardwareBench, small_inputs
from tilewright.tune.builder import build_candidate
from tilewright.tune.device_measure import DeviceMeasurer
from tilewright.tune.model import tune_model
from tilewright.tune.runner import result_numbers
from tilewright.tune.task import Task, extract_tasks


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return extract_tasks(Compilation(_network(), SMALL).lowered)


@pytest.fixture(scope="module")
def default(tasks: list[Task]) -> CompiledKernel:
    return build_candidate(tasks[0].request({}))


@pytest.fixture(scope="module")
def bench(tasks: list[Task], default: CompiledKernel) -> CycleBench:
    return CycleBench(tasks[0].kernel.func, tasks[0].target, default)


def test_only_layers_of_the_accelerator_are_tasks(tasks: list[Task]) -> None:
    assert len(tasks) >= 5 and all(task.label.startswith("accel_") for task in tasks)
    questions = tasks[0].space().questions
    assert questions["threads"].options == (1, 2) and len(questions["tiling"].options) > 20


def test_cycles_are_counted_and_are_the_same_each_time(tasks: list[Task], bench: CycleBench) -> None:
    other = tasks[0].space().questions["tiling"].options[3]
    code = build_candidate(tasks[0].request({"threads": 2, "tiling": other}))
    first, again = bench.measure(code), bench.measure(code)
    assert first == again and first.error == 0
    assert first.seconds != first.reference and round(first.seconds * 1e8, 6) % 1 == 0


def test_the_results_that_are_compared_are_of_many_values(tasks: list[Task], bench: CycleBench) -> None:
    (number,) = result_numbers(tasks[0].kernel.func)
    assert len(np.unique(bench.right[number])) > 10
    assert all(np.array_equal(a, b) for a, b in zip(small_inputs(bench.func), small_inputs(bench.func), strict=True))


def test_a_wrong_result_is_no_time(default: CompiledKernel, bench: CycleBench) -> None:
    lines = default.code.decode().splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith("epi"))
    words = [word for word in lines[place].split() if not word.startswith("high=")]
    lines[place] = " ".join([*words, "high=3"])
    broken = CompiledKernel("\n".join(lines).encode(), default.packing, device=default.device)
    with pytest.raises(UserError, match="wrong result"):
        bench.measure(broken)


def test_what_measures_follows_from_what_the_target_can_do() -> None:
    with device_measurer(tw.Target(SMALL)) as counting, device_measurer(tw.Target("cuda")) as timing:
        assert isinstance(counting, CycleMeasurer)
        assert isinstance(timing, DeviceMeasurer) and not isinstance(timing, CycleMeasurer)


def test_the_hardware_confirms_what_the_model_counts(
    tasks: list[Task], default: CompiledKernel, bench: CycleBench
) -> None:
    need("verilator", "amaranth", "c++-compiler")
    hardware = HardwareBench(tasks[0].kernel.func, tasks[0].target, default)
    assert hardware.measure(default).seconds == bench.measure(default).seconds


def test_a_tuned_model_is_compiled_with_what_was_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(accel_measure, "can_simulate", lambda: False)
    path = tmp_path / "records.db"
    report = tune_model(_network(), SMALL, trials=12, database=path)
    assert report.after < report.before and report.in_graph is None
    assert "cycles of the accelerator at 100 MHz" in summary(report)
    assert not any(item.on_hardware or item.failures for item in report.tasks)
    with Database(path) as database:
        answers = database.answers(str(tw.Target(SMALL)))
    assert {item.task.key for item in report.tasks if item.gain > 1} <= set(answers)
    compilation = Compilation(_network(), SMALL, options=tw.CompileOptions(database=path))
    assert {kernel.symbol: kernel.answers for kernel in compilation.kernels if kernel.answers} == answers
    exe = tw.compile(_network(), target=SMALL, database=path)
    np.testing.assert_array_equal(exe(_data()), tw.compile(_network())(_data()))
