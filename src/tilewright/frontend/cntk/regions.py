"""CNTK's pooling over regions of an image that are data."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.cntk.context import Operator, Value, operator
from tilewright.frontend.core.builder import dtype_of, sizes_of
from tilewright.frontend.core.resampling import number
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError


@operator("ROIPooling")
def roi_pooling(op: Operator) -> Value:
    """The greatest element of each bin of regions (left, top, right, bottom): (regions, channels, height, width)."""
    x, regions = op.inputs[:2]
    shape = [int(size) for size in reversed(op.attribute("roiOutputShape"))]
    if int(op.attribute("poolingType", 0)) != 0:
        raise UnsupportedError("means of regions")
    if x.rank != 3 or regions.rank != 2 or len(shape) != 2 or not (x.has_batch and regions.has_batch):
        raise UserError(f"regions of {regions.rank} dimensions do not fit an image of {x.rank}")
    b, dtype = op.builder, dtype_of(x.data)
    batch, channels, height, width = sizes_of(x.data)
    count = sizes_of(regions.data)[1]
    scaled = b.multiply(b.cast(regions.data, dtype), float(op.attribute("spatialScale", 1.0)))
    corners = op.call("floor", b.add(scaled, 0.5))
    across = _bins(op, corners, 0, shape[1], width)
    down = _bins(op, corners, 1, shape[0], height)
    least = b.constant_like(-np.inf, x.data)
    # Columns first, then rows: maxima over both are maxima of maxima.
    image = b.reshape(x.data, (batch, 1, channels, height, 1, width))
    inside = b.reshape(across, (batch, count, 1, 1, shape[1], width))
    columns = b.reduce("max", op.call("where", inside, image, least), (5,))
    columns = b.reshape(columns, (batch, count, channels, 1, height, shape[1]))
    inside = b.reshape(down, (batch, count, 1, shape[0], height, 1))
    found = b.reduce("max", op.call("where", inside, columns, least), (4,))
    some = [b.reduce("any", mask, (3,)) for mask in (down, across)]
    filled = op.call(
        "logical_and",
        b.reshape(some[0], (batch, count, 1, shape[0], 1)),
        b.reshape(some[1], (batch, count, 1, 1, shape[1])),
    )
    return x.with_data(op.call("where", filled, found, b.constant_like(0, found)))


def _bins(op: Operator, corners: GraphExpr, axis: int, bins: int, size: Size) -> GraphExpr:
    """Which elements along an axis belong to which bin of which region: (batch, regions, bins, elements)."""
    b = op.builder
    first, last = (b.slice_axis(corners, 2, at, at + 1) for at in (axis, axis + 2))
    extent = op.call("maximum", b.add(b.subtract(last, first), 1.0), b.constant_like(1, first))
    width = b.divide(extent, float(bins))
    steps = b.constant(np.arange(bins).reshape(1, 1, bins), dtype_of(corners))
    bound = b.cast(number(b, size), dtype_of(corners))

    def clamped(value: GraphExpr) -> GraphExpr:
        moved = op.call("add", value, first)
        return op.call("minimum", op.call("maximum", moved, b.constant_like(0, moved)), bound)

    begin = clamped(op.call("floor", op.call("multiply", steps, width)))
    end = clamped(op.call("ceil", op.call("multiply", b.add(steps, 1.0), width)))
    places = b.cast(b.arange(size), dtype_of(corners))
    return op.call(
        "logical_and",
        op.call("greater_equal", places, b.expand_dims(begin, (3,))),
        op.call("less", places, b.expand_dims(end, (3,))),
    )
