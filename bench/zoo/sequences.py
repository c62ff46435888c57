"""Models of sequences: a text encoder of 1-d convolutions and a GRU, and a separator of sounds after Conv-TasNet."""

from __future__ import annotations

import math

import numpy as np
import onnx

from bench.zoo.builder import GraphBuilder

TEXT_VOCABULARY = 10_000
TEXT_TOKENS = 64
SAMPLES = 8000


def text_encoder(seed: int) -> onnx.ModelProto:
    """Convolutions of three widths over words, then a GRU in both directions, then the largest over time."""
    return text_encoder_of("text_encoder", seed, TEXT_TOKENS, 256, TEXT_VOCABULARY)


def text_encoder_of(name: str, seed: int, tokens: int, width: int, vocabulary: int) -> onnx.ModelProto:
    """The text encoder of given sizes."""
    graph = GraphBuilder(name, seed)
    ids = graph.input("tokens", (1, tokens), "int64")
    table = graph.weight("embedding.weight", graph.normal((vocabulary, width), 1.0))
    value = graph.node("Gather", [table, ids], "embedding", axis=0)
    value = graph.node("Transpose", [value], "embedding", perm=[0, 2, 1])
    branches = []
    for kernel in (3, 5, 7):
        branch = graph.conv(
            value, f"conv{kernel}", (width, width // 2), kernel, padding=kernel // 2, axes=1, bias=True, gain=1.0
        )
        branches.append(graph.node("Relu", [branch], f"conv{kernel}/relu"))
    value = graph.node("Concat", branches, "conv", axis=1)
    joined = width // 2 * 3
    value = graph.node("Transpose", [value], "gru/steps", perm=[2, 0, 1])
    bound = 2 / math.sqrt(width)
    weights = [
        graph.weight("gru.weight_ih", graph.uniform((2, 3 * width, joined), -bound, bound)),
        graph.weight("gru.weight_hh", graph.uniform((2, 3 * width, width), -bound, bound)),
        graph.weight("gru.bias", graph.uniform((2, 6 * width), -bound, bound)),
    ]
    value = graph.node(
        "GRU",
        [value, *weights],
        "gru",
        outputs=2,
        hidden_size=width,
        direction="bidirectional",
        linear_before_reset=1,
    )
    value = graph.node("Transpose", [value], "gru/joined", perm=[2, 0, 1, 3])
    value = graph.reshape(value, "gru/joined", (1, tokens, 2 * width))
    value = graph.node("ReduceMax", [value], "pool", axes=[1], keepdims=0)
    graph.output(graph.linear(value, "head", (2 * width, 64)), "logits", (1, 64))
    return graph.finish()


def tasnet(seed: int) -> onnx.ModelProto:
    """One second of sound at 8 kHz separated into two."""
    return tasnet_of("tasnet", seed, SAMPLES, width=128, inner=256, repeats=2, blocks=6)


def tasnet_of(name: str, seed: int, samples: int, width: int, inner: int, repeats: int, blocks: int) -> onnx.ModelProto:
    """Encoder, a stack of dilated depthwise convolutions that gives two masks, decoder."""
    graph = GraphBuilder(name, seed)
    sound = graph.input("sound", (1, 1, samples))
    frames = (samples - 16) // 8 + 1
    encoded = graph.conv(sound, "encoder", (1, inner), 16, stride=8, axes=1, gain=1.0)
    encoded = graph.node("Relu", [encoded], "encoder/relu")
    value = _global_norm(graph, encoded, "norm", inner)
    value = graph.conv(value, "bottleneck", (inner, width), 1, axes=1, bias=True)
    skips = []
    for repeat in range(repeats):
        for block in range(blocks):
            path = f"separator.{repeat}.{block}"
            dilation = 1 << block
            branch = graph.conv(value, f"{path}/expand", (width, inner), 1, axes=1, bias=True, gain=1.0)
            branch = _global_norm(graph, _prelu(graph, branch, f"{path}/prelu1"), f"{path}/norm1", inner)
            branch = graph.conv(
                branch,
                f"{path}/depthwise",
                (inner, inner),
                3,
                padding=dilation,
                groups=inner,
                dilation=dilation,
                axes=1,
                bias=True,
                gain=1.0,
            )
            branch = _global_norm(graph, _prelu(graph, branch, f"{path}/prelu2"), f"{path}/norm2", inner)
            skips.append(graph.conv(branch, f"{path}/skip", (inner, width), 1, axes=1, bias=True, gain=0.2))
            branch = graph.conv(branch, f"{path}/residual", (inner, width), 1, axes=1, bias=True, gain=0.2)
            value = graph.node("Add", [value, branch], path)
    total = skips[0]
    for skip in skips[1:]:
        total = graph.node("Add", [total, skip], "skips")
    total = graph.conv(_prelu(graph, total, "masks/prelu"), "masks", (width, 2 * inner), 1, axes=1, bias=True)
    masks = graph.reshape(graph.node("Sigmoid", [total], "masks"), "masks", (2, inner, frames))
    parted = graph.node("Mul", [masks, encoded], "parted")
    weight = graph.weight("decoder.weight", graph.normal((inner, 1, 16), 2 / math.sqrt(inner)))
    parted = graph.node("ConvTranspose", [parted, weight], "decoder", kernel_shape=[16], strides=[8], pads=[0, 0])
    graph.output(parted, "sounds", (2, 1, samples))
    return graph.finish()


def _prelu(graph: GraphBuilder, value: str, path: str) -> str:
    return graph.node("PRelu", [value, graph.weight(f"{path}.weight", np.full((1, 1), 0.25, np.float32))], path)


def _global_norm(graph: GraphBuilder, value: str, path: str, width: int) -> str:
    """Normalisation over channels and time together, as its authors write it."""
    mean = graph.node("ReduceMean", [value], path, axes=[1, 2], keepdims=1)
    centred = graph.node("Sub", [value, mean], path)
    square = graph.node("Pow", [centred, graph.constant(2.0)], path)
    variance = graph.node("ReduceMean", [square], path, axes=[1, 2], keepdims=1)
    root = graph.node("Sqrt", [graph.node("Add", [variance, graph.constant(1e-8)], path)], path)
    scale = graph.weight(f"{path}.weight", graph.uniform((1, width, 1), 0.8, 1.2))
    bias = graph.weight(f"{path}.bias", graph.normal((1, width, 1), 0.1))
    scaled = graph.node("Div", [graph.node("Mul", [scale, centred], path), root], path)
    return graph.node("Add", [scaled, bias], path)
