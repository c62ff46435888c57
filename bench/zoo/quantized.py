"""ResNet-18 in eight bits, as quantisation tools write it: pairs of QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import math

import numpy as np
import onnx

from bench.zoo.builder import GraphBuilder


def resnet18_int8(seed: int) -> onnx.ModelProto:
    """ResNet-18 with int8 weights by channel and uint8 activations by tensor."""
    return resnet_int8("resnet18_int8", seed, size=224, blocks=(2, 2, 2, 2))


def resnet_int8(name: str, seed: int, size: int, blocks: tuple[int, ...]) -> onnx.ModelProto:
    """A quantised ResNet of basic blocks, batch normalisation folded into the convolutions."""
    graph = GraphBuilder(name, seed)
    value = _activation(graph, graph.input("input", (1, 3, size, size)), "input", 8.0, signed=True)
    value = _conv(graph, value, "conv1", (3, 64), 7, 2, 1.0, limit=16.0)
    value = _activation(graph, graph.node("Relu", [value], "relu"), "relu", 8.0)
    value = graph.node("MaxPool", [value], "maxpool", kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    value = _activation(graph, value, "maxpool", 8.0)
    channels = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            path = f"layer{stage + 1}.{block}"
            stride = 2 if stage and block == 0 else 1
            branch = graph.node("Relu", [_conv(graph, value, f"{path}/conv1", (channels, width), 3, stride, 1.5)], path)
            branch = _activation(graph, branch, f"{path}/relu", 8.0)
            branch = _conv(graph, branch, f"{path}/conv2", (width, width), 3, 1, 0.3)
            branch = _activation(graph, branch, f"{path}/branch", 4.0, signed=True)
            if channels != width:
                value = _conv(graph, value, f"{path}/downsample", (channels, width), 1, stride, 1.0)
                value = _activation(graph, value, f"{path}/downsample", 8.0, signed=True)
            value = graph.node("Relu", [graph.node("Add", [branch, value], path)], f"{path}/sum")
            value = _activation(graph, value, f"{path}/sum", 8.0)
            channels = width
    value = _activation(graph, graph.node("GlobalAveragePool", [value], "pool"), "pool", 8.0)
    value = graph.node("Flatten", [value], "flatten", axis=1)
    weight, bias = _weights(graph, "fc", (1000, channels), 1 / math.sqrt(channels), 8.0)
    value = graph.node("Gemm", [value, weight, bias], "fc", alpha=1.0, beta=1.0, transB=1)
    graph.output(_activation(graph, value, "fc", 6.0, signed=True), "output", (1, 1000))
    return graph.finish()


def _activation(graph: GraphBuilder, value: str, path: str, limit: float, *, signed: bool = False) -> str:
    """A value rounded to steps of a scale: to `limit` on both sides if signed, else from zero on."""
    scale = graph.buffer(f"{path}.scale", np.array(limit / (128 if signed else 256), np.float32))
    zero = graph.buffer(f"{path}.zero", np.array(128 if signed else 0, np.uint8))
    stored = graph.node("QuantizeLinear", [value, scale, zero], path)
    return graph.node("DequantizeLinear", [stored, scale, zero], path)


def _weights(graph: GraphBuilder, path: str, shape: tuple[int, ...], std: float, limit: float) -> tuple[str, str]:
    """Weights and a bias as integers that are dequantised; the values they meet have steps of `limit / 256`."""
    weights = graph.normal(shape, std)
    scale = np.abs(weights).reshape(shape[0], -1).max(axis=1) / np.float32(127)
    whole = np.rint(weights / scale.reshape(-1, *[1] * (len(shape) - 1))).astype(np.int8)
    step = scale * np.float32(limit / 256)
    shift = np.rint(graph.normal((shape[0],), 0.1) / step).astype(np.int32)
    named = {
        "weight": (graph.weight(f"{path}.weight", whole), graph.buffer(f"{path}.weight_scale", scale), np.int8),
        "bias": (graph.weight(f"{path}.bias", shift), graph.buffer(f"{path}.bias_scale", step), np.int32),
    }
    made = [
        graph.node(
            "DequantizeLinear",
            [stored, scales, graph.buffer(f"{path}.{kind}_zero", np.zeros(shape[0], dtype))],
            f"{path}/{kind}",
            axis=0,
        )
        for kind, (stored, scales, dtype) in named.items()
    ]
    return made[0], made[1]


def _conv(
    graph: GraphBuilder,
    value: str,
    path: str,
    channels: tuple[int, int],
    kernel: int,
    stride: int,
    gain: float,
    limit: float = 8.0,
) -> str:
    fan_in = channels[0] * kernel * kernel
    shape = (channels[1], channels[0], kernel, kernel)
    weight, bias = _weights(graph, path, shape, math.sqrt(gain / fan_in), limit)
    return graph.node(
        "Conv",
        [value, weight, bias],
        path,
        kernel_shape=[kernel] * 2,
        pads=[kernel // 2] * 4,
        strides=[stride] * 2,
        dilations=[1, 1],
        group=1,
    )
