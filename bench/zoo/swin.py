"""A small Swin transformer at 224x224: attention in windows, every second time in windows that are shifted."""

from __future__ import annotations

import numpy as np
import onnx

from bench.zoo.builder import GraphBuilder
from bench.zoo.layers import attend, gelu, layer_norm

WINDOW = 7


def swin(seed: int) -> onnx.ModelProto:
    """Swin-T with two blocks in every stage."""
    return swin_of("swin", seed, size=224, width=96, depths=(2, 2, 2, 2))


def swin_t(seed: int) -> onnx.ModelProto:
    """Swin-T."""
    return swin_of("swin_t", seed, size=224, width=96, depths=(2, 2, 6, 2))


def swin_of(name: str, seed: int, size: int, width: int, depths: tuple[int, ...]) -> onnx.ModelProto:
    """A Swin transformer of so many blocks in each stage, heads of 32."""
    graph = GraphBuilder(name, seed)
    value = graph.input("input", (1, 3, size, size))
    value = graph.conv(value, "patch_embed/proj", (3, width), 4, stride=4, bias=True, gain=1.0)
    side = size // 4
    value = graph.node("Transpose", [value], "patch_embed", perm=[0, 2, 3, 1])
    value = layer_norm(graph, value, "patch_embed/norm", width)
    for stage, depth in enumerate(depths):
        if stage:
            value = _merge(graph, value, f"layers.{stage}/downsample", width)
            side, width = side // 2, width * 2
        for block in range(depth):
            # Where one window covers all there is nothing to shift.
            shift = WINDOW // 2 if block % 2 and side > WINDOW else 0
            value = _block(graph, value, f"layers.{stage}/blocks.{block}", side, width, shift)
    value = layer_norm(graph, value, "norm", width)
    value = graph.node("ReduceMean", [value], "pool", axes=[1, 2], keepdims=0)
    graph.output(graph.linear(value, "head", (width, 1000)), "output", (1, 1000))
    return graph.finish()


def _block(graph: GraphBuilder, value: str, path: str, side: int, width: int, shift: int) -> str:
    heads, count = width // 32, side // WINDOW
    inside = WINDOW * WINDOW
    branch = layer_norm(graph, value, f"{path}/norm1", width)
    if shift:
        branch = _roll(graph, branch, f"{path}/roll", shift, side)
    branch = graph.reshape(branch, f"{path}/partition", (1, count, WINDOW, count, WINDOW, width))
    branch = graph.node("Transpose", [branch], f"{path}/partition", perm=[0, 1, 3, 2, 4, 5])
    branch = graph.reshape(branch, f"{path}/windows", (count * count, inside, width))
    joint = graph.dense(branch, f"{path}/attn/qkv", (width, 3 * width))
    joint = graph.reshape(joint, f"{path}/attn", (count * count, inside, 3, heads, 32))
    joint = graph.node("Transpose", [joint], f"{path}/attn", perm=[2, 0, 3, 1, 4])
    parts = []
    for index, part in enumerate(graph.split(joint, f"{path}/attn", [1, 1, 1], axis=0)):
        parts.append(graph.node("Squeeze", [part, graph.constant([0])], f"{path}/attn/part{index}"))
    bias = graph.weight(f"{path}/attn.bias", graph.normal((1, heads, inside, inside), 0.5))
    if shift:
        hidden = graph.constant(_shift_mask(side, shift))
        bias = graph.node("Add", [bias, hidden], f"{path}/attn/mask")
    context = attend(graph, (parts[0], parts[1], parts[2]), 32, f"{path}/attn", bias)
    context = graph.node("Transpose", [context], f"{path}/attn/out", perm=[0, 2, 1, 3])
    context = graph.reshape(context, f"{path}/attn/out", (count * count, inside, width))
    branch = graph.dense(context, f"{path}/attn/proj", (width, width))
    branch = graph.reshape(branch, f"{path}/reverse", (1, count, count, WINDOW, WINDOW, width))
    branch = graph.node("Transpose", [branch], f"{path}/reverse", perm=[0, 1, 3, 2, 4, 5])
    branch = graph.reshape(branch, f"{path}/image", (1, side, side, width))
    if shift:
        branch = _roll(graph, branch, f"{path}/unroll", side - shift, side)
    value = graph.node("Add", [value, branch], f"{path}/add1")
    branch = layer_norm(graph, value, f"{path}/norm2", width)
    branch = gelu(graph, graph.dense(branch, f"{path}/mlp/fc1", (width, 4 * width)), f"{path}/mlp/act")
    branch = graph.dense(branch, f"{path}/mlp/fc2", (4 * width, width))
    return graph.node("Add", [value, branch], f"{path}/add2")


def _roll(graph: GraphBuilder, value: str, path: str, shift: int, side: int) -> str:
    """The image turned by `shift` pixels to the left and upwards."""
    for axis in (1, 2):
        ends = [
            graph.node("Slice", [value, *(graph.constant([number]) for number in bounds)], f"{path}/axis{axis}")
            for bounds in ((shift, side, axis), (0, shift, axis))
        ]
        value = graph.node("Concat", ends, f"{path}/axis{axis}", axis=axis)
    return value


def _shift_mask(side: int, shift: int) -> np.ndarray:
    """What keeps pixels apart that only the shift brought into one window: (windows, 1, pixels, pixels)."""
    line = np.zeros(side, int)
    line[side - WINDOW : side - shift] = 1
    line[side - shift :] = 2
    regions = line[:, np.newaxis] * 3 + line
    count = side // WINDOW
    windows = regions.reshape(count, WINDOW, count, WINDOW).transpose(0, 2, 1, 3).reshape(count * count, -1)
    return np.where(windows[:, np.newaxis] != windows[..., np.newaxis], -100.0, 0.0)[:, np.newaxis].astype(np.float32)


def _merge(graph: GraphBuilder, value: str, path: str, width: int) -> str:
    """Four neighbouring pixels become one of twice the channels."""
    corners = []
    for row, column in ((0, 0), (1, 0), (0, 1), (1, 1)):
        corner = value
        for axis, start in ((1, row), (2, column)):
            bounds = [graph.constant([number]) for number in (start, 2**31 - 1, axis, 2)]
            corner = graph.node("Slice", [corner, *bounds], path)
        corners.append(corner)
    value = graph.node("Concat", corners, path, axis=-1)
    value = layer_norm(graph, value, f"{path}/norm", 4 * width)
    weight = graph.weight(f"{path}.weight", graph.normal((4 * width, 2 * width), (4 * width) ** -0.5))
    return graph.node("MatMul", [value, weight], path)
