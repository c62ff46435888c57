"""Converters of pooling."""

from __future__ import annotations

import math

from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, sizes_of
from tilewright.frontend.core.ceil_windows import average_pooled, max_pooled, summed, with_ceiling
from tilewright.frontend.core.local_response import across_channels
from tilewright.frontend.core.windows import Extents
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.convolution import spatial_rank
from tilewright.frontend.onnx.patches import positions_of_maxima
from tilewright.frontend.onnx.registry import converter
from tilewright.frontend.onnx.windows import read_padded
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.support.errors import UserError


def _read(node: NodeContext, data: GraphExpr, fill: float = 0.0) -> tuple[GraphExpr, Extents]:
    """The data, padded where the window cannot say by how much, and the window."""
    rank = spatial_rank(data, node.node.op_type)
    kernel = node.ints("kernel_shape")
    if len(kernel) != rank:
        raise UserError(f"kernel_shape {kernel} does not fit data of shape {sizes_text(sizes_of(data))}")
    return read_padded(node, kernel, data, fill)


@converter("MaxPool")
def max_pool(node: NodeContext) -> list[GraphExpr | None]:
    """The greatest of each window, and where it is."""
    dtype = dtype_of(node.input(0))
    data, extents = _read(node, node.input(0), -math.inf if dtype.is_float else float(dtype.min_value()))
    written, size = extents, sizes_of(data)[2:]
    ceiling = node.flag("ceil_mode")
    if ceiling:
        extents = with_ceiling(extents, size)
    columns_first = node.flag("storage_order")  # it concerns the positions
    result = max_pooled(node.builder, data, written, ceiling)
    return [result, positions_of_maxima(node, data, extents, columns_first) if node.wants_output(1) else None]


@converter("AveragePool")
def average_pool(node: NodeContext) -> GraphExpr:
    """The mean of each window."""
    data = node.input(0)
    padded, extents = _read(node, data)
    ceiling, include_pad = node.flag("ceil_mode"), node.flag("count_include_pad")
    mean = average_pooled(node.builder, padded, extents, ceiling, include_pad)
    if padded is data or include_pad:
        return mean
    # Padding that is part of the data must not count: what counts is the share of ones.
    ones, _ = _read(node, node.builder.filled(1, sizes_of(data), dtype_of(data)))
    return node.call("divide", mean, average_pooled(node.builder, ones, extents, ceiling, include_pad))


@converter("LpPool")
def lp_pool(node: NodeContext) -> GraphExpr:
    """The p-norm of each window: an average of powers, scaled back."""
    data, extents = _read(node, node.input(0))
    p = node.integer("p", 2)
    return _root(node, summed(node.builder, _powers(node, data, p), extents, node.flag("ceil_mode")), p)


def _powers(node: NodeContext, value: GraphExpr, p: int) -> GraphExpr:
    if p < 1:
        raise UserError(f"p of a norm must be positive, it is {p}")
    if p == 2:
        return node.call("multiply", value, value)
    magnitude = node.call("abs", value)
    return magnitude if p == 1 else node.call("power", magnitude, node.builder.constant_like(p, value))


def _root(node: NodeContext, value: GraphExpr, p: int) -> GraphExpr:
    if p == 1:
        return value
    return node.call("sqrt", value) if p == 2 else node.call("power", value, node.builder.constant_like(1 / p, value))


@converter("GlobalAveragePool", "GlobalMaxPool")
def global_pool(node: NodeContext) -> GraphExpr:
    """A reduction over all spatial dimensions."""
    data = node.input(0)
    if rank_of(data) < 3:
        raise UserError(f"{node.node.op_type} needs data of at least 3 dimensions, it is {shape_of(data)}")
    name = "mean" if node.node.op_type == "GlobalAveragePool" else "max"
    return node.call(name, data, axes=tuple(range(2, rank_of(data))), keepdims=True)


@converter("GlobalLpPool")
def global_lp_pool(node: NodeContext) -> GraphExpr:
    """The p-norm over all spatial dimensions."""
    data = node.input(0)
    p = node.integer("p", 2)
    axes = tuple(range(2, rank_of(data)))
    return _root(node, node.call("sum", _powers(node, data, p), axes=axes, keepdims=True), p)


@converter("LpNormalization")
def lp_normalization(node: NodeContext) -> GraphExpr:
    """x divided by its p-norm along an axis (0 where the norm is 0)."""
    data = node.input(0)
    p = node.integer("p", 2)
    axis = node.axis(node.integer("axis", -1), rank_of(data))
    norm = _root(node, node.call("sum", _powers(node, data, p), axes=(axis,), keepdims=True), p)
    zero = node.builder.constant_like(0, norm)
    empty = node.call("equal", norm, zero)
    safe = node.call("where", empty, node.builder.constant_like(1, norm), norm)
    return node.call("where", empty, zero, node.call("divide", data, safe))


@converter("LRN")
def local_response_normalization(node: NodeContext) -> GraphExpr:
    """x / (bias + alpha * average of the squares of neighbouring channels) ** beta."""
    data = node.input(0)
    size = node.integer("size")
    alpha, beta, bias = node.number("alpha", 1e-4), node.number("beta", 0.75), node.number("bias", 1.0)
    return across_channels(node.builder, data, size, alpha, beta, bias)
