"""Converters of convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontend.core.builder import rank_of, shape_of, size_at
from tilewright.frontend.openvino.context import NodeContext
from tilewright.frontend.openvino.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UnsupportedError, UserError

_AUTO_PADS = {"same_upper": "SAME_UPPER", "same_lower": "SAME_LOWER"}


def window(node: NodeContext, rank: int) -> dict[str, Any]:
    """What ONNX calls the options of a window."""
    ones, zeros = (1,) * rank, (0,) * rank
    options: dict[str, Any] = {
        "strides": node.ints("strides", ones),
        "dilations": node.ints("dilations", ones),
    }
    auto = node.text("auto_pad", "explicit")
    if auto in _AUTO_PADS:
        options["auto_pad"] = _AUTO_PADS[auto]
    elif auto == "valid":
        options["pads"] = (*zeros, *zeros)
    else:
        options["pads"] = (*node.ints("pads_begin", zeros), *node.ints("pads_end", zeros))
    return options


def _joined(node: NodeContext, weight: GraphExpr) -> tuple[GraphExpr, int]:
    """Weights of groups, which have an axis of their own, as ONNX has them; and the number of groups."""
    shape = shape_of(weight)
    return node.builder.reshape(weight, (shape[0] * shape[1], *shape[2:])), shape[0]


@converter("Convolution", "GroupConvolution")
def convolution(node: NodeContext) -> GraphExpr:
    """A convolution, grouped or not."""
    x, weight, groups = node.input(0), node.input(1), 1
    if node.layer.kind == "GroupConvolution":
        weight, groups = _joined(node, weight)
    return node.onnx("Conv", x, weight, group=groups, **window(node, rank_of(x) - 2))


@converter("ConvolutionBackpropData", "GroupConvolutionBackpropData")
def transposed(node: NodeContext) -> GraphExpr:
    """A transposed convolution, whose spatial size may be given."""
    x, weight, groups = node.input(0), node.input(1), 1
    if node.layer.kind.startswith("Group"):
        weight, groups = _joined(node, weight)
    rank = rank_of(x) - 2
    options = window(node, rank)
    extra = node.ints("output_padding", (0,) * rank)
    if not node.has_input(2):
        return node.onnx("ConvTranspose", x, weight, group=groups, output_padding=extra, **options)
    sized = _sized(node, x, shape_of(weight)[2:], extra, options)
    return node.onnx("ConvTranspose", x, weight, group=groups, **sized)


def _sized(
    node: NodeContext, x: GraphExpr, kernel: tuple[int, ...], extra: tuple[int, ...], options: dict[str, Any]
) -> dict[str, Any]:
    """The options of a transposed convolution whose spatial size is an input."""
    rank = len(kernel)
    wanted = node.known(2, "its size")[-rank:]
    auto = options.pop("auto_pad", None)
    low, high, more = [], [], []
    for at in range(rank):
        reach = (kernel[at] - 1) * options["dilations"][at] + 1
        least = (size_at(x, at + 2) - 1) * options["strides"][at] + reach
        if auto is None:
            first, last = options["pads"][at], options["pads"][at + rank]
            grown = wanted[at] - (least - first - last)
        else:
            total = max(least + extra[at] - wanted[at], 0)
            first = total - total // 2 if auto == "SAME_UPPER" else total // 2
            last, grown = total - first, wanted[at] - (least - total)
        low.append(first)
        high.append(last - min(grown, 0))
        more.append(max(grown, 0))
    return {**options, "pads": (*low, *high), "output_padding": tuple(more)}


@converter("DeformableConvolution")
def deformable(node: NodeContext) -> GraphExpr:
    """A convolution whose taps are moved by offsets, and weighted by a mask."""
    x, offset, weight = (node.input(at) for at in range(3))
    rank = rank_of(x) - 2
    if rank != 2:
        raise UserError(f"DeformableConvolution in {rank} dimensions")
    options = window(node, rank)
    if not node.flag("bilinear_interpolation_pad") or node.opset < 8:
        offset = _within(node, x, offset, shape_of(weight)[2:], options)
    return node.onnx(
        "DeformConv",
        x,
        weight,
        offset,
        None,
        node.optional(3),
        group=node.integer("group", 1),
        offset_group=node.integer("deformable_group", 1),
        kernel_shape=shape_of(weight)[2:],
        **options,
    )


def _within(
    node: NodeContext, x: GraphExpr, offset: GraphExpr, kernel: tuple[int, ...], options: dict[str, Any]
) -> GraphExpr:
    """Offsets by which a tap beyond the last element reads that, and one outside of the data nothing."""
    b, taps = node.builder, kernel[0] * kernel[1]
    batch, channels, rows, columns = (size_at(offset, at) for at in range(4))
    if "pads" not in options:
        raise UnsupportedError("DeformableConvolution with automatic padding", hint="export it with explicit padding")
    places = np.empty((taps, 2, rows, columns), np.float32)
    for tap in range(taps):
        for axis, (step, count) in enumerate(((tap // kernel[1], rows), (tap % kernel[1], columns))):
            line = (
                np.arange(count) * options["strides"][axis] - options["pads"][axis] + step * options["dilations"][axis]
            )
            places[tap, axis] = line[:, None] if axis == 0 else line[None, :]
    base = b.constant(places[None, None], FLOAT32)
    parted = b.reshape(offset, (batch, channels // (2 * taps), taps, 2, rows, columns))
    position = b.add(parted, base)
    size = b.constant(np.array([size_at(x, 2), size_at(x, 3)], np.float32).reshape(2, 1, 1), FLOAT32)
    inside = b.call("logical_and", b.compare("greater_equal", position, 0.0), b.call("less", position, size))
    inside = b.call("all", inside, axes=(3,), keepdims=True)
    kept = b.call("minimum", position, b.subtract(size, 1.0))
    moved = b.subtract(b.where(inside, kept, -2.0), base)
    return b.reshape(moved, (batch, channels, rows, columns))
