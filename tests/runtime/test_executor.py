"""Running models: inputs of every kind, every complaint, threads, profiles."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.requirements import need_module
from tests.runtime import mini
from tests.runtime.test_convert import Exporter
from tilewright.backends.llvm import deploy, toolchain
from tilewright.runtime import Artifact, Executable, ModelInfo, TensorInfo
from tilewright.runtime.core.entry import EntryRunner
from tilewright.support.errors import CompilerBug, UserError


@pytest.fixture(scope="module")
def exe() -> Executable:
    return deploy.executable(mini.model_artifact())


def _check(outputs: Any, x: np.ndarray) -> None:
    for got, want in zip(outputs, mini.expected(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_run_and_call(exe: Executable) -> None:
    x = mini.sample_input()
    outputs = exe.run({"data/x": x})
    assert isinstance(outputs, list)
    _check(outputs, x)
    result = exe(x)
    assert isinstance(result, tuple)
    _check(result, x)
    _check(exe(**{"data/x": x}), x)
    assert [info.name for info in exe.input_info] == ["data/x"]
    assert [info.name for info in exe.output_info] == ["logits", "doubled"]
    assert "mini: (data/x: float32[16, 8])" in repr(exe)


def test_plain_arrays_take_the_short_way_and_nothing_else_does(exe: Executable) -> None:
    """What compiled code can read as it is; everything else is looked at, converted or refused."""
    runner = exe.runner
    assert isinstance(runner, EntryRunner)
    x = mini.sample_input()
    outputs = runner.run_plain((x,))
    assert outputs is not None
    _check(outputs, x)
    read_only = x.copy()
    read_only.flags.writeable = False
    # Writable, contiguous, and one byte beside a multiple of four.
    unaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    unaligned[...] = x
    for other in (
        read_only,
        unaligned,
        np.asfortranarray(x),
        np.repeat(x, 2, axis=1)[:, ::2],
        x.astype(">f4"),
        x.astype(np.float64),
        x.tolist(),
        x[:1],
        x.reshape(-1),
        np.zeros((0, 8), np.float32),
    ):
        assert runner.run_plain((other,)) is None
    assert runner.run_plain(()) is None
    assert runner.run_plain((x, x)) is None
    for same in (read_only, unaligned):
        _check(exe(same), x)


def test_outputs_of_two_runs_are_separate(exe: Executable) -> None:
    first = exe(mini.sample_input(1))
    kept = first[0].copy()
    exe(mini.sample_input(2))
    np.testing.assert_array_equal(first[0], kept)


def test_inputs_that_simply_work(exe: Executable) -> None:
    x = mini.sample_input()
    wide = np.zeros((16, 16), np.float32)
    wide[:, ::2] = x
    read_only = x.copy()
    read_only.flags.writeable = False
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(16, 8)
    for value in (
        np.asfortranarray(x),
        wide[:, ::2],
        read_only,
        unaligned,
        x.astype(">f4"),
        x.tolist(),
        Exporter(x),
    ):
        _check(exe(value), x)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"the input 'data/x' is missing[\s\S]*data/x: float32\[16, 8\]"),
        ({"data/x": 0, "y": 0}, r"no input 'y'[\s\S]*its inputs: data/x"),
        ({"data/x": np.zeros((16, 8))}, "the input 'data/x' has the data type float64, expected float32"),
        ({"data/x": np.zeros((8, 16), np.float32)}, r"shape \[8, 16\], expected \[16, 8\]: axis 0 must be 16, not 8"),
        ({"data/x": np.zeros(128, np.float32)}, r"\(1 dimensions\), expected \[16, 8\]"),
        ({"data/x": "text"}, "the input 'data/x' holds .* elements, not numbers"),
    ],
)
def test_bad_inputs(exe: Executable, inputs: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        exe.run(inputs)


def test_wrong_number_of_inputs(exe: Executable) -> None:
    x = mini.sample_input()
    with pytest.raises(UserError, match=r"takes 1 input \(data/x: float32\[16, 8\]\), not 2"):
        exe(x, x)
    with pytest.raises(UserError, match="not 0"):
        exe()
    with pytest.raises(UserError, match="given twice"):
        exe(x, **{"data/x": x})
    with pytest.raises(UserError, match="not 2"):
        exe(x, x, **{"data/x": x})


def test_threads(exe: Executable) -> None:
    x = mini.sample_input()
    for threads in (1, 3, None):
        exe.set_num_threads(threads)
        _check(exe(x), x)
    with pytest.raises(UserError, match="at least 1, not 0"):
        exe.set_num_threads(0)


def test_concurrent_calls_do_not_mix(exe: Executable) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = mini.sample_input(seed)
        for _ in range(200):
            try:
                _check(exe(x), x)
            except AssertionError:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(exe._runner.workspaces._free) <= 5


def test_profile(exe: Executable) -> None:
    profile = exe.profile(mini.sample_input(), repeat=3)
    assert [row.kernel.symbol for row in profile.rows] == ["mini_dense", "mini_double"]
    assert sum(profile.share(row) for row in profile.rows) == pytest.approx(1)
    text = str(profile)
    assert "fc, relu" in text
    assert "GFLOP/s" in text
    assert "... and 1 more" in profile.text(limit=1)
    with pytest.raises(UserError, match="at least 1, not 0"):
        exe.profile(mini.sample_input(), repeat=0)


EMPTY = """
define i32 @void_entry(ptr %inputs, ptr %outputs, ptr %workspace, ptr %constants) {
  %code = load i32, ptr %workspace
  ret i32 0
}
define i32 @bad_entry(ptr %inputs, ptr %outputs, ptr %workspace, ptr %constants) { ret i32 2 }
"""


def _model(
    name: str, inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...], workspace: int = 0
) -> Executable:
    image = toolchain.compile_ir(EMPTY, triple=toolchain.host_triple())
    model = ModelInfo(name, inputs, outputs, workspace)
    return deploy.executable(Artifact(toolchain.host_triple(), "", "", [image], model=model))


def test_zero_size_and_absent_tensors() -> None:
    nothing = TensorInfo("x", (0, 3), "float32")
    exe = _model("void", (nothing,), (TensorInfo("y", (2, 0), "int64"),))
    assert exe(np.zeros((0, 3), np.float32)).shape == (2, 0)
    assert _model("void", (), ())() == ()


def test_failure_codes_and_memory() -> None:
    with pytest.raises(UserError, match="the model 'bad' ran out of memory"):
        _model("bad", (), ())()
    with pytest.raises(UserError, match=r"no memory for the model's workspace of .* TiB"):
        _model("void", (), (), workspace=1 << 60)()
    with pytest.raises(UserError, match="no memory for the model's outputs"):
        _model("void", (), (TensorInfo("y", (1 << 60,), "int8"),))()
    with pytest.raises(CompilerBug, match="needs an artifact with a model"):
        deploy.executable(mini.functions_artifact())


def test_bfloat16_results_are_of_ml_dtypes() -> None:
    exe = _model("void", (TensorInfo("x", (2,), "bfloat16"),), (TensorInfo("y", (2,), "bfloat16"),))
    assert exe(np.zeros(2, np.uint16)).dtype == ml_dtypes.bfloat16
    assert exe.run({"x": [1.0, 2.0]})[0].dtype == ml_dtypes.bfloat16
    assert exe(np.zeros(2, ml_dtypes.bfloat16)).shape == (2,)


def test_bfloat16_results_are_bits_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    exe = _model("void", (TensorInfo("x", (2,), "bfloat16"),), (TensorInfo("y", (2,), "bfloat16"),))
    assert exe(np.zeros(2, np.uint16)).dtype == np.uint16


def test_floats_are_not_taken_for_bfloat16() -> None:
    exe = _model("void", (TensorInfo("x", (2,), "bfloat16"),), (TensorInfo("y", (2,), "bfloat16"),))
    with pytest.raises(UserError, match="has the data type float32, expected bfloat16"):
        exe(np.zeros(2, np.float32))


def test_torch_in_torch_out(exe: Executable) -> None:
    torch = need_module("torch")
    x = mini.sample_input()
    outputs = exe(torch.from_numpy(x))
    assert all(isinstance(output, torch.Tensor) for output in outputs)
    _check([output.numpy() for output in outputs], x)


def test_plain_torch_tensors_take_the_short_road(exe: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of plain arrays, with a view of each; what has none takes the other road."""
    torch = need_module("torch")
    x = mini.sample_input()
    tensor = torch.from_numpy(x)
    trained = tensor.clone().requires_grad_()
    strided = torch.from_numpy(np.repeat(x, 2, axis=1))[:, ::2]
    for value in (strided, tensor.to(torch.float64).conj().to(torch.float32)):
        _check([output.numpy() for output in exe(value)], x)
    with pytest.raises(UserError, match="expected float32"):
        exe(tensor.to(torch.bfloat16))
    monkeypatch.setattr(EntryRunner, "admit", None)
    for value in (tensor, trained):
        outputs = exe(value)
        assert all(isinstance(output, torch.Tensor) for output in outputs)
        _check([output.numpy() for output in outputs], x)


def test_torch_is_recognised_without_importing_it(exe: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The road for torch tensors, with a stand-in where torch is not installed."""

    class Tensor:
        dtype = "float32"
        layout = "strided"

        class device:
            type = "cpu"

        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def detach(self) -> Tensor:
            return self

        resolve_conj = resolve_neg = detach

        def numpy(self) -> np.ndarray:
            return self.array

    torch: Any = ModuleType("torch")
    torch.Tensor, torch.bfloat16, torch.strided, torch.from_numpy = Tensor, "bfloat16", "strided", Tensor
    monkeypatch.setitem(sys.modules, "torch", torch)
    x = mini.sample_input()
    outputs = exe(Tensor(x))
    assert all(isinstance(output, Tensor) for output in outputs)
    _check([output.array for output in outputs], x)
