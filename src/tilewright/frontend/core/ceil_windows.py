"""Pooling whose last window may reach beyond the data (a number of windows that is rounded up): shared by importers.

Such a window must still start within the data or the padding before it; where only a run knows the size, windows that
do not are cut off.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.frontend.core.builder import Builder, sizes_of
from tilewright.frontend.core.pools import pooled
from tilewright.frontend.core.windows import Extents
from tilewright.graph.ir.dimensions import Sizes, add, ceil_divide, minimum
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


def with_ceiling(extents: Extents, size: Sizes) -> Extents:
    """Padding grown at the end so that a last window that reaches beyond the data counts."""
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


def started_within(builder: Builder, result: GraphExpr, extents: Extents, size: Sizes) -> GraphExpr:
    """What windows with a ceiling gave, without those that start behind all data (of a symbolic size)."""
    for axis, length in enumerate(size):
        reach = (extents.kernel[axis] - 1) * extents.dilation[axis] + 1
        stride, before = extents.strides[axis], extents.before[axis]
        if not isinstance(length, int) and extents.after[axis] + stride > reach:
            started = minimum(sizes_of(result)[axis + 2], ceil_divide(add(length, before), stride))
            result = builder.slice_axis(result, axis + 2, 0, started)
    return result


def check_window(extents: Extents, size: Sizes) -> None:
    """Refuse windows that do not make sense, or do not fit."""
    if any(item < 1 for item in (*extents.kernel, *extents.strides, *extents.dilation)):
        raise UserError(f"a window of {extents.kernel} by steps of {extents.strides}: all must be positive")
    if any(item < 0 for item in (*extents.before, *extents.after)):
        raise UserError(f"a window with padding of {extents.before} and {extents.after}")
    for axis, length in enumerate(size):
        reach = (extents.kernel[axis] - 1) * extents.dilation[axis] + 1
        room = extents.before[axis] + extents.after[axis]
        if isinstance(length, int) and length + room < reach:
            raise UserError(f"a window of {reach} elements does not fit {length} with {room} of padding")


def max_pooled(builder: Builder, data: GraphExpr, extents: Extents, ceiling: bool) -> GraphExpr:
    """The greatest of each window."""
    size = sizes_of(data)[2:]
    if not ceiling:
        return pooled(builder, "nn.max_pool2d", data, extents)
    result = pooled(builder, "nn.max_pool2d", data, with_ceiling(extents, size))
    return started_within(builder, result, extents, size)


def average_pooled(builder: Builder, data: GraphExpr, extents: Extents, ceiling: bool, include_pad: bool) -> GraphExpr:
    """The mean of each window; padding counts or not, what lies beyond it never does."""
    size = sizes_of(data)[2:]
    if not ceiling:
        return pooled(builder, "nn.avg_pool2d", data, extents, include_pad=include_pad)
    grown = with_ceiling(extents, size)
    if include_pad and grown.after != extents.after:
        # Written padding counts, the reach beyond it does not: the first becomes part of the data.
        data = builder.call("pad", data, before=(0, 0, *extents.before), after=(0, 0, *extents.after))
        beyond = tuple(more - less for more, less in zip(grown.after, extents.after, strict=True))
        grown, include_pad = replace(extents, before=(0,) * len(beyond), after=beyond), False
    result = pooled(builder, "nn.avg_pool2d", data, grown, include_pad=include_pad)
    return started_within(builder, result, extents, size)


def summed(builder: Builder, data: GraphExpr, extents: Extents, ceiling: bool) -> GraphExpr:
    """The sum of each window."""
    size = sizes_of(data)[2:]
    mean = pooled(builder, "nn.avg_pool2d", data, with_ceiling(extents, size) if ceiling else extents, include_pad=True)
    if ceiling:
        mean = started_within(builder, mean, extents, size)
    return builder.call("multiply", mean, builder.constant_like(math.prod(extents.kernel), mean))
