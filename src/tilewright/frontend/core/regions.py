"""Pooling of regions of images, whose places are data: shared by importers."""

from __future__ import annotations

import math

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.resampling import number as number_of
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UserError


def _rounded(b: ArithmeticBuilder, value: GraphExpr) -> GraphExpr:
    """The nearest whole number, halves away from zero."""
    magnitude = b.call("floor", b.add(b.call("abs", value), 0.5))
    return b.multiply(magnitude, b.call("sign", value))


def max_pooled_regions(
    b: ArithmeticBuilder, data: GraphExpr, regions: GraphExpr, bins: tuple[int, int], scale: float
) -> GraphExpr:
    """The greatest element of each bin of regions (image, left, top, right, bottom), 0 of an empty one.

    Corners belong to their region, and are rounded to whole elements; bins of a region may overlap.
    """
    if rank_of(data) != 4 or rank_of(regions) != 2 or sizes_of(regions)[1] != 5 or min(bins) < 1:
        raise UserError(
            f"regions of shape {sizes_text(sizes_of(regions))} in {bins[0]} x {bins[1]} bins do not fit data of shape "
            f"{sizes_text(sizes_of(data))}"
        )
    count = sizes_of(regions)[0]
    image = b.cast(b.reshape(b.slice_axis(regions, 1, 0, 1), (count,)), INT64)
    values = b.call("take", data, image, axis=0)
    is_empty: GraphExpr | None = None
    for axis, number in enumerate(bins):
        length = sizes_of(data)[2 + axis]
        first, last = (
            _rounded(b, b.multiply(b.cast(b.slice_axis(regions, 1, at, at + 1), FLOAT32), scale))
            for at in (2 - axis, 4 - axis)
        )
        extent = b.call("maximum", b.add(b.subtract(last, first), 1.0), b.constant(1.0, FLOAT32))
        step = b.divide(extent, float(number))
        counted = b.constant(b.count(number).reshape(1, number), FLOAT32)
        limit = number_of(b, length)
        begin = b.add(b.call("floor", b.multiply(counted, step)), first)
        end = b.add(b.call("ceil", b.multiply(b.add(counted, 1.0), step)), first)
        begin, end = (
            b.call("minimum", b.call("maximum", edge, b.constant(0.0, FLOAT32)), limit) for edge in (begin, end)
        )
        places = b.reshape(b.cast(b.arange(length), FLOAT32), (1, 1, length))
        inside = b.call(
            "logical_and",
            b.call("greater_equal", places, b.reshape(begin, (count, number, 1))),
            b.call("less", places, b.reshape(end, (count, number, 1))),
        )
        nothing = b.constant_like(-math.inf, data)
        mask = b.reshape(inside, (count, 1, number, length, 1) if axis == 0 else (count, 1, 1, number, length))
        spread = b.expand_dims(values, (2 if axis == 0 else 3,))
        values = b.call("max", b.call("where", mask, spread, nothing), axes=(3 if axis == 0 else 4,))
        hollow = b.call("less_equal", end, begin)
        hollow = b.reshape(hollow, (count, 1, number, 1) if axis == 0 else (count, 1, 1, number))
        is_empty = hollow if is_empty is None else b.call("logical_or", is_empty, hollow)
    assert is_empty is not None and dtype_of(values) is dtype_of(data)
    return b.call("where", is_empty, b.constant_like(0, data), values)
