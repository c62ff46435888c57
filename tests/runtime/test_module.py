"""Calling compiled functions with arrays, and every complaint about the arguments."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.runtime import mini
from tests.runtime.test_convert import Exporter
from tilewright.backends.llvm import deploy
from tilewright.runtime import Module, empty
from tilewright.runtime.core.library import SharedLibrary, bind, check_code
from tilewright.runtime.core.module import TimingResult
from tilewright.support.errors import CompilerBug, UserError


@pytest.fixture(scope="module")
def module() -> Module:
    return deploy.module(mini.functions_artifact())


def test_call_with_all_kinds_of_arrays(module: Module) -> None:
    scale = module["scale"]
    source = np.arange(8, dtype=np.float32)
    result = empty(8)
    scale(source, result, 2.0)
    np.testing.assert_array_equal(result.numpy(), 2 * source)
    out = np.zeros(4, np.float32)
    scale(source[::2], out, 3)
    np.testing.assert_array_equal(out, 3 * source[::2])
    scale([1, 2, 3, 4], out, np.float32(1))
    np.testing.assert_array_equal(out, [1, 2, 3, 4])
    scale(Exporter(source[:4]), out, 1.0)
    np.testing.assert_array_equal(out, source[:4])
    scale(np.zeros(0, np.float32), np.zeros(0, np.float32), 1.0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((np.zeros(2, np.float32),), r"'scale' takes 3 arguments \(source, result, factor\), not 1"),
        ((np.zeros(2), np.zeros(2, np.float32), 1.0), "'source' of 'scale' has the data type float64"),
        ((np.zeros((2, 1), np.float32), np.zeros(2, np.float32), 1.0), r"shape \[2, 1\] \(2 dimensions\)"),
        ((np.zeros(2, np.float32), np.zeros(3, np.float32), 1.0), r"axis 0 must be 2 \(n = 2 here\), not 3"),
        ((np.zeros(2, np.float32), [0.0, 0.0], 1.0), "must be an array, not a list"),
        ((np.zeros(2, np.float32), np.zeros(4, np.float32)[::2], 1.0), "must be contiguous and aligned"),
        ((np.zeros(2, np.float32), np.zeros(2, np.float32), np.zeros(2, np.float32)), "expected a scalar of float32"),
        ((np.zeros(2, np.float32), np.zeros(2, np.float32), np.float64(1)), "expected a scalar of float32"),
        ((np.zeros(2, np.float32), np.zeros(2, np.float32), -1.0), "stopped at a failed check"),
    ],
)
def test_bad_arguments(module: Module, args: tuple[object, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        module["scale"](*args)


def test_read_only_output(module: Module) -> None:
    out = np.zeros(2, np.float32)
    out.flags.writeable = False
    with pytest.raises(UserError, match="the array is read-only"):
        module["scale"](np.zeros(2, np.float32), out, 1.0)


def test_names(module: Module) -> None:
    assert list(module) == ["scale", "mini_double"]
    assert len(module) == 2
    assert "scale" in module
    assert module.get_function("scale") is module["scale"]
    with pytest.raises(UserError, match=r"no function 'scala'[\s\S]*scale, mini_double"):
        module["scala"]
    with pytest.raises(UserError, match="has 2 functions, so it cannot be called itself"):
        module(1)


def test_single_function_module_is_callable() -> None:
    artifact = mini.functions_artifact()
    artifact.functions = artifact.functions[1:]
    out = np.zeros((16, 4), np.float32)
    deploy.module(artifact)(np.ones((16, 4), np.float32), out)
    assert (out == 2).all()


def test_time_evaluator(module: Module) -> None:
    source, out = np.ones(10, np.float32), np.zeros(10, np.float32)
    result = module.time_evaluator("scale", number=3, repeat=4)(source, out, 2.0)
    assert len(result.results) == 4
    assert 0 < result.min <= result.median <= result.max
    known = TimingResult((0.5, 0.25, 1.25, 2.0))
    assert (known.mean, known.median, known.min, known.max) == (1.0, 0.875, 0.25, 2.0)
    assert known.std == pytest.approx(0.6847, abs=1e-4)
    assert str(known) == "median 875.00 ms, min 250.00 ms, max 2.00 s"
    with pytest.raises(UserError, match="at least 1, not 0 and 3"):
        module.time_evaluator("scale", number=0)
    with pytest.raises(UserError, match="failed check"):
        module.time_evaluator("scale")(source, out, -2.0)


def test_threads_do_not_leak_between_programs(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool is shared: a model on one thread must not leave functions on one thread."""
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "3")
    get_threads = bind(module.library, "tw_get_num_threads", ctypes.c_int64)
    exe = deploy.executable(mini.model_artifact(), threads=1)
    source, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    exe(mini.sample_input())
    assert get_threads() == 1
    module["scale"](source, out, 1.0)
    assert get_threads() == 3
    module.set_num_threads(2)
    module["scale"](source, out, 1.0)
    assert get_threads() == 2
    module.set_num_threads(None)
    with pytest.raises(UserError, match="at least 1, not -1"):
        module.set_num_threads(-1)


def test_bad_thread_setting_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "lots")
    with pytest.raises(UserError, match="TILEWRIGHT_NUM_THREADS"):
        deploy.module(mini.functions_artifact())


def test_export_without_a_compiler() -> None:
    artifact = mini.functions_artifact()
    module = Module(artifact, deploy.load_artifact(artifact))
    with pytest.raises(UserError, match="cannot be exported again"):
        module.export_library("x.so")


def test_error_codes() -> None:
    check_code(0, "it")
    with pytest.raises(UserError, match="it ran out of memory"):
        check_code(2, "it")
    with pytest.raises(UserError, match="it failed with the code 9"):
        check_code(9, "it")


def test_shared_library_of_the_system() -> None:
    libc = SharedLibrary.__new__(SharedLibrary)
    with pytest.raises(UserError, match="cannot load the library"):
        SharedLibrary.__init__(libc, "/nonexistent/lib.so")


def test_missing_symbol(tmp_path: object) -> None:
    artifact = mini.functions_artifact()
    artifact.objects = []
    artifact.objects.append(mini.model_artifact().objects[0])
    object.__setattr__(artifact.functions[0], "symbol", "absent")
    with pytest.raises(CompilerBug, match="no symbol 'absent__packed'"):
        deploy.module(artifact)["absent"]
