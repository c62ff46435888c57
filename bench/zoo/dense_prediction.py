"""Models that answer for every pixel: a small U-Net, and a detector in the manner of YOLOv8 with its suppression."""

from __future__ import annotations

import math

import numpy as np
import onnx

from bench.zoo.builder import GraphBuilder
from bench.zoo.layers import silu

CLASSES = 80
BINS = 16
"""Bins of the distribution of a box's distance to each side."""


def unet(seed: int) -> onnx.ModelProto:
    """A U-Net on images of 128x128."""
    return unet_of("unet", seed, size=128, width=32, levels=4)


def unet_of(name: str, seed: int, size: int, width: int, levels: int) -> onnx.ModelProto:
    """A U-Net: down by pools, up by transposed convolutions, joined with what was there before."""
    graph = GraphBuilder(name, seed)
    value = graph.input("image", (1, 3, size, size))
    channels, skips = 3, []
    for level in range(levels):
        value = _double(graph, value, f"down{level}", channels, width << level)
        channels = width << level
        skips.append(value)
        value = graph.node("MaxPool", [value], f"down{level}/pool", kernel_shape=[2, 2], strides=[2, 2])
    value = _double(graph, value, "bottom", channels, channels * 2)
    channels *= 2
    for level in reversed(range(levels)):
        half = channels // 2
        weight = graph.weight(f"up{level}.weight", graph.normal((channels, half, 2, 2), math.sqrt(2 / channels)))
        bias = graph.weight(f"up{level}.bias", graph.normal((half,), 0.1))
        value = graph.node(
            "ConvTranspose", [value, weight, bias], f"up{level}", kernel_shape=[2, 2], strides=[2, 2], pads=[0] * 4
        )
        value = graph.node("Concat", [skips[level], value], f"up{level}/join", axis=1)
        value = _double(graph, value, f"up{level}", channels, half)
        channels = half
    graph.output(graph.conv(value, "out", (channels, 2), 1, bias=True), "mask", (1, 2, size, size))
    return graph.finish()


def _double(graph: GraphBuilder, value: str, path: str, channels: int, width: int) -> str:
    for index, source in enumerate((channels, width)):
        value = graph.conv(value, f"{path}/conv{index}", (source, width), 3, padding=1)
        value = graph.node("Relu", [graph.batch_norm(value, f"{path}/bn{index}", width)], f"{path}/relu{index}")
    return value


def detector(seed: int) -> onnx.ModelProto:
    """A detector of YOLOv8's smallest size on images of 320x320, boxes decoded and suppressed."""
    return detector_of("detector", seed, size=320, width=16)


