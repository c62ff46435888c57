"""Merging layers: sums, products, extremes, concatenation and dot products of several tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.normalization import of_length_one
from tilewright.frontend.keras.registry import layer
from tilewright.frontend.keras.values import KerasBuilder, Value
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL
from tilewright.support.errors import UserError


def _same_rank(call: LayerCall) -> list[GraphExpr]:
    """All inputs, those of fewer dimensions with new ones behind the batch."""
    values = call.all_inputs()
    most = max(map(rank_of, values))
    return [call.builder.expand_dims(value, range(1, 1 + most - rank_of(value))) for value in values]


def _joined_mask(call: LayerCall) -> GraphExpr | None:
    """Steps that count in any of the inputs, if all have masks."""
    masks = [value.mask for value in call.values]
    if any(mask is None for mask in masks):
        return None
    result: GraphExpr | None = None
    for mask in masks:
        assert mask is not None
        result = mask if result is None else call.call("logical_or", result, mask)
    return result


Merge = Callable[[KerasBuilder, GraphExpr, GraphExpr], GraphExpr]


def _merging(name: str, merge: Merge) -> None:
    def convert(call: LayerCall) -> Value:
        values = _same_rank(call)
        if name == "Subtract" and len(values) != 2:
            raise UserError(f"Subtract takes two tensors, not {len(values)}")
        result = values[0]
        for value in values[1:]:
            result = merge(call.builder, result, value)
        if name == "Average":
            result = call.builder.divide(result, float(len(values)))
        return Value(result, _joined_mask(call))

    convert.__doc__ = f"{name} of several tensors."
    layer(name)(convert)


_merging("Add", lambda b, x, y: b.add(x, y))
_merging("Average", lambda b, x, y: b.add(x, y))
_merging("Subtract", lambda b, x, y: b.subtract(x, y))
_merging("Multiply", lambda b, x, y: b.multiply(x, y))
_merging("Maximum", lambda b, x, y: b.binary("maximum", x, y))
_merging("Minimum", lambda b, x, y: b.binary("minimum", x, y))


@layer("Concatenate")
def concatenate(call: LayerCall) -> Value:
    """One after the other along an axis."""
    b, values = call.builder, call.all_inputs()
    axis = call.axis(call.layer.option("axis", -1), rank_of(values[0]))
    if any(rank_of(value) != rank_of(values[0]) for value in values):
        raise UserError("tensors of different ranks are concatenated")
    return Value(b.concatenate(b.operands(*values), axis), _concatenated_mask(call, values, axis))


def _concatenated_mask(call: LayerCall, values: list[GraphExpr], axis: int) -> GraphExpr | None:
    if all(value.mask is None for value in call.values):
        return None
    b, parts = call.builder, []
    for value, expr in zip(call.values, values, strict=True):
        sizes = sizes_of(expr)
        if value.mask is None:
            parts.append(b.filled(1, sizes, BOOL))
            continue
        shape = (*sizes_of(value.mask), *(1,) * (len(sizes) - rank_of(value.mask)))
        parts.append(b.broadcast_to(b.reshape(b.truth(value.mask), shape), sizes))
    whole = b.concatenate(parts, axis)
    return b.reduce("all", whole, (rank_of(whole) - 1,))


@layer("Dot")
def dot(call: LayerCall) -> GraphExpr:
    """Sums of products along an axis of each of two tensors, sample by sample."""
    b, values = call.builder, call.all_inputs()
    if len(values) != 2:
        raise UserError(f"Dot takes two tensors, not {len(values)}")
    axes = call.layer.option("axes")
    listed = list(axes) if isinstance(axes, (list, tuple)) else [axes, axes]
    if len(listed) != 2:
        raise UserError(f"axes must be one number or two, it is {axes!r}")
    places = [call.axis(axis, rank_of(value)) for axis, value in zip(listed, values, strict=True)]
    if 0 in places:
        raise UserError("the batch is no axis of a Dot layer")
    if call.layer.flag("normalize"):
        values = [of_length_one(b, value, (place,), 2, 1e-7) for value, place in zip(values, places, strict=True)]
    return batch_dot(b, values[0], values[1], places[0], places[1])


def batch_dot(b: KerasBuilder, x: GraphExpr, y: GraphExpr, first: int, second: int) -> GraphExpr:
    """Products summed along an axis of each, for each sample."""
    x, y = b.operands(x, y)
    left = [axis for axis in range(1, rank_of(x)) if axis != first]
    right = [axis for axis in range(1, rank_of(y)) if axis != second]
    batch = sizes_of(x)[0]
    rows, columns = [sizes_of(x)[axis] for axis in left], [sizes_of(y)[axis] for axis in right]
    a = b.reshape(b.transpose(x, [0, *left, first]), (batch, product(rows), sizes_of(x)[first]))
    c = b.reshape(b.transpose(y, [0, second, *right]), (sizes_of(y)[0], sizes_of(y)[second], product(columns)))
    shape: list[Any] = [batch, *rows, *columns]
    result = b.call("matmul", a, c)
    if len(shape) == 1:
        shape.append(1)
    assert dtype_of(result) is dtype_of(x)
    return b.reshape(result, shape)
