"""ResNet-18 and ResNet-50 at 224x224, as torchvision defines and exports them."""

from __future__ import annotations

import onnx

from bench.zoo.builder import GraphBuilder

# The last scale of a residual branch: small, so that the sum over many blocks stays near one.
_BRANCH_SCALE = 0.4


def resnet18(seed: int) -> onnx.ModelProto:
    """ResNet-18: two basic blocks a stage."""
    return _resnet("resnet18", seed, blocks=(2, 2, 2, 2), expansion=1)


def resnet50(seed: int) -> onnx.ModelProto:
    """ResNet-50: bottleneck blocks, the stride on the 3x3 convolution."""
    return _resnet("resnet50", seed, blocks=(3, 4, 6, 3), expansion=4)


def _resnet(name: str, seed: int, blocks: tuple[int, ...], expansion: int) -> onnx.ModelProto:
    graph = GraphBuilder(name, seed)
    value = graph.input("input", (1, 3, 224, 224))
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
            block = _basic if expansion == 1 else _bottleneck
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


def _bottleneck(graph: GraphBuilder, value: str, path: str, channels: int, width: int, stride: int) -> str:
    branch = graph.conv(value, f"{path}/conv1", (channels, width), 1)
    branch = graph.node("Relu", [graph.batch_norm(branch, f"{path}/bn1", width)], f"{path}/relu")
    branch = graph.conv(branch, f"{path}/conv2", (width, width), 3, stride=stride, padding=1)
    branch = graph.node("Relu", [graph.batch_norm(branch, f"{path}/bn2", width)], f"{path}/relu_1")
    branch = graph.conv(branch, f"{path}/conv3", (width, width * 4), 1)
    branch = graph.batch_norm(branch, f"{path}/bn3", width * 4, _BRANCH_SCALE)
    return _join(graph, value, branch, path, channels, width * 4, stride)


def _join(graph: GraphBuilder, value: str, branch: str, path: str, channels: int, width: int, stride: int) -> str:
    if channels != width or stride != 1:
        value = graph.conv(value, f"{path}/downsample/downsample.0", (channels, width), 1, stride=stride, gain=1.5)
        value = graph.batch_norm(value, f"{path}/downsample/downsample.1", width)
    value = graph.node("Add", [branch, value], path)
    return graph.node("Relu", [value], f"{path}/relu_2")
