"""Local response normalisation, across channels and within them, and other divisions by norms: shared by importers."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import Builder, sizes_of
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.support.errors import UserError


def _divided(builder: Builder, data: GraphExpr, mean: GraphExpr, alpha: float, beta: float, bias: float) -> GraphExpr:
    """x / (bias + alpha * mean) ** beta."""
    scaled = builder.call("multiply", mean, builder.constant_like(alpha, mean))
    base = builder.call("add", scaled, builder.constant_like(bias, mean))
    return builder.call("divide", data, builder.call("power", base, builder.constant_like(beta, mean)))


def across_channels(builder: Builder, data: GraphExpr, size: int, alpha: float, beta: float, bias: float) -> GraphExpr:
    """x / (bias + alpha * average of the squares of neighbouring channels) ** beta."""
    shape = sizes_of(data)
    if len(shape) < 2 or size < 1:
        raise UserError(f"LRN over {size} channels does not fit data of shape {sizes_text(shape)}")
    square = builder.reshape(builder.call("multiply", data, data), (shape[0], 1, shape[1], product(shape[2:])))
    before = (size - 1) // 2
    mean = builder.call(
        "nn.avg_pool2d", square, kernel=(size, 1), padding=(before, 0, size - 1 - before, 0), count_include_pad=True
    )
    return _divided(builder, data, builder.reshape(mean, shape), alpha, beta, bias)


def within_channels(builder: Builder, data: GraphExpr, size: int, alpha: float, beta: float, bias: float) -> GraphExpr:
    """x / (bias + alpha * average of the squares of neighbours in the plane) ** beta."""
    shape = sizes_of(data)
    if len(shape) != 4 or size < 1 or size % 2 == 0:
        raise UserError(f"LRN over {size} x {size} elements does not fit data of shape {sizes_text(shape)}")
    mean = builder.call(
        "nn.avg_pool2d",
        builder.call("multiply", data, data),
        kernel=(size, size),
        padding=(size // 2,) * 4,
        count_include_pad=True,
    )
    return _divided(builder, data, mean, alpha, beta, bias)


def mean_free(
    builder: Builder, data: GraphExpr, axes: Sequence[int], epsilon: float, *, outside: bool, by_variance: bool = True
) -> GraphExpr:
    """(x - mean) / deviation over axes; epsilon is added to the deviation (`outside`), or to the variance."""
    mean = builder.call("mean", data, axes=tuple(axes), keepdims=True)
    centred = builder.call("subtract", data, mean)
    if not by_variance:
        return centred
    variance = builder.call("mean", builder.call("multiply", centred, centred), axes=tuple(axes), keepdims=True)
    small = builder.constant_like(epsilon, variance)
    if outside:
        deviation = builder.call("add", builder.call("sqrt", variance), small)
        return builder.call("divide", centred, deviation)
    return builder.call("multiply", centred, builder.call("rsqrt", builder.call("add", variance, small)))


def of_unit_length(builder: Builder, data: GraphExpr, axes: Sequence[int], epsilon: float) -> GraphExpr:
    """x / sqrt(sum of squares over axes + epsilon)."""
    total = builder.call("sum", builder.call("multiply", data, data), axes=tuple(axes), keepdims=True)
    total = builder.call("add", total, builder.constant_like(epsilon, total))
    return builder.call("multiply", data, builder.call("rsqrt", total))
