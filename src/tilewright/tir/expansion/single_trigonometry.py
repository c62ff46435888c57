"""Angles and powers in float32 alone, for processors without float64.

Same promises as `trigonometry`, but angles beyond some ten thousand go to the processor's own function already.
Products that must not lose bits are of factors with few bits each, cut off by masks. Compilers for GPUs may take sums
apart, so nothing here relies on what a sum rounds away; `without_magic` does the same for other functions.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Final

from tilewright.ir.build import add, bitwise_and, const, eq, lt, maximum, minimum, select
from tilewright.ir.expr import Add, Broadcast, Call, FloatImm, PrimExpr, Sub
from tilewright.ir.intrinsics import reinterpret
from tilewright.tir.expansion.exponentials import (
    MAGIC,
    MAGIC_BITS,
    absolute,
    exp2_of_fraction,
    int_type,
    reduced_log,
    scaled,
)
from tilewright.tir.expansion.quarter_turns import Turned
from tilewright.tir.expansion.trigonometry import with_power_limits
from tilewright.tir.rewrite.statements import ExprRewriter

_LARGEST_ANGLE: Final = 12000.0
_TWO_OVER_PI: Final = 0.6366197723675814
# Half of pi in parts of 8, 11 and 24 bits: products of the first two with integers below 2**13 are exact.
_HALF_PI_PARTS: Final = (1.5703125, 4.837512969970703125e-4, 7.54978995489188216e-8)
_LOG2_E: Final = 1.4426950408889634
_LOG2_E_HIGH: Final = 1.4423828125  # 11 bits


def without_magic(expr: PrimExpr) -> PrimExpr:
    """An expansion of `exponentials` that finds nearest integers by rounding, not by adding a large number.

    (x + 12582912.0) - 12582912.0   ->   round(x)
    """
    return ExprRewriter(_rounding)(expr)


def _rounding(expr: PrimExpr) -> PrimExpr | None:
    if isinstance(expr, Sub) and _is_magic(expr.b):
        value = _added_magic(expr.a)
        return None if value is None else _round(value)
    if isinstance(expr, Call) and expr.name == "reinterpret":
        value = _added_magic(expr.args[0])
        return None if value is None else add(_round(value).astype(expr.dtype), MAGIC_BITS)
    return None


def _added_magic(expr: PrimExpr) -> PrimExpr | None:
    return expr.a if isinstance(expr, Add) and _is_magic(expr.b) else None


def _is_magic(expr: PrimExpr) -> bool:
    value = expr.value if isinstance(expr, Broadcast) else expr
    return isinstance(value, FloatImm) and value.value == MAGIC


def _turned(x: PrimExpr) -> Turned:
    n = _round(x * _TWO_OVER_PI)
    rest = x
    for part in _HALF_PI_PARTS:
        rest = rest - n * part
    return Turned(x, n.astype(int_type(x)), rest, _LARGEST_ANGLE)


def sin(x: PrimExpr) -> PrimExpr:
    """The sine."""
    return _turned(x).sin()


def cos(x: PrimExpr) -> PrimExpr:
    """The cosine."""
    return _turned(x).cos()


def tan(x: PrimExpr) -> PrimExpr:
    """The tangent."""
    return _turned(x).tan()


def _few_bits(x: PrimExpr) -> PrimExpr:
    """The value cut off after 12 bits."""
    bits = reinterpret(x, int_type(x))
    return reinterpret(bitwise_and(bits, const(-4096, bits.dtype)), x.dtype)


def _round(x: PrimExpr) -> PrimExpr:
    return Call("round", (x,), x.dtype)


def pow(x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """x**y as IEEE 754 pow: 2**(y log2 |x|), the logarithm and the product in parts that are exact or small."""
    magnitude = absolute(x)
    exponent, f, tail = reduced_log(magnitude)
    # log2 |x| = exponent + main + rest; beyond this y everything has overflown, or |x| is 1.
    f_high = _few_bits(f)
    product = f_high * _LOG2_E_HIGH
    main = _few_bits(product)
    rest = (f - f_high) * _LOG2_E_HIGH + (f * (_LOG2_E - _LOG2_E_HIGH) + tail * _LOG2_E)
    y_bounded = maximum(minimum(y, 4.0e9), -4.0e9)
    y_high = _few_bits(y_bounded)
    y_low = y_bounded - y_high
    terms = [y_high * exponent, y_low * exponent, y_high * main, y_low * main]
    terms += [y_bounded * (product - main), y_bounded * rest]
    whole = [_round(term) for term in terms]
    fraction = reduce(add, [term - integer for term, integer in zip(terms, whole, strict=True)])
    carried = _round(fraction)
    total = maximum(minimum(reduce(add, whole) + carried, 250.0), -250.0)
    result = scaled(exp2_of_fraction(fraction - carried), total.astype(int_type(x)))
    zero, infinity = const(0.0, x.dtype), const(math.inf, x.dtype)
    result = select(eq(magnitude, 0.0), select(lt(y, 0.0), infinity, zero), result)
    result = select(eq(magnitude, math.inf), select(lt(y, 0.0), zero, infinity), result)
    return with_power_limits(x, y, result)
