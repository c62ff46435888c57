"""Functions of two bytes that are rounded once, and give what the reference kernels give, which round several times.

    result = clip((terms + offset) >> shift)         terms: products of 31 digits of the bytes, in steps of 2^-shift

Two bytes are 65,536 pairs: the kernel's result is computed for each, and says between which numbers the offset lies.
Where no offset suits all of them (halves on both sides of zero, which kernels round away from it), there is no such
form.
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

Pair = Callable[[GraphExpr, GraphExpr], GraphExpr]
"""What is computed of two tensors, or of all that they can hold."""

_BYTE = 8
_DIGITS = 31
_SHIFTS = range(24, 16, -1)
"""Digits after the point, the most first: Arm cuts off sixteen as it takes every second half, and up to eight more."""
_NONE = 1 << 62
"""Beyond all offsets."""


def rounded_once(
    builder: Builder,
    inputs: tuple[GraphExpr, GraphExpr],
    kernel: Pair,
    terms: Callable[[int], Pair | None],
    bounds: tuple[int, int],
) -> GraphExpr | None:
    """The result of a kernel of two tensors of bytes, rounded once; None if there is no such form.

    `terms` gives what is rounded, by the digits after its point; None where words do not hold it. `bounds` are those of
    results.
    """
    first, second = (dtype_of(item) for item in inputs)
    if first.bits != _BYTE or second.bits != _BYTE:
        return None
    codes = builder.constant(codes_of(first)[:, None], first), builder.constant(codes_of(second)[None], second)
    results = kernel(*codes)
    for shift in _SHIFTS:
        computed = terms(shift)
        offset = None if computed is None else _offset(computed(*codes), results, shift, bounds)
        if computed is not None and offset is not None:
            total = builder.call("add", computed(*inputs), builder.constant(offset, INT32))
            value = builder.call("right_shift", total, builder.constant(shift, INT32))
            return finished(builder, value, 0, bounds, dtype_of(results))
    return None


def _offset(terms: GraphExpr, results: GraphExpr, shift: int, bounds: tuple[int, int]) -> int | None:
    """What is added to all terms so that they give the results, and words hold the sums."""
    (below, wanted), (low, high) = (_numbers(item) for item in (terms, results)), bounds
    # Beyond the bounds any number will do.
    least = np.where(wanted > low, (wanted << shift) - below, -_NONE).max()
    most = np.where(wanted < high, ((wanted + 1) << shift) - 1 - below, _NONE).min()
    least = max(least, INT32.min_value() - below.min())
    most = min(most, INT32.max_value() - below.max())
    return int(least + most) // 2 if least <= most else None


def _numbers(known: GraphExpr) -> Array:
    found = evaluate(known)
    assert found is not None
    return found.astype(np.int64)


def scaled_sum(builder: Builder, factors: tuple[float, float], shift: int) -> Pair | None:
    """a * f + b * g in steps of 2^-shift."""
    if sum(map(abs, factors)) * (1 << _BYTE) >= 2.0 ** (_DIGITS - shift):
        return None

    def terms(a: GraphExpr, b: GraphExpr) -> GraphExpr:
        parts = (_scaled(builder, item, factor, shift) for item, factor in zip((a, b), factors, strict=True))
        return builder.call("add", *parts)

    return terms


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
