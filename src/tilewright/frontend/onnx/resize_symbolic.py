"""Resampling along an axis of symbolic size: places and weights are computed when the model runs."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.resampling import cubic_at, linear_at, number, plain, take_at
from tilewright.frontend.onnx.context import NodeContext
from tilewright.graph.ir.dimensions import Size, as_dims, product, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import size_text
from tilewright.graph.ops.resampling import Rule
from tilewright.support.errors import UnsupportedError, UserError

Scale = float | GraphExpr | None
"""How much an axis is stretched: known, computed, or the ratio of sizes that vary."""
Region = tuple[float | GraphExpr, float | GraphExpr]
"""From where to where in the data, as shares of it: known or computed."""


def resample_by_matrix(
    node: NodeContext, data: GraphExpr, axis: int, size: Size, scale: Scale, rule: Rule, region: Region | None
) -> tuple[GraphExpr, GraphExpr]:
    """One axis by a product with weights that the host computes; and which elements of the result lie outside."""
    builder = node.builder
    old = sizes_of(data)[axis]
    values = [builder.reshape(builder.shape_tensor((item,)), ()) for item in (old, size)]
    for item in (_factor(node, old, size, scale), *(region or (0.0, 1.0))):
        values.append(builder.cast(item, "float32") if isinstance(item, GraphExpr) else plain(builder, item))
    found = node.call(
        "host.resize_weights",
        *values,
        dims=as_dims((size, old)),
        mode=rule.mode,
        transformation=rule.transformation,
        nearest=rule.nearest,
        cubic=rule.cubic,
        exclude_outside=rule.exclude_outside,
        antialias=rule.antialias,
    )
    weights, beyond = builder.cast(builder.item(found, 0), dtype_of(data)), builder.item(found, 1)
    last = rank_of(data) - 1
    order = (*(at for at in range(last + 1) if at != axis), axis)
    back = tuple(order.index(at) for at in range(last + 1))
    turned = builder.transpose(data, order)
    rows = builder.reshape(turned, (product(sizes_of(turned)[:-1]), old))
    summed = node.call("matmul", rows, weights, transpose_b=True)
    return builder.transpose(builder.reshape(summed, (*sizes_of(turned)[:-1], size)), back), beyond


def _factor(node: NodeContext, old: Size, new: Size, scale: Scale) -> GraphExpr:
    """How much an axis is stretched, as a number of the program."""
    builder = node.builder
    if isinstance(scale, GraphExpr):
        return scale
    if scale is not None:
        return plain(builder, scale)
    return node.call("divide", number(builder, new), number(builder, old))


def resample_axis(
    node: NodeContext,
    data: GraphExpr,
    axis: int,
    size: Size,
    scale: Scale,
    rule: Rule,
) -> GraphExpr:
    """One axis to another size, stretched by a scale (None: by the ratio of the sizes); of floats but for nearest."""
    builder = node.builder
    places = _places(node, sizes_of(data)[axis], size, scale, rule)
    if rule.mode == "nearest":
        return take_at(builder, data, axis, _nearest(node, places, rule.nearest))
    if rule.mode == "linear":
        return linear_at(builder, data, axis, places)
    return cubic_at(builder, data, axis, places, rule.cubic, rule.exclude_outside)


def _places(node: NodeContext, old: Size, new: Size, scale: Scale, rule: Rule) -> GraphExpr:
    """Where each element of the result lies in the data."""
    builder = node.builder
    x = builder.cast(builder.arange(new), "float32")
    factor = _factor(node, old, new, scale)
    half = node.call("divide", node.call("add", x, plain(builder, 0.5)), factor)
    match rule.transformation:
        case "asymmetric":
            return node.call("divide", x, factor)
        case "half_pixel":
            return node.call("subtract", half, plain(builder, 0.5))
        case "pytorch_half_pixel":
            is_one = node.call("less_equal", number(builder, new), plain(builder, 1.0))
            shifted = node.call("subtract", half, plain(builder, 0.5))
            return node.call("where", is_one, plain(builder, 0.0), shifted)
        case "tf_half_pixel_for_nn":
            return half
        case "align_corners":
            length = number(builder, new) if scale is None else node.call("multiply", number(builder, old), factor)
            stretched = node.call("multiply", x, number(builder, subtract(old, 1)))
            place = node.call("divide", stretched, node.call("subtract", length, plain(builder, 1.0)))
            is_one = node.call("less_equal", number(builder, new), plain(builder, 1.0))
            return node.call("where", is_one, plain(builder, 0.0), place)
        case "half_pixel_symmetric":
            length = node.call("multiply", number(builder, old), factor)
            missing = node.call("subtract", plain(builder, 1.0), node.call("divide", number(builder, new), length))
            middle = node.call("divide", number(builder, old), plain(builder, 2.0))
            offset = node.call("subtract", node.call("multiply", middle, missing), plain(builder, 0.5))
            return node.call("add", offset, half)
    raise UnsupportedError(
        f"Resize of a dimension from {size_text(old)} to {size_text(new)} with coordinates by {rule.transformation}"
    )


def _nearest(node: NodeContext, place: GraphExpr, nearest: str) -> GraphExpr:
    half = plain(node.builder, 0.5)
    match nearest:
        case "round_prefer_floor":
            return node.call("ceil", node.call("subtract", place, half))
        case "round_prefer_ceil":
            return node.call("floor", node.call("add", place, half))
        case "floor" | "simple":
            return node.call("floor", place)
        case "ceil":
            return node.call("ceil", place)
    raise UserError(f"unknown nearest_mode {nearest!r}")
