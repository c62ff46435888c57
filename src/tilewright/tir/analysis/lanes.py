"""Vector indices lane by lane: what a lane has, as an expression of its number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tilewright.ir.build import add, floordiv, floormod, mul, sub
from tilewright.ir.expr import Add, BinaryExpr, Broadcast, FloorDiv, FloorMod, Mul, PrimExpr, Ramp, Sub, Var

_MADE_BY: Final = {Add: add, Sub: sub, Mul: mul, FloorDiv: floordiv, FloorMod: floormod}


def lanes_of(indices: Sequence[PrimExpr]) -> int:
    """How many elements an access with these indices touches at once."""
    return max((index.dtype.lanes for index in indices), default=1)


def in_lane(expr: PrimExpr, lane: Var) -> PrimExpr | None:
    """What a lane has of an index: `ramp(b, s, n) // 4` has `(b + lane * s) // 4`; None where it is not arithmetic."""
    if expr.dtype.is_scalar:
        return expr
    if isinstance(expr, Ramp):
        return add(expr.base, mul(lane.astype(expr.base.dtype), expr.stride))
    if isinstance(expr, Broadcast):
        return expr.value
    make = _MADE_BY.get(type(expr)) if isinstance(expr, BinaryExpr) else None
    if make is None or not isinstance(expr, BinaryExpr):
        return None
    a, b = in_lane(expr.a, lane), in_lane(expr.b, lane)
    return None if a is None or b is None else make(a, b)
