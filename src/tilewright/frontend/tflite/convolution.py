"""Converters of convolutions: data with channels last, as TFLite has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tilewright.frontend.core.activations import activated
from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, size_at, sizes_of
from tilewright.frontend.core.volumes import transposed_volume, volume
from tilewright.frontend.core.windows import Extents, transposed_window
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.hybrid import rounded_ranges, rounded_rows
from tilewright.frontend.tflite.model import TfliteOperator
from tilewright.frontend.tflite.quantized_products import operands, rescaled_sums
from tilewright.frontend.tflite.registry import converter
from tilewright.frontend.tflite.windows import is_same, padded, paddings, window_of
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import FLOAT32, INT32
from tilewright.support.errors import UnsupportedError, UserError

Convolve = Callable[[GraphExpr, GraphExpr], GraphExpr]
"""A convolution of data with weights, whatever their type."""


@converter("CONV_2D")
def conv_2d(node: NodeContext) -> GraphExpr:
    """Weights are (outputs, height, width, inputs); fewer inputs than the data has make groups."""
    weight = node.input(1)
    if rank_of(weight) != 4 or rank_of(node.input(0)) != 4:
        raise UserError(f"CONV_2D of weights {sizes_text(sizes_of(weight))} needs 4 dimensions")
    channels, inputs = size_at(node.input(0), 3), size_at(weight, 3)
    if not inputs or channels % inputs:
        raise UserError(f"weights of {inputs} inputs do not fit data of {channels} channels")
    return _convolved(node, node.builder.transpose(weight, (1, 2, 3, 0)), channels // inputs)


@converter("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(node: NodeContext) -> GraphExpr:
    """Each channel by itself: weights are (1, height, width, channels times multiplier)."""
    weight = node.input(1)
    if rank_of(weight) != 4 or rank_of(node.input(0)) != 4 or size_at(weight, 0) != 1:
        raise UserError(f"DEPTHWISE_CONV_2D of weights {sizes_text(sizes_of(weight))}")
    channels, outputs = size_at(node.input(0), 3), size_at(weight, 3)
    if not channels or outputs % channels:
        raise UserError(f"weights of {outputs} outputs do not fit data of {channels} channels")
    _, height, width, _ = shape_of(weight)
    return _convolved(node, node.builder.reshape(weight, (height, width, 1, outputs)), channels)


def _convolved(node: NodeContext, kernel: GraphExpr, groups: int) -> GraphExpr:
    """A convolution with weights (height, width, inputs, outputs)."""
    data, bias, builder = node.input(0), node.optional(2), node.builder
    extents = window_of(node, shape_of(kernel)[:2])

    def convolve(values: GraphExpr, weights: GraphExpr) -> GraphExpr:
        values, window = padded(node, values, extents)
        return node.call(
            "nn.conv2d",
            values,
            weights,
            strides=window.strides,
            padding=window.padding,
            dilation=window.dilation,
            groups=groups,
            data_layout="NHWC",
            kernel_layout="HWIO",
        )

    if dtype_of(data).is_float and node.is_quantized(1):
        result = _hybrid(node, data, kernel, convolve)
    elif node.is_quantized(0):
        return rescaled_sums(node, convolve(*operands(node, data, kernel)), bias)
    else:
        result = convolve(data, kernel)
    if bias is not None:
        result = node.call("add", result, builder.reshape(bias, (size_at(kernel, 3),)))
    return activated(builder, result, node.activation)


def _hybrid(node: NodeContext, data: GraphExpr, kernel: GraphExpr, convolve: Convolve) -> GraphExpr:
    """Images of floats, each rounded to bytes, with weights of bytes that have a scale a channel."""
    builder, levels = node.builder, node.levels(1)
    wide = builder.cast(kernel, INT32)
    if levels.by_tensor:
        steps, scale = rounded_rows(node, data, (1, 2, 3))
    else:
        steps, scale, zero = rounded_ranges(node, data, (1, 2, 3))
        steps = node.call("subtract", steps, zero)
    scales = builder.constant(np.asarray(levels.scales, np.float32), FLOAT32)
    factor = node.call("multiply", scale, scales)
    return node.call("multiply", builder.cast(convolve(steps, wide), FLOAT32), factor)


@converter("TRANSPOSE_CONV")
def transpose_conv(node: NodeContext) -> GraphExpr:
    """The transpose of a convolution, to a shape that is an input; weights are (outputs, height, width, inputs)."""
    builder, call = node.builder, node.call
    weight, data, bias = node.input(1), node.input(2), node.optional(3)
    if rank_of(weight) != 4 or rank_of(data) != 4:
        raise UserError(f"TRANSPOSE_CONV of weights {sizes_text(sizes_of(weight))}")
    wanted = node.sizes(0, "the shape of the result")
    if wanted is None or len(wanted) != 4:
        raise UnsupportedError("TRANSPOSE_CONV to a shape that only a run knows")
    outputs, *kernel, _ = shape_of(weight)
    strides = (node.integer("stride_h"), node.integer("stride_w"))
    if min(strides) < 1:
        raise UserError(f"strides {strides} must be positive")
    form = builder.transpose(weight, (1, 2, 3, 0))
    extents = [
        transposed_window(size, target, taps, stride, is_same(node))
        for size, target, taps, stride in zip(sizes_of(data)[1:3], wanted[1:3], kernel, strides, strict=True)
    ]
    (top, bottom, more_rows), (left, right, more_columns) = extents

    def convolve(values: GraphExpr, weights: GraphExpr) -> GraphExpr:
        return call(
            "nn.conv2d_transpose",
            values,
            weights,
            strides=strides,
            padding=(top, left, bottom, right),
            output_padding=(more_rows, more_columns),
            data_layout="NHWC",
            kernel_layout="HWIO",
        )

    if node.is_quantized(2):
        return _quantized_transpose(node, data, form, bias, convolve)
    if node.is_quantized(1):
        raise UnsupportedError("TRANSPOSE_CONV of floats with weights of bytes")
    result = convolve(data, form)
    if bias is not None:
        result = call("add", result, builder.reshape(bias, (outputs,)))
    return activated(builder, result, node.activation)


def _quantized_transpose(
    node: NodeContext, data: GraphExpr, kernel: GraphExpr, bias: GraphExpr | None, convolve: Convolve
) -> GraphExpr:
    # Data is the third input here, the second one of other convolutions.
    moved = NodeContext(
        _reordered(node), node.name, node.graph, [node.input(2), node.input(1), bias], node.builder, node.bodies
    )
    return rescaled_sums(moved, convolve(*operands(moved, data, kernel)), bias)


def _reordered(node: NodeContext) -> TfliteOperator:
    places = node.node.inputs
    return replace(node.node, inputs=(places[2], places[1], *places[3:]))


_FIRST = (0, 4, 1, 2, 3)
"""Axes of a transpose from channels last to channels first, in three dimensions."""
_LAST = (0, 2, 3, 4, 1)


def _depths(node: NodeContext, data: GraphExpr, kernel: tuple[int, ...]) -> Extents:
    """The window of a convolution in three dimensions over data of a known size."""
    extents = window_of(node, kernel)
    before, after = paddings(node, extents, sizes_of(data)[1:4])
    known = [item for item in (*before, *after) if isinstance(item, int)]
    if len(known) < 6:
        raise UnsupportedError(
            f"{node.node.name} with SAME padding of open sizes", hint="give the shapes of inputs: shapes={...}"
        )
    return replace(extents, before=tuple(known[:3]), after=tuple(known[3:]))


@converter("CONV_3D")
def conv_3d(node: NodeContext) -> GraphExpr:
    """In three dimensions; weights are (depth, height, width, inputs, outputs)."""
    builder, data, weight, bias = node.builder, node.input(0), node.input(1), node.optional(2)
    if rank_of(data) != 5 or rank_of(weight) != 5 or not dtype_of(data).is_float:
        raise UnsupportedError(f"CONV_3D of {dtype_of(data)} data of {rank_of(data)} dimensions")
    extents = _depths(node, data, shape_of(weight)[:3])
    groups = size_at(data, 4) // max(1, size_at(weight, 3))
    images, kernel = builder.transpose(data, _FIRST), builder.transpose(weight, (4, 3, 0, 1, 2))
    result = builder.transpose(volume(builder, images, kernel, extents, groups), _LAST)
    result = result if bias is None else node.call("add", result, bias)
    return activated(builder, result, node.activation)


@converter("CONV_3D_TRANSPOSE")
def conv_3d_transpose(node: NodeContext) -> GraphExpr:
    """To a shape that is an input; weights are (depth, height, width, outputs, inputs)."""
    builder, weight, data, bias = node.builder, node.input(1), node.input(2), node.optional(3)
    wanted = node.sizes(0, "the shape of the result")
    if rank_of(data) != 5 or rank_of(weight) != 5 or wanted is None or not dtype_of(data).is_float:
        raise UnsupportedError(f"CONV_3D_TRANSPOSE of {dtype_of(data)} data of {rank_of(data)} dimensions")
    extents = window_of(node, shape_of(weight)[:3])
    if any(item > 1 for item in extents.dilation):
        raise UnsupportedError("CONV_3D_TRANSPOSE with dilation")
    sizes = zip(sizes_of(data)[1:4], wanted[1:4], extents.kernel, extents.strides, strict=True)
    before, after, extra = zip(*(transposed_window(*item, is_same(node)) for item in sizes), strict=True)
    extents = replace(extents, before=before, after=after)
    images, kernel = builder.transpose(data, _FIRST), builder.transpose(weight, (4, 3, 0, 1, 2))
    result = builder.transpose(transposed_volume(builder, images, kernel, extents, extra, 1), _LAST)
    result = result if bias is None else node.call("add", result, bias)
    return activated(builder, result, node.activation)
