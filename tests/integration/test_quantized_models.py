"""Quantised ONNX models (dynamic, QDQ, QOperator; made by onnxruntime's quantiser) against onnxruntime itself.

The integer kernels are exact and scales are merged as onnxruntime merges them, so quantised results are equal to the
bit; only the floating-point ends of dynamically quantised models round differently.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from tilewright.compiler import Compilation

SHAPES = {"cnn": (1, 3, 16, 16), "mlp": (7, 30)}


def _weight(random: np.random.Generator, name: str, *shape: int) -> onnx.TensorProto:
    fan_in = max(int(np.prod(shape[1:])), 1)
    return numpy_helper.from_array((random.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32), name)


def _model(name: str) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    if name == "cnn":
        parameters = [("w1", 16, 3, 3, 3), ("b1", 16), ("w2", 32, 16, 3, 3), ("b2", 32), ("w3", 32, 32, 1, 1)]
        nodes = [
            helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
            helper.make_node("Relu", ["c1"], ["r1"]),
            helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c2"], ["r2"]),
            helper.make_node("MaxPool", ["r2"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Conv", ["p", "w3"], ["c3"]),
            helper.make_node("Add", ["c3", "p"], ["a"]),
            helper.make_node("GlobalAveragePool", ["a"], ["g"]),
            helper.make_node("Flatten", ["g"], ["y"]),
        ]
    else:
        parameters = [("w1", 30, 64), ("b1", 64), ("w2", 64, 50)]
        nodes = [
            helper.make_node("MatMul", ["x", "w1"], ["m1"]),
            helper.make_node("Add", ["m1", "b1"], ["a1"]),
            helper.make_node("Relu", ["a1"], ["r1"]),
            helper.make_node("MatMul", ["r1", "w2"], ["y"]),
        ]
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPES[name])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [_weight(random, *item) for item in parameters],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class _Samples(CalibrationDataReader):
    def __init__(self, shape: tuple[int, ...]) -> None:
        random = np.random.default_rng(1)
        self._samples = iter([{"x": random.standard_normal(shape).astype(np.float32)} for _ in range(3)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)


@functools.cache
def _quantized(name: str, form: str, activation: str, per_channel: bool) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        onnx.save(_model(name), before)
        if form == "dynamic":
            quantize_dynamic(before, after, weight_type=QuantType[activation])
        else:
            quantize_static(
                before,
                after,
                _Samples(SHAPES[name]),
                quant_format=QuantFormat[form],
                activation_type=QuantType[activation],
                weight_type=QuantType.QInt8,
                per_channel=per_channel,
            )
        return after.read_bytes()


@pytest.mark.parametrize(
    ("name", "form", "activation", "per_channel", "products"),
    [
        ("cnn", "QDQ", "QUInt8", True, 3),
        ("cnn", "QOperator", "QInt8", True, 3),
        ("cnn", "dynamic", "QInt8", False, 3),
        ("mlp", "QDQ", "QInt8", True, 2),
        ("mlp", "QOperator", "QUInt8", True, 2),
        ("mlp", "dynamic", "QUInt8", False, 2),
    ],
)
def test_quantized_model_is_equal_to_onnxruntime(
    name: str, form: str, activation: str, per_channel: bool, products: int, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(_quantized(name, form, activation, per_channel))
    x = np.random.default_rng(2).standard_normal(SHAPES[name]).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    (expected,) = onnxruntime.InferenceSession(path, options).run(None, {"x": x})
    compilation = Compilation(path, threads=1)
    (actual,) = compilation.executable().run({"x": x})
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 if form == "dynamic" else 0.0)
    if compilation.target.has_vnni or compilation.target.has_dotprod:
        assert sum("qnn" in kernel.op for kernel in compilation.executable().model.kernels) == products
