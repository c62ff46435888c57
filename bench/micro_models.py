"""Int8 models of the sizes of MLPerf Tiny, with random weights: QDQ graphs with bytes between all layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.micro_planner import Layer, Life, lives

STEP: Final = np.float32(0.05)
ZERO: Final = 3
"""The scale and the zero point of what lies between layers."""
_DEVIATION: Final = 73.0
"""The standard deviation of bytes that are all as likely."""


@dataclass(frozen=True)
class MicroModel:
    """A model, and the multiplications that it takes."""

    proto: onnx.ModelProto
    products: int
    shape: tuple[int, ...]
    """Of its only input, `input`: int8."""
    lives: list[Life]
    """Of the values between its layers, inputs and outputs among them, as an interpreter knows them."""


class QuantizedGraph:
    """A graph being built; values are names of bytes, with the shape of each beside it."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.random = np.random.default_rng(0)
        self.name = name
        self.products = 0
        self.shapes = {"input": shape}
        self._layers: list[Layer] = []
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def _constant(self, value: object) -> str:
        self._constants.append(numpy_helper.from_array(np.asarray(value), f"c{len(self._constants)}"))
        return self._constants[-1].name

    def _node(self, kind: str, *inputs: str, **attributes: object) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [f"v{len(self._nodes)}"], **attributes))
        return self._nodes[-1].output[0]

    def _wide(self, value: str) -> str:
        return self._node("DequantizeLinear", value, self._constant(STEP), self._constant(np.int8(ZERO)))

    def _narrow(self, value: str, shape: tuple[int, ...], *sources: str) -> str:
        """The result of a layer that reads some values."""
        result = self._node("QuantizeLinear", value, self._constant(STEP), self._constant(np.int8(ZERO)))
        self.shapes[result] = shape
        self._layers.append(Layer(sources, result))
        return result

    def _weights(self, shape: tuple[int, ...]) -> tuple[str, str]:
        """Weights, with a scale for each output that keeps results as large as data; and a bias."""
        values = self._constant(self.random.integers(-127, 128, shape, np.int8))
        scale = np.sqrt(2 / prod(shape[1:])) / _DEVIATION
        scales = self._constant((self.random.uniform(0.8, 1.2, shape[0]) * scale).astype(np.float32))
        kernel = self._node("DequantizeLinear", values, scales, self._constant(np.zeros(shape[0], np.int8)), axis=0)
        return kernel, self._constant((0.1 * self.random.standard_normal(shape[0])).astype(np.float32))

    def conv(
        self,
        value: str,
        outputs: int,
        size: tuple[int, int] = (3, 3),
        stride: int = 1,
        *,
        deep: bool = False,
        relu: bool = True,
    ) -> str:
        """A convolution with what ONNX calls SAME padding; `deep`: of each channel by itself."""
        batch, channels, *image = self.shapes[value]
        inputs = 1 if deep else channels
        kernel, bias = self._weights((outputs, inputs, *size))
        after = [-(-extent // stride) for extent in image]
        self.products += prod(after) * outputs * inputs * prod(size)
        missing = [max((n - 1) * stride + tap - extent, 0) for n, tap, extent in zip(after, size, image, strict=True)]
        pads = [total // 2 for total in missing] + [total - total // 2 for total in missing]
        result = self._node(
            "Conv", self._wide(value), kernel, bias, strides=[stride] * 2, pads=pads, group=channels if deep else 1
        )
        return self._narrow(self._node("Relu", result) if relu else result, (batch, outputs, *after), value)

    def dense(self, value: str, outputs: int, *, relu: bool = False) -> str:
        """A product with a matrix."""
        batch, inputs = self.shapes[value]
        kernel, bias = self._weights((outputs, inputs))
        self.products += outputs * inputs
        result = self._node("Gemm", self._wide(value), kernel, bias, transB=1)
        return self._narrow(self._node("Relu", result) if relu else result, (batch, outputs), value)

    def add(self, a: str, b: str) -> str:
        """A residual."""
        return self._narrow(self._node("Relu", self._node("Add", self._wide(a), self._wide(b))), self.shapes[a], a, b)

    def pool(self, value: str) -> str:
        """The average of each channel."""
        batch, channels, *_ = self.shapes[value]
        pooled = self._narrow(self._node("GlobalAveragePool", self._wide(value)), (batch, channels, 1, 1), value)
        flat = self._node("Flatten", pooled)
        self.shapes[flat] = (batch, channels)
        self._layers.append(Layer((pooled,), flat))
        return flat

    def max_pool(self, value: str) -> str:
        """The largest of windows of 3 x 3 elements, two apart."""
        batch, channels, *image = self.shapes[value]
        after = tuple(-(-extent // 2) for extent in image)
        pooled = self._node("MaxPool", self._wide(value), kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
        return self._narrow(pooled, (batch, channels, *after), value)

    def flatten(self, value: str) -> str:
        """An image as a row."""
        batch, *rest = self.shapes[value]
        flat = self._node("Flatten", value)
        self.shapes[flat] = (batch, prod(rest))
        self._layers.append(Layer((value,), flat))
        return flat

    def finish(self, value: str) -> MicroModel:
        """The model, with the output `output`."""
        ports = [
            helper.make_tensor_value_info(name, TensorProto.INT8, list(self.shapes[key]))
            for name, key in (("input", "input"), ("output", value))
        ]
        known = lives(self._layers, {name: prod(shape) for name, shape in self.shapes.items()}, value)
        last = next(node for node in self._nodes if node.output[0] == value)
        last.output[0] = "output"
        graph = helper.make_graph(self._nodes, self.name, ports[:1], ports[1:], self._constants)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return MicroModel(proto, self.products, self.shapes["input"], known)


def tiny() -> MicroModel:
    """A layer of each kind, for tests."""
    graph = QuantizedGraph("tiny", (1, 3, 9, 9))
    first = graph.conv("input", 8, stride=2)
    deep = graph.conv(graph.conv(first, 8, deep=True), 8, (1, 1))
    return graph.finish(graph.dense(graph.pool(graph.add(first, deep)), 5))


def ds_cnn() -> MicroModel:
    """Keyword spotting: 49 x 10 coefficients, four separable layers of 64 channels."""
    graph = QuantizedGraph("ds_cnn", (1, 1, 49, 10))
    value = graph.conv("input", 64, (10, 4), 2)
    for _ in range(4):
        value = graph.conv(graph.conv(value, 64, deep=True), 64, (1, 1))
    return graph.finish(graph.dense(graph.pool(value), 12))


def resnet8() -> MicroModel:
    """Image classification: 32 x 32 pixels, three residual blocks."""
    graph = QuantizedGraph("resnet8", (1, 3, 32, 32))
    value = graph.conv("input", 16)
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        inner = graph.conv(graph.conv(value, channels, stride=stride), channels, relu=False)
        around = value if stride == 1 else graph.conv(value, channels, (1, 1), stride, relu=False)
        value = graph.add(around, inner)
    return graph.finish(graph.dense(graph.pool(value), 10))


def mobilenet() -> MicroModel:
    """Person detection: MobileNet-v1 with a quarter of the channels, 96 x 96 pixels."""
    graph = QuantizedGraph("mobilenet_v1_025", (1, 3, 96, 96))
    value = graph.conv("input", 8, stride=2)
    layers = [(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1)]
    for channels, stride in layers:
        deep = graph.conv(value, graph.shapes[value][1], stride=stride, deep=True)
        value = graph.conv(deep, channels, (1, 1))
    return graph.finish(graph.dense(graph.pool(value), 2))


def autoencoder() -> MicroModel:
    """Anomaly detection: 640 numbers through a layer of eight and back."""
    graph = QuantizedGraph("autoencoder", (1, 640))
    value = "input"
    for outputs in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        value = graph.dense(value, outputs, relu=True)
    return graph.finish(graph.dense(value, 640))


MODELS: Final[dict[str, Callable[[], MicroModel]]] = {
    "ds_cnn": ds_cnn,
    "resnet8": resnet8,
    "mobilenet_v1_025": mobilenet,
    "autoencoder": autoencoder,
}
