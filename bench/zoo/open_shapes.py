"""Models whose sizes are open, as detectors, classifiers and text recognisers are shipped: batch, height or width.

Nothing in them says a size: features are flattened by `Reshape` to (0, channels, -1), as exporters write it.
"""

from __future__ import annotations

import onnx

from bench.zoo.builder import GraphBuilder
from bench.zoo.dense_prediction import BINS, CLASSES, detector_scales, unit

OPEN = ("batch", 3, "height", "width")

# (kernel, hidden channels, output channels, squeeze-and-excitation, hard swish, stride) of MobileNet-v3's small form.
_V3_SMALL = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)


def open_detector(seed: int) -> onnx.ModelProto:
    """A detector in the manner of YOLOv8n: batch, height and width are open; boxes and classes of all anchors."""
    graph = GraphBuilder("open_detector", seed)
    value = graph.input("images", OPEN)
    answers = []
    for index, (features, channels, _) in enumerate(detector_scales(graph, value, 16)):
        parts = []
        for kind, outputs in (("box", 4 * BINS), ("class", CLASSES)):
            part = unit(graph, features, f"head/{kind}{index}.0", channels, 64, 3)
            part = unit(graph, part, f"head/{kind}{index}.1", 64, 64, 3)
            parts.append(graph.conv(part, f"head/{kind}{index}.2", (64, outputs), 1, bias=True))
        joined = graph.node("Concat", parts, f"head/join{index}", axis=1)
        answers.append(graph.reshape(joined, f"head/flat{index}", (0, 4 * BINS + CLASSES, -1)))
    joined = graph.node("Concat", answers, "head/anchors", axis=2)
    boxes, scores = graph.split(joined, "head/anchors", [4 * BINS, CLASSES], axis=1)
    graph.output(boxes, "boxes", ("batch", 4 * BINS, "anchors"))
    graph.output(graph.node("Sigmoid", [scores], "head/scores"), "scores", ("batch", CLASSES, "anchors"))
    return graph.finish()


def open_mobilenet_v3(seed: int) -> onnx.ModelProto:
    """MobileNet-v3 small: batch, height and width are open."""
    graph = GraphBuilder("open_mobilenet_v3", seed)
    value = graph.input("input", OPEN)
    value = _layer(graph, value, "features.0", (3, 16), 3, stride=2, swish=True)
    channels = 16
    for index, (kernel, hidden, width, squeezed, swish, stride) in enumerate(_V3_SMALL, start=1):
        path, branch = f"features.{index}", value
        if hidden != channels:
            branch = _layer(graph, branch, f"{path}/expand", (channels, hidden), 1, swish=swish)
        branch = _layer(
            graph, branch, f"{path}/depthwise", (hidden, hidden), kernel, stride=stride, groups=hidden, swish=swish
        )
        if squeezed:
            branch = _excite(graph, branch, f"{path}/se", hidden)
        branch = graph.conv(branch, f"{path}/project", (hidden, width), 1)
        branch = graph.batch_norm(branch, f"{path}/project/bn", width)
        value = graph.node("Add", [value, branch], path) if stride == 1 and channels == width else branch
        channels = width
    value = _layer(graph, value, "features.12", (channels, 576), 1, swish=True)
    value = graph.node("Flatten", [graph.node("GlobalAveragePool", [value], "pool")], "flatten", axis=1)
    value = graph.node("HardSwish", [graph.linear(value, "classifier.0", (576, 1024))], "classifier.1")
    graph.output(graph.linear(value, "classifier.3", (1024, 1000)), "output", ("batch", 1000))
    return graph.finish()


def open_recogniser(seed: int) -> onnx.ModelProto:
    """A recogniser of text in the manner of CRNN: lines of 32 pixels, batch and width are open."""
    graph = GraphBuilder("open_recogniser", seed)
    value = graph.input("lines", ("batch", 3, 32, "width"))
    channels = 3
    for index, (width, stride) in enumerate(((32, (2, 2)), (64, (2, 2)), (128, (2, 1)), (256, (2, 1)), (256, (2, 1)))):
        for repeat in range(2):
            path = f"stage{index}/{repeat}"
            value = graph.conv(value, path, (channels, width), 3, padding=1)
            value = graph.node("Relu", [graph.batch_norm(value, f"{path}/bn", width)], path)
            channels = width
        value = graph.node("MaxPool", [value], f"stage{index}", kernel_shape=list(stride), strides=list(stride))
    value = graph.node("Squeeze", [value, graph.constant([2])], "columns")
    value = graph.node("Transpose", [value], "columns", perm=[0, 2, 1])
    value = graph.dense(value, "encoder", (256, 256))
    value = graph.dense(graph.node("Relu", [value], "encoder"), "letters", (256, 6625))
    graph.output(graph.node("Softmax", [value], "letters", axis=2), "letters", ("batch", "columns", 6625))
    return graph.finish()


def _layer(
    graph: GraphBuilder,
    value: str,
    path: str,
    channels: tuple[int, int],
    kernel: int,
    *,
    swish: bool,
    stride: int = 1,
    groups: int = 1,
) -> str:
    value = graph.conv(value, path, channels, kernel, stride=stride, padding=kernel // 2, groups=groups)
    return graph.node("HardSwish" if swish else "Relu", [graph.batch_norm(value, f"{path}/bn", channels[1])], path)


def _excite(graph: GraphBuilder, value: str, path: str, channels: int) -> str:
    """Squeeze and excitation: each channel scaled by what all of its pixels say."""
    inner = max(8, channels // 4 // 8 * 8)
    scale = graph.node("GlobalAveragePool", [value], path)
    scale = graph.node("Relu", [graph.conv(scale, f"{path}/fc1", (channels, inner), 1, bias=True)], path)
    scale = graph.node("HardSigmoid", [graph.conv(scale, f"{path}/fc2", (inner, channels), 1, bias=True)], path)
    return graph.node("Mul", [value, scale], path)
