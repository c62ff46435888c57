"""Single-precision mathematics from additions, products and bits: exponentials, logarithms and what follows from them.

Every function takes and returns float32 (scalar or vector) and is made of operations that run on whole vectors. NaN
stays NaN, infinities and zeros give what IEEE 754 says, subnormal arguments and results are honoured. The greatest
errors, in units of the last place against the exact result, are in `MAX_ULP`; the tests measure them over the whole
range. Polynomial coefficients were fitted for the least greatest relative error on the reduced range. Nothing depends
on fused multiply-add being there, nor on its absence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from tilewright.ir.build import add, const, eq, le, lt, maximum, minimum, select, shift_left, shift_right, sub
from tilewright.ir.dtype import FLOAT32, INT32, DataType
from tilewright.ir.expr import Call, PrimExpr
from tilewright.ir.intrinsics import reinterpret

MAX_ULP: Final[dict[str, float]] = {
    "exp": 1.5,
    "exp2": 1.5,
    "log": 1.5,
    "log2": 2.0,
    "log10": 2.0,
    "log1p": 3.0,
    "expm1": 2.0,
    "tanh": 3.0,
    "sigmoid": 2.5,
    "erf": 2.0,
    "sinh": 3.0,
    "cosh": 2.5,
    "asinh": 4.0,
    "acosh": 4.0,
    "atanh": 4.0,
    "sin": 2.0,
    "cos": 2.0,
    "tan": 4.0,
    "asin": 2.5,
    "acos": 2.5,
    "atan": 2.5,
    "atan2": 3.0,
    "pow": 1.0,
    "rsqrt": 1.5,
}
"""The greatest error of each function in units of the last place."""

_LOG2_E: Final = 1.4426950408889634
_LN2_HIGH: Final = 0.693359375  # few bits, so that a product with a small integer is exact
_LN2_LOW: Final = -2.12194440054690583e-4
_LN2: Final = 0.6931471805599453
# Adding 1.5 * 2**23 to a float32 leaves the nearest integer in its low bits.
MAGIC: Final = 12582912.0
MAGIC_BITS: Final = 0x4B400000
_SQRT_HALF_BITS: Final = 0x3F3504F3
_SMALLEST_NORMAL: Final = 2.0**-126

_EXP_TAIL: Final = (0.5, 0.1666666567325592, 0.04166628047823906, 0.00833350419998169, 0.0013945752289146185,
                    0.0001978926593437791)  # fmt: skip
_EXP: Final = (0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.00836874544620514,
               0.0013814540579915047)  # fmt: skip
_EXP2: Final = (0.6931471824645996, 0.24022647738456726, 0.055503323674201965, 0.00961843691766262,
                0.0013398875016719103, 0.00015353361959569156)  # fmt: skip
_LOG_TAIL: Final = (0.3333331346511841, -0.25000008940696716, 0.2000211924314499, -0.1666799634695053,
                    0.14219550788402557, -0.12405591458082199, 0.11888174712657928, -0.11675640940666199,
                    0.06746601313352585)  # fmt: skip
_ERF_SMALL: Final = (0.12837916709551256, -0.3761262595653534, 0.11283600330352783, -0.026854444295167923,
                     0.005189535208046436, -0.0008020841050893068, 7.889119297033176e-05)  # fmt: skip
_ERF_LARGE: Final = (0.00025697884848341346, -1.6295634508132935, -0.9137061834335327, -0.15621283650398254,
                     0.0362141877412796, -0.005992631893604994, 0.000615317199844867, -2.779025635391008e-05,
                     -2.448913392072427e-07)  # fmt: skip
_ERFC: Final = (-1.6279085874557495, -0.9184163808822632, -0.1484816074371338, 0.02825368009507656,
                -0.0007746291230432689, -0.001489441841840744, 0.00044550769962370396,
                -4.535860352916643e-05)  # fmt: skip
_SINH: Final = (0.1666666716337204, 0.008333350531756878, 0.0001983606634894386, 2.817439735736116e-06)


def int_type(x: PrimExpr) -> DataType:
    """int32 with the lanes of a float32 value."""
    return INT32.with_lanes(x.dtype.lanes)


def polynomial(x: PrimExpr, coefficients: tuple[float, ...]) -> PrimExpr:
    """c0 + c1 x + c2 x**2 + ..., by Horner's scheme for x**2: (c0 + c1 x) + (c2 + c3 x) x**2 + ...

    Pairs do not wait for each other, and a multiply-add that adds to its own register copies one coefficient of two.
    """
    pairs = [coefficients[n : n + 2] for n in range(0, len(coefficients), 2)]
    square = x * x
    total: PrimExpr | None = None
    for low, *high in reversed(pairs):
        pair = const(high[0], x.dtype) * x + low if high else const(low, x.dtype)
        total = pair if total is None else total * square + pair
    assert total is not None
    return total


def absolute(x: PrimExpr) -> PrimExpr:
    """|x|."""
    return Call("abs", (x,), x.dtype)


def copysign(magnitude: PrimExpr, sign: PrimExpr) -> PrimExpr:
    """The magnitude of one value with the sign of another."""
    return Call("copysign", (magnitude, sign), magnitude.dtype)


def square_root(x: PrimExpr) -> PrimExpr:
    """The correctly rounded square root."""
    return Call("sqrt", (x,), x.dtype)


def power_of_two(exponent: PrimExpr) -> PrimExpr:
    """2**k of an int32 exponent in the range of normal numbers."""
    bits = shift_left(add(exponent, 127), const(23, exponent.dtype))
    return reinterpret(bits, FLOAT32.with_lanes(exponent.dtype.lanes))


def scaled(value: PrimExpr, exponent: PrimExpr) -> PrimExpr:
    """value * 2**k in two steps, so that results may overflow or become subnormal."""
    half = shift_right(exponent, const(1, exponent.dtype))
    return value * power_of_two(half) * power_of_two(sub(exponent, half))


def _nearest(shifted: PrimExpr) -> PrimExpr:
    """The whole number in the low bits of a sum with `MAGIC`."""
    return sub(reinterpret(shifted, int_type(shifted)), MAGIC_BITS)


Scale = Callable[[PrimExpr, PrimExpr], PrimExpr]
"""A value times two to the power of the whole number that a sum with `MAGIC` has rounded to."""


def scaled_by_products(value: PrimExpr, shifted: PrimExpr) -> PrimExpr:
    """On any processor."""
    return scaled(value, _nearest(shifted))


def scaled_by_instruction(value: PrimExpr, shifted: PrimExpr) -> PrimExpr:
    """On processors that have an instruction for it, which overflows and underflows as it should."""
    return Call("scale_by_power", (value, shifted - MAGIC), value.dtype)


def _reduced_exp(x: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    """k + `MAGIC` and r with x = k ln 2 + r and |r| <= ln 2 / 2."""
    shifted = x * _LOG2_E + MAGIC
    n = shifted - MAGIC
    return shifted, x - n * _LN2_HIGH - n * _LN2_LOW


def _exp_scaled(x: PrimExpr, shift: int) -> PrimExpr:
    """exp(x) * 2**shift for a small shift."""
    bounded, shifted, value = _exp_parts(x)
    return scaled(_unless_zero(lt(bounded, -104.0), value), add(_nearest(shifted), shift))


def _exp_of_rest(r: PrimExpr) -> PrimExpr:
    """e**r for |r| <= ln 2 / 2."""
    return (r * r * polynomial(r, _EXP) + r) + 1.0


def _exp_parts(x: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
    """x within limits, and what exp(x) is made of: the power of two as `_reduced_exp` gives it, and exp(r)."""
    bounded = maximum(minimum(x, 91.0), -105.0)
    shifted, r = _reduced_exp(bounded)
    return bounded, shifted, _exp_of_rest(r)


def _unless_zero(vanishes: PrimExpr, value: PrimExpr) -> PrimExpr:
    """The value, or 0 where scaling would underflow to it: processors take long to find that out (masked softmax)."""
    return select(vanishes, const(0.0, value.dtype), value)


def exp(x: PrimExpr, scale: Scale = scaled_by_products) -> PrimExpr:
    """e**x."""
    bounded, shifted, value = _exp_parts(x)
    return scale(_unless_zero(lt(bounded, -104.0), value), shifted)


def exp_of_difference(x: PrimExpr, scale: Scale | None = None) -> PrimExpr:
    """e**x where x is a difference, as in softmax; 0 below exp(-86), nearly the smallest normal number.

    Those are weights of nothing, of masks like -100, and processors take a hundred times as long to multiply by them.
    Without subnormal results one power of two is enough: half of the greatest, 2**128, and twice the product.
    """
    shifted, r = _reduced_exp(minimum(x, 89.0))
    value = _exp_of_rest(r)
    if scale is not None:
        return _unless_zero(lt(x, -86.0), scale(value, shifted))
    value = value * power_of_two(sub(_nearest(shifted), 1))
    return _unless_zero(lt(x, -86.0), value + value)


def _reduced_exp2(x: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    """k + `MAGIC` and r with x = k + r and |r| <= 1/2."""
    shifted = x + MAGIC
    return shifted, x - (shifted - MAGIC)


def exp2(x: PrimExpr, scale: Scale = scaled_by_products) -> PrimExpr:
    """2**x."""
    x = maximum(minimum(x, 130.0), -152.0)
    shifted, r = _reduced_exp2(x)
    return scale(_unless_zero(lt(x, -150.0), exp2_of_fraction(r)), shifted)


def exp2_of_fraction(r: PrimExpr) -> PrimExpr:
    """2**r for |r| <= 1/2."""
    return r * polynomial(r, _EXP2) + 1.0


def expm1(x: PrimExpr) -> PrimExpr:
    """exp(x) - 1: the tail of the series and the power of two are added in the order that loses nothing."""
    shifted, r = _reduced_exp(maximum(minimum(x, 88.8), -40.0))
    k = _nearest(shifted)
    tail = r * r * polynomial(r, _EXP_TAIL) + r
    half = shift_right(k, const(1, k.dtype))
    # Half of 2**k (in two factors): 2**128 itself has no float32.
    scale = power_of_two(half) * power_of_two(sub(sub(k, half), 1))
    return (scale * tail + (scale - 0.5)) * 2.0


def reduced_log(x: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
    """e, f, t with x = 2**e (1 + f) for sqrt(1/2) <= 1 + f < sqrt(2), and log(1 + f) = f + t."""
    exponent, f = _power_and_rest(x)
    return exponent, f, _log_tail(f)


def _power_and_rest(x: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    is_small = lt(x, _SMALLEST_NORMAL)
    bits = reinterpret(select(is_small, x * 2.0**23, x), int_type(x))
    shift = const(23, bits.dtype)
    k = shift_right(sub(bits, _SQRT_HALF_BITS), shift)
    f = reinterpret(sub(bits, shift_left(k, shift)), x.dtype) - 1.0
    return k.astype(x.dtype) - select(is_small, const(23.0, x.dtype), const(0.0, x.dtype)), f


def _log_tail(f: PrimExpr) -> PrimExpr:
    square = f * f
    return square * f * polynomial(f, _LOG_TAIL) - square * 0.5


def _with_log_limits(x: PrimExpr, result: PrimExpr) -> PrimExpr:
    """minus infinity at 0, infinity at infinity, NaN below 0."""
    infinity = const(math.inf, x.dtype)
    at_most_zero = select(eq(x, 0.0), const(-math.inf, x.dtype), const(math.nan, x.dtype))
    return select(lt(0.0, x), select(lt(x, infinity), result, infinity), at_most_zero)


def log(x: PrimExpr) -> PrimExpr:
    """The natural logarithm."""
    exponent, f, tail = reduced_log(x)
    return _with_log_limits(x, exponent * _LN2_HIGH + (f + (tail + exponent * _LN2_LOW)))


def log2(x: PrimExpr) -> PrimExpr:
    """The logarithm to base 2."""
    exponent, f, tail = reduced_log(x)
    high = 1.4423828125
    low = _LOG2_E - high
    return _with_log_limits(x, exponent + (f * high + (f * low + tail * _LOG2_E)))


def log10(x: PrimExpr) -> PrimExpr:
    """The logarithm to base 10."""
    exponent, f, tail = reduced_log(x)
    base, high = math.log10(math.e), 0.30078125
    low = math.log10(2.0) - high
    f_high = 0.43408203125
    rest = f * (base - f_high) + tail * base + exponent * low
    return _with_log_limits(x, exponent * high + (f * f_high + rest))


def log1p(x: PrimExpr) -> PrimExpr:
    """log(1 + x): near 0 the series in x itself, which the sum 1 + x would round."""
    total = x + 1.0
    exponent, f = _power_and_rest(total)
    f = select(eq(exponent, 0.0), x, f)
    result = exponent * _LN2_HIGH + (f + (_log_tail(f) + exponent * _LN2_LOW))
    is_tiny = lt(absolute(x), 2.0**-24)
    return select(is_tiny, x, _with_log_limits(total, result))


def tanh(x: PrimExpr) -> PrimExpr:
    """The hyperbolic tangent, e / (e + 2) for e = exp(2x) - 1."""
    shifted, r = _reduced_exp(minimum(absolute(x), 10.0) * 2.0)
    # Of so small an argument the power of two is one number, which `expm1` must take as two.
    power = power_of_two(_nearest(shifted))
    grown = power * (r * r * polynomial(r, _EXP_TAIL) + r) + (power - 1.0)
    return copysign(grown / (grown + 2.0), x)


def sigmoid(x: PrimExpr, scale: Scale = scaled_by_products) -> PrimExpr:
    """1 / (1 + exp(-x)), from the exponential that does not overflow."""
    decayed = exp(absolute(x) * -1.0, scale)
    return select(lt(x, 0.0), decayed, const(1.0, x.dtype)) / (decayed + 1.0)


def erf(x: PrimExpr) -> PrimExpr:
    """The error function: odd series near 0, 1 - 2**g(|x|) further out."""
    magnitude = minimum(absolute(x), 4.0)
    near = x * polynomial(x * x, _ERF_SMALL) + x
    # The power is between 2**-27 and 1/4: one step scales it, and nothing is out of range.
    shifted, r = _reduced_exp2(polynomial(magnitude, _ERF_LARGE))
    far = copysign(1.0 - exp2_of_fraction(r) * power_of_two(_nearest(shifted)), x)
    return select(lt(absolute(x), 0.98), near, far)


def erf_plus_one(x: PrimExpr) -> PrimExpr:
    """1 + erf(x), as in GELU, within 1.5e-7.

    The sum rounds to parts of 1, so that 2**g(|x|) serves near 0 too: that is half the work of `erf`.
    """
    magnitude = minimum(absolute(x), 4.0)
    shifted, r = _reduced_exp2(magnitude * polynomial(magnitude, _ERFC))
    return copysign(1.0 - exp2_of_fraction(r) * power_of_two(_nearest(shifted)), x) + 1.0


def sinh(x: PrimExpr) -> PrimExpr:
    """The hyperbolic sine."""
    square = minimum(x * x, 1.0)
    half = _exp_scaled(absolute(x), -1)
    far = copysign(half - 0.25 / half, x)
    return select(lt(absolute(x), 1.0), x + x * square * polynomial(square, _SINH), far)


def cosh(x: PrimExpr) -> PrimExpr:
    """The hyperbolic cosine."""
    half = _exp_scaled(absolute(x), -1)
    return half + 0.25 / half


def asinh(x: PrimExpr) -> PrimExpr:
    """The inverse hyperbolic sine."""
    magnitude = absolute(x)
    is_large = lt(2.0**14, magnitude)
    bounded = minimum(magnitude, 2.0**14)
    square = bounded * bounded
    near = log1p(bounded + square / (square_root(square + 1.0) + 1.0))
    return copysign(select(is_large, log(magnitude) + _LN2, near), x)


def acosh(x: PrimExpr) -> PrimExpr:
    """The inverse hyperbolic cosine (NaN below 1)."""
    is_large = lt(2.0**14, x)
    above = minimum(x, 2.0**14) - 1.0
    near = log1p(above + square_root(above * 2.0 + above * above))
    return select(lt(x, 1.0), const(math.nan, x.dtype), select(is_large, log(x) + _LN2, near))


def atanh(x: PrimExpr) -> PrimExpr:
    """The inverse hyperbolic tangent (infinite at -1 and 1, NaN beyond)."""
    magnitude = absolute(x)
    return copysign(log1p(magnitude * 2.0 / (1.0 - magnitude)) * 0.5, x)


def rsqrt(x: PrimExpr) -> PrimExpr:
    """1 / sqrt(x)."""
    return 1.0 / square_root(x)


def at_most(x: PrimExpr, limit: float) -> PrimExpr:
    """|x| <= limit (false for NaN)."""
    return le(absolute(x), limit)
