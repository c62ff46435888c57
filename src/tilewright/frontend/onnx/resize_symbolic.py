"""Resampling along an axis of symbolic size: places and weights are computed when the model runs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tilewright.frontend.builder import dtype_of, rank_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.graph.dimensions import Size, floor_divide, multiply, subtract
from tilewright.graph.expr import GraphExpr
from tilewright.graph.ops.common import size_text
from tilewright.support.errors import UnsupportedError, UserError


@dataclass(frozen=True, slots=True)
class Rule:
    """How coordinates of the result map to the data, and what is read there."""

    mode: str
    transformation: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool
    extrapolation: float


def scaled_size(size: Size, scale: float) -> Size:
    """floor(size * scale), where the scale counts as the float32 number that it is stored as."""
    if not np.isfinite(scale) or scale <= 0:
        raise UserError(f"a scale must be positive, it is {scale}")
    fraction = Fraction(float(np.float32(scale)))
    return floor_divide(multiply(size, fraction.numerator), fraction.denominator)


def resample_axis(
    node: NodeContext,
    data: GraphExpr,
    axis: int,
    sizes: tuple[Size, Size],
    scale: float | None,
    rule: Rule,
) -> GraphExpr:
    """One axis from a size to another, stretched by a scale (None: by the ratio of the sizes)."""
    builder, (old, new) = node.builder, sizes
    what = f"Resize of a dimension from {size_text(old)} to {size_text(new)}"

    def number(size: Size) -> GraphExpr:
        return builder.reshape(builder.cast(builder.shape_tensor((size,)), "float32"), ())

    def plain(value: float) -> GraphExpr:
        return builder.constant(value, "float32")

    x = builder.cast(builder.arange(new), "float32")
    factor = plain(scale) if scale is not None else node.call("divide", number(new), number(old))
    half = node.call("divide", node.call("add", x, plain(0.5)), factor)
    match rule.transformation:
        case "asymmetric":
            place = node.call("divide", x, factor)
        case "half_pixel":
            place = node.call("subtract", half, plain(0.5))
        case "pytorch_half_pixel":
            is_one = node.call("less_equal", number(new), plain(1.0))
            place = node.call("where", is_one, plain(0.0), node.call("subtract", half, plain(0.5)))
        case "tf_half_pixel_for_nn":
            place = half
        case "align_corners":
            spaces = node.call("maximum", number(subtract(new, 1)), plain(1.0))
            place = node.call("divide", node.call("multiply", x, number(subtract(old, 1))), spaces)
        case _:
            raise UnsupportedError(f"{what} with coordinates by {rule.transformation}")
    if rule.mode == "nearest":
        return _take(node, data, _nearest(node, place, rule.nearest, what), axis)
    low = node.call("floor", place)
    beyond = node.call("subtract", place, low)
    value = data if dtype_of(data).is_float else builder.cast(data, "float32")
    places = [node.call("add", low, plain(float(step))) for step in ((0, 1) if rule.mode == "linear" else range(-1, 3))]
    if rule.mode == "linear":
        # Weights of places outside need no care: the border, read in their place, gets both.
        weights = [node.call("subtract", plain(1.0), beyond), beyond]
    else:
        weights = _cubic_weights(node, beyond, rule.cubic)
        if rule.exclude_outside:
            weights = _within(node, places, weights, number(subtract(old, 1)))
    shape: list[Size] = [1] * rank_of(data)
    shape[axis] = new
    total: GraphExpr | None = None
    for tap, weight in zip(places, weights, strict=True):
        factor = builder.cast(builder.reshape(weight, shape), dtype_of(value))
        part = node.call("multiply", _take(node, value, tap, axis), factor)
        total = part if total is None else node.call("add", total, part)
    assert total is not None
    return builder.cast(total if dtype_of(data).is_float else node.call("round", total), dtype_of(data))


def _cubic_weights(node: NodeContext, beyond: GraphExpr, a: float) -> list[GraphExpr]:
    """Weights of the places -1, 0, 1 and 2 steps from the one below, which lies so far (0 to 1) before the point."""

    def polynomial(x: GraphExpr, *factors: float) -> GraphExpr:
        total: GraphExpr = node.builder.constant(factors[0], "float32")
        for factor in factors[1:]:
            total = node.call("add", node.call("multiply", total, x), node.builder.constant(factor, "float32"))
        return total

    ahead = node.call("subtract", node.builder.constant(1.0, "float32"), beyond)
    near, far = (a + 2, -(a + 3), 0.0, 1.0), (a, -2 * a, a, 0.0)  # far: of the distance less 1
    return [polynomial(beyond, *far), polynomial(beyond, *near), polynomial(ahead, *near), polynomial(ahead, *far)]


def _within(node: NodeContext, places: list[GraphExpr], weights: list[GraphExpr], last: GraphExpr) -> list[GraphExpr]:
    """Weights without those of places outside, which sum up to 1 again."""
    zero = node.builder.constant(0.0, "float32")
    kept: list[GraphExpr] = []
    for place, weight in zip(places, weights, strict=True):
        inside = node.call("logical_and", node.call("greater_equal", place, zero), node.call("less_equal", place, last))
        kept.append(node.call("where", inside, weight, zero))
    total = kept[0]
    for weight in kept[1:]:
        total = node.call("add", total, weight)
    return [node.call("divide", weight, total) for weight in kept]


def _nearest(node: NodeContext, place: GraphExpr, nearest: str, what: str) -> GraphExpr:
    half = node.builder.constant(0.5, "float32")
    match nearest:
        case "round_prefer_floor":
            return node.call("ceil", node.call("subtract", place, half))
        case "round_prefer_ceil":
            return node.call("floor", node.call("add", place, half))
        case "floor" | "simple":
            return node.call("floor", place)
        case "ceil":
            return node.call("ceil", place)
    raise UserError(f"{what}: unknown nearest_mode {nearest!r}")


def _take(node: NodeContext, data: GraphExpr, places: GraphExpr, axis: int) -> GraphExpr:
    """Elements at places along an axis; places outside are at the border."""
    return node.call("take", data, node.builder.cast(places, "int64"), axis=axis, mode="clip")
