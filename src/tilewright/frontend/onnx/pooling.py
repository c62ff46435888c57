"""Converters of pooling."""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, sizes_of
from tilewright.frontend.core.pools import pooled
from tilewright.frontend.core.windows import Extents
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.convolution import spatial_rank
from tilewright.frontend.onnx.patches import positions_of_maxima
from tilewright.frontend.onnx.registry import converter
from tilewright.frontend.onnx.windows import read_padded
from tilewright.graph.ir.dimensions import Sizes, add, ceil_divide, minimum, product
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


def _with_ceiling(extents: Extents, size: Sizes) -> Extents:
    """Padding grown at the end so that a last window that reaches beyond the data counts.

    Such a window must still start within the data or the padding before it; `_started_within` cuts off one that does
    not where only a run knows the size.
    """
    after = list(extents.after)
    for axis, length in enumerate(size):
        reach = (extents.kernel[axis] - 1) * extents.dilation[axis] + 1
        stride, before = extents.strides[axis], extents.before[axis]
        if not isinstance(length, int):
            after[axis] += stride - 1
            continue
        room = length + before + after[axis] - reach
        count = -(-room // stride) + 1
        if (count - 1) * stride >= length + before:
            count -= 1
        after[axis] = max(after[axis], (count - 1) * stride + reach - length - before)
    return replace(extents, after=tuple(after))


def _started_within(node: NodeContext, result: GraphExpr, extents: Extents, size: Sizes) -> GraphExpr:
    """What windows with a ceiling gave, without those that start behind all data (of a symbolic size)."""
    for axis, length in enumerate(size):
        reach = (extents.kernel[axis] - 1) * extents.dilation[axis] + 1
        stride, before = extents.strides[axis], extents.before[axis]
        if not isinstance(length, int) and extents.after[axis] + stride > reach:
            started = minimum(sizes_of(result)[axis + 2], ceil_divide(add(length, before), stride))
            result = node.builder.slice_axis(result, axis + 2, 0, started)
    return result


def _pool(node: NodeContext, name: str, data: GraphExpr, extents: Extents, include_pad: bool = False) -> GraphExpr:
    return pooled(node.builder, name, data, extents, include_pad=include_pad)


@converter("MaxPool")
def max_pool(node: NodeContext) -> list[GraphExpr | None]:
    """The greatest of each window, and where it is."""
    dtype = dtype_of(node.input(0))
    data, extents = _read(node, node.input(0), -math.inf if dtype.is_float else float(dtype.min_value()))
    written, size = extents, sizes_of(data)[2:]
    ceiling = node.flag("ceil_mode")
    if ceiling:
        extents = _with_ceiling(extents, size)
    columns_first = node.flag("storage_order")  # it concerns the positions
    result = _pool(node, "nn.max_pool2d", data, extents)
    if ceiling:
        result = _started_within(node, result, written, size)
    return [result, positions_of_maxima(node, data, extents, columns_first) if node.wants_output(1) else None]


@converter("AveragePool")
def average_pool(node: NodeContext) -> GraphExpr:
    """The mean of each window."""
    data = node.input(0)
    padded, extents = _read(node, data)
    ceiling, include_pad = node.flag("ceil_mode"), node.flag("count_include_pad")
    mean = _average(node, padded, extents, ceiling, include_pad)
    if padded is data or include_pad:
        return mean
    # Padding that is part of the data must not count: what counts is the share of ones.
    ones, _ = _read(node, node.builder.filled(1, sizes_of(data), dtype_of(data)))
    return node.call("divide", mean, _average(node, ones, extents, ceiling, include_pad))


def _average(node: NodeContext, data: GraphExpr, extents: Extents, ceiling: bool, include_pad: bool) -> GraphExpr:
    if not ceiling:
        return _pool(node, "nn.avg_pool2d", data, extents, include_pad)
    size = sizes_of(data)[2:]
    grown = _with_ceiling(extents, size)
    if include_pad and grown.after != extents.after:
        # Written padding counts, the reach beyond it does not: the first becomes part of the data.
        data = node.call("pad", data, before=(0, 0, *extents.before), after=(0, 0, *extents.after))
        beyond = tuple(more - less for more, less in zip(grown.after, extents.after, strict=True))
        grown, include_pad = replace(extents, before=(0,) * len(beyond), after=beyond), False
    return _started_within(node, _pool(node, "nn.avg_pool2d", data, grown, include_pad), extents, size)


@converter("LpPool")
def lp_pool(node: NodeContext) -> GraphExpr:
    """The p-norm of each window: an average of powers, scaled back."""
    data, extents = _read(node, node.input(0))
    written, size = extents, sizes_of(data)[2:]
    ceiling = node.flag("ceil_mode")
    if ceiling:
        extents = _with_ceiling(extents, size)
    p = node.integer("p", 2)
    mean = _pool(node, "nn.avg_pool2d", _powers(node, data, p), extents, include_pad=True)
    if ceiling:
        mean = _started_within(node, mean, written, size)
    total = node.call("multiply", mean, node.builder.constant_like(math.prod(extents.kernel), mean))
    return _root(node, total, p)


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
    shape = sizes_of(data)
    if len(shape) < 2 or size < 1:
        raise UserError(f"LRN over {size} channels does not fit data of shape {shape}")
    square = node.builder.reshape(node.call("multiply", data, data), (shape[0], 1, shape[1], product(shape[2:])))
    before = (size - 1) // 2
    mean = node.call(
        "nn.avg_pool2d",
        square,
        kernel=(size, 1),
        padding=(before, 0, size - 1 - before, 0),
        count_include_pad=True,
    )
    mean = node.builder.reshape(mean, shape)
    scaled = node.call("multiply", mean, node.builder.constant_like(alpha, mean))
    base = node.call("add", scaled, node.builder.constant_like(bias, mean))
    divisor = node.call("power", base, node.builder.constant_like(beta, mean))
    assert dtype_of(divisor) is dtype_of(data)
    return node.call("divide", data, divisor)
