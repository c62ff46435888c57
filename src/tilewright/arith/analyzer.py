"""`Analyzer`: the front of the arithmetic package. It knows facts about variables and answers questions about
integer expressions: simpler forms, bounds, residues, proofs.

Index values (int64) are mathematical integers: index arithmetic is assumed not to overflow. Other integer types wrap,
and the analyses are exact about it or refuse. Nodes of upper floors (loads, ...) are opaque terms.
"""

from __future__ import annotations

from tilewright.arith.interval import Interval
from tilewright.arith.knowledge import ModularSet, State
from tilewright.arith.linear import Linear
from tilewright.arith.prover import Prover
from tilewright.arith.simplify import depends_on_memory
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import ExprLike, IntImm, PrimExpr, Range, Var
from tilewright.support.errors import CompilerBug

__all__ = ["Analyzer", "Interval", "ModularSet"]


class Analyzer(Prover):
    """Facts about variables, and what follows from them.

    >>> from tilewright.ir.expr import Var, Range, IntImm
    >>> i, j, analyzer = Var("i"), Var("j"), Analyzer()
    >>> analyzer.bind(j, Range(IntImm(0), IntImm(8)))
    >>> analyzer.simplify((i * 8 + j) // 8) is i
    True

    Answers are cached per expression and per set of facts; learning something (`bind`, `assume`) leads to another set,
    and the same from the same set to the same.
    """

    def bind(self, var: Var, value: Range | Interval | ExprLike) -> None:
        """Say what a variable is: in a range, in a constant interval, or equal to an expression.

        What was known about the variable before is forgotten. A range of extent 1 is its minimum.
        """
        if isinstance(value, Range):
            low, extent = value.min, value.extent
            if type(low) is IntImm and type(extent) is IntImm and extent.value != 1:
                # What nearly all loops are.
                self._bind_constants(var, Interval(low.value, low.value + extent.value - 1))
            else:
                self.learning((var, low, extent), lambda: self._bind_range(var, value))
        elif isinstance(value, Interval):
            self._bind_constants(var, value)
        else:
            expr = build.as_expr(value, var.dtype)
            self.learning((var, expr), lambda: self._bind_value(var, expr))

    def introduce(self, var: Var, value: Range) -> None:
        """Bind a variable that nothing asked so far was about: what was found out stays true, so caches stay."""
        low, extent = value.min, value.extent
        if type(low) is not IntImm or type(extent) is not IntImm or var.dtype is not INDEX or var in self._numbers:
            self.bind(var, value)
            return
        facts = self._state.facts
        if extent.value == 1:
            facts = facts._replace(values={**facts.values, var: low})
        else:
            interval = Interval(low.value, low.value + extent.value - 1)
            facts = facts._replace(ranges={**facts.ranges, var: interval})
        state = State(facts)
        state.share(self._state)
        self.restore(state)

    def _bind_constants(self, var: Var, interval: Interval) -> None:
        """A variable lies between constants. What was found out holds still, if none of it is about the variable."""

        def change() -> None:
            before = self._state
            if self._drop(var) or before.mentions(var):
                self.learn_range(var, interval)
            else:
                self.ranges = {**self.ranges, var: interval}
                self.restore(State(self._facts(), before))

        self.learning((var, interval), change)

    def _bind_value(self, var: Var, value: PrimExpr) -> None:
        self._drop(var)
        if value.dtype is not var.dtype:
            raise CompilerBug(f"{var.name} of {var.dtype} cannot be bound to a value of {value.dtype}")
        value = self.simplify(value)
        if var in self.variables_of(value):
            raise CompilerBug(f"{var.name} cannot be bound to an expression of itself")
        self.values = {**self.values, var: value}
        self._clear()

    def _bind_range(self, var: Var, value: Range) -> None:
        self._drop(var)
        if var.dtype is not INDEX or value.min.dtype is not INDEX or value.extent.dtype is not INDEX:
            low, size = self.bounds(value.min), self.bounds(value.extent)
            last_value = None if low.upper is None or size.upper is None else low.upper + size.upper - 1
            self.learn_range(var, Interval(low.lower, last_value))
            return
        extent = self.simplify(value.extent)
        if isinstance(extent, IntImm) and extent.value == 1:
            self._bind_value(var, value.min)
            return
        first = self.form(value.min)
        last = first.plus(self.form(extent)).shifted(-1)
        self.learn_range(var, Interval(self.form_bounds(first).lower, self.form_bounds(last).upper))
        own = self.form(var)
        if var not in own.terms:
            return
        if first.terms:
            self.learn_at_most_zero(first.minus(own))
        if last.terms:
            self.learn_at_most_zero(own.minus(last))
        # A value of the variable exists, so the range is not empty.
        self.learn_at_most_zero(first.minus(last))

    def forget(self, var: Var) -> None:
        """Drop everything that is known about a variable."""
        self.learning(var, lambda: self._drop(var))

    def _drop(self, var: Var) -> bool:
        """Drop everything that is known about a variable; whether there was anything."""
        terms: set[PrimExpr] = set()
        for table in (self.ranges, self.residues, self.truths, self.inequalities):
            for term in table:
                # Most tables know variables only: look into compound terms, and at variables only by identity.
                if term is var or (type(term) is not Var and var in self.variables_of(term)):
                    terms.add(term)
        if not terms and var not in self.values:
            return False
        self.values = {v: value for v, value in self.values.items() if v is not var}
        self.ranges = {t: known for t, known in self.ranges.items() if t not in terms}
        self.residues = {t: known for t, known in self.residues.items() if t not in terms}
        self.truths = {t: known for t, known in self.truths.items() if t not in terms}
        self.inequalities = {
            term: kept for term, known in self.inequalities.items() if (kept := self._without(known, var))
        }
        self._clear()
        return True

    def _without(self, forms: tuple[Linear, ...], var: Var) -> tuple[Linear, ...]:
        """The forms that a variable does not occur in."""
        return tuple(form for form in forms if not any(var in self.variables_of(term) for term in form.terms))

    def assume(self, *conditions: PrimExpr) -> Scope:
        """Take conditions as facts inside a `with` block.

        Conditions that read memory are ignored: statements in the block may change what they said.
        """
        scope = Scope(self)
        try:
            for condition in conditions:
                self.assume_always(condition)
        except BaseException:
            scope.close()
            raise
        return scope

    def scope(self) -> Scope:
        """A `with` block at whose end everything bound or assumed inside is forgotten."""
        return Scope(self)

    def assume_always(self, condition: PrimExpr) -> None:
        """Take a condition as a fact from here on (to the end of the enclosing scope)."""
        for part in conjuncts(condition):
            if not depends_on_memory(part):
                self.learn(part)

    def prove_equal(self, a: ExprLike, b: ExprLike) -> bool:
        """Whether two expressions are certainly equal."""
        x, y = build.as_expr(a), build.as_expr(b)
        if x is y:
            return True
        return x.dtype is y.dtype and self.prove(e.EQ(x, y))

    def prove_less(self, a: ExprLike, b: ExprLike) -> bool:
        """Whether a < b certainly."""
        return self.prove(build.lt(a, b))

    def prove_nonnegative(self, a: PrimExpr) -> bool:
        """Whether a >= 0 certainly."""
        return self.prove(build.ge(a, build.const(0, a.dtype)))

    def lower_bound(self, expr: PrimExpr) -> int | None:
        """A constant that an expression is never below."""
        return self.bounds(expr).lower

    def upper_bound(self, expr: PrimExpr) -> int | None:
        """A constant that an expression is never above."""
        return self.bounds(expr).upper


class Scope:
    """A `with` block of an analyzer; a class of its own, for passes enter one at every loop."""

    __slots__ = ("_analyzer", "_saved")

    def __init__(self, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._saved = analyzer.save()

    def __enter__(self) -> Analyzer:
        return self._analyzer

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Back to what was known at the beginning."""
        self._analyzer.restore(self._saved)


def conjuncts(condition: PrimExpr) -> list[PrimExpr]:
    """The parts of a conjunction, in order."""
    if isinstance(condition, e.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [condition]
