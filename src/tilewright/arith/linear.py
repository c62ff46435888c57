"""Linear forms: an index expression as a sum of integer multiples of terms, plus a constant.

A term is an expression that is not itself a sum or a constant multiple: a variable, a quotient, a remainder, a
minimum, a load, or a product of such (a `Mul` of factors in a fixed order). Forms are immutable by convention.
"""

from __future__ import annotations

from math import gcd
from typing import Final

from tilewright.ir.expr import PrimExpr


class Linear:
    """`sum(coefficient * term) + constant`; coefficients are never zero."""

    __slots__ = ("constant", "terms")

    def __init__(self, terms: dict[PrimExpr, int], constant: int) -> None:
        self.terms = terms
        self.constant = constant

    @property
    def is_constant(self) -> bool:
        """Whether there are no terms."""
        return not self.terms

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """self + factor * other."""
        if not other.terms:
            return Linear(self.terms, self.constant + factor * other.constant)
        if not self.terms and factor == 1:
            return Linear(other.terms, self.constant + other.constant)
        terms = dict(self.terms)
        for term, coefficient in other.terms.items():
            total = terms.get(term, 0) + factor * coefficient
            if total:
                terms[term] = total
            else:
                terms.pop(term, None)
        return Linear(terms, self.constant + factor * other.constant)

    def minus(self, other: Linear) -> Linear:
        """self - other."""
        return self.plus(other, -1)

    def shifted(self, amount: int) -> Linear:
        """self + amount."""
        return Linear(self.terms, self.constant + amount) if amount else self

    def scaled(self, factor: int) -> Linear:
        """self * factor."""
        if factor == 1:
            return self
        if factor == 0:
            return ZERO
        return Linear({term: factor * c for term, c in self.terms.items()}, self.constant * factor)

    def divided(self, divisor: int) -> Linear:
        """self / divisor, where the divisor divides everything."""
        return Linear({term: c // divisor for term, c in self.terms.items()}, self.constant // divisor)

    def parted(self, divisor: int) -> tuple[Linear, Linear]:
        """(whole, rest) with self = divisor * whole + rest: what it divides, and the other terms as they are."""
        whole: dict[PrimExpr, int] = {}
        rest: dict[PrimExpr, int] = {}
        for term, coefficient in self.terms.items():
            if coefficient % divisor == 0:
                whole[term] = coefficient // divisor
            else:
                rest[term] = coefficient
        return Linear(whole, self.constant // divisor), Linear(rest, self.constant % divisor)

    def same_as(self, other: Linear) -> bool:
        """Whether both are the same sum."""
        return self.constant == other.constant and self.terms == other.terms

    def single(self) -> PrimExpr | None:
        """The term, if this is one term with coefficient 1 and no constant."""
        if self.constant == 0 and len(self.terms) == 1:
            for term, coefficient in self.terms.items():
                if coefficient == 1:
                    return term
        return None

    def common_divisor(self) -> int:
        """The greatest common divisor of the coefficients of the terms (0 if there are none)."""
        result = 0
        for coefficient in self.terms.values():
            result = gcd(result, coefficient)
        return result

    @property
    def weight(self) -> int:
        """How many summands there are, the constant included."""
        return len(self.terms) + (self.constant != 0)

    def __repr__(self) -> str:
        return " + ".join([f"{c}*{term!r}" for term, c in self.terms.items()] + [str(self.constant)])


ZERO: Final = Linear({}, 0)


def constant(value: int) -> Linear:
    """A form without terms."""
    return Linear({}, value)


def term(expr: PrimExpr) -> Linear:
    """The form of a single term."""
    return Linear({expr: 1}, 0)
