"""More image classifiers: EfficientNet-B0, RegNet-Y, ConvNeXt, DenseNet-121 and ShuffleNet-v2."""

from __future__ import annotations

import onnx

from bench.zoo.builder import GraphBuilder
from bench.zoo.layers import gelu, layer_norm, silu

# (expansion, kernel, output channels, repeats, first stride) of each stage of EfficientNet-B0.
_EFFICIENT_STAGES = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)


def efficientnet_b0(seed: int) -> onnx.ModelProto:
    """EfficientNet-B0 at 224x224: inverted residuals with squeeze-and-excitation, SiLU."""
    return efficientnet("efficientnet_b0", seed, 224, _EFFICIENT_STAGES)


def efficientnet(
    name: str, seed: int, size: int, stages: tuple[tuple[int, int, int, int, int], ...]
) -> onnx.ModelProto:
    """An EfficientNet of given stages."""
    graph = GraphBuilder(name, seed)
    value = graph.input("input", (1, 3, size, size))
    value = graph.conv(value, "stem/conv", (3, 32), 3, stride=2, padding=1, gain=1.0)
    value = silu(graph, graph.batch_norm(value, "stem/bn", 32), "stem/act")
    channels, index = 32, 0
    for expansion, kernel, width, repeats, first_stride in stages:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            value = _efficient_block(graph, value, f"blocks.{index}", (channels, width), expansion, kernel, stride)
            channels, index = width, index + 1
    value = graph.conv(value, "head/conv", (channels, 1280), 1, gain=1.0)
    value = silu(graph, graph.batch_norm(value, "head/bn", 1280), "head/act")
    return _classify(graph, value, 1280)