def detector_of(name: str, seed: int, size: int, width: int) -> onnx.ModelProto:
    """Backbone, pyramid, heads for three scales, decoding and suppression of overlapping boxes."""
    graph = GraphBuilder(name, seed)
    value = graph.input("images", (1, 3, size, size))
    scales = detector_scales(graph, value, width)
    boxes, scores = _heads(graph, scales, size)
    count = sum((size // stride) ** 2 for _, _, stride in scales)
    graph.output(boxes, "boxes", (1, count, 4))
    graph.output(scores, "scores", (1, CLASSES, count))
    chosen = graph.node(
        "NonMaxSuppression",
        [boxes, scores, graph.constant([20]), graph.constant(0.5), graph.constant(0.6)],
        "nms",
        center_point_box=0,
    )
    graph.output(chosen, "selected", ("chosen", 3), "int64")
    return graph.finish()


def detector_scales(graph: GraphBuilder, value: str, width: int) -> list[tuple[str, int, int]]:
    """Backbone and pyramid of a detector: features of three scales, each with its channels and its stride."""
    value = unit(graph, value, "stem", 3, width, 3, 2)
    features = []
    for stage, repeats in enumerate((1, 2, 2, 1)):
        channels = width << stage + 1
        value = unit(graph, value, f"stage{stage}/down", channels // 2, channels, 3, 2)
        value = _partial(graph, value, f"stage{stage}/c2f", channels, channels, repeats, shortcut=True)
        features.append(value)
    small, middle, large = width * 4, width * 8, width * 16
    top = _pyramid_pool(graph, features[3], "sppf", large)
    joined = graph.node("Concat", [_upsample(graph, top, "up1"), features[2]], "join1", axis=1)
    between = _partial(graph, joined, "neck1", large + middle, middle, 1, shortcut=False)
    joined = graph.node("Concat", [_upsample(graph, between, "up2"), features[1]], "join2", axis=1)
    low = _partial(graph, joined, "neck2", middle + small, small, 1, shortcut=False)
    joined = graph.node("Concat", [unit(graph, low, "down1", small, small, 3, 2), between], "join3", axis=1)
    middle_out = _partial(graph, joined, "neck3", small + middle, middle, 1, shortcut=False)
    joined = graph.node("Concat", [unit(graph, middle_out, "down2", middle, middle, 3, 2), top], "join4", axis=1)
    high = _partial(graph, joined, "neck4", middle + large, large, 1, shortcut=False)
    return [(low, small, 8), (middle_out, middle, 16), (high, large, 32)]


def unit(graph: GraphBuilder, value: str, path: str, channels: int, width: int, kernel: int, stride: int = 1) -> str:
    """A convolution with batch normalisation and SiLU."""
    value = graph.conv(value, f"{path}/conv", (channels, width), kernel, stride=stride, padding=kernel // 2)
    return silu(graph, graph.batch_norm(value, f"{path}/bn", width), f"{path}/act")


def _partial(
    graph: GraphBuilder, value: str, path: str, channels: int, width: int, repeats: int, *, shortcut: bool
) -> str:
    """A C2f block: one half goes through bottlenecks, and each of their results is kept."""
    half = width // 2
    parts = graph.split(unit(graph, value, f"{path}/cv1", channels, width, 1), path, [half, half], axis=1)
    for repeat in range(repeats):
        inner = unit(graph, parts[-1], f"{path}/m.{repeat}/cv1", half, half, 3)
        inner = unit(graph, inner, f"{path}/m.{repeat}/cv2", half, half, 3)
        parts.append(graph.node("Add", [parts[-1], inner], f"{path}/m.{repeat}") if shortcut else inner)
    joined = graph.node("Concat", parts, path, axis=1)
    return unit(graph, joined, f"{path}/cv2", half * len(parts), width, 1)


def _pyramid_pool(graph: GraphBuilder, value: str, path: str, width: int) -> str:
    parts = [unit(graph, value, f"{path}/cv1", width, width // 2, 1)]
    for _ in range(3):
        parts.append(graph.node("MaxPool", [parts[-1]], path, kernel_shape=[5, 5], pads=[2] * 4, strides=[1, 1]))
    return unit(graph, graph.node("Concat", parts, path, axis=1), f"{path}/cv2", width * 2, width, 1)


def _upsample(graph: GraphBuilder, value: str, path: str) -> str:
    scales = graph.constant(np.array([1, 1, 2, 2], np.float32))
    return graph.node(
        "Resize",
        [value, "", scales],
        path,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def _heads(graph: GraphBuilder, scales: list[tuple[str, int, int]], size: int) -> tuple[str, str]:
    """Boxes as corners, (1, anchors, 4), and the probability of each class, (1, classes, anchors)."""
    first = scales[0][1]
    boxes, scores, points, strides = [], [], [], []
    for index, (value, channels, stride) in enumerate(scales):
        side = size // stride
        box = unit(graph, value, f"head/box{index}.0", channels, first, 3)
        box = unit(graph, box, f"head/box{index}.1", first, 4 * BINS, 3)
        box = graph.conv(box, f"head/box{index}.2", (4 * BINS, 4 * BINS), 1, bias=True)
        score = unit(graph, value, f"head/class{index}.0", channels, CLASSES, 3)
        score = unit(graph, score, f"head/class{index}.1", CLASSES, CLASSES, 3)
        score = graph.conv(score, f"head/class{index}.2", (CLASSES, CLASSES), 1, bias=True, gain=0.02)
        boxes.append(graph.reshape(box, f"head/box{index}", (1, 4 * BINS, side * side)))
        scores.append(graph.reshape(score, f"head/class{index}", (1, CLASSES, side * side)))
        rows, columns = np.meshgrid(np.arange(side) + 0.5, np.arange(side) + 0.5, indexing="ij")
        points.append(np.stack([columns.reshape(-1), rows.reshape(-1)]))
        strides.append(np.full(side * side, stride))
    count = sum(item.size for item in strides)
    box = graph.node("Concat", boxes, "head/boxes", axis=2)
    # Most anchors see nothing: a trained detector gives each class a small probability to begin with.
    score = graph.node("Sub", [graph.node("Concat", scores, "head/scores", axis=2), graph.constant(3.0)], "head/scores")
    score = graph.node("Sigmoid", [score], "head/scores")
    box = graph.reshape(box, "head/dfl", (1, 4, BINS, count))
    box = graph.node("Transpose", [box], "head/dfl", perm=[0, 2, 1, 3])
    box = graph.node("Softmax", [box], "head/dfl", axis=1)
    places = graph.buffer("head/dfl.weight", np.arange(BINS, dtype=np.float32).reshape(1, BINS, 1, 1))
    box = graph.node("Conv", [box, places], "head/dfl", kernel_shape=[1, 1])
    box = graph.reshape(box, "head/distances", (1, 4, count))
    near, far = graph.split(box, "head/distances", [2, 2], axis=1)
    centre = graph.constant(np.concatenate(points, axis=1)[np.newaxis].astype(np.float32))
    corners = [graph.node("Sub", [centre, near], "head/low"), graph.node("Add", [centre, far], "head/high")]
    box = graph.node("Concat", corners, "head/corners", axis=1)
    box = graph.node("Mul", [box, graph.constant(np.concatenate(strides).astype(np.float32))], "head/pixels")
    return graph.node("Transpose", [box], "head/pixels", perm=[0, 2, 1]), score
