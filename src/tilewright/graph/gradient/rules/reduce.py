"""Reductions and running sums and products."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.gradient.expressions import (
    add,
    broadcast_to,
    cast,
    compare,
    concatenate,
    divide,
    item,
    multiply,
    number,
    reshape,
    sizes_of,
    slice_axis,
    subtract,
    total,
    where,
    zeros_like,
)
from tilewright.graph.gradient.registry import Cotangents, blocks_gradient, linear, reverse_rule
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.reduce import CumulativeAttributes, ReduceAttributes
from tilewright.ir.dtype import FLOAT32, INT64


def kept(value: GraphExpr, data: GraphExpr, axes: Sequence[int]) -> GraphExpr:
    """A reduced value with dimensions of 1 where the axes were."""
    return reshape(value, [1 if axis in axes else size for axis, size in enumerate(sizes_of(data))])


def spread(cotangent: GraphExpr, call: Call) -> GraphExpr:
    """The cotangent of a reduction for each of the elements reduced."""
    assert isinstance(call.attributes, ReduceAttributes)
    (data,) = call.args
    return broadcast_to(kept(cotangent, data, call.attributes.axes), sizes_of(data))


@linear("sum")
def sum_(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Every element gets the cotangent of its sum."""
    return [spread(cotangent, call)]


@linear("mean")
def mean(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Every element gets its share."""
    assert isinstance(call.attributes, ReduceAttributes)
    return [spread(share_of(cotangent, call.args[0], call.attributes.axes), call)]


def share_of(value: GraphExpr, data: GraphExpr, axes: Sequence[int]) -> GraphExpr:
    """A value divided by the number of elements along axes of some data."""
    sizes, dtype = sizes_of(data), value.tensor_type.dtype
    count = dimensions.product([sizes[axis] for axis in axes])
    if isinstance(count, int):
        return multiply(value, 1 / max(count, 1))
    counted = make("dimensions", values=(count,), shape=(), dtype=INT64)
    return divide(value, cast(cast(counted, FLOAT32), dtype))


@reverse_rule("moments")
def moments(call: Call, cotangents: Sequence[GraphExpr | None]) -> Cotangents:
    """With m' and v' those of mean and variance: (m' + 2 v' (x - mean)) / count."""
    assert isinstance(call.attributes, ReduceAttributes)
    (data,), axes = call.args, call.attributes.axes
    dtype = data.tensor_type.dtype
    of_mean, of_variance = cotangents
    parts: list[GraphExpr] = []
    if of_mean is not None:
        parts.append(broadcast_to(kept(share_of(of_mean, data, axes), data, axes), sizes_of(data)))
    if of_variance is not None:
        slope = multiply(share_of(of_variance, data, axes), 2)
        mean = kept(item(call, 0), data, axes)
        parts.append(multiply(subtract(cast(data, slope.tensor_type.dtype), mean), kept(slope, data, axes)))
    return [cast(parts[0] if len(parts) == 1 else add(*parts), dtype)]


@reverse_rule("max", "min")
def extreme(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The elements that are the extreme share the cotangent evenly."""
    assert isinstance(call.attributes, ReduceAttributes)
    (data,) = call.args
    axes = call.attributes.axes
    found = cast(compare("equal", data, kept(call, data, axes)), data.tensor_type.dtype)
    share = divide(kept(cotangent, data, axes), total(found, axes, keepdims=True))
    return [multiply(found, share)]


@reverse_rule("prod")
def prod(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The product of the others: the whole by the element, or without the one zero that there is."""
    assert isinstance(call.attributes, ReduceAttributes)
    (data,) = call.args
    axes = call.attributes.axes
    dtype = data.tensor_type.dtype
    is_zero = compare("equal", data, 0)
    zeros = total(cast(is_zero, dtype), axes, keepdims=True)
    rest = make("prod", where(is_zero, 1, data), axes=axes, keepdims=True)
    at_zero = where(compare("equal", zeros, 1), rest, 0)
    elsewhere = divide(kept(call, data, axes), where(is_zero, 1, data))
    return [multiply(kept(cotangent, data, axes), where(is_zero, at_zero, elsewhere))]


@linear("cumsum")
def cumsum(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The running sum from the other end."""
    assert isinstance(call.attributes, CumulativeAttributes)
    return [_running("cumsum", cotangent, call.attributes.axis, not call.attributes.reverse, call.attributes.exclusive)]


def _running(name: str, value: GraphExpr, axis: int, reverse: bool, exclusive: bool = False) -> GraphExpr:
    return make(name, value, axis=axis, reverse=reverse, exclusive=exclusive)


@reverse_rule("cumprod")
def cumprod(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Sums of later products by the element; at the first zero, of those without it."""
    assert isinstance(call.attributes, CumulativeAttributes)
    (data,) = call.args
    axis, reverse = call.attributes.axis, call.attributes.reverse
    products: GraphExpr = call
    if call.attributes.exclusive:
        products = _running("cumprod", data, axis, reverse)
        cotangent = _shifted(cotangent, axis, reverse)
    is_zero = compare("equal", data, 0)
    before = _running("cumsum", cast(is_zero, INT64), axis, reverse, exclusive=True)
    first = make("logical_and", is_zero, make("equal", before, number(0, INT64)))
    without = _running("cumprod", where(first, 1, data), axis, reverse)
    at_zero = _running("cumsum", multiply(cotangent, without), axis, not reverse)
    later = _running("cumsum", multiply(cotangent, products), axis, not reverse)
    return [where(first, at_zero, where(is_zero, 0, divide(later, where(is_zero, 1, data))))]


def _shifted(value: GraphExpr, axis: int, reverse: bool) -> GraphExpr:
    """Each element moved one place against the direction of the run, and 0 at its end."""
    size = sizes_of(value)[axis]
    zero = zeros_like(slice_axis(value, axis, 0, 1))
    if reverse:
        return concatenate([zero, slice_axis(value, axis, 0, dimensions.subtract(size, 1))], axis)
    return concatenate([slice_axis(value, axis, 1, size), zero], axis)


blocks_gradient("the result is not a float", "all", "any", "argmax", "argmin")
