"""Solving a condition for one variable: the intervals in which it certainly holds and certainly fails.

Loop partitioning uses this: the loop runs without the check where it holds, and not at all where it fails.

    io*32 + ii < 100, for io, while ii runs over [0, 32)    ->  holds for io <= 2, fails for io >= 4
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.interval_set import IntervalEvaluator, SymbolicInterval
from tilewright.arith.linear import Linear
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import PrimExpr, Range, Var


class Where(NamedTuple):
    """Where a condition holds and where it fails, as closed intervals of the variable.

    None: no such interval is known. An end that is None is open. The ends depend on outer variables only.
    """

    holds: SymbolicInterval | None
    fails: SymbolicInterval | None


def bounds_where(
    condition: PrimExpr, var: Var, analyzer: Analyzer, inner: Mapping[Var, Range] | None = None
) -> Where | None:
    """Solve a condition for a variable while the `inner` variables run over their ranges.

    None if the condition does not say anything about the variable that can be solved for.
    """
    domains = inner or {}
    with analyzer.scope():
        for name, value in domains.items():
            if name not in analyzer.ranges and name not in analyzer.values:
                analyzer.bind(name, value)
        found = _Solver(var, domains, analyzer).solve(analyzer.simplify(condition))
        return None if found.holds is None and found.fails is None else found


_NOTHING = Where(None, None)


class _Solver:
    def __init__(self, var: Var, inner: Mapping[Var, Range], analyzer: Analyzer) -> None:
        self.var = var
        self.analyzer = analyzer
        self.evaluator = IntervalEvaluator(inner, analyzer)

    def solve(self, condition: PrimExpr) -> Where:
        match condition:
            case e.And():
                a, b = self.solve(condition.a), self.solve(condition.b)
                return Where(self._both(a.holds, b.holds), self._either(a.fails, b.fails))
            case e.Or():
                a, b = self.solve(condition.a), self.solve(condition.b)
                return Where(self._either(a.holds, b.holds), self._both(a.fails, b.fails))
            case e.Not():
                inside = self.solve(condition.a)
                return Where(inside.fails, inside.holds)
            case e.LT() | e.LE() | e.EQ() | e.NE() if condition.a.dtype is INDEX:
                return self._comparison(condition)
            case _:
                return _NOTHING

    def _comparison(self, condition: e.LT | e.LE | e.EQ | e.NE) -> Where:
        form = self.analyzer.form(condition.a).minus(self.analyzer.form(condition.b))
        factor = form.terms.get(self.var, 0)
        rest = Linear({t: c for t, c in form.terms.items() if t is not self.var}, form.constant)
        if factor == 0 or any(self.var in self.analyzer.variables_of(term) for term in rest.terms):
            return _NOTHING
        if isinstance(condition, (e.EQ, e.NE)):
            return self._equality(condition, factor, rest)
        if isinstance(condition, e.LT):
            rest = rest.shifted(1)
        low, high = self.evaluator.evaluate(self.analyzer.render(rest))
        # factor * var + rest <= 0 for the greatest rest; > 0 already for the least rest.
        holds = None if high is None else self._at_most_zero(factor, high)
        fails = None if low is None else self._at_most_zero(-factor, build.sub(1, low))
        return Where(holds, fails)

    def _at_most_zero(self, factor: int, rest: PrimExpr) -> SymbolicInterval:
        """The solutions of factor * var + rest <= 0."""
        if factor > 0:
            return SymbolicInterval(None, self.analyzer.simplify(build.floordiv(build.sub(0, rest), factor)))
        return SymbolicInterval(self.analyzer.simplify(build.floordiv(build.sub(rest, factor + 1), -factor)), None)

    def _equality(self, condition: e.EQ | e.NE, factor: int, rest: Linear) -> Where:
        if any(self.evaluator.moves(term) for term in rest.terms):
            return _NOTHING
        if factor < 0:
            factor, rest = -factor, rest.scaled(-1)
        value = self.analyzer.render(rest.scaled(-1))
        if not self.analyzer.prove(build.eq(build.floormod(value, factor), 0)):
            return _NOTHING
        point = self.analyzer.simplify(build.floordiv(value, factor))
        interval = SymbolicInterval(point, point)
        return Where(interval, None) if isinstance(condition, e.EQ) else Where(None, interval)

    def _both(self, a: SymbolicInterval | None, b: SymbolicInterval | None) -> SymbolicInterval | None:
        if a is None or b is None:
            return None
        low = a.lower if b.lower is None else b.lower if a.lower is None else build.maximum(a.lower, b.lower)
        high = a.upper if b.upper is None else b.upper if a.upper is None else build.minimum(a.upper, b.upper)
        return SymbolicInterval(
            None if low is None else self.analyzer.simplify(low), None if high is None else self.analyzer.simplify(high)
        )

    def _either(self, a: SymbolicInterval | None, b: SymbolicInterval | None) -> SymbolicInterval | None:
        """One of two intervals, or the larger where one holds the other: a union need not be an interval."""
        if a is None or b is None:
            return a if b is None else b
        if self._within(a, b):
            return b
        return a

    def _within(self, a: SymbolicInterval, b: SymbolicInterval) -> bool:
        low = b.lower is None or (a.lower is not None and self.analyzer.prove(build.le(b.lower, a.lower)))
        high = b.upper is None or (a.upper is not None and self.analyzer.prove(build.le(a.upper, b.upper)))
        return low and high
