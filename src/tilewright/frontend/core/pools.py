"""Pooling in one, two or three dimensions, with channels first or last, and over parts of equal share: for importers.

The graph's operators have two dimensions; maxima, and averages of what is no padding, are separable.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import Builder, dtype_of, rank_of, sizes_of
from tilewright.frontend.core.windows import Extents, Window
from tilewright.graph.ir.dimensions import multiply
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError


def pooled(
    builder: Builder,
    name: str,
    data: GraphExpr,
    extents: Extents,
    *,
    include_pad: bool = False,
    channels_last: bool = False,
) -> GraphExpr:
    """Pool by `nn.max_pool2d` or `nn.avg_pool2d` in as many dimensions as the window has."""

    def over(value: GraphExpr, part: Extents) -> GraphExpr:
        window = Window.of(part.kernel, part.strides, part.before, part.after, part.dilation)
        return builder.call(
            name,
            value,
            kernel=window.kernel,
            strides=window.strides,
            padding=window.padding,
            dilation=window.dilation,
            count_include_pad=include_pad,
            layout="NHWC" if channels_last else "NCHW",
        )

    shape = sizes_of(data)
    match len(extents.kernel):
        case 1 if channels_last:
            result = over(builder.reshape(data, (shape[0], 1, *shape[1:])), extents)
            return builder.reshape(result, (shape[0], *sizes_of(result)[2:]))
        case 1:
            result = over(builder.reshape(data, (*shape[:2], 1, shape[2])), extents)
            return builder.reshape(result, (*shape[:2], sizes_of(result)[3]))
        case 2:
            return over(data, extents)
    return (_volume_last if channels_last else _volume_first)(builder, data, extents, over)


Over = Callable[[GraphExpr, Extents], GraphExpr]


def _volume_first(builder: Builder, data: GraphExpr, extents: Extents, over: Over) -> GraphExpr:
    batch, channels, depth, *plane = sizes_of(data)
    planes = over(builder.reshape(data, (batch, multiply(channels, depth), *plane)), extents.part(slice(1, 3)))
    rows, columns = sizes_of(planes)[2:]
    stack = builder.reshape(planes, (batch, channels, depth, multiply(rows, columns)))
    result = over(stack, extents.part(slice(0, 1)).with_unit())
    return builder.reshape(result, (batch, channels, sizes_of(result)[2], rows, columns))


def _volume_last(builder: Builder, data: GraphExpr, extents: Extents, over: Over) -> GraphExpr:
    batch, depth, *plane, channels = sizes_of(data)
    planes = over(builder.reshape(data, (multiply(batch, depth), *plane, channels)), extents.part(slice(1, 3)))
    rows, columns = sizes_of(planes)[1:3]
    stack = builder.reshape(planes, (batch, depth, multiply(rows, columns), channels))
    result = over(stack, extents.part(slice(0, 1)).with_unit())
    return builder.reshape(result, (batch, sizes_of(result)[1], rows, columns, channels))


# Adaptive sizes: window i covers floor(i * in / out) .. ceil((i + 1) * in / out)


def adaptive_ranges(size: int, count: int) -> list[tuple[int, int]]:
    """Where each of so many windows begins and ends."""
    return [(index * size // count, -((-(index + 1) * size) // count)) for index in range(count)]


def adaptive(b: ArithmeticBuilder, name: str, value: GraphExpr, axis: int, count: int) -> GraphExpr:
    """The `mean` or the `max` of each of so many windows along an axis."""
    if count == 1:
        return b.reduce(name, value, (axis,), True)
    shape = list(sizes_of(value))
    size = shape[axis]
    if not isinstance(size, int):
        if name != "mean":
            raise UnsupportedError(
                "the greatest of windows along an axis of open size",
                hint="give the dimensions that the model leaves open: shapes={...}",
            )
        return _adaptive_mean(b, value, axis, count)
    if size % count == 0:
        parts = b.reshape(value, [*shape[:axis], count, size // count, *shape[axis + 1 :]])
        return b.reduce(name, parts, (axis + 1,))
    windows = [
        b.reduce(name, b.slice_axis(value, axis, low, high), (axis,), True)
        for low, high in adaptive_ranges(size, count)
    ]
    return b.concatenate(windows, axis)


def _adaptive_mean(b: ArithmeticBuilder, x: GraphExpr, axis: int, count: int) -> GraphExpr:
    """Means of windows along an axis of open size: a product with the weight of each element in each window."""
    size = sizes_of(x)[axis]
    length = b.reshape(b.shape_tensor((size,)), ())
    window = b.constant(b.count(count), INT64)
    low = b.binary("floor_divide", b.multiply(window, length), count)
    high = b.binary("floor_divide", b.add(b.multiply(b.add(window, 1), length), count - 1), count)
    place = b.reshape(b.arange(size), (size, 1))
    inside = b.call("logical_and", b.call("greater_equal", place, low), b.call("less", place, high))
    weights = b.divide(b.cast(inside, "float32"), b.cast(b.subtract(high, low), "float32"))
    rank = rank_of(x)
    last = b.transpose(x, [*(at for at in range(rank) if at != axis), axis])
    means = b.call("matmul", last, b.cast(weights, dtype_of(x)))
    return b.transpose(means, [*range(axis), rank - 1, *range(axis, rank - 1)])
