"""Sine, cosine and tangent of an angle that was taken apart: a number of quarter turns, and what is left of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilewright.ir.build import bitwise_and, const, ne, select
from tilewright.ir.expr import Call, PrimExpr
from tilewright.tir.expansion.exponentials import at_most, polynomial

_SIN: Final = (-0.1666666716337204, 0.008333329111337662, -0.00019839256128761917, 2.7175644845556235e-06)
_COS: Final = (0.0416666679084301, -0.0013888883404433727, 2.479943577782251e-05, -2.720330201100296e-07)


@dataclass(frozen=True, slots=True)
class Turned:
    """An angle of up to `limit`: whole quarter turns (int32) and a rest within an eighth of a turn (float32).

    Larger angles are left to the processor's own function, or to the C library's.
    """

    angle: PrimExpr
    quarter: PrimExpr
    rest: PrimExpr
    limit: float

    def sin(self) -> PrimExpr:
        """The sine."""
        sine, cosine = self._of_rest()
        odd = _has_bit(self.quarter, 1)
        return self._limited("sin", _negated_if(_has_bit(self.quarter, 2), select(odd, cosine, sine)))

    def cos(self) -> PrimExpr:
        """The cosine."""
        sine, cosine = self._of_rest()
        odd = _has_bit(self.quarter, 1)
        return self._limited("cos", _negated_if(_has_bit(self.quarter + 1, 2), select(odd, sine, cosine)))

    def tan(self) -> PrimExpr:
        """The tangent."""
        sine, cosine = self._of_rest()
        odd = _has_bit(self.quarter, 1)
        return self._limited("tan", _negated_if(odd, select(odd, cosine, sine) / select(odd, sine, cosine)))

    def _of_rest(self) -> tuple[PrimExpr, PrimExpr]:
        square = self.rest * self.rest
        sine = self.rest + self.rest * square * polynomial(square, _SIN)
        cosine = (1.0 - square * 0.5) + square * square * polynomial(square, _COS)
        return sine, cosine

    def _limited(self, name: str, result: PrimExpr) -> PrimExpr:
        angle = self.angle
        return select(at_most(angle, self.limit), result, Call(name, (angle,), angle.dtype))


def _has_bit(quarter: PrimExpr, bit: int) -> PrimExpr:
    return ne(bitwise_and(quarter, const(bit, quarter.dtype)), 0)


def _negated_if(condition: PrimExpr, value: PrimExpr) -> PrimExpr:
    return select(condition, value * -1.0, value)
