"""Converters of convolutions, pools and biases, over data with channels last or first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.frontend.core.builder import LARGEST_MADE, dtype_of, rank_of, shape_of, size_at, sizes_of
from tilewright.frontend.core.pools import pooled
from tilewright.frontend.core.volumes import transposed_volume, volume
from tilewright.frontend.core.windows import Extents, same_paddings, transposed_window, window_over
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.registry import converter
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.support.errors import UnsupportedError, UserError

_FIRST = {4: (0, 3, 1, 2), 5: (0, 4, 1, 2, 3)}
"""Axes of a transpose from channels last to channels first, by rank."""
_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}


def is_channels_first(node: NodeContext) -> bool:
    """Whether channels are the second dimension."""
    layout = node.text("data_format", "NHWC")
    if layout not in ("NHWC", "NCHW", "NDHWC", "NCDHW"):
        raise UnsupportedError(f"{node.operator} in the layout {layout}")
    return layout.startswith("NC")


def channels_last(node: NodeContext, data: GraphExpr) -> GraphExpr:
    """Data with its channels as the last dimension."""
    return node.builder.transpose(data, _LAST[rank_of(data)]) if is_channels_first(node) else data


def back(node: NodeContext, data: GraphExpr) -> GraphExpr:
    """Data with channels last in the layout of the node."""
    return node.builder.transpose(data, _FIRST[rank_of(data)]) if is_channels_first(node) else data


def _spatial(node: NodeContext, name: str, rank: int) -> tuple[int, ...]:
    """An attribute with a number for each dimension, of the spatial ones."""
    values = node.integers(name) or (1,) * rank
    if len(values) != rank or min(values) < 1:
        raise UserError(f"{node.operator} with {name} {values}")
    inner = values[2:] if is_channels_first(node) else values[1:-1]
    outer = values[:2] if is_channels_first(node) else (values[0], values[-1])
    if any(item != 1 for item in outer):
        raise UnsupportedError(f"{node.operator} with {name} {values}, along images or channels")
    return inner


def _extents(node: NodeContext, kernel: Sequence[int], strides: str = "strides") -> Extents:
    none, rank = (0,) * len(kernel), len(kernel) + 2
    if min(kernel, default=0) < 1 or math.prod(kernel) > LARGEST_MADE:
        raise UserError(f"{node.operator} with windows of {tuple(kernel)} elements")
    return Extents(tuple(kernel), _spatial(node, strides, rank), none, none, _spatial(node, "dilations", rank))


def _paddings(node: NodeContext, extents: Extents, size: Sequence[Size]) -> tuple[Sequence[Size], Sequence[Size]]:
    """The padding before and after each dimension."""
    mode = node.text("padding")
    if mode == "SAME":
        return same_paddings(extents, tuple(size))
    if mode == "VALID":
        return [0] * len(size), [0] * len(size)
    amounts = node.integers("explicit_paddings")
    if mode != "EXPLICIT" or len(amounts) != 2 * (len(size) + 2):
        raise UserError(f"{node.operator} with the padding {mode!r} {amounts}")
    inner = amounts[4:] if is_channels_first(node) else amounts[2:-2]
    return list(inner[0::2]), list(inner[1::2])


def _fixed(node: NodeContext, extents: Extents, size: Sequence[Size]) -> Extents:
    """The window with padding that is known now."""
    before, after = _paddings(node, extents, size)
    known = [item for item in (*before, *after) if isinstance(item, int)]
    if len(known) < 2 * len(size):
        raise UnsupportedError(
            f"{node.operator} with SAME padding of open sizes", hint="give the shapes of inputs: shapes={...}"
        )
    return replace(extents, before=tuple(known[: len(size)]), after=tuple(known[len(size) :]))


def convolved(node: NodeContext, data: GraphExpr, kernel: GraphExpr, groups: int) -> GraphExpr:
    """A convolution of data with channels last and weights (height, width, inputs, outputs)."""
    extents = _extents(node, shape_of(kernel)[:2])
    values, window = window_over(node.builder, data, extents, _paddings(node, extents, sizes_of(data)[1:3]))
    return node.call(
        "nn.conv2d",
        values,
        kernel,
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilation,
        groups=groups,
        data_layout="NHWC",
        kernel_layout="HWIO",
    )


@converter("Conv2D")
def conv2d(node: NodeContext) -> GraphExpr:
    """Weights are (height, width, inputs, outputs); fewer inputs than the data has make groups."""
    data, weight = channels_last(node, node.input(0)), node.input(1)
    if rank_of(weight) != 4 or rank_of(data) != 4:
        raise UserError(f"Conv2D of weights {sizes_text(sizes_of(weight))} needs 4 dimensions")
    channels, inputs = size_at(data, 3), size_at(weight, 2)
    if not inputs or channels % inputs:
        raise UserError(f"weights of {inputs} inputs do not fit data of {channels} channels")
    return back(node, convolved(node, data, weight, channels // inputs))


@converter("DepthwiseConv2dNative")
def depthwise_conv2d(node: NodeContext) -> GraphExpr:
    """Each channel by itself: weights are (height, width, channels, multiplier)."""
    data, weight = channels_last(node, node.input(0)), node.input(1)
    if rank_of(weight) != 4 or rank_of(data) != 4 or size_at(weight, 2) != size_at(data, 3):
        raise UserError(f"{node.operator} of weights {sizes_text(sizes_of(weight))}")
    height, width, channels, multiplier = shape_of(weight)
    kernel = node.builder.reshape(weight, (height, width, 1, channels * multiplier))
    return back(node, convolved(node, data, kernel, channels))


@converter("Conv2DBackpropInput")
def transposed_conv2d(node: NodeContext) -> GraphExpr:
    """The transpose of a convolution, to a shape that is an input; weights are (height, width, outputs, inputs)."""
    b, weight, data = node.builder, node.input(1), channels_last(node, node.input(2))
    wanted = node.sizes(0, "the shape of the result")
    if rank_of(weight) != 4 or rank_of(data) != 4:
        raise UserError(f"{node.operator} of weights {sizes_text(sizes_of(weight))}")
    if wanted is None:
        raise UnsupportedError(f"{node.operator} to a shape that only a run knows")
    inner = wanted if len(wanted) == 2 else wanted[2:] if is_channels_first(node) else wanted[1:3]
    extents = _extents(node, shape_of(weight)[:2])
    (top, bottom, more_rows), (left, right, more_columns) = (
        _transposed(node, at, size, target, extents)
        for at, size, target in zip(range(2), sizes_of(data)[1:3], inner, strict=True)
    )
    result = node.call(
        "nn.conv2d_transpose",
        data,
        b.transpose(weight, (0, 1, 3, 2)),
        strides=extents.strides,
        padding=(top, left, bottom, right),
        output_padding=(more_rows, more_columns),
        dilation=extents.dilation,
        data_layout="NHWC",
        kernel_layout="HWIO",
    )
    return back(node, result)


def _transposed(node: NodeContext, at: int, size: Size, target: Size, extents: Extents) -> tuple[int, int, int]:
    """What a dimension of a transposed convolution loses before and after, and has more at the end."""
    reach = (extents.kernel[at] - 1) * extents.dilation[at] + 1
    if node.text("padding") != "EXPLICIT":
        return transposed_window(size, target, reach, extents.strides[at], node.text("padding") == "SAME")
    before, after = _paddings(node, extents, (0,) * len(extents.kernel))
    first, last = before[at], after[at]
    if not isinstance(size, int) or not isinstance(target, int):
        raise UnsupportedError(f"{node.operator} with explicit padding of open sizes")
    assert isinstance(first, int) and isinstance(last, int)
    total = (size - 1) * extents.strides[at] + reach - first - last
    return first, last, max(0, target - total)


@converter("Conv3D")
def conv3d(node: NodeContext) -> GraphExpr:
    """In three dimensions; weights are (depth, height, width, inputs, outputs)."""
    b, data, weight = node.builder, node.input(0), node.input(1)
    if rank_of(data) != 5 or rank_of(weight) != 5:
        raise UserError(f"Conv3D of weights {sizes_text(sizes_of(weight))} needs 5 dimensions")
    first = data if is_channels_first(node) else b.transpose(data, _FIRST[5])
    extents = _fixed(node, _extents(node, shape_of(weight)[:3]), sizes_of(first)[2:])
    groups = size_at(first, 1) // max(1, size_at(weight, 3))
    result = volume(b, first, b.transpose(weight, (4, 3, 0, 1, 2)), extents, groups)
    return result if is_channels_first(node) else b.transpose(result, _LAST[5])


@converter("Conv3DBackpropInputV2")
def transposed_conv3d(node: NodeContext) -> GraphExpr:
    """To a shape that is the first input; weights are (depth, height, width, outputs, inputs)."""
    b, weight, data = node.builder, node.input(1), node.input(2)
    wanted = node.sizes(0, "the shape of the result")
    if rank_of(data) != 5 or rank_of(weight) != 5 or wanted is None:
        raise UnsupportedError(f"{node.operator} of data of {rank_of(data)} dimensions to a shape that is data")
    first = data if is_channels_first(node) else b.transpose(data, _FIRST[5])
    inner = wanted[2:] if is_channels_first(node) else wanted[1:4]
    extents = _extents(node, shape_of(weight)[:3])
    rows = zip(range(3), sizes_of(first)[2:], inner, strict=True)
    before, after, extra = zip(*(_transposed(node, *row, extents) for row in rows), strict=True)
    extents = replace(extents, before=before, after=after)
    result = transposed_volume(b, first, b.transpose(weight, (4, 3, 0, 1, 2)), extents, extra, 1)
    return result if is_channels_first(node) else b.transpose(result, _LAST[5])


@converter("Dilation2D")
def dilation2d(node: NodeContext) -> GraphExpr:
    """The greatest sum of data and weights in each window, channel by channel."""
    b, data, weight = node.builder, node.input(0), node.input(1)
    height, width, channels = shape_of(weight)
    none = (0, 0)
    extents = Extents((height, width), node.integers("strides")[1:3], none, none, node.integers("rates")[1:3])
    mode = node.text("padding")
    pads = same_paddings(extents, sizes_of(data)[1:3]) if mode == "SAME" else ([0, 0], [0, 0])
    lowest = float(np.finfo(np.float32).min)
    wide = node.call("pad", data, before=(0, *pads[0], 0), after=(0, *pads[1], 0), value=lowest)
    rows, columns = (size_at(wide, at) for at in (1, 2))
    result: GraphExpr | None = None
    for y in range(height):
        for x in range(width):
            first = (y * extents.dilation[0], x * extents.dilation[1])
            last = (
                rows - (height - 1 - y) * extents.dilation[0],
                columns - (width - 1 - x) * extents.dilation[1],
            )
            part = node.call(
                "slice",
                wide,
                begin=(0, *first, 0),
                end=(sizes_of(wide)[0], *last, channels),
                strides=(1, *extents.strides, 1),
            )
            tap = b.reshape(b.slice_axis(b.slice_axis(weight, 0, y, y + 1), 1, x, x + 1), (channels,))
            moved = node.call("add", part, tap)
            result = moved if result is None else node.call("maximum", result, moved)
    assert result is not None
    return result


def _pool_extents(node: NodeContext, data: GraphExpr) -> Extents:
    if rank_of(data) not in (4, 5):
        raise UserError(f"{node.operator} of data of shape {sizes_text(sizes_of(data))}")
    if len(node.values) > 1:
        rank = rank_of(data)
        kernel, strides = node.constant_ints(1, "the window"), node.constant_ints(2, "the strides")
        if len(kernel) != rank or len(strides) != rank:
            raise UserError(f"{node.operator} with windows of {kernel}")
        none = (0,) * (rank - 2)
        return Extents(kernel[1:-1], strides[1:-1], none, none, (1,) * (rank - 2))
    return _extents(node, _spatial(node, "ksize", rank_of(data)))


def _pool(node: NodeContext, name: str, data: GraphExpr, extents: Extents, fill: float = 0.0) -> GraphExpr:
    """A pool of data with channels last."""
    if rank_of(data) == 4:
        values, window = window_over(node.builder, data, extents, _paddings(node, extents, sizes_of(data)[1:3]), fill)
        return node.call(
            name, values, kernel=window.kernel, strides=window.strides, padding=window.padding, layout="NHWC"
        )
    return pooled(node.builder, name, data, _fixed(node, extents, sizes_of(data)[1:-1]), channels_last=True)


@converter("MaxPool", "MaxPoolV2", "MaxPool3D")
def max_pool(node: NodeContext) -> GraphExpr:
    """The greatest of each window."""
    data = channels_last(node, node.input(0))
    dtype = dtype_of(data)
    lowest = -math.inf if dtype.is_float else float(dtype.min_value())
    return back(node, _pool(node, "nn.max_pool2d", data, _pool_extents(node, data), lowest))


@converter("AvgPool", "AvgPool3D")
def average_pool(node: NodeContext) -> GraphExpr:
    """The mean of each window, without the padding."""
    data = channels_last(node, node.input(0))
    extents = _pool_extents(node, data)
    before, after = _paddings(node, extents, sizes_of(data)[1:-1])
    if all(isinstance(item, int) for item in (*before, *after)):
        return back(node, _pool(node, "nn.avg_pool2d", data, extents))
    # Padding that is part of the data must not count.
    ones = node.builder.filled(1, (1, *sizes_of(data)[1:3], 1), dtype_of(data))
    parts = [_pool(node, "nn.avg_pool2d", value, extents) for value in (data, ones)]
    return back(node, node.call("divide", *parts))


@converter("BiasAdd", "BiasAddV1")
def bias_add(node: NodeContext) -> GraphExpr:
    """A number for each channel added."""
    data, bias = node.input(0), node.input(1)
    if node.text("data_format", "NHWC").startswith("NC") and rank_of(data) > 2:
        bias = node.builder.reshape(bias, (*sizes_of(bias), *(1,) * (rank_of(data) - 2)))
    return node.call("add", data, bias)


@converter("Softmax", "LogSoftmax")
def softmax(node: NodeContext) -> GraphExpr:
    """exp(x) divided by its sum along the last axis, or the logarithm of that."""
    data = node.input(0)
    name = "nn.softmax" if node.operator == "Softmax" else "nn.log_softmax"
    return node.call(name, data, axis=rank_of(data) - 1)


@converter("ExtractImagePatches")
def extract_patches(node: NodeContext) -> GraphExpr:
    """The elements of each window as channels: a convolution with weights of ones and zeros."""
    data = node.input(0)
    kernel, strides, rates = (node.integers(key)[1:3] for key in ("ksizes", "strides", "rates"))
    channels, (rows, columns) = size_at(data, 3), kernel
    none = (0, 0)
    extents = Extents(kernel, strides, none, none, rates)
    table = np.zeros((rows, columns, channels, rows * columns * channels), np.float32)
    for y in range(rows):
        for x in range(columns):
            for c in range(channels):
                table[y, x, c, (y * columns + x) * channels + c] = 1
    mode = node.text("padding")
    size = sizes_of(data)[1:3]
    pads = same_paddings(extents, size) if mode == "SAME" else ([0] * 2, [0] * 2)
    values, window = window_over(node.builder, node.builder.cast(data, "float32"), extents, pads)
    result = node.call(
        "nn.conv2d",
        values,
        node.builder.constant(table, "float32"),
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilation,
        data_layout="NHWC",
        kernel_layout="HWIO",
    )
    return node.builder.cast(result, dtype_of(data))
