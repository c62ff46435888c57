"""A template that fails never fails a model: the next plainer schedule is taken, and whoever compiles hears of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.codegen.on_device import OPENCL, require_device
from tests.fuzz.template_families import draw
from tests.integration import small_models
from tilewright.cli.main import main
from tilewright.compiler import Compilation
from tilewright.frontend import from_onnx
from tilewright.ir.visit import find_all
from tilewright.lower import schedules
from tilewright.lower.kernel import CompiledKernel, Kernel, compile_kernel
from tilewright.lower.schedules import use_schedule
from tilewright.support import settings
from tilewright.support.errors import CompilerBug, UserError
from tilewright.target import Target
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.stmt import For, LoopKind
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.cpu.plain import schedule_plain_cpu
from tilewright.topi.schedule.cpu.strategy import schedule_cpu
from tilewright.tune.builder import BuildRequest, build_candidate
from tilewright.tune.space import Space

FAILURES = {
    "a step that is not legal": (ScheduleError("parallel: not independent"), "parallel: not independent"),
    "a broken invariant": (CompilerBug("asked twice"), "asked twice"),
    "an exception of Python": (IndexError("list index out of range"), "IndexError in the schedule template"),
}


@pytest.fixture(autouse=True)
def _lenient(tmp_path: Path) -> Iterator[None]:
    with settings.STRICT_TEMPLATES.override(False), settings.CACHE_DIR.override(tmp_path):
        yield


def _replace_templates(monkeypatch: pytest.MonkeyPatch, schedule: Callable[..., Any]) -> None:
    """Schedule kernels by a function of the test."""
    backend_of = schedules.backend_of
    monkeypatch.setattr(
        schedules, "backend_of", lambda target, kind: replace(backend_of(target, kind), schedule=schedule)
    )


def _fails(error: Exception) -> Callable[..., Any]:
    def template(*args: object) -> Any:
        raise error

    return template


def _model(family: str = "dense", seed: int = 10) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    return draw(family, seed)


def _kernel() -> tuple[Kernel, Target]:
    compilation = Compilation(from_onnx(_model()[0]), threads=4)
    return compilation.kernels[0], compilation.target


@pytest.mark.parametrize("name", FAILURES)
def test_a_model_whose_templates_fail_is_right_and_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    error, said = FAILURES[name]
    _replace_templates(monkeypatch, _fails(error))
    model, inputs = _model()
    compilation = Compilation(from_onnx(model), threads=4)
    with pytest.warns(RuntimeWarning, match="the schedule template of 1 kernel failed"):
        executable = compilation.executable()
    found = executable(*[inputs[info.name] for info in executable.input_info])
    np.testing.assert_allclose(found, small_models.onnxruntime_outputs(model, inputs)[0], rtol=1e-4, atol=1e-5)
    ((symbol, reason),) = compilation.failed_templates.items()
    assert symbol == compilation.kernels[0].symbol
    assert reason.startswith("the template's schedule failed: ") and said in reason
    assert reason.endswith("it has the plain schedule") and "\n" not in reason
    assert f"kernel {symbol}: {reason}" in caplog.messages


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_an_error_where_it_shall_be(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error, said = FAILURES[name]
    _replace_templates(monkeypatch, _fails(error))
    kernel, target = _kernel()
    assert compile_kernel(kernel, target).failed_template
    with settings.STRICT_TEMPLATES.override(True), pytest.raises((ScheduleError, CompilerBug), match=said):
        # Also when the cache has what was made of it before.
        compile_kernel(kernel, target)


@pytest.mark.parametrize(
    "family", ["attention", "winograd", "softmax", "recurrence", "sorting", "quantized_convolution"]
)
def test_plain_schedules_compute_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _replace_templates(monkeypatch, _fails(ScheduleError("no")))
    model, inputs = _model(family)
    compilation = Compilation(from_onnx(model), threads=64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        executable = compilation.executable()
    assert set(compilation.failed_templates) == {kernel.symbol for kernel in compilation.kernels}
    found = executable(*[inputs[info.name] for info in executable.input_info])
    first = found[0] if isinstance(found, (tuple, list)) else found
    expected = small_models.onnxruntime_outputs(model, inputs)[0]
    np.testing.assert_allclose(first, expected, rtol=1e-3, atol=0.051 if "quantized" in family else 1e-4)


def test_plain_schedules_use_all_cores() -> None:
    kernel, target = _kernel()
    with settings.STRICT_TEMPLATES.override(False):
        plain = schedule_plain_cpu(kernel.func, target)
    assert LoopKind.PARALLEL in {loop.kind for loop in find_all(plain.body, For)}


def test_schedules_get_plainer_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, target = _kernel()
    tuned = {"tile_rows": 4}
    assert use_schedule(kernel.func, target, tuned, lambda func: 1).failure == ""
    failing = iter([CompilerBug("one"), CompilerBug("two"), CompilerBug("three")])

    def use(func: Any) -> Any:
        for error in failing:
            raise error
        return func

    used = use_schedule(kernel.func, target, tuned, use)
    assert used.result is kernel.func
    assert used.failure == (
        "the tuned schedule failed: one; the template's schedule failed: two; the plain schedule failed: three; "
        "it has no schedule"
    )


def test_what_no_schedule_can_mend_is_raised() -> None:
    kernel, target = _kernel()
    errors = iter([CompilerBug("the first"), *[CompilerBug("another")] * 3])

    def use(func: object) -> None:
        raise next(errors)

    with pytest.raises(CompilerBug, match="the first"):
        use_schedule(kernel.func, target, {}, use)


def test_errors_of_users_are_no_failures_of_templates() -> None:
    kernel, target = _kernel()
    with pytest.raises(UserError, match="a file is wrong"):
        use_schedule(kernel.func, target, {}, _fails(UserError("a file is wrong")))


def test_compiled_kernels_carry_why_they_are_slow() -> None:
    made = CompiledKernel(b"code", {}, failed_template="why")
    assert CompiledKernel.from_bytes(made.to_bytes()) == made


def test_the_command_line_lists_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_model()[0], path)
    assert main(["inspect", str(path), "--stage", "failures"]) == 0
    assert capsys.readouterr().out == "no schedule template failed\n"
    _replace_templates(monkeypatch, _fails(ScheduleError("no such loop")))
    with settings.CACHE.override(False), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert main(["inspect", str(path), "--stage", "failures"]) == 0
        listed = capsys.readouterr().out
        assert "no such loop; it has the plain schedule" in listed and "tw_matmul" in listed
        assert main(["compile", str(path), "-o", str(tmp_path / "m.so")]) == 0
        assert "a plainer schedule: tw_matmul" in capsys.readouterr().out


def test_tuning_starts_from_the_plain_schedule_where_the_template_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, target = _kernel()

    def fails_by_default(func: Any, target: Target, choices: Choices, sch: Any) -> Any:
        made = schedule_cpu(func, target, choices, sch)
        if not choices.given:
            raise ScheduleError("not so")
        return made

    _replace_templates(monkeypatch, fails_by_default)
    space = Space(kernel.func, target)
    assert space.default == {} and space.open_questions
    # Points that the template takes are schedules of their own.
    question = space.open_questions[0]
    assert space.canonical({question.name: question.options[0]})
    assert build_candidate(BuildRequest(kernel, target)).failed_template


def test_a_candidate_is_not_a_plainer_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, target = _kernel()
    _replace_templates(monkeypatch, _fails(ScheduleError("not so")))
    candidate = Kernel(kernel.symbol, kernel.func, kernel.work, {"tile_rows": 4})
    with pytest.raises(UserError, match="the template fails for these answers: the tuned schedule failed: not so"):
        build_candidate(BuildRequest(candidate, target))
    with pytest.raises(ScheduleError, match="not so"):
        Space(kernel.func, target).canonical({"tile_rows": 4})


@pytest.mark.parametrize("family", ["dense", "softmax", "convolution_2d", "sorting"])
def test_devices_have_plain_schedules_too(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _replace_templates(monkeypatch, _fails(ScheduleError("no")))
    model, inputs = _model(family)
    compilation = Compilation(from_onnx(model), "opencl")
    texts = [compilation.source(kernel) for kernel in compilation.kernels]
    assert any("get_group_id" in text for text in texts)
    require_device(OPENCL)
    with pytest.warns(RuntimeWarning, match="schedule template"):
        executable = compilation.executable()
    found = executable(*[inputs[info.name] for info in executable.input_info])
    first = found[0] if isinstance(found, (tuple, list)) else found
    np.testing.assert_allclose(first, small_models.onnxruntime_outputs(model, inputs)[0], rtol=1e-4, atol=1e-4)
