"""Resampling along an axis at places that are computed when the model runs: shared by importers.

A place is a coordinate in the data (float32), one for each element of the result. How results map to places is a
framework's own business.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from tilewright.frontend.core.builder import Builder, dtype_of, rank_of, sizes_of
from tilewright.graph.ir.dimensions import Size, floor_divide, multiply, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array

_LARGEST_SCALED = 1 << 16
"""Sizes up to this one are scaled by fractions exactly as by floats."""


def _floor_fraction(scale: float, kind: str) -> Fraction | None:
    """A fraction that sizes are multiplied with, and rounded down, as they are with a float of a kind (`float32`).

    None if there is none. The fraction meant is tried first: 10 * 0.7 is 7 in floats, though the float nearest to 0.7
    lies below it.
    """
    sizes = np.arange(_LARGEST_SCALED + 1, dtype=np.int64)
    wanted = np.floor(sizes.astype(kind) * np.asarray(scale, kind)).astype(np.int64)
    for fraction in (Fraction(float(scale)).limit_denominator(1 << 10), Fraction(float(scale))):
        is_small = fraction.denominator <= 1 << 30 and fraction.numerator <= 1 << 30
        if is_small and np.array_equal(sizes * fraction.numerator // fraction.denominator, wanted):
            return fraction
    return None


def scaled_size(size: Size, scale: float, kind: str) -> Size | None:
    """A size times a float of a kind, rounded down; None if no fraction agrees with that."""
    fraction = _floor_fraction(scale, kind)
    return None if fraction is None else floor_divide(multiply(size, fraction.numerator), fraction.denominator)


def number(builder: Builder, size: Size) -> GraphExpr:
    """A size as a float32 number."""
    return builder.reshape(builder.cast(builder.shape_tensor((size,)), "float32"), ())


def plain(builder: Builder, value: float) -> GraphExpr:
    """A float32 number."""
    return builder.constant(value, "float32")


def take_at(builder: Builder, data: GraphExpr, axis: int, places: GraphExpr) -> GraphExpr:
    """Elements at whole places along an axis; places outside are at the border."""
    return builder.call("take", data, builder.cast(places, "int64"), axis=axis, mode="clip")


def linear_at(builder: Builder, data: GraphExpr, axis: int, places: GraphExpr) -> GraphExpr:
    """Values between neighbours along an axis of floats."""
    low = builder.call("floor", places)
    beyond = builder.call("subtract", places, low)
    # Weights of places outside need no care: the border, read in their place, gets both.
    weights = [builder.call("subtract", plain(builder, 1.0), beyond), beyond]
    return _weighted(builder, data, axis, [low, builder.call("add", low, plain(builder, 1.0))], weights)


def cubic_at(
    builder: Builder, data: GraphExpr, axis: int, places: GraphExpr, a: float, exclude_outside: bool = False
) -> GraphExpr:
    """Values of the cubic convolution along an axis of floats; what lies outside is the border, or left out."""
    low = builder.call("floor", places)
    taps = [builder.call("add", low, plain(builder, float(step))) for step in range(-1, 3)]
    weights = _cubic_weights(builder, builder.call("subtract", places, low), a)
    if exclude_outside:
        weights = _within(builder, taps, weights, number(builder, subtract(sizes_of(data)[axis], 1)))
    return _weighted(builder, data, axis, taps, weights)


def _weighted(
    builder: Builder, data: GraphExpr, axis: int, taps: Sequence[GraphExpr], weights: Sequence[GraphExpr]
) -> GraphExpr:
    shape: list[Size] = [1] * rank_of(data)
    shape[axis] = sizes_of(taps[0])[0]
    total: GraphExpr | None = None
    for tap, weight in zip(taps, weights, strict=True):
        factor = builder.cast(builder.reshape(weight, shape), dtype_of(data))
        part = builder.call("multiply", take_at(builder, data, axis, tap), factor)
        total = part if total is None else builder.call("add", total, part)
    assert total is not None
    return total


def _cubic_weights(builder: Builder, beyond: GraphExpr, a: float) -> list[GraphExpr]:
    """Weights of the places -1, 0, 1 and 2 steps from the one below, which lies so far (0 to 1) before the point."""

    def polynomial(x: GraphExpr, *factors: float) -> GraphExpr:
        total: GraphExpr = plain(builder, factors[0])
        for factor in factors[1:]:
            total = builder.call("add", builder.call("multiply", total, x), plain(builder, factor))
        return total

    ahead = builder.call("subtract", plain(builder, 1.0), beyond)
    near, far = (a + 2, -(a + 3), 0.0, 1.0), (a, -2 * a, a, 0.0)  # far: of the distance less 1
    return [polynomial(beyond, *far), polynomial(beyond, *near), polynomial(ahead, *near), polynomial(ahead, *far)]


def _within(
    builder: Builder, places: Sequence[GraphExpr], weights: Sequence[GraphExpr], last: GraphExpr
) -> list[GraphExpr]:
    """Weights without those of places outside, which sum up to 1 again."""
    zero = plain(builder, 0.0)
    kept: list[GraphExpr] = []
    for place, weight in zip(places, weights, strict=True):
        above, below = builder.call("greater_equal", place, zero), builder.call("less_equal", place, last)
        kept.append(builder.call("where", builder.call("logical_and", above, below), weight, zero))
    total = kept[0]
    for weight in kept[1:]:
        total = builder.call("add", total, weight)
    return [builder.call("divide", weight, total) for weight in kept]


def weighted_taps(builder: Builder, data: GraphExpr, axis: int, places: Array, weights: Array) -> GraphExpr:
    """The weighted sum of taps (elements, taps) along an axis; one tap of weight 1 is a mere choice."""
    if places.shape[1] == 1 and (weights == 1).all():
        return builder.call("take", data, builder.constant(places[:, 0], "int64"), axis=axis)
    shape = [-1 if at == axis else 1 for at in range(rank_of(data))]
    total: GraphExpr | None = None
    for tap in range(places.shape[1]):
        chosen = builder.call("take", data, builder.constant(places[:, tap], "int64"), axis=axis)
        factor = builder.constant(weights[:, tap].reshape(shape), dtype_of(data))
        part = builder.call("multiply", chosen, factor)
        total = part if total is None else builder.call("add", total, part)
    assert total is not None
    return total
