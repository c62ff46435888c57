"""The prover: conditions that certainly hold. It never says yes wrongly; a no may mean that it does not know."""

from __future__ import annotations

from typing import Final

from tilewright.arith.knowledge import is_index
from tilewright.arith.linear import Linear
from tilewright.arith.simplify import Simplifier
from tilewright.ir import expr as e
from tilewright.ir.expr import IntImm, PrimExpr

_DEPTH: Final = 3
"""How many known inequalities one proof may combine."""


class Prover(Simplifier):
    """Proofs: first simplification, then a search for inequalities that combine to the wanted one."""

    def prove(self, condition: PrimExpr) -> bool:
        """Whether a condition certainly holds (in all lanes, of a vector)."""
        known = self._proofs.get(condition)
        if known is None:
            known = self._proofs[condition] = self._prove(condition)
        return known

    def _prove(self, condition: PrimExpr) -> bool:
        simple = self.simplify(condition)
        match simple:
            case IntImm():
                return simple.value != 0
            case e.Broadcast():
                return self.prove(simple.value)
            case e.And():
                return self.prove(simple.a) and self.prove(simple.b)
            case e.Or():
                return self.prove(simple.a) or self.prove(simple.b) or self._prove_either(simple)
            case e.LT() | e.LE() | e.EQ() | e.NE() if is_index(simple.a):
                return self._prove_comparison(simple)
            case e.LT() | e.LE() if simple.a.dtype.is_integer:
                high, low = self.bounds(simple.a).upper, self.bounds(simple.b).lower
                return high is not None and low is not None and high + (type(simple) is e.LT) <= low
            case _:
                return False

    def _prove_either(self, condition: e.Or) -> bool:
        saved = self.save()
        try:
            self.learn(condition.a, False)
            return self.prove(condition.b)
        finally:
            self.restore(saved)

    def _prove_comparison(self, condition: e.LT | e.LE | e.EQ | e.NE) -> bool:
        difference = self.normalise(self.form(condition.a).minus(self.form(condition.b)))
        match condition:
            case e.LT():
                return self._at_most(difference, -1)
            case e.LE():
                return self._at_most(difference, 0)
            case e.EQ():
                return self._at_most(difference, 0) and self._at_most(difference.scaled(-1), 0)
            case _:
                return self._at_most(difference, -1) or self._at_most(difference.scaled(-1), -1)

    def _at_most(self, form: Linear, limit: int) -> bool:
        bound = self.upper(form, _DEPTH, limit)
        return bound is not None and bound <= limit
