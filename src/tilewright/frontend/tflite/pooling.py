"""Converters of pooling, over data with channels last."""

from __future__ import annotations

import math

from tilewright.frontend.core.activations import activated
from tilewright.frontend.core.builder import LARGEST_MADE, dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.windows import Extents
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.fixed_point import bounds_of, finished
from tilewright.frontend.tflite.registry import converter
from tilewright.frontend.tflite.windows import padded, window_of
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import INT32
from tilewright.support.errors import UserError


def _window(node: NodeContext) -> Extents:
    data = node.input(0)
    if rank_of(data) != 4:
        raise UserError(f"{node.node.name} needs data of 4 dimensions, it is {sizes_text(sizes_of(data))}")
    extents = window_of(node, (node.integer("filter_height"), node.integer("filter_width")))
    if math.prod(extents.kernel) > LARGEST_MADE:
        raise UserError(f"a window of {extents.kernel[0]} x {extents.kernel[1]} elements is too large")
    return extents


def _pool(node: NodeContext, name: str, data: GraphExpr, extents: Extents, fill: float = 0.0) -> GraphExpr:
    values, window = padded(node, data, extents, fill)
    return node.call(
        name,
        values,
        kernel=window.kernel,
        strides=window.strides,
        padding=window.padding,
        layout="NHWC",
    )


@converter("MAX_POOL_2D")
def max_pool(node: NodeContext) -> GraphExpr:
    """The greatest of each window; of quantised values the greatest integer."""
    data = node.input(0)
    dtype = dtype_of(data)
    lowest = -math.inf if dtype.is_float else float(dtype.min_value())
    result = _pool(node, "nn.max_pool2d", data, _window(node), lowest)
    if node.is_quantized():
        return finished(node.builder, result, 0, bounds_of(node.activation, node.output_levels(), dtype), dtype)
    return activated(node.builder, result, node.activation)


@converter("AVERAGE_POOL_2D")
def average_pool(node: NodeContext) -> GraphExpr:
    """The mean of each window, without the padding."""
    data, extents = node.input(0), _window(node)
    if node.is_quantized():
        return _quantized_average(node, extents)
    return activated(node.builder, _mean(node, data, extents), node.activation)


def _mean(node: NodeContext, data: GraphExpr, extents: Extents) -> GraphExpr:
    values, _ = padded(node, data, extents)
    if values is data:
        return _pool(node, "nn.avg_pool2d", data, extents)
    # Padding that is part of the data must not count.
    ones = node.builder.filled(1, (1, *sizes_of(data)[1:3], 1), dtype_of(data))
    return node.call("divide", _pool_all(node, data, extents), _pool_all(node, ones, extents))


def _pool_all(node: NodeContext, data: GraphExpr, extents: Extents) -> GraphExpr:
    return _pool(node, "nn.avg_pool2d", data, extents)


@converter("L2_POOL_2D")
def l2_pool(node: NodeContext) -> GraphExpr:
    """The root of the mean of squares of each window."""
    data = node.input(0)
    mean = _mean(node, node.call("multiply", data, data), _window(node))
    return activated(node.builder, node.call("sqrt", mean), node.activation)


def _sums(node: NodeContext, data: GraphExpr, extents: Extents) -> GraphExpr:
    """The sum of each window of whole numbers."""
    rows, columns = sizes_of(data)[1:3]
    if extents.kernel == (rows, columns) and node.integer("padding"):
        return node.call("sum", data, axes=(1, 2), keepdims=True)
    channels = size_at(data, 3)
    values, window = padded(node, data, extents)
    return node.call(
        "nn.conv2d",
        values,
        node.builder.filled(1, (*extents.kernel, 1, channels), INT32),
        strides=window.strides,
        padding=window.padding,
        groups=channels,
        data_layout="NHWC",
        kernel_layout="HWIO",
    )


def _quantized_average(node: NodeContext, extents: Extents) -> GraphExpr:
    """Sums divided by how many elements they are of, halves away from zero; the levels stay."""
    builder, data = node.builder, node.input(0)
    sums = _sums(node, builder.cast(data, INT32), extents)
    ones = builder.filled(1, (1, *sizes_of(data)[1:3], 1), INT32)
    counts = _sums(node, ones, extents)
    result = divided_away(node, sums, counts)
    to = node.output_dtype()
    return finished(builder, result, 0, bounds_of(node.activation, node.output_levels(), to), to)


def divided_away(node: NodeContext, sums: GraphExpr, counts: GraphExpr) -> GraphExpr:
    """Whole numbers divided by positive ones, to the nearest, halves away from zero."""
    call, builder = node.call, node.builder
    half = call("divide", counts, builder.constant_like(2, counts))
    above = call("greater", sums, builder.constant_like(0, sums))
    nudged = call("where", above, call("add", sums, half), call("subtract", sums, half))
    return call("divide", nudged, counts)
