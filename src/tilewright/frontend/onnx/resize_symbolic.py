"""Resampling along an axis of symbolic size: places and weights are computed when the model runs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tilewright.frontend.builder import dtype_of, rank_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.graph.dimensions import Size, floor_divide, multiply, subtract
from tilewright.graph.expr import GraphExpr
from tilewright.graph.ops.common import size_text
from tilewright.support.errors import UnsupportedError, UserError


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
    rule: tuple[str, str, str],
) -> GraphExpr:
    """One axis from a size to another, stretched by a scale (None: by the ratio of the sizes).

    The rule names the mode (nearest, linear), the transformation of coordinates and what is nearest.
    """
    builder, (old, new), (mode, transformation, nearest) = node.builder, sizes, rule
    what = f"Resize of a dimension from {size_text(old)} to {size_text(new)}"
    if mode not in ("nearest", "linear"):
        raise UnsupportedError(f"{what} by mode {mode}")

    def number(size: Size) -> GraphExpr:
        return builder.reshape(builder.cast(builder.shape_tensor((size,)), "float32"), ())

    def plain(value: float) -> GraphExpr:
        return builder.constant(value, "float32")

    x = builder.cast(builder.arange(new), "float32")
    factor = plain(scale) if scale is not None else node.call("divide", number(new), number(old))
    half = node.call("divide", node.call("add", x, plain(0.5)), factor)
    match transformation:
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
            raise UnsupportedError(f"{what} with coordinates by {transformation}")
    if mode == "nearest":
        return _take(node, data, _nearest(node, place, nearest, what), axis)
    low = node.call("floor", place)
    weight = node.call("subtract", place, low)
    shape: list[Size] = [1] * rank_of(data)
    shape[axis] = new
    value = data if dtype_of(data).is_float else builder.cast(data, "float32")
    above = builder.cast(builder.reshape(weight, shape), dtype_of(value))
    below = node.call("subtract", builder.constant_like(1, above), above)
    total = node.call(
        "add",
        node.call("multiply", _take(node, value, low, axis), below),
        node.call("multiply", _take(node, value, node.call("add", low, plain(1.0)), axis), above),
    )
    return builder.cast(total if dtype_of(data).is_float else node.call("round", total), dtype_of(data))


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
