"""Single-precision angles and powers: functions whose argument reduction or result needs float64 on the way.

Same promises as `exponentials`. Angles beyond a million go to the C library, in the lanes that have such an angle only.
"""

from __future__ import annotations

import math
from typing import Final

from tilewright.ir.build import (
    const,
    eq,
    logical_and,
    logical_not,
    logical_or,
    lt,
    maximum,
    minimum,
    ne,
    select,
    shift_left,
    shift_right,
    sub,
)
from tilewright.ir.dtype import FLOAT64, INT32, INT64
from tilewright.ir.expr import Call, PrimExpr
from tilewright.ir.intrinsics import reinterpret
from tilewright.tir.expansion.exponentials import absolute, at_most, copysign, polynomial, square_root
from tilewright.tir.expansion.quarter_turns import Turned

_LARGEST_ANGLE: Final = 1.0e6
_TWO_OVER_PI: Final = 0.6366197723675814
_HALF_PI_HIGH: Final = 1.57079632673412561417  # 33 bits: a product with an integer below 2**20 is exact
_HALF_PI_LOW: Final = 6.07710050650619224932e-11
_HALF_PI: Final = math.pi / 2
# Adding 1.5 * 2**52 to a float64 leaves the nearest integer in its low bits.
_MAGIC: Final = 6755399441055744.0

_ATAN: Final = (-0.33333301544189453, 0.19998638331890106, -0.1426524519920349, 0.10957571864128113,
                -0.08419445902109146, 0.0582343190908432, -0.03145546838641167, 0.011064315214753151,
                -0.0018271846929565072)  # fmt: skip
_ASIN: Final = (0.16666659712791443, 0.07500512152910233, 0.044515471905469894, 0.031819820404052734,
                0.014393805526196957, 0.03757815808057785)  # fmt: skip
_EXP2_DOUBLE: Final = (0.6931471805599462, 0.2402265069590114, 0.05550410866479469, 0.009618129110525266,
                       0.0013333558170285228, 0.0001540352732920028, 1.5252692587825565e-05, 1.321677497634564e-06,
                       1.0201956722803588e-07, 6.8747733362515874e-09)  # fmt: skip
_ATANH_SERIES: Final = tuple(1.0 / k for k in range(1, 20, 2))


def _turned(x: PrimExpr) -> Turned:
    wide = x.astype(FLOAT64.with_lanes(x.dtype.lanes))
    shifted = wide * _TWO_OVER_PI + _MAGIC
    n = shifted - _MAGIC
    rest = (wide - n * _HALF_PI_HIGH - n * _HALF_PI_LOW).astype(x.dtype)
    quarter = reinterpret(shifted, INT64.with_lanes(x.dtype.lanes)).astype(INT32.with_lanes(x.dtype.lanes))
    return Turned(x, quarter, rest, _LARGEST_ANGLE)


def sin(x: PrimExpr) -> PrimExpr:
    """The sine."""
    return _turned(x).sin()


def cos(x: PrimExpr) -> PrimExpr:
    """The cosine."""
    return _turned(x).cos()


def tan(x: PrimExpr) -> PrimExpr:
    """The tangent."""
    return _turned(x).tan()


def _atan_of_ratio(ratio: PrimExpr) -> PrimExpr:
    """The arc tangent of a value from 0 to 1."""
    square = ratio * ratio
    return ratio + ratio * square * polynomial(square, _ATAN)


def atan(x: PrimExpr) -> PrimExpr:
    """The arc tangent."""
    magnitude = absolute(x)
    is_large = lt(1.0, magnitude)
    angle = _atan_of_ratio(select(is_large, 1.0 / magnitude, magnitude))
    return copysign(select(is_large, _HALF_PI - angle, angle), x)


def atan2(y: PrimExpr, x: PrimExpr) -> PrimExpr:
    """The angle of the point (x, y), in all four quadrants and along the axes."""
    width, height = absolute(x), absolute(y)
    is_steep = lt(width, height)
    larger, smaller = select(is_steep, height, width), select(is_steep, width, height)
    # Equal magnitudes are an eighth of a turn, also when both are infinite; the origin counts as flat.
    ratio = select(eq(smaller, larger), const(1.0, x.dtype), smaller / larger)
    ratio = select(eq(larger, 0.0), const(0.0, x.dtype), ratio)
    angle = _atan_of_ratio(ratio)
    angle = select(is_steep, _HALF_PI - angle, angle)
    points_left = lt(copysign(const(1.0, x.dtype), x), 0.0)
    angle = select(points_left, math.pi - angle, angle)
    # NaN in either coordinate fails every comparison above; a sum carries it over.
    unordered = logical_not(eq(x + y, x + y))
    both_infinite = logical_and(eq(width, math.inf), eq(height, math.inf))
    is_nan = logical_and(unordered, logical_not(both_infinite))
    return select(is_nan, x + y, copysign(angle, y))


