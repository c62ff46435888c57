"""Whole models on a device (OpenCL on the CPU where there is no GPU) against onnxruntime, and what can go wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.codegen.on_device import require_nvrtc, require_opencl
from tests.requirements import need
from tilewright.backends import device as devices
from tilewright.cli.main import main
from tilewright.compiler import Compilation
from tilewright.lower import device_kernel, parallel
from tilewright.runtime.core.artifact import artifact_from_metadata
from tilewright.runtime.device.array import DeviceArray
from tilewright.support import settings
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.split_host_device import SplitFunction

Arrays = dict[str, np.ndarray]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def _model(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: Arrays) -> bytes:
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def _value(name: str, shape: list[Any], kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _weights(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [(random.standard_normal(shape) * 0.2).astype(np.float32) for shape in shapes]


def convolutions() -> bytes:
    """Convolutions with a residual connection, a pool and a classifier."""
    first, second, third, classifier = _weights((8, 3, 3, 3), (8, 8, 3, 3), (16, 8, 1, 1), (16, 5))
    node = helper.make_node
    return _model(
        [
            node("Conv", ["x", "first"], ["a"], pads=[1] * 4, strides=[2, 2], name="stem"),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", "second"], ["c"], pads=[1] * 4),
            node("Add", ["b", "c"], ["d"]),
            node("Conv", ["d", "third"], ["e"]),
            node("Relu", ["e"], ["f"]),
            node("GlobalAveragePool", ["f"], ["g"]),
            node("Flatten", ["g"], ["h"]),
            node("MatMul", ["h", "classifier"], ["i"]),
            node("Softmax", ["i"], ["y"]),
        ],
        [_value("x", [2, 3, 12, 12])],
        [_value("y", [2, 5])],
        {"first": first, "second": second, "third": third, "classifier": classifier},
    )


def attention(batch: int | str = 2) -> bytes:
    """One head of attention, with a normalisation; the parts of the joint projection are views of it."""
    joint, scale = _weights((3, 8, 8), (8,))
    node = helper.make_node
    return _model(
        [
            node("LayerNormalization", ["x", "scale"], ["n"]),
            *(node("Gather", ["joint", f"part{k}"], [f"w{k}"], axis=0) for k in range(3)),
            *(node("MatMul", ["n", f"w{k}"], [f"p{k}"]) for k in range(3)),
            node("Transpose", ["p1"], ["keys"], perm=[0, 2, 1]),
            node("MatMul", ["p0", "keys"], ["scores"]),
            node("Softmax", ["scores"], ["weights"], axis=-1),
            node("MatMul", ["weights", "p2"], ["mixed"]),
            node("Add", ["mixed", "x"], ["y"]),
            node("ReduceMax", ["weights"], ["largest"], axes=[2], keepdims=0),
        ],
        [_value("x", [batch, 6, 8])],
        [_value("y", [batch, 6, 8]), _value("largest", [batch, 6])],
        {"joint": joint, "scale": scale, **{f"part{k}": np.array(k) for k in range(3)}},
    )


def looping() -> bytes:
    """A loop whose trip count is data, with a condition inside it and a slice after it."""
    node = helper.make_node
    (weight,) = _weights((4, 4))
    body = helper.make_graph(
        [
            node("MatMul", ["state", "weight"], ["product"]),
            node("Tanh", ["product"], ["after"]),
            node("Identity", ["go"], ["again"]),
            node("ReduceSum", ["after"], ["total"], keepdims=0),
        ],
        "body",
        [_value("turn", [], INT64), _value("go", [], BOOL), _value("state", [3, 4])],
        [_value("again", [], BOOL), _value("after", [3, 4]), _value("total", [])],
    )
    return _model(
        [
            node("Loop", ["turns", "", "x"], ["last", "totals"], body=body),
            node("Slice", ["last", "from", "to"], ["y"]),
        ],
        [_value("x", [3, 4]), _value("turns", [], INT64)],
        [_value("y", [2, 4]), _value("totals", ["n"])],
        {"weight": weight, "from": np.array([1]), "to": np.array([3])},
    )


def _reference(model: bytes, feeds: Arrays) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    results: list[np.ndarray] = session.run(None, feeds)
    return results


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _close(got: list[Any], want: list[np.ndarray]) -> None:
    assert len(got) == len(want)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def vision() -> tw.Executable:
    require_opencl()
    return tw.compile(convolutions(), target="opencl")


def test_a_convolutional_network(vision: tw.Executable) -> None:
    assert vision.artifact.device is not None
    assert not any(kernel.on_host for kernel in vision.artifact.device.kernels)
    for seed in range(2):
        x = _random(2, 3, 12, 12, seed=seed)
        (want,) = _reference(convolutions(), {"x": x})
        _close([vision(x)], [want])
        _close(vision.run({"x": x}), [want])


def test_arrays_on_the_device_stay_there(vision: tw.Executable) -> None:
    x = _random(2, 3, 12, 12)
    first, second = (vision(vision.to_device(x + step)) for step in (0, 1))
    assert isinstance(first, DeviceArray) and first.shape == (2, 5) and first.dtype == "float32"
    for step, got in enumerate((first, second)):
        _close([got.numpy()], _reference(convolutions(), {"x": x + np.float32(step)}))
    # Arrays that lie elsewhere in every call are copied in the end; what was returned stays as it was.
    kept = [vision.to_device(x + np.float32(step)) for step in range(12)]
    results = [vision(array) for array in kept]
    for step, got in enumerate(results):
        _close([got.numpy()], _reference(convolutions(), {"x": x + np.float32(step)}))
    with pytest.raises(UnsupportedError, match="not shared through DLPack"):
        np.from_dlpack(first)
    with pytest.raises(UserError, match="the input 'x' has the data type float64, expected float32"):
        vision(vision.to_device(x.astype(np.float64)))
    with pytest.raises(UserError, match="axis 0 must be 2, not 3"):
        vision(_random(3, 3, 12, 12))


def test_a_profile_has_every_kernel_under_the_names_of_the_model(vision: tw.Executable) -> None:
    profile = vision.profile(_random(2, 3, 12, 12), repeat=2)
    assert {"stem"} <= {node for row in profile.rows for node in row.kernel.nodes}
    assert all(row.seconds > 0 for row in profile.rows) and profile.whole_seconds > 0
    assert "launches" in profile.text() and all(" x " in row.launches for row in profile.rows)
    assert vision.time_evaluator(2, 2)(_random(2, 3, 12, 12)).min > 0


def test_an_exported_model_needs_no_compiler(vision: tw.Executable, tmp_path: Path) -> None:
    x = _random(2, 3, 12, 12)
    vision.export_library(tmp_path / "net.so")
    assert "run on a device (opencl)" in (tmp_path / "net.h").read_text()
    _close([tw.load(tmp_path / "net.so")(x)], [vision(x)])


def test_views_inside_memory_and_several_outputs() -> None:
    require_opencl()
    x = _random(2, 6, 8)
    exe = tw.compile(attention(), target="opencl")
    got = exe(x)
    assert isinstance(got, tuple)
    _close(list(got), _reference(attention(), {"x": x}))


def test_sizes_of_a_call_decide_launches_and_memory() -> None:
    require_opencl()
    model = attention("batch")
    exe = tw.compile(model, target="opencl", specialize=[{"batch": 2}])
    for batch in (1, 2, 5):
        x = _random(batch, 6, 8, seed=batch)
        _close(list(exe(x)), _reference(model, {"x": x}))


def open_vision() -> bytes:
    """Images of any size: padded convolutions, a transpose, a product that is no whole number of vectors wide."""
    first, second, classifier = _weights((8, 3, 3, 3), (8, 8, 3, 3), (64, 65))
    node = helper.make_node
    return _model(
        [
            node("Conv", ["x", "first"], ["a"], pads=[1] * 4, strides=[2, 2]),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", "second"], ["c"], pads=[1] * 4),
            node("Add", ["b", "c"], ["d"]),
            node("Transpose", ["d"], ["e"], perm=[2, 0, 3, 1]),
            node("Concat", ["e", "e", "e", "e", "e", "e", "e", "e"], ["f"], axis=3),
            node("MatMul", ["f", "classifier"], ["g"]),
            node("Reshape", ["g", "rows"], ["y"]),
        ],
        [_value("x", ["b", 3, "h", "w"])],
        [_value("y", ["rows", 65])],
        {"first": first, "second": second, "classifier": classifier, "rows": np.array([-1, 65])},
    )


def open_sequences() -> bytes:
    """Sequences of any number and length: a causal mask over scores, a recurrent layer, a turned result."""
    project, inputs, states = _weights((16, 16), (1, 6, 16), (1, 6, 6))
    node = helper.make_node
    return _model(
        [
            node("MatMul", ["x", "project"], ["q"]),
            node("Transpose", ["x"], ["k"], perm=[0, 2, 1]),
            node("MatMul", ["q", "k"], ["scores"]),
            node("Trilu", ["scores"], ["lower"], upper=0),
            node("Softmax", ["lower"], ["weights"], axis=-1),
            node("MatMul", ["weights", "x"], ["mixed"]),
            node("Transpose", ["mixed"], ["turned"], perm=[1, 0, 2]),
            node("RNN", ["turned", "inputs", "states"], ["y", "last"], hidden_size=6),
        ],
        [_value("x", ["b", "s", 16])],
        [_value("y", ["s", 1, "b", 6]), _value("last", [1, "b", 6])],
        {"project": project, "inputs": inputs, "states": states},
    )


@pytest.mark.parametrize("make", [open_vision, open_sequences])
def test_several_sizes_of_a_call_may_be_open(make: Callable[[], bytes]) -> None:
    require_opencl()
    exe = tw.compile(make(), target="opencl")
    assert exe.artifact.device is not None
    # A step is a launch: as many as a run says are left to the host.
    assert all("rnn" in kernel.symbol for kernel in exe.artifact.device.kernels if kernel.on_host)
    for batch, length in ((1, 5), (3, 8), (2, 17)):
        x = _random(batch, 3, length, length + 2) if make is open_vision else _random(batch, length, 16)
        got = exe(x)
        _close(list(got) if isinstance(got, tuple) else [got], _reference(make(), {"x": x}))


@pytest.mark.parametrize(
    ("operator", "gates", "options"),
    [
        *(
            (operator, gates, options)
            for operator, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
            for options in ({}, {"direction": "bidirectional", "clip": 0.7})
        ),
        ("GRU", 3, {"linear_before_reset": 1}),
    ],
)
def test_recurrent_layers_of_an_open_number_of_sequences(operator: str, gates: int, options: dict[str, Any]) -> None:
    require_opencl()
    directions = 2 if "direction" in options else 1
    rows = gates * 6
    inputs, states, bias = _weights((directions, rows, 5), (directions, rows, 6), (directions, 2 * rows))
    model = _model(
        [helper.make_node(operator, ["x", "inputs", "states", "bias", "lengths"], ["y"], hidden_size=6, **options)],
        [_value("x", [4, "b", 5]), _value("lengths", ["b"], TensorProto.INT32)],
        [_value("y", [4, directions, "b", 6])],
        {"inputs": inputs, "states": states, "bias": bias},
    )
    exe = tw.compile(model, target="opencl")
    assert exe.artifact.device is not None
    assert not any(kernel.on_host for kernel in exe.artifact.device.kernels)
    for batch in (3, 1, 70):
        given = {"x": _random(4, batch, 5), "lengths": np.arange(batch, dtype=np.int32) % 4 + 1}
        _close([exe(**given)], _reference(model, given))


def test_control_flow_runs_on_the_host_between_segments() -> None:
    require_opencl()
    exe = tw.compile(looping(), target="opencl")
    x = _random(3, 4)
    for turns in (3, 0):
        feeds = {"x": x, "turns": np.array(turns)}
        _close(exe.run(feeds), _reference(looping(), feeds))
    assert exe.profile(x, np.array(2), repeat=1).rows


def test_the_host_computes_what_a_device_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    require_opencl()

    def refuse_products(scheduled: PrimFunc, target: tw.Target) -> SplitFunction:
        if "matmul" in scheduled.name:
            raise UnsupportedError("no products here")
        return devices.device_kernels(scheduled, target)

    monkeypatch.setattr(device_kernel, "device_kernels", refuse_products)
    monkeypatch.setattr(parallel, "_WORTH_A_PROCESS", 1000)
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    exe = tw.compile(attention(), target={"opencl": "", "host": "native"})
    assert exe.artifact.device is not None
    reasons = {kernel.on_host for kernel in exe.artifact.device.kernels}
    assert reasons == {"", "no products here"}
    x = _random(2, 6, 8)
    for _ in range(2):
        _close(list(exe(x)), _reference(attention(), {"x": x}))
    # Weights of 65 columns are stored in panels, the last of which is filled up: they take more than their own size.
    wide = tw.compile(open_vision(), target={"opencl": "", "host": "native"})
    assert wide.artifact.device is not None
    assert "no products here" in {kernel.on_host for kernel in wide.artifact.device.kernels}
    x = _random(2, 3, 9, 7)
    _close([wide(x)], _reference(open_vision(), {"x": x}))


@pytest.mark.parametrize("make", [convolutions, attention])
def test_cuda_code_is_made_without_a_gpu(make: Callable[[], bytes]) -> None:
    require_nvrtc()
    compilation = Compilation(make(), target="cuda -arch=sm_90a")
    artifact = compilation.artifact()
    assert artifact.device is not None and artifact.device.kind == "cuda"
    assert all(code.startswith(b"\x7fELF") for code in artifact.device_code)
    assert "__global__" in compilation.source(compilation.kernels[0])
    assert artifact_from_metadata(artifact.metadata(), where="here").device == artifact.device
    with pytest.raises(UserError, match="have no LLVM IR"):
        compilation.llvm_ir(compilation.kernels[0])


def test_a_kernel_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require_opencl()
    exe = tw.compile(convolutions(), target="opencl")
    x = _random(2, 3, 12, 12)
    assert exe.device is not None

    def fail() -> None:
        raise UserError("an illegal address")

    with settings.TRACE.override(frozenset({"launch"})):
        exe.runner.prepare([x]).take()  # type: ignore[union-attr]
        monkeypatch.setattr(exe.device, "wait", fail)
        with pytest.raises(UserError, match=r"the kernel tw_\w*conv2d\w* failed: an illegal address") as caught:
            exe(x)
    assert caught.value.where is not None and "stem" in caught.value.where


def test_commands_take_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_opencl()
    path = tmp_path / "net.onnx"
    path.write_bytes(attention())
    assert main(["compile", str(path), "--target", "opencl", "-o", str(tmp_path / "net.so")]) == 0
    assert "compiled for opencl generic" in capsys.readouterr().out
    assert main(["bench", str(tmp_path / "net.so"), "--rounds", "1"]) == 0
    assert main(["inspect", str(path), "--stage", "source", "--target", "opencl", "--kernel", "softmax"]) == 0
    assert "__kernel" in capsys.readouterr().out


def test_a_missing_device_is_said_at_once() -> None:
    need("no-cuda")
    with pytest.raises(UserError, match="CUDA programs need NVIDIA's driver"):
        tw.compile(convolutions(), target="cuda")


def test_memory_begins_at_lines_of_the_cache() -> None:
    """Constants of few elements come between large ones, which GPUs read by whole lines."""
    require_nvrtc()
    small = 0
    for model in (convolutions(), attention()):
        compilation = Compilation(model, target="cuda -arch=sm_90a", precision="float16")
        info = compilation.artifact().model
        line = compilation.target.capabilities.memory_line
        plans = [segment.plan for segment in compilation.lowered.segments]
        offsets = [place.offset for plan in plans for place, _, _ in plan.lifetimes]
        offsets += [item.offset for item in info.constants]
        assert line == 256 and len(offsets) > 5
        assert {offset % line for offset in offsets} == {0}
        small += sum(np.prod(item.shape) * 4 < line for item in info.constants)
    assert small
