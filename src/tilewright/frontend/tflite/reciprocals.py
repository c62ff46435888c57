"""Quotients and lengths of quantised tensors: reciprocals and inverse roots in fixed point, by Newton's method.

    DIV               a table of all pairs of bytes: what the kernel's arithmetic gives for each
    L2_NORMALIZATION  128 * steps / sqrt(sum of squares), the root's inverse with 31 digits and a shift for each row

The steps are those of the reference kernels, so that results are equal to the bit (but for quotients so small that they
shift by more than 31 places, which is no number). A number in fixed point is an integer of 32 bits with so many digits
before the point; a product of two of them is the upper half of the whole product, rounded.
"""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import Builder, dtype_of, rank_of
from tilewright.frontend.core.checks import checked_divisor
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.fixed_point import Multiplier, as_steps, bounds_of, finished
from tilewright.frontend.tflite.tables import codes_of
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import INT32, INT64
from tilewright.support.errors import UnsupportedError

_MOST = (1 << 31) - 1
_LEAST = -(1 << 31)


def _product(a: Array, b: Array | int) -> Array:
    """The product of two numbers in fixed point: the upper half, halves up."""
    return np.asarray(np.right_shift(a * b + (1 << 30), 31))


def _moved_up(value: Array, places: int) -> Array:
    """As many places to the left, within 32 bits."""
    return np.asarray(np.clip(value << places, _LEAST, _MOST))


def _divided(value: Array, places: Array) -> Array:
    """Divided by powers of two, halves away from zero."""
    away = np.where(places > 0, value < 0, False)
    return np.asarray((value - away + ((np.int64(1) << places) >> 1)) >> places)


def _reciprocals(steps: Array) -> tuple[Array, Array]:
    """1 / steps for positive whole numbers, as 31 digits and how many places the number is above one."""
    above = np.floor(np.log2(steps)).astype(np.int64)
    fraction = (steps << (31 - above)) - (1 << 31)  # the number is 2^above * (1 + fraction)
    half = (fraction + _MOST + 1) >> 1
    x = 1515870810 + _product(half, -1010580540)  # 48/17 - 32/17 * half, with two digits before the point
    for _ in range(3):
        x = x + _moved_up(_product(x, (1 << 29) - _product(half, x)), 2)
    return _moved_up(x, 1), above


def _quotients(dividend: Array, divisor: Array, by: Multiplier) -> Array:
    """What the kernel gives for steps of a dividend and of a divisor that is not zero, before the zero point."""
    digits, above = _reciprocals(np.abs(divisor))
    # As far to the left as the dividend goes without touching its sign.
    size = np.where(dividend < 0, ~dividend, dividend)
    headroom = np.where(size > 0, 30 - np.floor(np.log2(np.maximum(size, 1))), 31).astype(np.int64)
    whole = _product(dividend << headroom, digits * np.sign(divisor))
    return _divided(_product(whole, by.multiplier), above + headroom - by.shift)


def quantized_quotient(node: NodeContext) -> GraphExpr:
    """a / b of bytes: looked up by both."""
    builder, to, result = node.builder, node.output_dtype(), node.output_levels()
    codes = codes_of(dtype_of(node.input(0)))
    if len(codes) > 256 or dtype_of(node.input(1)) != dtype_of(node.input(0)):
        raise UnsupportedError("DIV of quantised tensors of more than 8 bits")
    first, second = node.levels(0), node.levels(1)
    scale = np.float32(first.scales[0]) / (np.float32(second.scales[0]) * np.float32(result.scales[0]))
    divisors = codes - second.zero
    # Nothing is divided by zero: the divisor is checked.
    safe = np.where(divisors == 0, 1, divisors)[None, :]
    quotients = _quotients(codes[:, None] - first.zero, safe, Multiplier.of(scale)) + result.zero
    table = np.clip(quotients, *bounds_of(node.activation, result, to))
    steps = checked_divisor(builder, as_steps(builder, node.input(1), second.zero))
    places = [
        as_steps(builder, node.input(0), int(codes[0])),
        builder.call("subtract", steps, builder.constant(int(codes[0]) - second.zero, INT32)),
    ]
    row = builder.call("multiply", places[0], builder.constant(len(codes), INT32))
    place = builder.call("add", row, places[1])
    return builder.call("take", builder.constant(table.ravel(), to), place, axis=0, mode="inside")


