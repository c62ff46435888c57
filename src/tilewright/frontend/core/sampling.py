"""Data read at computed places between its elements: shared by importers.

Each place is split into taps along every axis (the nearest element, two of them, or four) with weights; the values of
all combinations of taps are taken from the flattened data and summed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.frontend.core.builder import Builder, dtype_of, rank_of, sizes_of
from tilewright.graph.ir.dimensions import Size, multiply, product, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, FLOAT64, INT64, DataType
from tilewright.support.errors import UnsupportedError

_CUBIC = -0.75
"""The coefficient of cubic interpolation in GridSample."""
_MOST_TAPS = 4096
"""The most readings of the data that an operator is spelled out in."""


@dataclass(frozen=True, slots=True)
class Tap:
    """Elements along one axis: their places (clamped to the data), weights, and which of them lie inside."""

    place: GraphExpr
    weight: GraphExpr | None
    inside: GraphExpr | None


class Arithmetic:
    """Float arithmetic on graph values with plain numbers mixed in, which take the type of the values."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def __call__(self, name: str, *items: GraphExpr | float) -> GraphExpr:
        """An operator applied to values and numbers."""
        dtype = next(dtype_of(item) for item in items if isinstance(item, GraphExpr) and dtype_of(item).is_float)
        values = (item if isinstance(item, GraphExpr) else self.builder.constant(item, dtype) for item in items)
        return self.builder.call(name, *values)

    def add(self, a: GraphExpr, b: GraphExpr | float) -> GraphExpr:
        """a + b."""
        return a if b == 0.0 else self("add", a, b)

    def multiply(self, a: GraphExpr, b: GraphExpr | float) -> GraphExpr:
        """a * b."""
        return a if b == 1.0 else self("multiply", a, b)

    def half(self, a: GraphExpr | float) -> GraphExpr | float:
        """a / 2."""
        return self.multiply(a, 0.5) if isinstance(a, GraphExpr) else a / 2

    def clip(self, a: GraphExpr, low: float, high: GraphExpr | float) -> GraphExpr:
        """a kept within bounds."""
        if isinstance(high, GraphExpr):
            return self("minimum", self("maximum", a, low), high)
        return self.builder.call("clip", a, minimum=float(low), maximum=float(high))

    def reflect(self, a: GraphExpr, low: float, span: GraphExpr | float) -> GraphExpr:
        """a reflected as often as needed at a bound and at the one so far above it (0: a is 0)."""
        if isinstance(span, GraphExpr):
            found = self._reflected(a, low, self("maximum", span, 0.5))
            return self("where", self("greater", span, 0.0), found, 0.0)
        return self._reflected(a, low, span) if span > 0 else self("multiply", a, 0.0)

    def _reflected(self, a: GraphExpr, low: float, span: GraphExpr | float) -> GraphExpr:
        twice = self("multiply", span, 2.0) if isinstance(span, GraphExpr) else 2 * span
        turn = self("floor_mod", self.add(a, -low), twice)
        return self.add(self("minimum", turn, self("subtract", twice, turn)), low)


def place_type(dtype: DataType) -> DataType:
    """The type that places given in another are computed in: never of fewer bits than float32."""
    return FLOAT64 if dtype == FLOAT64 else FLOAT32


def gather_taps(builder: Builder, rows: GraphExpr, axes: Sequence[Sequence[Tap]], size: Sequence[Size],
            start: GraphExpr | None) -> GraphExpr:  # fmt: skip
    """The weighted sum over all combinations of taps; rows are the elements of the data, each with its channels."""
    if math.prod(len(taps) for taps in axes) > _MOST_TAPS:
        raise UnsupportedError(f"sampling in {len(axes)} dimensions with this mode")
    total: GraphExpr | None = None
    for combination in itertools.product(*axes):
        place, weight, inside = start, None, None
        for axis, tap in enumerate(combination):
            step = product(size[axis + 1 :])
            part = tap.place if step == 1 else builder.call("multiply", tap.place, _whole(builder, step))
            place = part if place is None else builder.call("add", place, part)
            if tap.weight is not None:
                weight = tap.weight if weight is None else builder.call("multiply", weight, tap.weight)
            if tap.inside is not None:
                inside = tap.inside if inside is None else builder.call("logical_and", inside, tap.inside)
        assert place is not None
        value = builder.call("take", rows, place, axis=0)
        last = rank_of(value) - 1
        if inside is not None:
            zero = builder.constant_like(0, value)
            value = builder.call("where", builder.expand_dims(inside, (last,)), value, zero)
        if weight is not None:
            factor = builder.cast(builder.expand_dims(weight, (last,)), dtype_of(value))
            value = builder.call("multiply", value, factor)
        total = value if total is None else builder.call("add", total, value)
    assert total is not None
    return total


def _tap(builder: Builder, at: GraphExpr, weight: GraphExpr | None, length: Size, zeros: bool) -> Tap:
    """A tap at whole numbers; outside the data it reads the border, or nothing."""
    arithmetic = Arithmetic(builder)
    last = _number(builder, subtract(length, 1), at)
    place = builder.cast(arithmetic.clip(at, 0.0, last), INT64)
    inside = None
    if zeros:
        inside = builder.call("logical_and", arithmetic("greater_equal", at, 0.0), arithmetic("less_equal", at, last))
    return Tap(place, weight, inside)


