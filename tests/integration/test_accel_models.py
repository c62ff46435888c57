"""Whole models on the tensor processor: the same integers as on the CPU, on every machine that runs its programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tilewright as tw
from tests.graph.fixed_layers import RandomLayers
from tests.integration.small_models import FLOAT, model
from tests.quantization.networks import residual_network
from tilewright.graph.ir.expr import Function, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type

SMALL = (
    "accel -config=block_in:8,block_out:8,inp_bytes:8192,wgt_bytes:16384,acc_bytes:16384,out_bytes:4096,uop_bytes:4096"
)


def _network() -> IRModule:
    """A residual block, a layer of stride 2, one of groups, a maximum, and a product of matrices."""
    x = Var("x", tensor_type((1, 16, 8, 8), "int8"))
    make = RandomLayers(5)
    first = make.layer(x, 16, 16, (3, 3), padding=(1, 1, 1, 1))
    block = make.layer(first, 16, 16, (3, 3), x, padding=(1, 1, 1, 1))
    half = make.layer(block, 32, 16, (1, 1), strides=(2, 2))
    grouped = make.layer(half, 32, 1, (3, 3), groups=32, padding=(1, 1, 1, 1))
    pooled = call("nn.max_pool2d", grouped, kernel=(2, 2), strides=(2, 2))
    rows = call("reshape", pooled, shape=(4, 32))
    return infer_types(IRModule([Function("main", (x,), make.layer(rows, 24, 32, ()))]))


def _on_chip(exe: Any) -> int:
    """How many steps of a model the processor computes."""
    on_host = {kernel.symbol for kernel in exe.artifact.device.kernels if kernel.on_host}
    kernels = exe.artifact.model.kernels
    return sum(kernels[step.kernel].symbol not in on_host for step in exe.artifact.model.steps)


def _data() -> np.ndarray:
    return np.random.default_rng(0).integers(-128, 128, (1, 16, 8, 8)).astype(np.int8)


@pytest.mark.parametrize("target", ["accel", SMALL])
def test_the_same_integers_as_on_the_cpu(target: str) -> None:
    module, x = _network(), _data()
    exe = tw.compile(module, target=target)
    assert _on_chip(exe) == 6
    np.testing.assert_array_equal(exe(x), tw.compile(module)(x))


def _weights(random: np.random.Generator, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {
        name: (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        for name, shape in shapes.items()
    }


def _mobilenet() -> onnx.ModelProto:
    """A first layer of few channels, depthwise and pointwise layers, an average and a dense layer."""
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], name="first", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"], name="relu1"),
        helper.make_node("Conv", ["b", "deep"], ["c"], name="depthwise", group=8, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"], name="relu2"),
        helper.make_node("Conv", ["d", "point"], ["e"], name="pointwise"),
        helper.make_node("Relu", ["e"], ["f"], name="relu3"),
        helper.make_node("GlobalAveragePool", ["f"], ["g"], name="mean"),
        helper.make_node("Flatten", ["g"], ["h"], name="flatten"),
        helper.make_node("Gemm", ["h", "fc"], ["y"], name="fc", transB=1),
    ]
    random = np.random.default_rng(1)
    weights = _weights(random, first=(8, 1, 3, 3), deep=(8, 1, 3, 3), point=(16, 8, 1, 1), fc=(8, 16))
    return model(nodes, {"x": (FLOAT, (1, 1, 8, 8))}, {"y": (FLOAT, (1, 8))}, weights)


def _generator() -> onnx.ModelProto:
    """Transposed convolutions from one pixel to an image of two channels, and a nearest image of it."""
    nodes = [
        helper.make_node("ConvTranspose", ["x", "first"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu1"),
        helper.make_node("Resize", ["b", "", "twice"], ["c"], name="nearest", mode="nearest",
                         coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        helper.make_node("ConvTranspose", ["c", "second"], ["d"], name="second", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["d"], ["e"], name="relu2"),
        helper.make_node("ConvTranspose", ["e", "last"], ["f"], name="last", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Tanh", ["f"], ["y"], name="tanh"),
    ]  # fmt: skip
    random = np.random.default_rng(2)
    weights = _weights(random, first=(16, 16, 2, 2), second=(16, 8, 4, 4), last=(8, 2, 4, 4))
    weights["twice"] = np.array([1, 1, 2, 2], np.float32)
    return model(nodes, {"x": (FLOAT, (1, 16, 1, 1))}, {"y": (FLOAT, (1, 2, 16, 16))}, weights)


def _encoder() -> onnx.ModelProto:
    """Attention of two heads with a dense layer behind it: products with weights, and of two activations."""
    nodes = []
    for name in "qkv":
        nodes += [
            helper.make_node("MatMul", ["x", name], [f"{name}0"], name=name),
            helper.make_node("Reshape", [f"{name}0", "heads"], [f"{name}1"]),
            helper.make_node(
                "Transpose", [f"{name}1"], [f"{name}2"], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
            ),
        ]
    nodes += [
        helper.make_node("MatMul", ["q2", "k2"], ["scores"], name="scores"),
        helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "v2"], ["mixed"], name="mixed"),
        helper.make_node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "lines"], ["joined"]),
        helper.make_node("MatMul", ["joined", "out"], ["y"], name="out"),
    ]
    random = np.random.default_rng(3)
    weights = _weights(random, q=(16, 16), k=(16, 16), v=(16, 16), out=(16, 16))
    weights |= {"heads": np.array([1, 6, 2, 8], np.int64), "lines": np.array([1, 6, 16], np.int64)}
    return model(nodes, {"x": (FLOAT, (1, 6, 16))}, {"y": (FLOAT, (1, 6, 16))}, weights)


@pytest.mark.parametrize(
    ("network", "on_chip", "options"),
    [
        # Two layers, the shortcut, a maximum of two, the depthwise layer, the average, the last layer's sums.
        (residual_network, 8, {}),
        (_mobilenet, 4, {}),
        # A layer and a copy for each transposed convolution, a copy of the nearest image; the last one's sums.
        (_generator, 6, {}),
        # Four layers, and both products of attention: scores are sums that floats read.
        (_encoder, 6, {"products": True, "activations": "int8"}),
    ],
)
def test_quantized_models(network: Callable[[], onnx.ModelProto], on_chip: int, options: dict[str, Any]) -> None:
    """Whole models, floats at their ends and all: the CPU's integers, and so its answers, in every bit."""
    graph = network()
    shape = tuple(item.dim_value for item in graph.graph.input[0].type.tensor_type.shape.dim)
    examples = np.random.default_rng(0).standard_normal((3, *shape)).astype(np.float32)
    module = tw.quantize(graph, list(examples[:2]), arithmetic="fixed_point", threads=1, **options).module
    exe = tw.compile(module, target=SMALL)
    assert _on_chip(exe) == on_chip
    np.testing.assert_array_equal(exe(examples[2]), tw.compile(module, threads=1)(examples[2]))


def test_the_host_computes_as_a_cpu_alone_does() -> None:
    """A first layer of few channels is the CPU's product of bytes, not one for devices without any."""
    x = Var("x", tensor_type((1, 3, 8, 8), "int8"))
    module = infer_types(IRModule([Function("main", (x,), RandomLayers(0).layer(x, 16, 3, (3, 3)))]))
    on_both, alone = (str(tw.Compilation(module, target).optimized) for target in ("accel", "native"))
    assert "accel." not in on_both and on_both == alone
