"""MobileNet-v1 and MobileNet-v2 at 224x224: depthwise convolutions, without and with linear bottlenecks."""

from __future__ import annotations

import onnx

from bench.zoo.builder import GraphBuilder

# (output channels, stride) of each depthwise-separable pair of MobileNet-v1.
_V1_LAYERS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *([(512, 1)] * 5),
    (1024, 2),
    (1024, 1),
)

# (expansion, output channels, repeats, first stride) of each stage of MobileNet-v2.
_V2_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v1(seed: int) -> onnx.ModelProto:
    """MobileNet-v1, width 1.0, with plain ReLU as in its paper."""
    graph = GraphBuilder("mobilenet_v1", seed)
    value = graph.input("input", (1, 3, 224, 224))
    value = graph.conv(value, "features.0/conv", (3, 32), 3, stride=2, padding=1, gain=1.0)
    value = graph.node("Relu", [graph.batch_norm(value, "features.0/bn", 32)], "features.0/relu")
    channels = 32
    for index, (width, stride) in enumerate(_V1_LAYERS, start=1):
        path = f"features.{index}"
        value = graph.conv(
            value, f"{path}/depthwise", (channels, channels), 3, stride=stride, padding=1, groups=channels
        )
        value = graph.node("Relu", [graph.batch_norm(value, f"{path}/bn1", channels)], f"{path}/relu1")
        value = graph.conv(value, f"{path}/pointwise", (channels, width), 1)
        value = graph.node("Relu", [graph.batch_norm(value, f"{path}/bn2", width)], f"{path}/relu2")
        channels = width
    return _classify(graph, value, channels)


def mobilenet_v2(seed: int) -> onnx.ModelProto:
    """MobileNet-v2, width 1.0: inverted residuals with ReLU6 (`Clip`) and linear bottlenecks."""
    graph = GraphBuilder("mobilenet_v2", seed)
    value = graph.input("input", (1, 3, 224, 224))
    value = graph.conv(value, "features.0/features.0.0", (3, 32), 3, stride=2, padding=1, gain=1.0)
    value = _relu6(graph, graph.batch_norm(value, "features.0/features.0.1", 32), "features.0/features.0.2")
    channels, index = 32, 1
    for expansion, width, repeats, first_stride in _V2_STAGES:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            value = _inverted_residual(graph, value, f"features.{index}/conv", channels, width, expansion, stride)
            channels, index = width, index + 1
    value = graph.conv(value, "features.18/features.18.0", (channels, 1280), 1, gain=1.0)
    value = _relu6(graph, graph.batch_norm(value, "features.18/features.18.1", 1280), "features.18/features.18.2")
    return _classify(graph, value, 1280)


def _inverted_residual(
    graph: GraphBuilder, value: str, path: str, channels: int, width: int, expansion: int, stride: int
) -> str:
    hidden = channels * expansion
    branch = value
    if expansion != 1:
        branch = graph.conv(branch, f"{path}/expand", (channels, hidden), 1, gain=1.0)
        branch = _relu6(graph, graph.batch_norm(branch, f"{path}/bn1", hidden), f"{path}/relu1")
    branch = graph.conv(branch, f"{path}/depthwise", (hidden, hidden), 3, stride=stride, padding=1, groups=hidden)
    branch = _relu6(graph, graph.batch_norm(branch, f"{path}/bn2", hidden), f"{path}/relu2")
    branch = graph.conv(branch, f"{path}/project", (hidden, width), 1)
    if stride != 1 or channels != width:
        return graph.batch_norm(branch, f"{path}/bn3", width)
    branch = graph.batch_norm(branch, f"{path}/bn3", width, 0.5)
    return graph.node("Add", [value, branch], path)


def _relu6(graph: GraphBuilder, value: str, path: str) -> str:
    return graph.node("Clip", [value, graph.constant(0.0), graph.constant(6.0)], path)


def _classify(graph: GraphBuilder, value: str, channels: int) -> onnx.ModelProto:
    value = graph.node("GlobalAveragePool", [value], "pool")
    value = graph.node("Flatten", [value], "flatten", axis=1)
    graph.output(graph.linear(value, "classifier", (channels, 1000)), "output", (1, 1000))
    return graph.finish()