def _efficient_block(
    graph: GraphBuilder, value: str, path: str, channels: tuple[int, int], expansion: int, kernel: int, stride: int
) -> str:
    inner = channels[0] * expansion
    branch = value
    if expansion != 1:
        branch = graph.conv(branch, f"{path}/expand", (channels[0], inner), 1, gain=1.0)
        branch = silu(graph, graph.batch_norm(branch, f"{path}/bn0", inner), f"{path}/act0")
    branch = graph.conv(
        branch, f"{path}/depthwise", (inner, inner), kernel, stride=stride, padding=kernel // 2, groups=inner
    )
    branch = silu(graph, graph.batch_norm(branch, f"{path}/bn1", inner), f"{path}/act1")
    squeezed = graph.node("GlobalAveragePool", [branch], f"{path}/se")
    squeezed = graph.conv(squeezed, f"{path}/se/reduce", (inner, channels[0] // 4), 1, bias=True)
    squeezed = silu(graph, squeezed, f"{path}/se/act")
    squeezed = graph.conv(squeezed, f"{path}/se/expand", (channels[0] // 4, inner), 1, bias=True)
    branch = graph.node("Mul", [branch, graph.node("Sigmoid", [squeezed], f"{path}/se")], f"{path}/se")
    branch = graph.conv(branch, f"{path}/project", (inner, channels[1]), 1, gain=8.0)
    branch = graph.batch_norm(branch, f"{path}/bn2", channels[1], 0.5 if channels[0] == channels[1] else 1.0)
    return graph.node("Add", [branch, value], path) if stride == 1 and channels[0] == channels[1] else branch


def regnet_y(seed: int) -> onnx.ModelProto:
    """RegNet-Y of 1.6 GFLOP multiply-adds at 224x224: grouped bottlenecks with squeeze-and-excitation."""
    return regnet("regnet_y", seed, 224, (2, 6, 17, 2), (48, 120, 336, 888), group=24)


def regnet(
    name: str, seed: int, size: int, depths: tuple[int, ...], widths: tuple[int, ...], group: int
) -> onnx.ModelProto:
    """A RegNet-Y of given depths and widths, with groups of `group` channels."""
    graph = GraphBuilder(name, seed)
    value = graph.input("input", (1, 3, size, size))
    value = graph.conv(value, "stem.0", (3, 32), 3, stride=2, padding=1, gain=1.0)
    value = graph.node("Relu", [graph.batch_norm(value, "stem.1", 32)], "stem/relu")
    channels = 32
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True), start=1):
        for block in range(depth):
            path = f"block{stage}/block{stage}-{block}"
            value = _regnet_block(graph, value, path, (channels, width), group, 1 if block else 2)
            channels = width
    return _classify(graph, value, channels)


def _regnet_block(
    graph: GraphBuilder, value: str, path: str, channels: tuple[int, int], group: int, stride: int
) -> str:
    width = channels[1]
    branch = _pointwise(graph, value, f"{path}/f.a", channels[0], width)
    groups = width // group
    branch = graph.conv(branch, f"{path}/f.b", (width, width), 3, stride=stride, padding=1, groups=groups)
    branch = graph.node("Relu", [graph.batch_norm(branch, f"{path}/f.b.1", width)], f"{path}/f.b/relu")
    squeezed = graph.node("GlobalAveragePool", [branch], f"{path}/f.se")
    squeezed = graph.conv(squeezed, f"{path}/f.se/fc1", (width, channels[0] // 4), 1, bias=True)
    squeezed = graph.node("Relu", [squeezed], f"{path}/f.se/relu")
    squeezed = graph.conv(squeezed, f"{path}/f.se/fc2", (channels[0] // 4, width), 1, bias=True)
    branch = graph.node("Mul", [branch, graph.node("Sigmoid", [squeezed], f"{path}/f.se")], f"{path}/f.se")
    branch = graph.conv(branch, f"{path}/f.c", (width, width), 1, gain=8.0)
    branch = graph.batch_norm(branch, f"{path}/f.c.1", width, 0.4)
    if stride != 1 or channels[0] != width:
        value = graph.conv(value, f"{path}/proj.0", (channels[0], width), 1, stride=stride, gain=1.5)
        value = graph.batch_norm(value, f"{path}/proj.1", width)
    return graph.node("Relu", [graph.node("Add", [value, branch], path)], f"{path}/relu")


def convnext(seed: int) -> onnx.ModelProto:
    """ConvNeXt of the size called pico at 224x224: 7x7 depthwise convolutions, layer normalisation over channels."""
    return convnext_of("convnext", seed, 224, (2, 2, 6, 2), (64, 128, 256, 512))


def convnext_t(seed: int) -> onnx.ModelProto:
    """ConvNeXt-T at 224x224."""
    return convnext_of("convnext_t", seed, 224, (3, 3, 9, 3), (96, 192, 384, 768))


def convnext_of(name: str, seed: int, size: int, depths: tuple[int, ...], widths: tuple[int, ...]) -> onnx.ModelProto:
    """A ConvNeXt of given depths and widths."""
    graph = GraphBuilder(name, seed)
    value = graph.input("input", (1, 3, size, size))
    value = graph.conv(value, "stem.0", (3, widths[0]), 4, stride=4, bias=True, gain=1.0)
    value = _norm_of_channels(graph, value, "stem.1", widths[0])
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        if stage:
            value = _norm_of_channels(graph, value, f"stages.{stage}/downsample.0", widths[stage - 1])
            value = graph.conv(
                value, f"stages.{stage}/downsample.1", (widths[stage - 1], width), 2, stride=2, bias=True, gain=1.0
            )
        for block in range(depth):
            path = f"stages.{stage}/blocks.{block}"
            branch = graph.conv(
                value, f"{path}/conv_dw", (width, width), 7, padding=3, groups=width, bias=True, gain=1.0
            )
            branch = graph.node("Transpose", [branch], f"{path}/last", perm=[0, 2, 3, 1])
            branch = layer_norm(graph, branch, f"{path}/norm", width)
            branch = gelu(graph, graph.dense(branch, f"{path}/mlp/fc1", (width, 4 * width)), f"{path}/mlp/act")
            branch = graph.dense(branch, f"{path}/mlp/fc2", (4 * width, width))
            gamma = graph.weight(f"{path}.gamma", graph.uniform((width,), 0.3, 0.8))
            branch = graph.node("Mul", [branch, gamma], f"{path}/gamma")
            branch = graph.node("Transpose", [branch], f"{path}/first", perm=[0, 3, 1, 2])
            value = graph.node("Add", [branch, value], path)
    value = graph.node("GlobalAveragePool", [value], "pool")
    value = graph.node("Flatten", [value], "flatten", axis=1)
    value = layer_norm(graph, value, "norm", widths[-1])
    graph.output(graph.linear(value, "fc", (widths[-1], 1000)), "output", (1, 1000))
    return graph.finish()


def _norm_of_channels(graph: GraphBuilder, value: str, path: str, width: int) -> str:
    value = graph.node("Transpose", [value], f"{path}/last", perm=[0, 2, 3, 1])
    value = layer_norm(graph, value, path, width)
    return graph.node("Transpose", [value], f"{path}/first", perm=[0, 3, 1, 2])


def densenet121(seed: int) -> onnx.ModelProto:
    """DenseNet-121 at 224x224: each layer reads what all before it wrote."""
    return densenet("densenet121", seed, 224, (6, 12, 24, 16))


def densenet(name: str, seed: int, size: int, blocks: tuple[int, ...], growth: int = 32) -> onnx.ModelProto:
    """A DenseNet of given blocks."""
    graph = GraphBuilder(name, seed)
    value = graph.input("input", (1, 3, size, size))
    value = graph.conv(value, "conv0", (3, 64), 7, stride=2, padding=3, gain=1.0)
    value = graph.node("Relu", [graph.batch_norm(value, "norm0", 64)], "relu0")
    value = graph.node("MaxPool", [value], "pool0", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    channels = 64
    for block, layers in enumerate(blocks):
        parts = [value]
        for layer in range(layers):
            path = f"denseblock{block + 1}/denselayer{layer + 1}"
            joined = graph.node("Concat", parts, path, axis=1) if layer else value
            joined = graph.node("Relu", [graph.batch_norm(joined, f"{path}/norm1", channels)], f"{path}/relu1")
            joined = graph.conv(joined, f"{path}/conv1", (channels, 4 * growth), 1)
            joined = graph.node("Relu", [graph.batch_norm(joined, f"{path}/norm2", 4 * growth)], f"{path}/relu2")
            parts.append(graph.conv(joined, f"{path}/conv2", (4 * growth, growth), 3, padding=1))
            channels += growth
        value = graph.node("Concat", parts, f"denseblock{block + 1}", axis=1)
        if block + 1 < len(blocks):
            path = f"transition{block + 1}"
            value = graph.node("Relu", [graph.batch_norm(value, f"{path}/norm", channels)], f"{path}/relu")
            value = graph.conv(value, f"{path}/conv", (channels, channels // 2), 1)
            value = graph.node("AveragePool", [value], f"{path}/pool", kernel_shape=[2, 2], strides=[2, 2])
            channels //= 2
    value = graph.node("Relu", [graph.batch_norm(value, "norm5", channels)], "relu5")
    return _classify(graph, value, channels)


def shufflenet_v2(seed: int) -> onnx.ModelProto:
    """ShuffleNet-v2 of width 1.0 at 224x224: half the channels pass by, then all are shuffled."""
    return shufflenet("shufflenet_v2", seed, 224, ((116, 4), (232, 8), (464, 4)))


def shufflenet(name: str, seed: int, size: int, stages: tuple[tuple[int, int], ...]) -> onnx.ModelProto:
    """A ShuffleNet-v2 of given (channels, blocks) of stages."""
    graph = GraphBuilder(name, seed)
    value = graph.input("input", (1, 3, size, size))
    value = graph.conv(value, "conv1", (3, 24), 3, stride=2, padding=1, gain=1.0)
    value = graph.node("Relu", [graph.batch_norm(value, "bn1", 24)], "relu1")
    value = graph.node("MaxPool", [value], "maxpool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    channels, side = 24, size // 4
    for stage, (width, blocks) in enumerate(stages, start=2):
        half = width // 2
        for block in range(blocks):
            path = f"stage{stage}.{block}"
            stride = 2 if block == 0 else 1
            if block == 0:
                side //= 2
                kept = _separable(graph, value, f"{path}/branch1", channels, half, stride)
                branch = _pointwise(graph, value, f"{path}/branch2/expand", channels, half)
            else:
                kept, rest = graph.split(value, path, [half, half], axis=1)
                branch = _pointwise(graph, rest, f"{path}/branch2/expand", half, half)
            branch = _separable(graph, branch, f"{path}/branch2", half, half, stride)
            value = graph.node("Concat", [kept, branch], path, axis=1)
            value = graph.reshape(value, f"{path}/groups", (1, 2, half, side, side))
            value = graph.node("Transpose", [value], f"{path}/shuffle", perm=[0, 2, 1, 3, 4])
            value = graph.reshape(value, f"{path}/flat", (1, width, side, side))
            channels = width
    value = _pointwise(graph, value, "conv5", channels, 1024)
    return _classify(graph, value, 1024)


def _pointwise(graph: GraphBuilder, value: str, path: str, channels: int, width: int, gain: float = 2.0) -> str:
    value = graph.batch_norm(graph.conv(value, f"{path}/conv", (channels, width), 1, gain=gain), f"{path}/bn", width)
    return graph.node("Relu", [value], f"{path}/relu")


def _separable(graph: GraphBuilder, value: str, path: str, channels: int, width: int, stride: int) -> str:
    value = graph.conv(value, f"{path}/depthwise", (channels, channels), 3, stride=stride, padding=1, groups=channels)
    value = graph.batch_norm(value, f"{path}/bn", channels, 0.7)
    return _pointwise(graph, value, f"{path}/point", channels, width, gain=1.0)


def _classify(graph: GraphBuilder, value: str, channels: int) -> onnx.ModelProto:
    value = graph.node("GlobalAveragePool", [value], "pool")
    value = graph.node("Flatten", [value], "flatten", axis=1)
    graph.output(graph.linear(value, "classifier", (channels, 1000)), "output", (1, 1000))
    return graph.finish()