class _Wide:
    """Arithmetic on tensors of 64 bits, as the functions above do it on arrays."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def call(self, name: str, value: GraphExpr, other: GraphExpr | int) -> GraphExpr:
        """An operator on a tensor, and a tensor or a number."""
        return self.builder.call(name, value, self.builder.constant(other, INT64) if isinstance(other, int) else other)

    def product(self, a: GraphExpr, b: GraphExpr | int) -> GraphExpr:
        """The upper half of a product, halves up."""
        return self.call("right_shift", self.call("add", self.call("multiply", a, b), 1 << 30), 31)

    def moved_up(self, value: GraphExpr, places: int) -> GraphExpr:
        """As many places to the left, within 32 bits."""
        return self.call("minimum", self.call("maximum", self.call("left_shift", value, places), _LEAST), _MOST)

    def count(self, value: GraphExpr, compare: str, bound: int) -> GraphExpr:
        """1 where a comparison with a number holds, else 0."""
        return self.builder.cast(self.call(compare, value, bound), INT64)

    def by_shift(self, value: GraphExpr, places: GraphExpr) -> GraphExpr:
        """Divided by powers of two, halves away from zero."""
        call = self.builder.call
        away = call("multiply", self.count(value, "less", 0), self.count(places, "greater", 0))
        half = self.call("right_shift", call("left_shift", self.builder.constant_like(1, places), places), 1)
        return call("right_shift", call("add", call("subtract", value, away), half), places)


def _inverse_root(wide: _Wide, total: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """1 / sqrt(total) of whole numbers, as digits and a shift to the right; of 0 as of 1."""
    call = wide.builder.call
    large = wide.count(total, "greater_equal", 1 << 29)
    value = call("right_shift", total, wide.call("multiply", large, 2))
    pairs = wide.count(value, "less", 1 << 27)
    for bits in range(25, 1, -2):
        pairs = call("add", pairs, wide.count(value, "less", 1 << bits))
    shift = wide.call("add", call("subtract", large, pairs), 11)
    value = wide.call("right_shift", call("left_shift", value, wide.call("multiply", pairs, 2)), 1)
    half = wide.call("right_shift", wide.call("add", value, 1), 1)
    x: GraphExpr = wide.builder.constant_like(1 << 28, value)  # one, with three digits before the point
    for _ in range(5):
        cube = wide.moved_up(wide.product(wide.product(x, x), x), 6)
        step = call("subtract", wide.product(x, (1 << 28) + (1 << 27)), wide.product(half, cube))
        x = wide.moved_up(step, 3)
    x = wide.product(x, 1518500250)  # sqrt(1/2)
    below = wide.call("maximum", wide.call("multiply", shift, -1), 0)
    small = wide.call("less_equal", total, 1)
    digits = call("where", small, wide.builder.constant_like(_MOST, x), call("left_shift", x, below))
    return digits, call("where", small, wide.builder.constant_like(0, shift), wide.call("maximum", shift, 0))


def quantized_length(node: NodeContext) -> GraphExpr:
    """Steps divided by the root of the sum of their squares along the last axis; the result's scale is 1/128."""
    builder, to, result = node.builder, node.output_dtype(), node.output_levels()
    if to.bits != 8 or result.scales[0] != 1 / 128:
        raise UnsupportedError("L2_NORMALIZATION of quantised tensors whose result is not of 8 bits in steps of 1/128")
    wide = _Wide(builder)
    steps = builder.cast(as_steps(builder, node.input(0), node.levels(0).zero), INT64)
    axis = rank_of(steps) - 1
    total = builder.call("sum", wide.call("multiply", steps, steps), axes=(axis,), keepdims=True)
    digits, shift = _inverse_root(wide, total)
    value = wide.by_shift(wide.product(wide.call("multiply", steps, 128), digits), shift)
    return finished(builder, value, result.zero, (to.min_value(), to.max_value()), to)
