"""Words of four bytes as arithmetic: put together from bytes, and multiplied byte by byte."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.build import bitwise_and, bitwise_or, cast, const, shift_left, shift_right
from tilewright.ir.dtype import INT32
from tilewright.ir.expr import PrimExpr

_PLACES = (0, 8, 16, 24)


def joined_bytes(parts: Sequence[PrimExpr]) -> PrimExpr:
    """Four bytes as a word, the lowest first."""
    kind = INT32.with_lanes(parts[0].dtype.lanes)
    result: PrimExpr | None = None
    for part, place in zip(parts, _PLACES, strict=True):
        byte = cast(part, kind)
        if part.dtype.is_int:
            byte = bitwise_and(byte, const(255, kind))
        placed = shift_left(byte, const(place, kind)) if place else byte
        result = placed if result is None else bitwise_or(result, placed)
    assert result is not None
    return result


def dot4(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """The sum of the products of the four signed bytes of two words."""
    kind = a.dtype

    def byte(word: PrimExpr, place: int) -> PrimExpr:
        high = shift_left(word, const(24 - place, kind)) if place < 24 else word
        return shift_right(high, const(24, kind))

    result: PrimExpr | None = None
    for place in _PLACES:
        product = byte(a, place) * byte(b, place)
        result = product if result is None else result + product
    assert result is not None
    return result
