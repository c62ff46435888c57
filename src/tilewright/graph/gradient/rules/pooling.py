"""Pooling over windows."""

from __future__ import annotations

import math
from typing import Any

from tilewright.graph.gradient.expressions import (
    add,
    broadcast_to,
    divide,
    filled,
    multiply,
    number,
    pad,
    reshape,
    sizes_of,
    slice_axis,
    transpose,
    with_type,
)
from tilewright.graph.gradient.registry import Cotangents, linear, reverse_rule
from tilewright.graph.gradient.rules.indexing import along
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size, constants
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.pooling import Pool2dAttributes
from tilewright.ir.dtype import INT64

_TO_PLANES = (0, 3, 1, 2)
_FROM_PLANES = (0, 2, 3, 1)


@linear("nn.avg_pool2d")
def avg_pool2d(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Every element of a window gets its share."""
    attributes = call.attributes
    assert isinstance(attributes, Pool2dAttributes)
    (data,) = call.args
    last = attributes.layout == "NHWC"
    size = constants(sizes_of(data)[1:3] if last else sizes_of(data)[2:])
    if size is not None:
        return [make("nn.avg_pool2d_gradient", cotangent, size=size, **_keywords(attributes))]
    # Where the size is open: the transposed convolution of the shares with a window of ones.
    given = transpose(cotangent, _TO_PLANES) if last else cotangent
    images = sizes_of(transpose(data, _TO_PLANES) if last else data)
    given = divide(given, _counts(attributes, images, given))
    count, channels, rows, columns = sizes_of(given)
    planes = reshape(given, (dimensions.multiply(count, channels), 1, rows, columns))
    spread = _spread(planes, attributes, images)
    result = reshape(spread, images)
    return [with_type(transpose(result, _FROM_PLANES) if last else result, data.type)]


def _counts(attributes: Pool2dAttributes, images: tuple[Size, ...], given: GraphExpr) -> GraphExpr:
    """How many elements each average is of."""
    dtype = given.tensor_type.dtype
    whole = attributes.kernel[0] * attributes.kernel[1]
    if attributes.count_include_pad or not any(attributes.padding):
        return number(whole, dtype)
    # The average over ones with the padding counted is the part of a window that lies within the image.
    ones = filled(1, (1, 1, *images[2:]), dtype)
    keywords = {**_keywords(attributes), "count_include_pad": True, "layout": "NCHW"}
    inside = multiply(make("nn.avg_pool2d", ones, **keywords), whole)
    return make("maximum", make("round", inside), number(1, dtype))


def _keywords(attributes: Pool2dAttributes) -> dict[str, Any]:
    """The attributes of a pooling as keywords."""
    return {name: getattr(attributes, name) for name in Pool2dAttributes.fields}


def _spread(planes: GraphExpr, attributes: Pool2dAttributes, images: tuple[Size, ...]) -> GraphExpr:
    """Every element of a plane added to all elements of its window."""
    dtype = planes.tensor_type.dtype
    (top, left, _, _), first = attributes.padding, 2
    ones = make("broadcast_to", number(1, dtype), shape=(1, 1, *attributes.kernel))
    spread = make(
        "nn.conv2d_transpose",
        planes,
        ones,
        strides=attributes.strides,
        padding=(0, 0, 0, 0),
        dilation=attributes.dilation,
    )
    for place, before in enumerate((top, left)):
        axis = first + place
        size, wanted = sizes_of(spread)[axis], dimensions.add(images[axis], before)
        missing = dimensions.subtract(wanted, size)
        if isinstance(missing, int) and missing <= 0:
            spread = slice_axis(spread, axis, before, wanted)
            continue
        after: list[Size] = [0, 0, 0, 0]
        # Where the size is open, at most a stride is missing.
        after[axis] = missing if isinstance(missing, int) else attributes.strides[place]
        spread = slice_axis(pad(spread, [0, 0, 0, 0], after), axis, before, wanted)
    return spread


@linear("nn.avg_pool2d_gradient")
def avg_pool2d_gradient(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The average that it is the transpose of."""
    assert isinstance(call.attributes, Pool2dAttributes)
    return [with_type(make("nn.avg_pool2d", cotangent, **_keywords(call.attributes)), call.args[0].type)]


@reverse_rule("nn.max_pool2d")
def max_pool2d(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The first greatest element of each window gets its cotangent; NaN counts as the greatest."""
    assert isinstance(call.attributes, Pool2dAttributes)
    return [make("nn.max_pool2d_gradient", call.args[0], cotangent, **_keywords(call.attributes))]


@reverse_rule("nn.max_pool2d_gradient")
def max_pool2d_gradient(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Each window reads the cotangent of the element that it gave its gradient to; which that is does not change."""
    attributes = call.attributes
    assert isinstance(attributes, Pool2dAttributes)
    data, gradient = call.args
    last = attributes.layout == "NHWC"
    best = make("nn.max_pool2d", data, **_keywords(attributes))
    source, best, given = (transpose(value, _TO_PLANES) if last else value for value in (data, best, cotangent))
    count, channels, height, width = sizes_of(source)
    _, _, rows, columns = sizes_of(best)
    place = _first_greatest(source, best, attributes)
    flat = (count, channels, dimensions.multiply(rows, columns))
    indices = reshape(broadcast_to(place, (count, channels, rows, columns)), flat)
    planes = reshape(given, (count, channels, dimensions.multiply(height, width)))
    read = reshape(along(planes, indices, 2), (count, channels, rows, columns))
    return [None, with_type(transpose(read, _FROM_PLANES) if last else read, gradient.type)]


def _first_greatest(source: GraphExpr, best: GraphExpr, attributes: Pool2dAttributes) -> GraphExpr:
    """Where in a flat image the first greatest element of each window lies."""
    _, _, rows, columns = sizes_of(best)
    width = sizes_of(source)[3]
    top, left, bottom, right = attributes.padding
    padded = source
    if any(attributes.padding):
        padded = make("pad", source, before=(0, 0, top, left), after=(0, 0, bottom, right), value=-math.inf)
    place: GraphExpr = number(0, INT64)
    (kernel_h, kernel_w), (space_h, space_w) = attributes.kernel, attributes.dilation
    for tap in reversed(range(kernel_h * kernel_w)):
        down, across = (tap // kernel_w) * space_h, (tap % kernel_w) * space_w
        part = _window_part(padded, 2, down, rows, attributes.strides[0])
        part = _window_part(part, 3, across, columns, attributes.strides[1])
        found = make("logical_or", make("equal", part, best), make("isnan", part))
        here = _places(rows, columns, width, attributes, (down - top, across - left))
        place = make("where", found, here, place)
    return place


def _window_part(value: GraphExpr, axis: int, begin: int, count: Size, stride: int) -> GraphExpr:
    """One element of each window along an axis."""
    end = dimensions.add(dimensions.multiply(dimensions.subtract(count, 1), stride), begin + 1)
    return slice_axis(value, axis, begin, end, stride)


def _places(
    rows: Size, columns: Size, width: Size, attributes: Pool2dAttributes, offset: tuple[int, int]
) -> GraphExpr:
    """Where in a flat image one element of each window lies."""
    down = make("arange", count=rows, start=offset[0], step=attributes.strides[0], dtype=INT64)
    across = make("arange", count=columns, start=offset[1], step=attributes.strides[1], dtype=INT64)
    wide = make("dimensions", values=(width,), shape=(), dtype=INT64)
    return add(multiply(reshape(down, (rows, 1)), wide), reshape(across, (1, columns)))


