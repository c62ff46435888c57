"""Pooling in one, two or three dimensions, with channels first or last: for importers.

The graph's operators have two dimensions; maxima, and averages of what is no padding, are separable.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.frontend.core.builder import Builder, sizes_of
from tilewright.frontend.core.windows import Extents, Window
from tilewright.graph.ir.dimensions import multiply
from tilewright.graph.ir.expr import GraphExpr


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
