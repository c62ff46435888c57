"""Adaptive pooling, and positions of maxima in windows: shared by importers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import LARGEST_MADE, dtype_of, rank_of, size_at, sizes_of
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, INT64
from tilewright.support.errors import UnsupportedError


def maxima(b: ArithmeticBuilder, x: GraphExpr, tables: Sequence[GraphExpr]) -> tuple[GraphExpr, GraphExpr]:
    """The greatest element of each window of (N, C, ...) data, and its flat position within the last axes.

    A table has the positions that each window reads along an axis, (windows, taps); those outside do not count. The
    first NaN wins.
    """
    batch, channels, *size = sizes_of(x)
    flat, valid = _window_elements(b, size, tables)
    windows, taps = sizes_of(flat)
    values = b.call("take", b.reshape(x, (batch, channels, dimensions.product(size))), flat, axis=2)
    dtype = dtype_of(x)
    lowest = -math.inf if dtype.is_float else dtype.min_value()
    values = b.call("where", valid, values, b.scalar(lowest, dtype))
    tap = b.call("argmax", values, axis=3)
    greatest = b.reduce("max", values, (3,))
    if dtype.is_float:
        odd = b.call("isnan", values)
        first = b.call("argmax", b.cast(odd, "int8"), axis=3)
        tap = b.where(b.call("any", odd, axes=(3,)), first, tap)
        # A window of nothing but minus infinity has its first element inside as its place.
        start = b.broadcast_to(b.call("argmax", b.cast(valid, "int8"), axis=1), sizes_of(tap))
        tap = b.where(b.compare("equal", greatest, lowest), start, tap)
    assert isinstance(taps, int)
    place = b.add(tap, b.arange(windows, 0, taps))
    return greatest, b.call("take", b.flatten(flat), place, axis=0)


def _window_elements(
    b: ArithmeticBuilder, size: Sequence[Size], tables: Sequence[GraphExpr]
) -> tuple[GraphExpr, GraphExpr]:
    """The flat positions that each window reads, (windows, taps), and which of them are inside the data."""
    rank = len(tables)
    windows, taps = zip(*map(sizes_of, tables), strict=True)
    counts = dimensions.constants(windows)
    if counts is not None and math.prod(counts) * math.prod(taps) > LARGEST_MADE:
        raise UnsupportedError(f"positions of maxima in windows of {list(taps)}")
    grid = b.scalar(0, INT64)
    inside = b.scalar(True, BOOL)
    for axis, table in enumerate(tables):
        shape: list[Size] = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = sizes_of(table)
        last = b.size(dimensions.subtract(size[axis], 1))
        held = b.binary("minimum", b.binary("maximum", table, 0), last)
        grid = b.add(grid, b.reshape(b.multiply(held, b.size(dimensions.product(size[axis + 1 :]))), shape))
        within = b.call("logical_and", b.compare("greater_equal", table, 0), b.compare("less_equal", table, last))
        inside = b.call("logical_and", inside, b.reshape(within, shape))
    flat = (dimensions.product(windows), dimensions.product(taps))
    return b.reshape(grid, flat), b.reshape(inside, flat)


def _ranges(size: int, count: int) -> list[tuple[int, int]]:
    return [(index * size // count, -((-(index + 1) * size) // count)) for index in range(count)]


def _adaptive_mean(b: ArithmeticBuilder, x: GraphExpr, axis: int, count: int) -> GraphExpr:
    """Means of windows along an axis of open size: a product with the weight of each element in each window."""
    size = sizes_of(x)[axis]
    length = b.reshape(b.shape_tensor((size,)), ())
    window = b.constant(b.count(count), INT64)
    low = b.binary("floor_divide", b.multiply(window, length), count)
    high = b.binary("floor_divide", b.add(b.multiply(b.add(window, 1), length), count - 1), count)
    place = b.reshape(b.arange(size), (size, 1))
    inside = b.call("logical_and", b.call("greater_equal", place, low), b.call("less", place, high))
    weights = b.divide(b.cast(inside, "float32"), b.cast(b.subtract(high, low), "float32"))
    rank = rank_of(x)
    last = b.transpose(x, [*(at for at in range(rank) if at != axis), axis])
    means = b.call("matmul", last, b.cast(weights, dtype_of(x)))
    return b.transpose(means, [*range(axis), rank - 1, *range(axis, rank - 1)])


def adaptive_along(b: ArithmeticBuilder, name: str, value: GraphExpr, axis: int, count: int) -> GraphExpr:
    """The `mean` or the `max` of each of so many windows along an axis."""
    if count == 1:
        return b.reduce(name, value, (axis,), True)
    shape = list(sizes_of(value))
    size = shape[axis]
    if not isinstance(size, int):
        if name != "mean":
            raise UnsupportedError(
                "the greatest of windows along an axis of open size",
                hint="give the dimensions that the model leaves open: shapes={...}",
            )
        return _adaptive_mean(b, value, axis, count)
    if size % count == 0:
        parts = b.reshape(value, [*shape[:axis], count, size // count, *shape[axis + 1 :]])
        return b.reduce(name, parts, (axis + 1,))
    windows = [
        b.reduce(name, b.slice_axis(value, axis, low, high), (axis,), True) for low, high in _ranges(size, count)
    ]
    return b.concatenate(windows, axis)


def adaptive_average(b: ArithmeticBuilder, x: GraphExpr, first: int, counts: Sequence[int]) -> GraphExpr:
    """Means of so many windows along each axis from the first one on."""
    value = x
    for axis, count in enumerate(counts, first):
        value = adaptive_along(b, "mean", value, axis, count)
    return value


def adaptive_maxima(b: ArithmeticBuilder, x: GraphExpr, counts: Sequence[int]) -> tuple[GraphExpr, GraphExpr]:
    """The greatest of so many windows along each axis of (N, C, ...) data, and where it is in its plane."""
    tables: list[GraphExpr] = []
    for axis, count in enumerate(counts, 2):
        ranges = np.array(_ranges(size_at(x, axis), count), np.int64)
        taps = ranges[:, :1] + np.arange(int((ranges[:, 1] - ranges[:, 0]).max()), dtype=np.int64)
        tables.append(b.constant(np.where(taps < ranges[:, 1:], taps, -1), INT64))
    values, places = maxima(b, x, tables)
    shape = (*sizes_of(x)[:2], *counts)
    return b.reshape(values, shape), b.reshape(places, shape)
