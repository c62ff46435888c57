"""The two small vision models: the DQN that plays Atari games and the generator of DCGAN."""

from __future__ import annotations

import math

import onnx

from bench.zoo.builder import GraphBuilder

ACTIONS = 18


def dqn(seed: int) -> onnx.ModelProto:
    """The deep Q-network: four stacked 84x84 frames to the value of each action."""
    graph = GraphBuilder("dqn", seed)
    value = graph.input("frames", (1, 4, 84, 84))
    value = graph.conv(value, "conv1", (4, 32), 8, stride=4, bias=True)
    value = graph.node("Relu", [value], "relu1")
    value = graph.conv(value, "conv2", (32, 64), 4, stride=2, bias=True)
    value = graph.node("Relu", [value], "relu2")
    value = graph.conv(value, "conv3", (64, 64), 3, bias=True)
    value = graph.node("Relu", [value], "relu3")
    value = graph.node("Flatten", [value], "flatten", axis=1)
    value = graph.node("Relu", [graph.linear(value, "fc1", (64 * 7 * 7, 512))], "relu4")
    graph.output(graph.linear(value, "fc2", (512, ACTIONS)), "q_values", (1, ACTIONS))
    return graph.finish()


def dcgan(seed: int) -> onnx.ModelProto:
    """The DCGAN generator: 100 random numbers to a 64x64 image, by transposed convolutions."""
    graph = GraphBuilder("dcgan", seed)
    value = graph.input("noise", (1, 100, 1, 1))
    channels = 100
    for index, width in enumerate((512, 256, 128, 64)):
        stride, padding = (1, 0) if index == 0 else (2, 1)
        value = _conv_transpose(graph, value, f"main.{3 * index}", channels, width, stride, padding)
        value = graph.batch_norm(value, f"main.{3 * index + 1}", width)
        value = graph.node("Relu", [value], f"main.{3 * index + 2}")
        channels = width
    value = _conv_transpose(graph, value, "main.12", channels, 3, 2, 1)
    value = graph.node("Tanh", [value], "main.13")
    graph.output(value, "image", (1, 3, 64, 64))
    return graph.finish()


def _conv_transpose(
    graph: GraphBuilder, value: str, path: str, channels: int, width: int, stride: int, padding: int
) -> str:
    # A 4x4 kernel with stride 2 sums four taps into each pixel; the first layer spreads a single pixel: one tap.
    taps = 1 if stride == 1 else 4
    gain = 1.0 if stride == 1 or width == 3 else 2.0
    weight = graph.weight(f"{path}.weight", graph.normal((channels, width, 4, 4), math.sqrt(gain / (channels * taps))))
    return graph.node(
        "ConvTranspose",
        [value, weight],
        path,
        dilations=[1, 1],
        group=1,
        kernel_shape=[4, 4],
        pads=[padding] * 4,
        strides=[stride] * 2,
    )
