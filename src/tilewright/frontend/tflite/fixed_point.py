"""The integer arithmetic of TFLite's reference kernels: rescaling by a multiplier of 31 bits and a shift.

A positive number m is `multiplier * 2^(shift - 31)` with a multiplier from 2^30 to 2^31 - 1. A product with it is
rounded twice, as the kernels do it:

    high    = (x * 2^max(shift, 0) * multiplier + 2^30) >> 31                 qnn.high_product: halves up
    result  = (high - (high < 0) + 2^(s - 1)) >> s,   s = max(-shift, 0)      qnn.rounded_shift: halves away from zero

All of it is written in graph operators, which fuse with the product before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.frontend.core.activations import BOUNDS
from tilewright.frontend.core.builder import Builder, dtype_of
from tilewright.frontend.tflite.model import Quantization
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import INT32, INT64, DataType
from tilewright.support.errors import UnsupportedError

_DIGITS = 31


@dataclass(frozen=True, slots=True)
class Multiplier:
    """A positive number, or one for each place along the last axis, as multiplier and shift."""

    multiplier: Array
    shift: Array
    """Above 0 to the left, below to the right."""

    @staticmethod
    def of(numbers: npt.ArrayLike) -> Multiplier:
        """The multiplier of numbers, as the kernels compute it in float64."""
        values = np.asarray(numbers, np.float64)
        fraction, shift = np.frexp(values)
        # Halves away from zero; the numbers are positive.
        digits = np.floor(fraction * (1 << _DIGITS) + 0.5).astype(np.int64)
        full = digits == 1 << _DIGITS
        digits, shift = np.where(full, digits // 2, digits), np.where(full, shift + 1, shift)
        tiny = shift < -_DIGITS
        return Multiplier(np.where(tiny, 0, digits), np.where(tiny, 0, shift).astype(np.int64))


def rescaled(builder: Builder, value: GraphExpr, by: Multiplier, negative: bool = True) -> GraphExpr:
    """Whole numbers of 32 bits times a multiplier, rounded, in 32 bits.

    Where `negative` results do not matter but for their sign, their halves go up as all others.
    """
    call = builder.call
    left, right = np.maximum(by.shift, 0), np.maximum(-by.shift, 0)
    if left.any():
        value = call("left_shift", value, builder.constant(left, INT32))
    high = call("qnn.high_product", value, builder.constant(by.multiplier, INT32))
    if not right.any():
        return high
    if negative:
        # The sign takes one off a negative number, so that halves go away from zero; not where there is no shift.
        sign = call("right_shift", high, builder.constant(31, INT32))
        if not (right > 0).all():
            sign = call("multiply", sign, builder.constant(right > 0, INT32))
        high = call("add", high, sign)
    return call("qnn.rounded_shift", high, builder.constant(-right, INT32))


def rescaled_wide(builder: Builder, value: GraphExpr, by: Multiplier) -> GraphExpr:
    """Whole numbers of 64 bits (48 of them used) times a multiplier of 15 digits, rounded once, in 32 bits."""
    reduced = np.minimum((by.multiplier + (1 << 15)) >> 16, (1 << 15) - 1)
    total = 15 - by.shift
    nudge = np.int64(1) << (total - 1)
    product = builder.call("multiply", builder.cast(value, INT64), builder.constant(reduced, INT64))
    moved = builder.call("add", product, builder.constant(nudge, INT64))
    return builder.cast(builder.call("right_shift", moved, builder.constant(total, INT64)), INT32)


def as_steps(builder: Builder, value: GraphExpr, zero: int) -> GraphExpr:
    """Quantised integers less their zero point, in 32 bits."""
    wide = builder.cast(value, INT32)
    return builder.call("subtract", wide, builder.constant(zero, INT32)) if zero else wide


def bounds_of(name: str, levels: Quantization, dtype: DataType) -> tuple[int, int]:
    """The integers that an activation leaves of a quantised result."""
    if name not in BOUNDS:
        raise UnsupportedError(f"the activation {name} of a quantised result")
    low, high = BOUNDS[name]
    least, most = dtype.min_value(), dtype.max_value()
    if low is not None:
        least = max(least, level_of(low, levels))
    if high is not None:
        most = min(most, level_of(high, levels))
    return least, most


def level_of(value: float, levels: Quantization) -> int:
    """The integer that stands for a number, unbounded: a float32 quotient, halves away from zero."""
    return levels.zero + int(away(np.float32(value) / np.float32(levels.scales[0])))


def away(value: npt.ArrayLike) -> Array:
    """Rounded to the nearest, halves away from zero."""
    given = np.asarray(value)
    return np.asarray(np.trunc(given + np.copysign(np.nextafter(given.dtype.type(0.5), given.dtype.type(0)), given)))


def finished(builder: Builder, value: GraphExpr, zero: int, bounds: tuple[int, int], dtype: DataType) -> GraphExpr:
    """Whole numbers plus a zero point, kept within bounds, as a quantised result."""
    low, high = bounds
    kept = builder.call("clip", value, minimum=float(low - zero), maximum=float(max(low, high) - zero))
    if zero:
        kept = builder.call("add", kept, builder.constant(zero, dtype_of(kept)))
    return builder.cast(kept, dtype)


def rounded_away(builder: Builder, value: GraphExpr) -> GraphExpr:
    """Floats to the nearest whole number, halves away from zero."""
    call = builder.call
    half = builder.constant_like(math.nextafter(0.5, 0.0) if dtype_of(value).bits == 64 else 0.49999997, value)
    negative = call("less", value, builder.constant_like(0, value))
    return call("trunc", call("where", negative, call("subtract", value, half), call("add", value, half)))


def same_levels(levels: Sequence[Quantization]) -> bool:
    """Whether integers of all of them stand for the same numbers."""
    first = levels[0]
    return all(item.by_tensor and item.scale == first.scale and item.zero == first.zero for item in levels)
