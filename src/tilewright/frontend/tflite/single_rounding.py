"""Sums of two tensors of bytes that are rounded once, and give what the reference kernels give, which round thrice.

    result = clip((a * f + b * g + offset) >> shift)            products of 31 digits, in steps of 2^-shift

Two bytes are 65,536 pairs: the kernel's result is computed for each, and says between which numbers the offset lies.
Where no offset suits all of them the factors are moved a little, by what the two pairs lack that ask for most. There is
no such form where halves on both sides of zero are rounded away from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright.frontend.core.builder import Builder, dtype_of, evaluate
from tilewright.frontend.tflite.fixed_point import finished
from tilewright.frontend.tflite.tables import codes_of
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import INT32

_BYTE = 8
_DIGITS = 31
_SHIFTS = range(24, 16, -1)
"""Digits after the point, the most first: Arm cuts off sixteen as it takes every second half, and up to eight more."""
_TRIES = 8
"""How often factors are moved."""
_NONE = 1 << 62
"""Beyond all offsets."""


def sum_rounded_once(
    builder: Builder,
    inputs: tuple[GraphExpr, GraphExpr],
    kernel: Callable[[GraphExpr, GraphExpr], GraphExpr],
    factors: tuple[float, float],
    bounds: tuple[int, int],
) -> GraphExpr | None:
    """The result of a kernel of two tensors of bytes that adds them up, rounded once; None if there is no such form.

    A step of each input is about a factor of those of the result, which has bounds.
    """
    first, second = (dtype_of(item) for item in inputs)
    shift = next((item for item in _SHIFTS if sum(map(abs, factors)) * 2.0 ** (_BYTE + item - _DIGITS) < 1), None)
    if first.bits != _BYTE or second.bits != _BYTE or shift is None:
        return None
    codes = builder.constant(codes_of(first)[:, None], first), builder.constant(codes_of(second)[None], second)
    results = _numbers(kernel(*codes))
    for _ in range(_TRIES):
        terms = _numbers(_terms(builder, codes, factors, shift))
        least, most = _between(terms, results, shift, bounds)
        lacking = least.max() - most.min()
        if lacking <= 0:
            offset = int(least.max() + most.min()) // 2
            total = builder.call("add", _terms(builder, inputs, factors, shift), builder.constant(offset, INT32))
            value = builder.call("right_shift", total, builder.constant(shift, INT32))
            return finished(builder, value, 0, bounds, first)
        pairs = (np.unravel_index(index, terms.shape) for index in (least.argmax(), most.argmin()))
        apart = np.subtract(*map(np.array, pairs))
        # What changes both factors least.
        moved = apart * (math.ldexp(lacking + 1, -shift) / float(np.square(apart).sum()))
        factors = factors[0] + moved[0], factors[1] + moved[1]
    return None


def _between(terms: Array, results: Array, shift: int, bounds: tuple[int, int]) -> tuple[Array, Array]:
    """The least and the greatest offset for each pair; any will do for results beyond bounds, if words hold sums."""
    low, high = bounds
    least = np.where(results > low, (results << shift) - terms, -_NONE)
    most = np.where(results < high, ((results + 1) << shift) - 1 - terms, _NONE)
    return np.maximum(least, INT32.min_value() - terms), np.minimum(most, INT32.max_value() - terms)


def _numbers(known: GraphExpr) -> Array:
    found = evaluate(known)
    assert found is not None
    return found.astype(np.int64)


def _terms(
    builder: Builder, values: tuple[GraphExpr, GraphExpr], factors: tuple[float, float], shift: int
) -> GraphExpr:
    """Both values times their factors, added up, in steps of 2^-shift."""
    parts = (_scaled(builder, value, factor, shift) for value, factor in zip(values, factors, strict=True))
    return builder.call("add", *parts)


def _scaled(builder: Builder, value: GraphExpr, factor: float, shift: int) -> GraphExpr:
    """A byte times a factor, in steps of 2^-shift: moved up as far as words go, then a product of 31 digits."""
    dtype, steps = dtype_of(value), math.ldexp(factor, shift)
    wide = builder.cast(value, INT32)
    fraction, exponent = math.frexp(steps)
    if fraction == 0.5 and exponent > 0:
        return builder.call("left_shift", wide, builder.constant(exponent - 1, INT32))
    room = _DIGITS + 1 - _BYTE - int(dtype.is_uint)
    moved = builder.call("left_shift", wide, builder.constant(room, INT32))
    return builder.call("qnn.high_product", moved, builder.constant(round(math.ldexp(steps, _DIGITS - room)), INT32))
