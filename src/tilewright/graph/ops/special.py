"""Numpy forms of functions that numpy lacks: erf, sigmoid and their kin, stable for large arguments."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import DataType

_STEPS = 64
"""Grid points a unit of the erf table."""
_TERMS = 8
"""Terms of the Taylor series about a grid point: enough for double precision at a distance of 1/128."""
_LIMIT = 6.0
"""Beyond this, erf is 1 in double precision."""


@cache
def _erf_table() -> Array:
    """Taylor coefficients of erf about each grid point, one row a power."""
    points = np.arange(int(_LIMIT * _STEPS) + 2) / _STEPS
    rows = [np.array([math.erf(point) for point in points])]
    # Derivative n+1 of erf is 2/sqrt(pi) * (-1)^n * H_n(x) * exp(-x^2), with the Hermite polynomials H.
    previous, hermite = np.zeros_like(points), np.ones_like(points)
    base = 2 / math.sqrt(math.pi) * np.exp(-points * points)
    for order in range(_TERMS - 1):
        rows.append((-1) ** order * hermite * base / math.factorial(order + 1))
        previous, hermite = hermite, 2 * points * hermite - 2 * order * previous
    return np.stack(rows)


def erf(x: Array) -> Array:
    """The error function, accurate to the last bits of a double, in the type of its input."""
    wide = np.asarray(x, np.float64)
    magnitude = np.minimum(np.abs(wide), _LIMIT)
    index = np.rint(np.where(np.isnan(magnitude), 0.0, magnitude) * _STEPS).astype(np.int64)
    distance = magnitude - index / _STEPS
    table = _erf_table()
    value = table[-1][index]
    for row in table[-2::-1]:
        value = value * distance + row[index]
    return np.asarray(np.copysign(value, wide), np.asarray(x).dtype)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), with no overflow and full relative accuracy on both sides."""
    decay = np.exp(-np.abs(x))
    return np.asarray(np.where(np.signbit(x), decay, np.ones_like(decay)) / (1 + decay), x.dtype)


def divide_toward_zero(a: Array, b: Array) -> Array:
    """True division of floats; integers divide toward zero (and by zero gives 0)."""
    with np.errstate(all="ignore"):
        if np.issubdtype(a.dtype, np.floating):
            return np.asarray(a / b, a.dtype)
        quotient = a // b
        inexact = (quotient * b != a) & ((a < 0) != (b < 0)) & (b != 0)
        return np.asarray(quotient + inexact, a.dtype)


def power(a: Array, b: Array) -> Array:
    """a ** b in the type of a; negative powers of integers truncate toward zero."""
    with np.errstate(all="ignore"):
        if np.issubdtype(a.dtype, np.floating):
            return np.asarray(np.power(a, b), a.dtype)
        positive = np.power(a, np.maximum(b, 0).astype(a.dtype))
        odd = np.where(b % 2 == 0, 1, -1)
        negative = np.where(a == 1, 1, np.where(a == -1 if a.dtype.kind == "i" else False, odd, 0)).astype(a.dtype)
        return np.asarray(np.where(b < 0, negative, positive), a.dtype)


def shift_left(a: Array, b: Array) -> Array:
    """a << b; the amount counts modulo the width."""
    return np.asarray(np.left_shift(a, b & (a.dtype.itemsize * 8 - 1)))


def shift_right(a: Array, b: Array) -> Array:
    """a >> b; the amount counts modulo the width."""
    return np.asarray(np.right_shift(a, b & (a.dtype.itemsize * 8 - 1)))


def float_to_integer(x: Array, dtype: DataType) -> Array:
    """The integer part; beyond the range the least or greatest value, and 0 for NaN."""
    least, most, storage = dtype.min_value(), dtype.max_value(), dtype.numpy()
    whole = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    # Floats next to the limits are not exact: compare before converting, so that nothing overflows.
    inside = np.where((whole > float(least)) & (whole < float(most)), whole, 0.0).astype(storage)
    result = np.where(whole >= float(most), storage.type(most), inside)
    return np.asarray(np.where(whole <= float(least), storage.type(least), result), storage)


def round_to_bfloat16(x: Array) -> Array:
    """Float32 values rounded to the nearest bfloat16 (ties to even), still held as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    rounded = np.where(np.isnan(x), bits | np.uint32(0x00400000), rounded)
    return rounded.astype(np.uint32).view(np.float32).reshape(np.shape(x))


def wrap_small(x: Array, bits: int) -> Array:
    """Bytes (int8 or uint8) that hold integers of fewer bits, wrapped around to their range."""
    unused = x.dtype.type(8 - bits)
    return np.asarray((x << unused) >> unused, x.dtype)


def round_to_tf32(x: Array) -> Array:
    """Float32 values rounded to the nearest number of 11 significant bits (ties away from zero), still float32.

    NaN stay NaN, but for signalling ones whose bits are all among the low 13: infinities, as the hardware has it.
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    sign, magnitude = bits & np.uint32(0x80000000), bits & np.uint32(0x7FFFFFFF)
    rounded = np.minimum(magnitude + np.uint32(0x1000), np.uint32(0x7FFFE000)) & np.uint32(0x7FFFE000)
    return np.asarray(rounded | sign, np.uint32).view(np.float32).reshape(np.shape(x))
