"""Modular sets: the residue class that an integer expression always falls in."""

from __future__ import annotations

from math import gcd
from typing import Final

from tilewright.arith.bounds import BoundsAnalysis
from tilewright.arith.knowledge import ModularSet, is_index
from tilewright.arith.linear import Linear
from tilewright.ir import expr as e
from tilewright.ir.expr import IntImm, PrimExpr

ANY: Final = ModularSet(1, 0)


def normal(coefficient: int, base: int) -> ModularSet:
    """A modular set with its base reduced."""
    coefficient = abs(coefficient)
    return ModularSet(coefficient, base % coefficient if coefficient else base)


def union(a: ModularSet, b: ModularSet) -> ModularSet:
    """The least modular set that holds both."""
    return normal(gcd(a.coefficient, b.coefficient, a.base - b.base), a.base)


def intersect(a: ModularSet, b: ModularSet) -> ModularSet:
    """A modular set that holds what is in both (the finer of the two when they do not nest)."""
    if a.coefficient == 0 or (b.coefficient and a.coefficient % b.coefficient == 0):
        return a
    if b.coefficient == 0 or b.coefficient % a.coefficient == 0:
        return b
    shared = gcd(a.coefficient, b.coefficient)
    if (a.base - b.base) % shared:
        return a
    # Chinese remainder: step through the class of a until it meets the class of b.
    step = a.coefficient
    value = a.base
    for _ in range(b.coefficient // shared):
        if value % b.coefficient == b.base:
            return normal(a.coefficient * b.coefficient // shared, value)
        value += step
    return a


class ModularAnalysis(BoundsAnalysis):
    """Residues of index expressions; expressions of wrapping types are in any class."""

    def modular(self, expr: PrimExpr) -> ModularSet:
        """The residue class of an integer expression."""
        if is_index(expr):
            return self.form_modular(self.form(expr))
        if isinstance(expr, IntImm):
            return ModularSet(0, expr.value)
        return ANY

    def form_modular(self, form: Linear) -> ModularSet:
        """The residue class of a linear form."""
        coefficient, base = 0, form.constant
        for term, factor in form.terms.items():
            known = self.term_modular(term)
            coefficient = gcd(coefficient, factor * known.coefficient)
            base += factor * known.base
        return normal(coefficient, base)

    def term_modular(self, term: PrimExpr) -> ModularSet:
        """The residue class of one term."""
        known = self._modular.get(term)
        if known is None:
            known = self._structural_modular(term)
            learned = self.residues.get(term)
            if learned is not None:
                known = intersect(known, learned)
            self._modular[term] = known
        return known

    def _structural_modular(self, term: PrimExpr) -> ModularSet:
        match term:
            case e.Mul():
                a, b = self.modular(term.a), self.modular(term.b)
                # (ka + x)(lb + y) = klab + kay + lbx + xy
                return normal(
                    gcd(a.coefficient * b.coefficient, a.coefficient * b.base, b.coefficient * a.base), a.base * b.base
                )
            case e.FloorDiv(b=IntImm(value=divisor)) if divisor > 0:
                a = self.modular(term.a)
                if a.coefficient % divisor == 0:
                    return normal(a.coefficient // divisor, a.base // divisor)
            case e.FloorMod(b=IntImm(value=divisor)) if divisor > 0:
                a = self.modular(term.a)
                shared = gcd(a.coefficient, divisor)
                if shared == divisor:
                    return ModularSet(0, a.base % divisor)
                return normal(shared, a.base)
            case e.Min() | e.Max() | e.Select():
                return union(self.modular(term.a), self.modular(term.b))
            case e.Cast() if term.value.dtype.is_integer:
                return self.modular(term.value) if isinstance(term.value, IntImm) else ANY
            case _:
                return ANY
        return ANY
