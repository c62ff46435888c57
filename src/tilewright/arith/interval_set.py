"""Symbolic intervals: the least and greatest value of an expression while some variables run over ranges.

Other variables stay symbols in the ends. The interval holds every value the expression takes (a superset); for sums of
independent variables with constant factors the ends are attained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tilewright.arith.analyzer import Analyzer, conjuncts
from tilewright.arith.bounds import factors
from tilewright.arith.interval import Interval, fits
from tilewright.arith.linear import Linear
from tilewright.arith.simplify import may_fail
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import TRUE, IntImm, PrimExpr, Range, Var
from tilewright.ir.visit import variables_in


class SymbolicInterval(NamedTuple):
    """From `lower` to `upper`, both included; None is an end that is not known."""

    lower: PrimExpr | None
    upper: PrimExpr | None


UNKNOWN: Final = SymbolicInterval(None, None)


def of_range(value: Range) -> SymbolicInterval:
    """The closed interval of a half-open range."""
    return SymbolicInterval(value.min, value.min + value.extent - 1)


class IntervalEvaluator:
    """Evaluates intervals of expressions over one set of domains.

    The variables of the domains must be bound in the analyzer (`over` does this).
    """

    def __init__(self, domains: Mapping[Var, Range], analyzer: Analyzer, predicate: PrimExpr = TRUE) -> None:
        self.analyzer = analyzer
        self.domains = {var: of_range(value) for var, value in domains.items()}
        self.names = frozenset(self.domains)
        limits = [
            form
            for part in conjuncts(predicate)
            for form in _inequalities(part, analyzer)
            if any(self.moves(term) for term in form.terms)
        ]
        self.limits = [*limits, *(divided for form in limits for divided in _divided(form, analyzer))]

    def moves(self, expr: PrimExpr) -> bool:
        """Whether an expression depends on the domains."""
        return not self.names.isdisjoint(variables_in(expr))

    def evaluate(self, expr: PrimExpr) -> SymbolicInterval:
        """The interval of an index expression; its ends do not depend on the variables of the domains."""
        low, high = self._interval(expr)
        # The ends of one domain may depend on variables of another.
        for _ in self.domains:
            if (low is None or not self.moves(low)) and (high is None or not self.moves(high)):
                break
            low = None if low is None else self._interval(low).lower
            high = None if high is None else self._interval(high).upper
        if low is not None and self.moves(low):
            low = None
        if high is not None and self.moves(high):
            high = None
        return SymbolicInterval(low, high)

    def _interval(self, expr: PrimExpr) -> SymbolicInterval:
        return self._of_form(self.analyzer.form(expr))

    def _of_form(self, form: Linear) -> SymbolicInterval:
        analyzer = self.analyzer
        moving = {t: c for t, c in form.terms.items() if self.moves(t)}
        if not moving:
            value = analyzer.render(form)
            return SymbolicInterval(value, value)
        fixed = Linear({t: c for t, c in form.terms.items() if t not in moving}, form.constant)
        low: Linear | None = fixed
        high: Linear | None = fixed
        for term, coefficient in moving.items():
            least, greatest = self._of_term(term)
            if coefficient < 0:
                least, greatest = greatest, least
            low = None if low is None or least is None else low.plus(analyzer.form(least), coefficient)
            high = None if high is None or greatest is None else high.plus(analyzer.form(greatest), coefficient)
        low, high = self._limited(form, low, high)
        return SymbolicInterval(
            None if low is None else analyzer.render(analyzer.normalise(low)),
            None if high is None else analyzer.render(analyzer.normalise(high)),
        )

    def _limited(self, form: Linear, low: Linear | None, high: Linear | None) -> tuple[Linear | None, Linear | None]:
        """Sharpen ends by the inequalities of the predicate whose moving terms are terms of the form."""
        for limit in self.limits:
            shared = [(form.terms[t], c) for t, c in limit.terms.items() if t in form.terms and self.moves(t)]
            if not shared or shared[0][0] % shared[0][1]:
                continue
            ratio = shared[0][0] // shared[0][1]
            rest = form.plus(limit, -ratio)
            least: Linear | None = rest
            greatest: Linear | None = rest
            moving = [term for term in rest.terms if self.moves(term)]
            if any(term in limit.terms or term not in form.terms for term in moving):
                continue
            if moving:
                ends = self._of_form(rest)
                least, greatest = (None if end is None else self.analyzer.form(end) for end in ends)
            if ratio > 0 and greatest is not None:
                high = greatest if high is None else self.analyzer.extremum(e.Min, high, greatest)
            elif ratio < 0 and least is not None:
                low = least if low is None else self.analyzer.extremum(e.Max, low, least)
        return low, high

    def _of_term(self, term: PrimExpr) -> SymbolicInterval:
        if isinstance(term, Var):
            return self.domains[term]
        handler = _HANDLERS.get(type(term))
        result = UNKNOWN if handler is None else handler(self, term)
        if result.lower is None or result.upper is None:
            bounds = self.analyzer.bounds(term)
            low, high = result
            if low is None and bounds.lower is not None:
                low = IntImm(bounds.lower, INDEX)
            if high is None and bounds.upper is not None:
                high = IntImm(bounds.upper, INDEX)
            result = SymbolicInterval(low, high)
        return result


def _inequalities(condition: PrimExpr, analyzer: Analyzer) -> list[Linear]:
    """Forms that are <= 0 where a comparison of index values holds."""
    if not isinstance(condition, e.CompareExpr) or condition.a.dtype is not INDEX:
        return []
    difference = analyzer.form(condition.a).minus(analyzer.form(condition.b))
    match condition:
        case e.LT():
            return [difference.shifted(1)]
        case e.LE():
            return [difference]
        case e.EQ():
            return [difference, difference.scaled(-1)]
        case _:
            return []


def _divided(limit: Linear, analyzer: Analyzer) -> list[Linear]:
    """What a form <= 0 says about its quotients: i*8 + j//2 <= 27 says i*2 + j//8 <= 6."""
    terms = Linear(dict(limit.terms), 0)
    found: list[Linear] = []
    for divisor in sorted({d for c in limit.terms.values() for d in _DIVISORS if c % d == 0 and abs(c) >= d}):
        quotient = analyzer.form(build.floordiv(analyzer.render(terms), IntImm(divisor, INDEX)))
        found.append(quotient.shifted(-(-limit.constant // divisor)))
    return found


_DIVISORS: Final = (2, 4, 8, 16, 32)
"""Numbers that indices are divided by where loops are spread over threads."""


def _map(function: Callable[[PrimExpr], PrimExpr], value: SymbolicInterval) -> SymbolicInterval:
    low, high = value
    return SymbolicInterval(None if low is None else function(low), None if high is None else function(high))


def _floordiv(self: IntervalEvaluator, term: e.FloorDiv) -> SymbolicInterval:
    if self.moves(term.b) or not self.analyzer.prove(build.gt(term.b, 0)):
        return UNKNOWN
    return _map(lambda end: build.floordiv(end, term.b), self._interval(term.a))


def _floormod(self: IntervalEvaluator, term: e.FloorMod) -> SymbolicInterval:
    if self.moves(term.b) or not self.analyzer.prove(build.gt(term.b, 0)):
        return UNKNOWN
    low, high = self._interval(term.a)
    if low is not None and high is not None:
        first, last = build.floordiv(low, term.b), build.floordiv(high, term.b)
        if self.analyzer.prove_equal(first, last):
            return SymbolicInterval(build.floormod(low, term.b), build.floormod(high, term.b))
    return SymbolicInterval(IntImm(0, INDEX), build.sub(term.b, 1))


def _min(self: IntervalEvaluator, term: e.Min) -> SymbolicInterval:
    (a_low, a_high), (b_low, b_high) = self._interval(term.a), self._interval(term.b)
    return SymbolicInterval(
        None if a_low is None or b_low is None else build.minimum(a_low, b_low),
        a_high if b_high is None else b_high if a_high is None else build.minimum(a_high, b_high),
    )


def _max(self: IntervalEvaluator, term: e.Max) -> SymbolicInterval:
    (a_low, a_high), (b_low, b_high) = self._interval(term.a), self._interval(term.b)
    return SymbolicInterval(
        a_low if b_low is None else b_low if a_low is None else build.maximum(a_low, b_low),
        None if a_high is None or b_high is None else build.maximum(a_high, b_high),
    )


def _select(self: IntervalEvaluator, term: e.Select) -> SymbolicInterval:
    (a_low, a_high), (b_low, b_high) = self._interval(term.a), self._interval(term.b)
    if self.moves(term.condition):
        # The ends are evaluated whichever side is chosen: what the condition guarded must not be in them.
        if any(end is not None and may_fail(end) for end in (a_low, a_high, b_low, b_high)):
            return UNKNOWN
        return SymbolicInterval(
            None if a_low is None or b_low is None else build.minimum(a_low, b_low),
            None if a_high is None or b_high is None else build.maximum(a_high, b_high),
        )
    return SymbolicInterval(
        None if a_low is None or b_low is None else build.select(term.condition, a_low, b_low),
        None if a_high is None or b_high is None else build.select(term.condition, a_high, b_high),
    )


def _mul(self: IntervalEvaluator, term: e.Mul) -> SymbolicInterval:
    """A product of one moving factor and fixed ones of known sign, or of factors that are never negative."""
    parts = factors(term)
    moving = [part for part in parts if self.moves(part)]
    scale = build.const(1, INDEX)
    for part in parts:
        if not self.moves(part):
            scale = build.mul(scale, part)
    if not self.analyzer.prove_nonnegative(scale):
        if len(moving) == 1 and self.analyzer.prove(build.le(scale, 0)):
            low, high = self._of_term(moving[0])
            return _map(lambda end: build.mul(end, scale), SymbolicInterval(high, low))
        return UNKNOWN
    if len(moving) == 1:
        return _map(lambda end: build.mul(end, scale), self._of_term(moving[0]))
    if not all(self.analyzer.prove_nonnegative(part) for part in moving):
        return UNKNOWN
    low, high = scale, scale
    result = SymbolicInterval(low, high)
    for part in moving:
        part_low, part_high = self._of_term(part)
        result = SymbolicInterval(
            None if result.lower is None or part_low is None else build.mul(result.lower, part_low),
            None if result.upper is None or part_high is None else build.mul(result.upper, part_high),
        )
    return result


def _cast(self: IntervalEvaluator, term: e.Cast) -> SymbolicInterval:
    """A conversion of an index value to a narrower integer and back keeps it where it fits."""
    inner = term.value
    if isinstance(inner, e.Cast) and inner.value.dtype is INDEX and inner.dtype.is_integer:
        low, high = self.analyzer.bounds(inner.value)
        if fits(Interval(low, high), inner.dtype):
            return self._interval(inner.value)
    return UNKNOWN


_HANDLERS: Final[dict[type, Callable[..., SymbolicInterval]]] = {
    e.FloorDiv: _floordiv,
    e.FloorMod: _floormod,
    e.Min: _min,
    e.Max: _max,
    e.Select: _select,
    e.Mul: _mul,
    e.Cast: _cast,
}
