"""Rounded products and shifts of words (int32), where no instruction of the processor rounds them."""

from __future__ import annotations

from tilewright.ir.build import bitwise_and, cast, const, eq, maximum, minimum, select, shift_right
from tilewright.ir.dtype import INT32, INT64, DataType
from tilewright.ir.expr import Broadcast, PrimExpr

_HALF = 1 << 30
_DIGITS = 31


def high_product(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """a * b / 2**31, halves up. Only the least word squared is beyond all words: it alone seems to give the least."""
    lanes = a.dtype.lanes
    wide = INT64.with_lanes(lanes)
    product = cast(a, wide) * cast(b, wide) + _number(_HALF, wide)
    result = cast(shift_right(product, _number(_DIGITS, wide)), a.dtype)
    return select(eq(result, _number(INT32.min_value(), a.dtype)), _number(INT32.max_value(), a.dtype), result)


def rounded_shift(x: PrimExpr, count: PrimExpr) -> PrimExpr:
    """x * 2**count, halves up: the last digit that is shifted out is added; none where nothing is shifted."""
    zero, one = _number(0, x.dtype), _number(1, x.dtype)
    places = bitwise_and(zero - count, _number(_DIGITS, x.dtype))
    last = shift_right(x, maximum(places - one, zero))
    return shift_right(x, places) + bitwise_and(last, minimum(places, one))


def _number(value: int, dtype: DataType) -> PrimExpr:
    number = const(value, dtype.element)
    return number if dtype.lanes == 1 else Broadcast(number, dtype.lanes)
