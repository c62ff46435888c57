"""ResNet-18, ResNet-50 and ResNeXt-50 at 224x224, as torchvision defines and exports them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import onnx

from bench.zoo.builder import GraphBuilder

# The last scale of a residual branch: small, so that the sum over many blocks stays near one.
_BRANCH_SCALE = 0.4

Block = Callable[[GraphBuilder, str, str, int, int, int], str]
"""Adds a block to a graph: from a value with so many channels, in a stage of a width, with a stride."""


def resnet18(seed: int) -> onnx.ModelProto:
    """ResNet-18: two basic blocks a stage."""
    return _resnet("resnet18", seed, 224, (2, 2, 2, 2), _basic, expansion=1)


def resnet50(seed: int) -> onnx.ModelProto:
    """ResNet-50: bottleneck blocks, the stride on the 3x3 convolution."""
    return _resnet("resnet50", seed, 224, (3, 4, 6, 3), _bottleneck, expansion=4)


def resnext50(seed: int) -> onnx.ModelProto:
    """ResNeXt-50 (32x4d): 3x3 convolutions in 32 groups, of twice the width."""
    return resnext("resnext50", seed, 224, (3, 4, 6, 3))


def resnext(name: str, seed: int, size: int, blocks: tuple[int, ...]) -> onnx.ModelProto:
    """A ResNeXt of given blocks."""
    return _resnet(name, seed, size, blocks, functools.partial(_bottleneck, groups=32, widening=2), expansion=4)


def _resnet(name: str, seed: int, size: int, blocks: tuple[int, ...], block: Block, expansion: int) -> onnx.ModelProto:
    graph = GraphBuilder(name, seed)
    value = graph.input("input", (1, 3, size, size))
    value = graph.conv(value, "conv1", (3, 64), 7, stride=2, padding=3, gain=1.0)
    value = graph.node("Relu", [graph.batch_norm(value, "bn1", 64)], "relu")
    value = graph.node(
        "MaxPool", [value], "maxpool", ceil_mode=0, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]
    )
    channels = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            value = block(graph, value, f"layer{stage + 1}/layer{stage + 1}.{index}", channels, width, stride)
            channels = width * expansion
    value = graph.node("GlobalAveragePool", [value], "avgpool")
    value = graph.node("Flatten", [value], "flatten", axis=1)
    graph.output(graph.linear(value, "fc", (channels, 1000)), "output", (1, 1000))
    return graph.finish()


def _basic(graph: GraphBuilder, value: str, path: str, channels: int, width: int, stride: int) -> str:
    branch = graph.conv(value, f"{path}/conv1", (channels, width), 3, stride=stride, padding=1)
    branch = graph.node("Relu", [graph.batch_norm(branch, f"{path}/bn1", width)], f"{path}/relu")
    branch = graph.conv(branch, f"{path}/conv2", (width, width), 3, padding=1)
    branch = graph.batch_norm(branch, f"{path}/bn2", width, _BRANCH_SCALE)
    return _join(graph, value, branch, path, channels, width, stride)


def _bottleneck(
    graph: GraphBuilder,
    value: str,
    path: str,
    channels: int,
    width: int,
    stride: int,
    *,
    groups: int = 1,
    widening: int = 1,
) -> str:
    inner, outer = width * widening, width * 4
    branch = graph.conv(value, f"{path}/conv1", (channels, inner), 1)
    branch = graph.node("Relu", [graph.batch_norm(branch, f"{path}/bn1", inner)], f"{path}/relu")
    branch = graph.conv(branch, f"{path}/conv2", (inner, inner), 3, stride=stride, padding=1, groups=groups)
    branch = graph.node("Relu", [graph.batch_norm(branch, f"{path}/bn2", inner)], f"{path}/relu_1")
    branch = graph.conv(branch, f"{path}/conv3", (inner, outer), 1)
    branch = graph.batch_norm(branch, f"{path}/bn3", outer, _BRANCH_SCALE)
    return _join(graph, value, branch, path, channels, outer, stride)


def _join(graph: GraphBuilder, value: str, branch: str, path: str, channels: int, width: int, stride: int) -> str:
    if channels != width or stride != 1:
        value = graph.conv(value, f"{path}/downsample/downsample.0", (channels, width), 1, stride=stride, gain=1.5)
        value = graph.batch_norm(value, f"{path}/downsample/downsample.1", width)
    value = graph.node("Add", [branch, value], path)
    return graph.node("Relu", [value], f"{path}/relu_2")