def linear_taps(builder: Builder, x: GraphExpr, length: Size, zeros: bool) -> list[Tap]:
    """The two elements around a place."""
    arithmetic = Arithmetic(builder)
    first = arithmetic("floor", x)
    fraction = arithmetic("subtract", x, first)
    return [
        _tap(builder, first, arithmetic("subtract", 1.0, fraction), length, zeros),
        _tap(builder, arithmetic.add(first, 1.0), fraction, length, zeros),
    ]


def _grid_taps(builder: Builder, x: GraphExpr, length: Size, mode: str, padding: str, aligned: bool) -> list[Tap]:
    arithmetic = Arithmetic(builder)
    low, span = (0.0, _number(builder, subtract(length, 1), x)) if aligned else (-0.5, _number(builder, length, x))
    last = _number(builder, subtract(length, 1), x)
    zeros = padding == "zeros"

    def outside(value: GraphExpr) -> GraphExpr:
        """A place outside the data brought inside, as the padding says."""
        if padding == "border":
            return arithmetic.clip(value, 0.0, last)
        return value if zeros else arithmetic.reflect(value, low, span)

    if mode == "nearest":
        return [_tap(builder, arithmetic("round", outside(arithmetic("round", x))), None, length, zeros)]
    if mode == "linear" or padding == "reflection":
        x = outside(x)  # cubic interpolation at a border keeps the distance of a place outside
    if mode == "linear":
        first = arithmetic("floor", x)
        fraction = arithmetic("subtract", x, first)
        pairs = [(first, arithmetic("subtract", 1.0, fraction)), (arithmetic.add(first, 1.0), fraction)]
        return [
            _tap(builder, at if zeros else arithmetic("floor", outside(at)), weight, length, zeros)
            for at, weight in pairs
        ]
    first = arithmetic("floor", x)
    t = arithmetic("subtract", x, first)
    taps: list[Tap] = []
    for offset in (-1, 0, 1, 2):
        distance = arithmetic("abs", arithmetic.add(t, float(-offset)))
        a = _CUBIC
        # Near: ((a + 2) d - (a + 3)) d d + 1; far: ((a d - 5a) d + 8a) d - 4a.
        if offset in (0, 1):
            inner = arithmetic.add(arithmetic.multiply(distance, a + 2), -(a + 3))
            weight = arithmetic.add(arithmetic("multiply", arithmetic("multiply", inner, distance), distance), 1.0)
        else:
            inner = arithmetic.add(arithmetic.multiply(distance, a), -5 * a)
            inner = arithmetic.add(arithmetic("multiply", inner, distance), 8 * a)
            weight = arithmetic.add(arithmetic("multiply", inner, distance), -4 * a)
        at = arithmetic.add(first, float(offset))
        taps.append(_tap(builder, at if zeros else arithmetic("floor", outside(at)), weight, length, zeros))
    return taps


def _number(builder: Builder, size: Size, place: GraphExpr) -> GraphExpr | float:
    """A size as a float of the type of places."""
    if isinstance(size, int):
        return float(size)
    return builder.reshape(builder.cast(builder.shape_tensor((size,)), dtype_of(place)), ())


def _whole(builder: Builder, size: Size) -> GraphExpr:
    """A size as a whole number."""
    return builder.reshape(builder.shape_tensor((size,)), ())


def sample_grid(
    builder: Builder, data: GraphExpr, grid: GraphExpr, mode: str, padding: str, aligned: bool
) -> GraphExpr:
    """Data (batch, channels, ...) at the places of a grid (batch, ..., axes), whose coordinates run from -1 to 1.

    `mode` is linear, nearest or cubic; `padding` is zeros, border or reflection; `aligned` says that -1 and 1 are the
    medians of the first and the last element, not their edges.
    """
    arithmetic = Arithmetic(builder)
    batch, channels, *size = sizes_of(data)
    places, rank = sizes_of(grid), len(size)
    grid = builder.cast(grid, place_type(dtype_of(grid)))
    axes: list[list[Tap]] = []
    for axis, length in enumerate(size):
        column = rank - 1 - axis  # a grid names the last axis first
        x = builder.reshape(builder.slice_axis(grid, rank + 1, column, column + 1), places[:-1])
        x = arithmetic.add(x, 1.0)
        if aligned:
            x = arithmetic.multiply(x, arithmetic.half(_number(builder, subtract(length, 1), x)))
        else:
            x = arithmetic.multiply(arithmetic.add(arithmetic.multiply(x, _number(builder, length, x)), -1.0), 0.5)
        axes.append(_grid_taps(builder, x, length, mode, padding, aligned))
    rows = builder.transpose(data, (0, *range(2, rank + 2), 1))
    rows = builder.reshape(rows, (multiply(batch, product(size)), channels))
    start: GraphExpr | None = None
    if batch != 1:
        starts = builder.call("multiply", builder.arange(batch), _whole(builder, product(size)))
        start = builder.reshape(starts, (batch, *(1,) * rank))
    result = gather_taps(builder, rows, axes, size, start)
    return builder.transpose(result, (0, rank + 1, *range(1, rank + 1)))
