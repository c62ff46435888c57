"""The simplifier: canonical forms for index arithmetic, decided comparisons, and the rule table for everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilewright.arith import linear, rules
from tilewright.arith.canonical import CanonicalAnalysis
from tilewright.arith.interval import Interval
from tilewright.arith.knowledge import ModularSet, is_index
from tilewright.arith.linear import Linear
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import FALSE, TRUE, IntImm, PrimExpr, Var
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order

_FUEL: Final = 100
_MOST_CASES: Final = 64
"""Cases inside one case that are looked at each by itself: nested conditions would multiply them without end."""
CORE_NODES: Final[frozenset[type]] = frozenset(
    value for value in vars(e).values() if isinstance(value, type) and issubclass(value, PrimExpr)
)
"""The scalar expressions of the core: their values depend on variables only, never on memory."""


def depends_on_memory(expr: PrimExpr) -> bool:
    """Whether an expression reads something that a statement may change (a load, a call)."""
    try:
        return expr.reads_memory
    except AttributeError:
        pass
    if isinstance(expr, e.BinaryExpr):
        result = depends_on_memory(expr.a) or depends_on_memory(expr.b)
    else:
        result = type(expr) not in CORE_NODES or any(map(depends_on_memory, expr.children()))  # type: ignore[arg-type]
    expr.reads_memory = result
    return result


def may_fail(expr: PrimExpr) -> bool:
    """Whether evaluating an expression where it was not evaluated before might go wrong (loads, division by zero)."""
    for node in pre_order(expr):
        if not isinstance(node, PrimExpr):
            continue
        if type(node) is e.Call or type(node) not in CORE_NODES:
            return True
        if type(node) in (e.FloorDiv, e.FloorMod, e.Div, e.Mod) and not node.dtype.is_float:
            divisor = node.b  # type: ignore[attr-defined]
            if not isinstance(divisor, IntImm) or divisor.value == 0:
                return True
    return False


class Simplifier(CanonicalAnalysis):
    """Simplification. Results are equal to the input for every value of the variables that the known facts allow."""

    def simplify(self, expr: PrimExpr) -> PrimExpr:
        """The simplest equal expression that is known."""
        result = self._simplified.get(expr)
        if result is None:
            result = self._simplify_index(expr) if expr.dtype is INDEX else self._simplify_other(expr)
            self._simplified[expr] = result
            self._simplified.setdefault(result, result)
        return result

    def _simplify_index(self, expr: PrimExpr) -> PrimExpr:
        kind = type(expr)
        if kind is IntImm:
            return expr
        form = self.form(expr)
        result = self.render(form)
        if kind in _SUMS and any(type(term) is e.Mul for term in form.terms):
            # Multiplying out proves more but may cost more to compute: keep the cheaper of the two.
            kept = expr.rebuild(self._child)
            if kept is not result and _size(kept) < _size(result):
                result = kept
        self._forms.setdefault(result, form)
        return result

    def _child(self, node: Node) -> Node:
        return self.simplify(node) if isinstance(node, PrimExpr) else node.rebuild(self._child)

    def _simplify_other(self, expr: PrimExpr) -> PrimExpr:
        result = self.restructure(expr)
        if result.dtype.is_integer:
            low, high = self.bounds(result)
            if low is not None and low == high:
                return build.const(low, result.dtype)
        elif self.truths and result.dtype.is_bool:
            known = self.truths.get(result)
            if known is not None:
                return TRUE if known else FALSE
        return result

    def restructure(self, expr: PrimExpr) -> PrimExpr:
        """An expression that is not a sum with its operands simplified and the rules applied at its root."""
        current = expr
        for _ in range(_FUEL):
            handler = _HANDLERS.get(type(current))
            rebuilt = current.rebuild(self._child) if handler is None else handler(self, current)
            if is_index(rebuilt) and type(rebuilt) in _SUM_LIKE:
                return rebuilt
            found = rules.ALL.apply(rebuilt, self)
            if found is None:
                if rebuilt is current or type(rebuilt) is type(current):
                    return rebuilt
                current = rebuilt
            else:
                current = found
        return current

    def _may_fail(self, expr: PrimExpr) -> bool:
        known = self._failing.get(expr)
        if known is None:
            known = self._failing[expr] = may_fail(expr)
        return known

    # Knowledge from conditions

    def learn(self, condition: PrimExpr, holds: bool = True) -> None:
        """Take a condition (or its negation) as a fact."""
        match condition:
            case IntImm():
                return
            case e.Not():
                self.learn(condition.a, not holds)
            case e.And() if holds:
                self.learn(condition.a)
                self.learn(condition.b)
            case e.Or() if not holds:
                self.learn(condition.a, False)
                self.learn(condition.b, False)
            case _:
                self.learning((condition, holds), lambda: self._learn(condition, holds))

    def _learn(self, condition: PrimExpr, holds: bool) -> None:
        match condition:
            case e.LT() | e.LE() | e.EQ() | e.NE() if is_index(condition.a):
                self._learn_comparison(condition, holds)
            case e.LT() | e.LE() | e.EQ() if condition.a.dtype.is_integer and condition.dtype.is_scalar:
                self._learn_range(condition, holds)
            case _:
                self._learn_truth(condition, holds)

    def _learn_truth(self, condition: PrimExpr, holds: bool) -> None:
        simple = self.simplify(condition)
        if isinstance(simple, IntImm):
            return
        self.learn_truths({simple: holds, build.logical_not(simple): not holds})

    def _learn_comparison(self, condition: e.LT | e.LE | e.EQ | e.NE, holds: bool) -> None:
        difference = self.normalise(self.form(condition.a).minus(self.form(condition.b)))
        kind = type(condition)
        if kind is e.LT:
            self.learn_at_most_zero(difference.shifted(1) if holds else difference.scaled(-1))
        elif kind is e.LE:
            self.learn_at_most_zero(difference if holds else difference.scaled(-1).shifted(1))
        elif (kind is e.EQ) == holds:
            self._learn_residue(difference)
            self.learn_at_most_zero(difference)
            self.learn_at_most_zero(difference.scaled(-1))
        else:
            low, high = self.form_bounds(difference)
            if low == 0:
                self.learn_at_most_zero(difference.scaled(-1).shifted(1))
            elif high == 0:
                self.learn_at_most_zero(difference.shifted(1))
            else:
                equality = self.equal_zero(difference)
                if not isinstance(equality, IntImm):
                    self.learn_truths({equality: False})

    def _learn_residue(self, difference: Linear) -> None:
        """x % m == r says that x is r modulo m."""
        if len(difference.terms) != 1:
            return
        ((term, coefficient),) = difference.terms.items()
        if type(term) is not e.FloorMod or type(term.b) is not IntImm or coefficient not in (1, -1):
            return
        numerator = self.form(term.a)
        symbol = Linear(numerator.terms, 0).single()
        modulus = term.b.value
        if symbol is not None and modulus > 0:
            residue = -coefficient * difference.constant - numerator.constant
            self.learn_residue(symbol, ModularSet(modulus, residue % modulus))

    def _learn_range(self, condition: e.LT | e.LE | e.EQ, holds: bool) -> None:
        """A comparison of another integer type with a constant bounds the other side."""
        a, b = self.simplify(condition.a), self.simplify(condition.b)
        if isinstance(a, IntImm) == isinstance(b, IntImm):
            self._learn_truth(condition, holds)
            return
        strict = type(condition) is e.LT
        if type(condition) is e.EQ:
            if not holds:
                self._learn_truth(condition, holds)
                return
            value = a.value if isinstance(a, IntImm) else b.value if isinstance(b, IntImm) else 0
            self.learn_range(b if isinstance(a, IntImm) else a, Interval(value, value))
        elif isinstance(b, IntImm):
            self.learn_range(a, Interval(None, b.value - strict) if holds else Interval(b.value + (not strict), None))
        elif isinstance(a, IntImm):
            self.learn_range(b, Interval(a.value + strict, None) if holds else Interval(None, a.value - (not strict)))

    def simplify_where(self, expr: PrimExpr, condition: PrimExpr, holds: bool) -> PrimExpr:
        """An expression simplified where a condition is known to hold (or not to)."""
        plain = self.simplify(expr)
        if isinstance(plain, (IntImm, e.FloatImm)) or self.variables_of(condition).isdisjoint(self.variables_of(plain)):
            return plain
        if not self._conditions:
            self._cases = 0
        elif self._cases >= _MOST_CASES:
            return plain
        saved = self.save()
        self._conditions += 1
        self._cases += 1
        try:
            self.learn(condition, holds)
            return self.simplify(plain)
        finally:
            self._conditions -= 1
            self.restore(saved)
            if not self._conditions and self._cases >= _MOST_CASES:
                # Inside, some cases were not looked at.
                saved.after.pop((condition, holds), None)

    # Comparisons of index values

    def at_most_zero(self, form: Linear) -> PrimExpr:
        """The condition form <= 0, decided where possible, else in a normal shape."""
        low, high = self.form_bounds(form)
        if high is not None and high <= 0:
            return TRUE
        if low is not None and low > 0:
            return FALSE
        divisor = form.common_divisor()
        if divisor > 1:
            form = Linear({t: c // divisor for t, c in form.terms.items()}, -((-form.constant) // divisor))
        # g*outer + inner < 0 is outer < 0 where 0 <= inner < g.
        peeled = self._peel(form.shifted(-1), 0)
        if peeled is not None:
            return self.at_most_zero(peeled[1].shifted(1))
        if len(form.terms) == 1:
            ((term, coefficient),) = form.terms.items()
            inner = self._inner_comparison(term, coefficient, form.constant)
            if inner is not None:
                return inner
        return self._render_comparison(form)

    def _inner_comparison(self, term: PrimExpr, sign: int, constant: int) -> PrimExpr | None:
        """sign*term + constant <= 0 as a comparison of what is inside the term, where that is simpler."""
        if isinstance(term, e.FloorDiv) and isinstance(term.b, IntImm) and term.b.value > 0:
            divisor, numerator = term.b.value, self.form(term.a)
            if sign > 0:
                return self.at_most_zero(numerator.shifted(constant * divisor - divisor + 1))
            return self.at_most_zero(linear.constant(constant * divisor).minus(numerator))
        if isinstance(term, (e.Min, e.Max)):
            # One side decides when the other cannot meet (or cannot fail) the comparison.
            either = isinstance(term, e.Min) == (sign > 0)
            for side, other in ((term.a, term.b), (term.b, term.a)):
                low, high = self.form_bounds(self.form(side).scaled(sign).shifted(constant))
                undecisive = (low is not None and low > 0) if either else (high is not None and high <= 0)
                if undecisive:
                    return self.at_most_zero(self.form(other).scaled(sign).shifted(constant))
        return None

    def _render_comparison(self, form: Linear) -> PrimExpr:
        positive = Linear({t: c for t, c in form.terms.items() if c > 0}, 0)
        negative = Linear({t: -c for t, c in form.terms.items() if c < 0}, 0)
        constant = form.constant
        if not negative.terms:
            return e.LT(self.render(positive), IntImm(1 - constant, INDEX))
        if not positive.terms:
            return e.LE(IntImm(constant, INDEX), self.render(negative))
        if constant >= 1:
            return e.LT(self.render(positive.shifted(constant - 1)), self.render(negative))
        return e.LE(self.render(positive), self.render(negative.shifted(-constant)))

    def equal_zero(self, form: Linear) -> PrimExpr:
        """The condition form == 0, decided where possible, else in a normal shape."""
        low, high = self.form_bounds(form)
        if low == 0 and high == 0:
            return TRUE
        if (low is not None and low > 0) or (high is not None and high < 0):
            return FALSE
        residue = self.form_modular(form)
        if residue.base % residue.coefficient if residue.coefficient else residue.base:
            return FALSE
        divisor = form.common_divisor()
        if divisor > 1:
            if form.constant % divisor:
                return FALSE
            form = form.divided(divisor)
        if form.terms[min(form.terms, key=self.order_key)] < 0:
            form = form.scaled(-1)
        positive = Linear({t: c for t, c in form.terms.items() if c > 0}, 0)
        negative = Linear({t: -c for t, c in form.terms.items() if c < 0}, 0)
        if form.constant > 0 and negative.terms:
            positive = positive.shifted(form.constant)
        else:
            negative = negative.shifted(-form.constant)
        return e.EQ(self.render(positive), self.render(negative))


_SUMS: Final = (e.Add, e.Sub, e.Mul)
_SUM_LIKE: Final = (e.Add, e.Sub, e.Mul, e.FloorDiv, e.FloorMod, e.Min, e.Max, IntImm, Var)


def _size(expr: PrimExpr) -> int:
    """How many operations an expression takes, shared ones once."""
    try:
        return expr.operations
    except AttributeError:
        expr.operations = sum(1 for node in pre_order(expr) if not isinstance(node, (Var, IntImm)))
        return expr.operations


def _compare(self: Simplifier, expr: e.LT | e.LE) -> PrimExpr:
    if is_index(expr.a):
        difference = self.normalise(self.form(expr.a).minus(self.form(expr.b)))
        return self.at_most_zero(difference.shifted(1) if type(expr) is e.LT else difference)
    a, b = self.simplify(expr.a), self.simplify(expr.b)
    if a.dtype.is_integer:
        strict = type(expr) is e.LT
        (a_low, a_high), (b_low, b_high) = self.bounds(a), self.bounds(b)
        if a_high is not None and b_low is not None and a_high + strict <= b_low:
            return build.const(True, expr.dtype)
        if a_low is not None and b_high is not None and b_high < a_low + strict:
            return build.const(False, expr.dtype)
    return build.BINARY_BUILDERS[type(expr)](a, b)


def _equal(self: Simplifier, expr: e.EQ | e.NE) -> PrimExpr:
    wanted = type(expr) is e.EQ
    if is_index(expr.a):
        difference = self.normalise(self.form(expr.a).minus(self.form(expr.b)))
        result = self.equal_zero(difference)
        known = self.truths.get(result)
        if known is not None:
            result = TRUE if known else FALSE
        if wanted:
            return result
        return e.NE(result.a, result.b) if isinstance(result, e.EQ) else build.logical_not(result)
    a, b = self.simplify(expr.a), self.simplify(expr.b)
    if a.dtype.is_integer:
        (a_low, a_high), (b_low, b_high) = self.bounds(a), self.bounds(b)
        apart = (a_high is not None and b_low is not None and a_high < b_low) or (
            a_low is not None and b_high is not None and b_high < a_low
        )
        if apart:
            return build.const(not wanted, expr.dtype)
    return build.BINARY_BUILDERS[type(expr)](a, b)


def _and(self: Simplifier, expr: e.And) -> PrimExpr:
    a = self.simplify(expr.a)
    if isinstance(a, IntImm):
        return self.simplify(expr.b) if a.value else a
    b = self.simplify_where(expr.b, a, True)
    if isinstance(b, IntImm):
        return a if b.value else b
    if not self._may_fail(b) and not self._may_fail(a):
        a = self.simplify_where(a, b, True)
    return build.logical_and(a, b)


def _or(self: Simplifier, expr: e.Or) -> PrimExpr:
    a = self.simplify(expr.a)
    if isinstance(a, IntImm):
        return a if a.value else self.simplify(expr.b)
    b = self.simplify_where(expr.b, a, False)
    if isinstance(b, IntImm):
        return b if b.value else a
    if not self._may_fail(b) and not self._may_fail(a):
        a = self.simplify_where(a, b, False)
    return build.logical_or(a, b)


def _not(self: Simplifier, expr: e.Not) -> PrimExpr:
    return build.logical_not(self.simplify(expr.a))


def _select(self: Simplifier, expr: e.Select) -> PrimExpr:
    condition = self.simplify(expr.condition)
    if isinstance(condition, IntImm):
        return self.simplify(expr.a if condition.value else expr.b)
    if condition.dtype.lanes > 1:
        return build.select(condition, self.simplify(expr.a), self.simplify(expr.b))
    a = self.simplify_where(expr.a, condition, True)
    b = self.simplify_where(expr.b, condition, False)
    return build.select(condition, a, b)


def _cast(self: Simplifier, expr: e.Cast) -> PrimExpr:
    value = self.simplify(expr.value)
    while isinstance(value, e.Cast) and _widens(value):
        value = value.value
    return build.cast(value, expr.dtype)


def _widens(cast: e.Cast) -> bool:
    """Whether a conversion keeps every value: a step that a later conversion may skip."""
    source, target = cast.value.dtype, cast.dtype
    if not target.is_integer or not (source.is_integer or source.is_bool):
        return False
    return target.min_value() <= source.min_value() and source.max_value() <= target.max_value()


def _binary(self: Simplifier, expr: e.BinaryExpr) -> PrimExpr:
    if is_index(expr):
        return self.render(self.form(expr))
    a, b = self.simplify(expr.a), self.simplify(expr.b)
    builder = build.BINARY_BUILDERS[type(expr)]
    return builder(a, b)


def _variable(self: Simplifier, expr: Var) -> PrimExpr:
    value = self.values.get(expr)
    return expr if value is None else self.simplify(value)


def _leaf(self: Simplifier, expr: PrimExpr) -> PrimExpr:
    return expr


_HANDLERS: Final[dict[type, Callable[..., PrimExpr]]] = {
    **dict.fromkeys(build.BINARY_BUILDERS, _binary),
    IntImm: _leaf,
    e.FloatImm: _leaf,
    e.StringImm: _leaf,
    Var: _variable,
    e.LT: _compare,
    e.LE: _compare,
    e.EQ: _equal,
    e.NE: _equal,
    e.And: _and,
    e.Or: _or,
    e.Not: _not,
    e.Select: _select,
    e.Cast: _cast,
}