def _asin_near(x: PrimExpr, square: PrimExpr) -> PrimExpr:
    return x + x * square * polynomial(square, _ASIN)


def asin(x: PrimExpr) -> PrimExpr:
    """The arc sine (NaN beyond 1)."""
    magnitude = absolute(x)
    is_large = lt(0.5, magnitude)
    rest = (1.0 - magnitude) * 0.5
    root = square_root(rest)
    far = _HALF_PI - _asin_near(root, rest) * 2.0
    near = _asin_near(magnitude, magnitude * magnitude)
    return copysign(select(is_large, far, near), x)


def acos(x: PrimExpr) -> PrimExpr:
    """The arc cosine (NaN beyond 1)."""
    magnitude = absolute(x)
    is_large = lt(0.5, magnitude)
    rest = (1.0 - magnitude) * 0.5
    root = square_root(rest)
    doubled = _asin_near(root, rest) * 2.0
    far = select(lt(x, 0.0), math.pi - doubled, doubled)
    near = _asin_near(x, x * x)
    return select(is_large, far, _HALF_PI - near)


def _log2_double(x: PrimExpr) -> PrimExpr:
    """log2 of a float64 that came from a finite nonzero float32, to about 40 bits."""
    bits = reinterpret(x, INT64.with_lanes(x.dtype.lanes))
    shift = const(52, bits.dtype)
    sqrt_half = 0x3FE6A09E667F3BCD
    k = shift_right(sub(bits, sqrt_half), shift)
    mantissa = reinterpret(sub(bits, shift_left(k, shift)), x.dtype)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    series = ratio * polynomial(ratio * ratio, _ATANH_SERIES)
    # k is small, so int32 holds it; conversion from int64 is slow on many processors.
    exponent = k.astype(INT32.with_lanes(x.dtype.lanes)).astype(x.dtype)
    return exponent + series * (2.0 / math.log(2.0))


def _exp2_double(x: PrimExpr) -> PrimExpr:
    shifted = x + _MAGIC
    r = x - (shifted - _MAGIC)
    value = r * polynomial(r, _EXP2_DOUBLE) + 1.0
    bits = reinterpret(shifted, INT64.with_lanes(x.dtype.lanes))
    # The low bits hold the exponent; moved to the exponent field the magic number's own bits fall off.
    scale = reinterpret(shift_left(bits + 1023, const(52, bits.dtype)), x.dtype)
    return value * scale


def pow(x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """x**y as IEEE 754 pow, in float64: 2**(y log2 |x|), then the sign and the special cases."""
    wide = FLOAT64.with_lanes(x.dtype.lanes)
    magnitude = absolute(x)
    infinity = const(math.inf, wide)
    log = _log2_double(magnitude.astype(wide))
    log = select(eq(magnitude, 0.0), infinity * -1.0, log)
    log = select(eq(magnitude, math.inf), infinity, log)
    product = maximum(minimum(log * y.astype(wide), 300.0), -300.0)
    result = _exp2_double(product).astype(x.dtype)
    return with_power_limits(x, y, result)


def with_power_limits(x: PrimExpr, y: PrimExpr, result: PrimExpr) -> PrimExpr:
    """x**y from the power of |x|: the sign, and the cases that have no logarithm."""
    magnitude = absolute(x)
    result = select(eq(magnitude, 1.0), const(1.0, x.dtype), result)
    is_integer = eq(Call("floor", (y,), y.dtype), y)
    half = y * 0.5
    is_odd = logical_and(is_integer, logical_and(ne(Call("floor", (half,), y.dtype), half), at_most(y, 2.0**24)))
    is_negative = lt(copysign(const(1.0, x.dtype), x), 0.0)
    result = select(logical_and(is_negative, is_odd), result * -1.0, result)
    has_no_root = logical_and(logical_and(lt(x, 0.0), lt(magnitude, math.inf)), logical_not(is_integer))
    result = select(has_no_root, const(math.nan, x.dtype), result)
    # A NaN on either side wins, except against x = 1 and y = 0.
    total = x + y
    is_nan = logical_not(logical_and(eq(x, x), eq(y, y)))
    result = select(is_nan, total, result)
    always_one = logical_or(eq(x, 1.0), eq(y, 0.0))
    return select(always_one, const(1.0, x.dtype), result)


__all__ = ["acos", "asin", "atan", "atan2", "cos", "pow", "sin", "tan", "with_power_limits"]
