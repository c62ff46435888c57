"""Models on devices through WebGPU and Vulkan (lavapipe where there is no GPU) against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from bench import zoo
from tests.codegen.on_device import require_vulkan, require_webgpu
from tests.codegen.on_threads import require_clang
from tilewright.compiler import Compilation

REQUIRE = {"webgpu": require_webgpu, "vulkan": require_vulkan}


@pytest.mark.grid
@pytest.mark.parametrize("target", ["webgpu", "vulkan"])
@pytest.mark.parametrize("name", ["dqn", "dcgan"])
def test_two_of_the_ten(name: str, target: str) -> None:
    REQUIRE[target]()
    model, feeds = zoo.build(name), zoo.inputs(name)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    exe = tw.compile(model, target=target)
    assert exe.artifact.device is not None and not any(kernel.on_host for kernel in exe.artifact.device.kernels)
    (got,) = exe.run(feeds)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(np.abs(want).max()))


def _model(kind: int) -> bytes:
    """Columns in the order of their sums, in a type that a device may not know."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sums"], keepdims=0),
        helper.make_node("Exp", ["x"], ["grown"]),
        helper.make_node("Mul", ["grown", "sums"], ["scaled"]),
        helper.make_node("ArgMax", ["scaled"], ["best"], axis=1, keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info("x", kind, [4, 6])]
    outputs = [
        helper.make_tensor_value_info("scaled", kind, [4, 6]),
        helper.make_tensor_value_info("best", TensorProto.INT64, [4]),
    ]
    graph = helper.make_graph(nodes, "net", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data: bytes = model.SerializeToString()
    return data


@pytest.mark.parametrize("target", ["webgpu", "vulkan"])
def test_an_exported_model_needs_no_compiler(target: str, tmp_path: Path) -> None:
    REQUIRE[target]()
    x = np.random.default_rng(0).random((4, 6), np.float32)
    exe = tw.compile(_model(TensorProto.FLOAT), target=target)
    exe.export_library(tmp_path / "net.so")
    scaled, best = tw.load(tmp_path / "net.so")(x)
    np.testing.assert_allclose(scaled, np.exp(x) * x.sum(), rtol=1e-5)
    np.testing.assert_array_equal(best, np.exp(x).argmax(1))


def test_the_host_computes_in_types_that_a_device_does_not_know() -> None:
    require_webgpu()
    x = np.random.default_rng(0).random((4, 6))
    exe = tw.compile(_model(TensorProto.DOUBLE), target={"webgpu": "", "host": "native"})
    assert exe.artifact.device is not None
    assert all("do not know float64" in kernel.on_host for kernel in exe.artifact.device.kernels)
    scaled, best = exe(x)
    np.testing.assert_allclose(scaled, np.exp(x) * x.sum(), rtol=1e-12)
    np.testing.assert_array_equal(best, np.exp(x).argmax(1))


def test_models_compile_for_amd_without_a_gpu() -> None:
    require_clang()
    artifact = Compilation(_model(TensorProto.FLOAT), target="rocm -arch=gfx942").artifact()
    assert artifact.device is not None and artifact.device.kind == "rocm"
    assert artifact.device_code and all(code.startswith(b"\x7fELF") for code in artifact.device_code)


def test_models_compile_to_the_text_of_metal() -> None:
    artifact = Compilation(_model(TensorProto.FLOAT), target="metal").artifact()
    assert artifact.device_code and all(b"metal_stdlib" in code for code in artifact.device_code)
