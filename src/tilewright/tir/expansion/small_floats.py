"""Conversions between float32 and the codes of small floats as integer arithmetic, on whole vectors.

Nothing here rounds by floating-point arithmetic: processors that flush subnormal numbers to zero give the same bits.
"""

from __future__ import annotations

from typing import Final

from tilewright.ir.build import bitwise_and, bitwise_or, const, eq, le, lt, minimum, select, shift_left, shift_right
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.expr import Cast, PrimExpr
from tilewright.ir.intrinsics import reinterpret
from tilewright.ir.small_floats import FORMATS, SmallFloat

_WORD: Final = DataType.of("uint32")
_CODE: Final = DataType.of("uint8")
_DIGITS: Final = 23
"""Digits of float32 behind the point."""
_BIAS: Final = 127
_INFINITY: Final = 0x7F800000
_NAN: Final = 0x7FC00000
_LEAST_POWER: Final = 0x400000
"""The bits of 2^-127, a subnormal number."""


def codes(x: PrimExpr, name: str) -> PrimExpr:
    """The codes (uint8) of float32 values rounded to a type."""
    kind, lanes = FORMATS[name], x.dtype.lanes
    bits = reinterpret(x, _WORD.with_lanes(lanes))
    magnitude = bitwise_and(bits, 0x7FFFFFFF)
    code = _power_code(bits, magnitude, kind) if not kind.has_minus else _signed_code(bits, magnitude, kind)
    return Cast(code, _CODE.with_lanes(lanes))


def _word(value: int, like: PrimExpr) -> PrimExpr:
    return const(value, like.dtype)


def _power_code(bits: PrimExpr, magnitude: PrimExpr, kind: SmallFloat) -> PrimExpr:
    """Powers of two: halves up, and up between the two least ones."""
    nearest = shift_right(magnitude + _word(1 << (_DIGITS - 1), bits), _DIGITS)
    code = select(eq(magnitude, _LEAST_POWER), _word(0, bits), minimum(nearest, _word(kind.nan, bits)))
    # Zero, what is negative, infinite or no number: all ones.
    outside = le(_word(_INFINITY - 1, bits), bits - _word(1, bits))
    return select(outside, _word(kind.nan, bits), code)


def _signed_code(bits: PrimExpr, magnitude: PrimExpr, kind: SmallFloat) -> PrimExpr:
    shift = _DIGITS - kind.digits
    odd = bitwise_and(shift_right(magnitude, shift), 1)
    rounded = shift_right(magnitude + _word((1 << (shift - 1)) - 1, bits) + odd, shift)
    normal = rounded - _word((_BIAS - kind.bias) << kind.digits, bits)
    least_normal = (_BIAS + 1 - kind.bias) << _DIGITS
    code = select(lt(magnitude, _word(least_normal, bits)), _subnormal_code(magnitude, kind), normal)
    is_over = lt(_word(kind.largest, bits), code)
    is_nan = lt(_word(_INFINITY, bits), magnitude)
    sign = shift_left(shift_right(bits, 31), kind.bits - 1)
    code = select(is_over, _word(kind.overflow, bits), code)
    if kind.has_minus_zero:
        code = select(is_nan, _word(kind.nan, bits), code)
        # NaN of a type without one has the code of minus zero: its sign turns that over.
        return code + sign - shift_left(bitwise_and(code, sign), 1)
    signed = select(eq(code, 0), code, bitwise_or(code, sign))
    return select(is_nan, _word(kind.nan, bits), signed)


def _subnormal_code(magnitude: PrimExpr, kind: SmallFloat) -> PrimExpr:
    """Below the least normal number, codes count multiples of the least number: the mantissa is shifted and rounded."""
    mantissa = bitwise_or(bitwise_and(magnitude, (1 << _DIGITS) - 1), 1 << _DIGITS)
    # A shift of 25 leaves less than a half of what has 24 digits, as any larger one does.
    most = _DIGITS + 2
    exponent = shift_right(magnitude, _DIGITS)
    shift = minimum(
        _word(_BIAS + _DIGITS + 1 - kind.bias - kind.digits, magnitude) - minimum(exponent, _BIAS - kind.bias), most
    )
    half = shift_left(_word(1, magnitude), shift - 1)
    odd = bitwise_and(shift_right(mantissa, shift), 1)
    return shift_right(mantissa + half - 1 + odd, shift)


def values(code: PrimExpr, name: str) -> PrimExpr:
    """The float32 values of codes (uint8) of a type."""
    kind, lanes = FORMATS[name], code.dtype.lanes
    word = Cast(code, _WORD.with_lanes(lanes))
    if not kind.has_minus:
        power = select(eq(word, 0), _word(_LEAST_POWER, word), shift_left(word, _DIGITS))
        return reinterpret(select(eq(word, kind.nan), _word(_NAN, word), power), FLOAT32.with_lanes(lanes))
    magnitude = bitwise_and(word, kind.sign - 1)
    normal = shift_left(magnitude, _DIGITS - kind.digits) + _word((_BIAS - kind.bias) << _DIGITS, word)
    counted = Cast(magnitude, FLOAT32.with_lanes(lanes)) * const(
        2.0 ** (1 - kind.bias - kind.digits), FLOAT32.with_lanes(lanes)
    )
    bits = select(lt(magnitude, _word(1 << kind.digits, word)), reinterpret(counted, word.dtype), normal)
    if kind.infinity is not None:
        bits = select(eq(magnitude, kind.infinity), _word(_INFINITY, word), bits)
    if kind.has_minus_zero and kind.largest != kind.sign - 1:
        first_nan = kind.largest + (1 if kind.infinity is None else 2)
        bits = select(lt(_word(first_nan - 1, word), magnitude), _word(_NAN, word), bits)
    bits = bitwise_or(bits, shift_left(bitwise_and(word, kind.sign), 32 - kind.bits))
    if not kind.has_minus_zero:
        bits = select(eq(word, kind.nan), _word(_NAN, word), bits)
    return reinterpret(bits, FLOAT32.with_lanes(lanes))
