"""Constant bounds of integer expressions: interval arithmetic on canonical forms, sharpened by assumed inequalities."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, inf
from typing import Final

from tilewright.arith import interval as iv
from tilewright.arith.interval import EVERYTHING, Interval
from tilewright.arith.knowledge import Knowledge, is_index
from tilewright.arith.linear import Linear
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import IntImm, PrimExpr

_MOST_TRIED: Final = 1000
"""Forms that a search looks at: of sums of many products there are as many as there are orders of inequalities."""
_NESTED_SEARCHES: Final = 4
"""How deep searches for inequalities may nest (a search looks at terms whose own bounds may ask for a search)."""


def factors(term: PrimExpr) -> list[PrimExpr]:
    """The factors of a product term; the term itself otherwise."""
    if type(term) is not e.Mul:
        return [term]
    return [*factors(term.a), *factors(term.b)]


class BoundsAnalysis(Knowledge):
    """Const-int bounds. Results are sound for every value of the variables that the known facts allow."""

    def bounds(self, expr: PrimExpr) -> Interval:
        """Constants between which an integer (or bool) expression lies; ends that are not known are None.

        Index arithmetic does not overflow by assumption. Other integer types wrap: where an operation might leave
        the range of its type, the answer is the whole range of the type.
        """
        known = self._bounds.get(expr)
        if known is None:
            known = self.form_bounds(self.form(expr)) if is_index(expr) else self._structural(expr)
            self._bounds[expr] = known
        return known

    def term_bounds(self, term: PrimExpr) -> Interval:
        """The bounds of one term of a linear form."""
        known = self._bounds.get(term)
        if known is None:
            known = self._structural(term)
            self._bounds[term] = known
        return known

    def form_bounds(self, form: Linear) -> Interval:
        """The bounds of a linear form."""
        result = self.naive_bounds(form)
        if self.inequalities and len(form.terms) > 1 and any(term in self.inequalities for term in form.terms):
            high = self.upper(form, 1)
            low = self.upper(form.scaled(-1), 1)
            result = Interval(None if low is None else -low, high)
        return result

    def naive_bounds(self, form: Linear) -> Interval:
        """The sum of the bounds of the terms."""
        low: int | None = form.constant
        high: int | None = form.constant
        for term, coefficient in form.terms.items():
            term_low, term_high = self.term_bounds(term)
            if coefficient < 0:
                term_low, term_high = term_high, term_low
            low = None if low is None or term_low is None else low + coefficient * term_low
            high = None if high is None or term_high is None else high + coefficient * term_high
            if low is None and high is None:
                return EVERYTHING
        return Interval(low, high)

    def quick_lower(self, form: Linear) -> float:
        """A lower bound from the known ranges of single variables alone; minus infinity where that says nothing."""
        total: float = form.constant
        ranges = self.ranges
        for term, coefficient in form.terms.items():
            low, high = ranges.get(term, EVERYTHING)
            end = low if coefficient > 0 else high
            if end is None:
                return -inf
            total += coefficient * end
        return total

    def upper(self, form: Linear, depth: int, goal: int | None = None) -> int | None:
        """An upper bound of a form, looking for up to `depth` known inequalities that sharpen it.

        Stops as soon as a bound <= `goal` is found.
        """
        best = self.naive_bounds(form).upper
        if depth == 0 or not form.terms or self._searches >= _NESTED_SEARCHES:
            return best
        if self._searches == 0:
            self._tried = 0
        self._tried += 1
        if self._tried > _MOST_TRIED:
            return best
        self._searches += 1
        try:
            return self._search(form, best, depth, goal)
        finally:
            self._searches -= 1

    def _search(self, form: Linear, best: int | None, depth: int, goal: int | None) -> int | None:
        for term, coefficient in form.terms.items():
            if goal is not None and best is not None and best <= goal:
                return best
            for fact in self._facts_about(term):
                known = fact.terms[term]
                if known * coefficient <= 0:
                    continue
                shared = gcd(known, coefficient)
                mine, theirs = abs(known) // shared, abs(coefficient) // shared
                rest = form.scaled(mine).plus(fact, -theirs)
                bound = self.upper(rest, depth - 1, None if goal is None else goal * mine)
                if bound is not None and (best is None or bound // mine < best):
                    best = bound // mine
            split = self._upper_of_cases(form, term, coefficient, depth, goal)
            if split is not None and (best is None or split < best):
                best = split
        return best

    def _facts_about(self, term: PrimExpr) -> list[Linear]:
        """Forms that are <= 0 and contain a term: assumed ones and those that hold by the meaning of the term."""
        about = self._state.about
        known = about.get(term)
        if known is None:
            known = about[term] = [fact for fact in self._all_facts(term) if term in fact.terms]
        return known

    def _all_facts(self, term: PrimExpr) -> list[Linear]:
        facts = list(self.inequalities.get(term, ()))
        if isinstance(term, e.FloorDiv) and isinstance(term.b, IntImm) and term.b.value > 0:
            # b * (a // b) <= a <= b * (a // b) + b - 1
            divisor = term.b.value
            numerator = self.form(term.a)
            quotient = Linear({term: divisor}, 0)
            facts.append(quotient.minus(numerator))
            facts.append(numerator.minus(quotient).shifted(1 - divisor))
        elif isinstance(term, e.Min) and is_index(term):
            own = Linear({term: 1}, 0)
            facts.extend(own.minus(self.form(side)) for side in (term.a, term.b))
        elif isinstance(term, e.Max) and is_index(term):
            own = Linear({term: 1}, 0)
            facts.extend(self.form(side).minus(own) for side in (term.a, term.b))
        elif isinstance(term, e.FloorMod) and is_index(term):
            facts.extend(self._facts_about_remainder(term))
        elif isinstance(term, e.Mul):
            facts.extend(self._facts_about_product(term))
        return facts

    def _facts_about_remainder(self, term: e.FloorMod) -> list[Linear]:
        facts = []
        own = Linear({term: 1}, 0)
        low = self.bounds(term.a).lower
        divisor_low = self.bounds(term.b).lower
        if divisor_low is not None and divisor_low > 0:
            if type(term.b) is not IntImm:
                facts.append(own.minus(self.form(term.b)).shifted(1))
            if low is not None and low >= 0:
                facts.append(own.minus(self.form(term.a)))
        return facts

    def _facts_about_product(self, term: e.Mul) -> list[Linear]:
        """Inequalities of one factor, multiplied by the other factors where those are not negative."""
        parts = factors(term)
        facts: list[Linear] = []
        for position, part in enumerate(parts):
            others = parts[:position] + parts[position + 1 :]
            if part in parts[:position]:
                continue
            lows = [self.term_bounds(other).lower for other in others]
            if any(low is None or low < 0 for low in lows):
                continue
            multiplier = Linear({}, 1)
            for other in others:
                multiplier = self.product(multiplier, Linear({other: 1}, 0))
            known = list(self.inequalities.get(part, ()))
            low, high = self.term_bounds(part)
            if low is not None:
                known.append(Linear({part: -1}, low))
            if high is not None:
                known.append(Linear({part: 1}, -high))
            facts.extend(self.product(fact, multiplier) for fact in known)
        return facts

    def _upper_of_cases(
        self, form: Linear, term: PrimExpr, coefficient: int, depth: int, goal: int | None
    ) -> int | None:
        """The bound where a minimum, maximum or selection is one of its sides: the worst of both."""
        kind = type(term)
        if (kind is e.Min and coefficient < 0) or (kind is e.Max and coefficient > 0) or kind is e.Select:
            if not is_index(term):
                return None
            rest = Linear({t: c for t, c in form.terms.items() if t is not term}, form.constant)
            worst: int | None = None
            for side in (term.a, term.b):  # type: ignore[attr-defined]
                bound = self.upper(rest.plus(self.form(side), coefficient), depth - 1, goal)
                if bound is None:
                    return None
                worst = bound if worst is None else max(worst, bound)
            return worst
        return None

    def _structural(self, expr: PrimExpr) -> Interval:
        """The bounds that follow from the node and its operands, and from what is known about it."""
        handler = _HANDLERS.get(type(expr))
        result = iv.of_dtype(expr.dtype)
        if handler is not None and (expr.dtype.is_integer or expr.dtype.is_bool):
            found = handler(self, expr)
            if iv.fits(found, expr.dtype):
                result = iv.intersect(found, result)
        known = self.ranges.get(expr)
        return result if known is None else iv.intersect(result, known)


def _immediate(analysis: BoundsAnalysis, expr: IntImm) -> Interval:
    return Interval(expr.value, expr.value)


def _variable(analysis: BoundsAnalysis, expr: e.Var) -> Interval:
    value = analysis.values.get(expr)
    return iv.of_dtype(expr.dtype) if value is None else analysis.bounds(value)


def _add(analysis: BoundsAnalysis, expr: e.Add) -> Interval:
    return iv.add(analysis.bounds(expr.a), analysis.bounds(expr.b))


def _sub(analysis: BoundsAnalysis, expr: e.Sub) -> Interval:
    return iv.add(analysis.bounds(expr.a), iv.scale(analysis.bounds(expr.b), -1))


def _mul(analysis: BoundsAnalysis, expr: e.Mul) -> Interval:
    if expr.a is expr.b:
        low, high = iv.mul(analysis.bounds(expr.a), analysis.bounds(expr.a))
        return Interval(0 if low is None or low < 0 else low, high)
    return iv.mul(analysis.bounds(expr.a), analysis.bounds(expr.b))


def _floordiv(analysis: BoundsAnalysis, expr: e.FloorDiv) -> Interval:
    a, b = analysis.bounds(expr.a), analysis.bounds(expr.b)
    if b.upper is not None and b.upper < 0:
        a, b = iv.scale(a, -1), iv.scale(b, -1)
    return iv.floordiv(a, b)


def _floormod(analysis: BoundsAnalysis, expr: e.FloorMod) -> Interval:
    a, b = analysis.bounds(expr.a), analysis.bounds(expr.b)
    if b.upper is not None and b.upper < 0:
        return iv.scale(iv.floormod(iv.scale(a, -1), iv.scale(b, -1)), -1)
    return iv.floormod(a, b)


def _div(analysis: BoundsAnalysis, expr: e.Div) -> Interval:
    a, b = analysis.bounds(expr.a), analysis.bounds(expr.b)
    if b.lower is None or not b.is_positive:
        return EVERYTHING
    # Truncation mirrors the floor quotient of the negative part.
    low = high = None
    if a.lower is not None:
        low = iv.floordiv(a, b).lower if a.lower >= 0 else -(-a.lower // b.lower)
    if a.upper is not None:
        if a.upper >= 0:
            high = a.upper // b.lower
        else:
            high = 0 if b.upper is None else -(-a.upper // b.upper)
    return Interval(low, high)


def _mod(analysis: BoundsAnalysis, expr: e.Mod) -> Interval:
    a, b = analysis.bounds(expr.a), analysis.bounds(expr.b)
    if b.lower is None or not b.is_positive:
        return EVERYTHING
    if a.lower is not None and a.lower >= 0:
        return iv.floormod(a, b)
    limit = None if b.upper is None else b.upper - 1
    low = a.lower if limit is None else -limit if a.lower is None else max(a.lower, -limit)
    if a.upper is not None and a.upper <= 0:
        return Interval(low, 0)
    high = a.upper if limit is None else limit if a.upper is None else min(a.upper, limit)
    return Interval(low, high)


def _min(analysis: BoundsAnalysis, expr: e.Min) -> Interval:
    return iv.minimum(analysis.bounds(expr.a), analysis.bounds(expr.b))


def _max(analysis: BoundsAnalysis, expr: e.Max) -> Interval:
    return iv.maximum(analysis.bounds(expr.a), analysis.bounds(expr.b))


def _select(analysis: BoundsAnalysis, expr: e.Select) -> Interval:
    return iv.union(analysis.bounds(expr.a), analysis.bounds(expr.b))


def _cast(analysis: BoundsAnalysis, expr: e.Cast) -> Interval:
    source = expr.value.dtype
    if not (source.is_integer or source.is_bool) or expr.dtype.is_bool:
        return iv.of_dtype(expr.dtype)
    inner = analysis.bounds(expr.value)
    # A uint64 above the signed range would wrap into int64, where "everything" stands for all of int64.
    if expr.dtype.element is INDEX and source.is_uint and source.bits == 64:
        high = inner.upper
        return inner if high is not None and high < 1 << 63 else EVERYTHING
    return inner


def _ramp(analysis: BoundsAnalysis, expr: e.Ramp) -> Interval:
    steps = iv.mul(analysis.bounds(expr.stride), Interval(0, expr.lanes - 1))
    return iv.add(analysis.bounds(expr.base), steps)


def _broadcast(analysis: BoundsAnalysis, expr: e.Broadcast) -> Interval:
    return analysis.bounds(expr.value)


def _call(analysis: BoundsAnalysis, expr: e.Call) -> Interval:
    if not expr.args or not expr.dtype.is_integer or any(arg.dtype is not expr.dtype for arg in expr.args):
        return iv.of_dtype(expr.dtype)
    first = analysis.bounds(expr.args[0])
    if len(expr.args) == 2:
        second = analysis.bounds(expr.args[1])
        if expr.name == "bitwise_and":
            # A non-negative side limits the result from above and makes it non-negative.
            highs = [x.upper for x in (first, second) if x.lower is not None and x.lower >= 0 and x.upper is not None]
            if highs:
                return Interval(0, min(highs))
        if expr.name == "shift_right" and second.is_constant and second.lower is not None and 0 <= second.lower < 64:
            return iv.floordiv(first, Interval(1 << second.lower, 1 << second.lower))
    return iv.of_dtype(expr.dtype)


_HANDLERS: Final[dict[type, Callable[..., Interval]]] = {
    IntImm: _immediate,
    e.Var: _variable,
    e.Add: _add,
    e.Sub: _sub,
    e.Mul: _mul,
    e.FloorDiv: _floordiv,
    e.FloorMod: _floormod,
    e.Div: _div,
    e.Mod: _mod,
    e.Min: _min,
    e.Max: _max,
    e.Select: _select,
    e.Cast: _cast,
    e.Ramp: _ramp,
    e.Broadcast: _broadcast,
    e.Call: _call,
}
