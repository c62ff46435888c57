"""Operators that move elements: their transposes move them back, and add up what was copied."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.gradient.expressions import (
    add,
    concatenate,
    flip,
    pad,
    rank_of,
    reshape,
    sizes_of,
    slice_axis,
    sum_to,
    total,
    transpose,
    with_type,
    zeros_like,
)
from tilewright.graph.gradient.registry import Cotangents, blocks_gradient, linear, reverse_rule
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ops.shape import (
    AxisAttributes,
    PadAttributes,
    SliceAttributes,
    SplitAttributes,
    TileAttributes,
    TransposeAttributes,
)
from tilewright.ir.types import TupleType


@linear("reshape")
def reshape_(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Back to the shape of the input."""
    return [reshape(cotangent, sizes_of(call.args[0]))]


@linear("transpose")
def transpose_(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Back to the order of the input."""
    assert isinstance(call.attributes, TransposeAttributes)
    axes = call.attributes.axes
    return [transpose(cotangent, [axes.index(axis) for axis in range(len(axes))])]


@linear("broadcast_to")
def broadcast_to(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Summed over what was repeated."""
    return [sum_to(cotangent, call.args[0])]


@linear("assume_shape")
def assume_shape(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The cotangent itself."""
    return [with_type(cotangent, call.args[0].type)]


@reverse_rule("concatenate")
def concatenate_(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Each part gets its part."""
    assert isinstance(call.attributes, AxisAttributes)
    axis = call.attributes.axis
    parts: list[GraphExpr] = []
    begin: Size = 0
    for part in call.args:
        end = dimensions.add(begin, sizes_of(part)[axis])
        parts.append(slice_axis(cotangent, axis, begin, end))
        begin = end
    return parts


@linear("split")
def split(call: Call, cotangents: Sequence[GraphExpr | None]) -> Cotangents:
    """The parts together; those that nothing used are zeros."""
    assert isinstance(call.attributes, SplitAttributes)
    assert isinstance(call.type, TupleType)
    (data,) = call.args
    axis = call.attributes.axis
    parts: list[GraphExpr] = []
    begin: Size = 0
    for size, given in zip(call.attributes.sizes, cotangents, strict=True):
        end = dimensions.add(begin, size)
        parts.append(zeros_like(slice_axis(data, axis, begin, end)) if given is None else given)
        begin = end
    return [with_type(concatenate(parts, axis), data.type)]


@linear("slice")
def slice_(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Zeros, with the cotangent at the places that were read."""
    assert isinstance(call.attributes, SliceAttributes)
    (data,) = call.args
    sizes = sizes_of(data)
    before: list[Size] = [0] * len(sizes)
    after: list[Size] = [0] * len(sizes)
    if any(size == 0 for size in sizes_of(cotangent) if isinstance(size, int)):
        return [zeros_like(data)]
    for axis, (size, begin, stride) in enumerate(
        zip(sizes, call.attributes.begin, call.attributes.strides, strict=True)
    ):
        count = sizes_of(cotangent)[axis]
        reach = dimensions.add(dimensions.multiply(dimensions.subtract(count, 1), abs(stride)), 1)
        first = begin if stride > 0 else dimensions.add(dimensions.subtract(begin, reach), 1)
        if stride < 0:
            cotangent = flip(cotangent, axis)
        if abs(stride) > 1:
            cotangent = _dilated(cotangent, axis, abs(stride), reach)
        before[axis] = first
        after[axis] = dimensions.subtract(dimensions.subtract(size, first), reach)
    return [with_type(pad(cotangent, before, after), data.type)]


def _dilated(value: GraphExpr, axis: int, stride: int, reach: Size) -> GraphExpr:
    """Elements along an axis with zeros between them."""
    sizes = sizes_of(value)
    rank = len(sizes)
    apart = reshape(value, (*sizes[: axis + 1], 1, *sizes[axis + 1 :]))
    after = [0] * (rank + 1)
    after[axis + 1] = stride - 1
    apart = pad(apart, [0] * (rank + 1), after)
    joined = reshape(apart, (*sizes[:axis], dimensions.multiply(sizes[axis], stride), *sizes[axis + 1 :]))
    return slice_axis(joined, axis, 0, reach)


@reverse_rule("pad")
def pad_(call: Call, cotangent: GraphExpr) -> Cotangents:
    """What is inside; what was copied from the data comes back to where it was."""
    assert isinstance(call.attributes, PadAttributes)
    (data,) = call.args
    for axis, size in enumerate(sizes_of(data)):
        before, after = call.attributes.before[axis], call.attributes.after[axis]
        if before == 0 and after == 0:
            continue
        end = dimensions.add(before, size)
        inside = slice_axis(cotangent, axis, before, end)
        if call.attributes.mode != "constant":
            first = slice_axis(cotangent, axis, 0, before) if before != 0 else None
            last = slice_axis(cotangent, axis, end, dimensions.add(end, after)) if after != 0 else None
            inside = _folded(inside, first, last, axis, size, mirrored=call.attributes.mode == "reflect")
        cotangent = inside
    return [with_type(cotangent, data.type)]


def _folded(
    inside: GraphExpr, first: GraphExpr | None, last: GraphExpr | None, axis: int, size: Size, mirrored: bool
) -> GraphExpr:
    """The cotangents of padding added to those of the elements that it was copied from."""
    for part, at_end in ((first, False), (last, True)):
        if part is None:
            continue
        part = flip(part, axis) if mirrored else total(part, [axis], keepdims=True)
        skipped = 1 if mirrored else 0
        rest = dimensions.subtract(dimensions.subtract(size, sizes_of(part)[axis]), skipped)
        before: list[Size] = [0] * rank_of(part)
        after: list[Size] = [0] * rank_of(part)
        before[axis], after[axis] = (rest, skipped) if at_end else (skipped, rest)
        inside = add(inside, with_type(pad(part, before, after), inside.type))
    return inside


@linear("tile")
def tile(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Summed over the repetitions."""
    assert isinstance(call.attributes, TileAttributes)
    (data,) = call.args
    shape: list[Size] = []
    for size, repeats in zip(sizes_of(data), call.attributes.repeats, strict=True):
        shape += [repeats, size]
    apart = reshape(cotangent, shape)
    return [total(apart, [axis for axis in range(0, len(shape), 2)])]


@linear("checked")
def checked(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The cotangent itself."""
    return [cotangent, None]


@linear("shape.match")
def match(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The cotangent itself."""
    return [with_type(cotangent, call.args[0].type)]


@reverse_rule("shape.reshape")
def reshape_by_data(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Back to the shape of the input."""
    return [reshape(cotangent, sizes_of(call.args[0])), None]


@reverse_rule("shape.broadcast")
def broadcast_by_data(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Summed over what was repeated."""
    return [sum_to(cotangent, call.args[0]), None]


@linear("axes.insert", "axes.remove")
def insert_axes(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Back to the shape of the input."""
    return [reshape(cotangent, sizes_of(call.args[0])), None]


blocks_gradient("sizes are whole numbers", "dimensions", "arange", "shape.range", "check_values", "host.rank")
