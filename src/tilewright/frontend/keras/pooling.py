"""Pooling over windows, over everything and over parts of equal share."""

from __future__ import annotations

import math

from tilewright.frontend.core.adaptive import adaptive_average
from tilewright.frontend.core.builder import LARGEST_MADE, dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.pools import pooled
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.registry import layer, operation
from tilewright.frontend.keras.values import Value
from tilewright.frontend.keras.windows import extents_of, padded
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


def _pool(call: LayerCall, kind: str, rank: int) -> GraphExpr:
    b, data, options = call.builder, call.data(rank + 2), call.layer
    size = options.integers("pool_size" if "pool_size" in options.config else "pool_length", rank, 2)
    strides = size if options.option("strides", options.option("stride")) is None else None
    name = "strides" if "strides" in options.config else "stride"
    extents = extents_of(size, strides or options.integers(name, rank), (1,) * rank)
    if math.prod(size) > LARGEST_MADE:
        raise UserError(f"a window of {size} elements is too large")
    padding, first = options.text("padding", "valid"), options.channels_first
    dtype = dtype_of(data)
    if kind == "average":
        data = b.floating(data)
        wide, window = padded(b, data, extents, padding, first)
        result = pooled(b, "nn.avg_pool2d", wide, window, channels_last=not first)
        if wide is not data:
            # Padding that is part of the data must not count: what counts is the share of ones.
            ones, _ = padded(b, b.filled(1, sizes_of(data), dtype_of(data)), extents, padding, first)
            result = b.divide(result, pooled(b, "nn.avg_pool2d", ones, window, channels_last=not first))
        return result
    lowest = -math.inf if dtype.is_float else float(dtype.min_value())
    wide, window = padded(b, data, extents, padding, first, lowest)
    return pooled(b, "nn.max_pool2d", wide, window, channels_last=not first)


def _global(call: LayerCall, kind: str, rank: int) -> GraphExpr:
    b, data, options = call.builder, call.data(rank + 2), call.layer
    axes = tuple(range(2, rank + 2)) if options.channels_first else tuple(range(1, rank + 1))
    keep = options.flag("keepdims")
    if kind == "max":
        return b.reduce("max", data, axes, keep)
    given = call.tensor("mask", 1) if rank == 1 else None
    mask = call.mask if rank == 1 and given is None else given
    if mask is None:
        return b.reduce("mean", b.floating(data), axes, keep)
    batch, steps = sizes_of(mask)
    counted = b.cast(
        b.reshape(mask, (batch, 1, steps) if options.channels_first else (batch, steps, 1)), dtype_of(data)
    )
    return b.divide(b.reduce("sum", b.multiply(data, counted), axes, keep), b.reduce("sum", counted, axes, keep))


def _adaptive(call: LayerCall, kind: str, rank: int) -> GraphExpr:
    b, data, options = call.builder, call.data(rank + 2), call.layer
    first = 2 if options.channels_first else 1
    counts = options.integers("output_size", rank)
    if min(counts) < 1 or max(counts) > LARGEST_MADE:
        raise UserError(f"a result of size {list(counts)}")
    if kind == "average":
        return adaptive_average(b, data, first, counts)
    for axis, count in enumerate(counts, first):
        size = size_at(data, axis)
        bounds = [(place * size // count, -((-(place + 1) * size) // count)) for place in range(count)]
        parts = [b.reduce("max", b.slice_axis(data, axis, low, high), (axis,), True) for low, high in bounds]
        data = b.concatenate(parts, axis)
    return data


def _register(kind: str, rank: int) -> None:
    title = kind.capitalize()

    def over_windows(call: LayerCall) -> GraphExpr:
        """Over windows."""
        return _pool(call, kind, rank)

    def over_all(call: LayerCall) -> Value:
        """Over everything; of steps with a mask, those that count. No mask is left."""
        return Value(_global(call, kind, rank))

    def over_shares(call: LayerCall) -> GraphExpr:
        """Over as many parts as the result has elements."""
        return _adaptive(call, kind, rank)

    layer(f"{title}Pooling{rank}D", f"{title[:3]}Pool{rank}D")(over_windows)
    layer(f"Global{title}Pooling{rank}D", f"Global{title[:3]}Pool{rank}D")(over_all)
    layer(f"Adaptive{title}Pooling{rank}D")(over_shares)


for _kind in ("max", "average"):
    for _rank in (1, 2, 3):
        _register(_kind, _rank)


@operation("MaxPool")
def max_pool(call: LayerCall) -> GraphExpr:
    """`keras.ops.max_pool`."""
    return _pool(call, "max", rank_of(call.input(0)) - 2)


@operation("AveragePool")
def average_pool(call: LayerCall) -> GraphExpr:
    """`keras.ops.average_pool`."""
    return _pool(call, "average", rank_of(call.input(0)) - 2)


@operation("AdaptiveMaxPool")
def adaptive_max_pool(call: LayerCall) -> GraphExpr:
    """`keras.ops.adaptive_max_pool`."""
    return _adaptive(call, "max", rank_of(call.input(0)) - 2)


@operation("AdaptiveAveragePool")
def adaptive_average_pool(call: LayerCall) -> GraphExpr:
    """`keras.ops.adaptive_average_pool`."""
    return _adaptive(call, "average", rank_of(call.input(0)) - 2)
