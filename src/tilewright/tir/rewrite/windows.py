"""Where conditions hold: what guards the statements below a loop, solved for the loop's variable."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from functools import lru_cache

from tilewright.arith.analyzer import Analyzer, conjuncts
from tilewright.arith.region import touched
from tilewright.ir.build import add, const, floordiv, neg, sub
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import EQ, LE, LT, TRUE, Not, PrimExpr, Range, Select, Var
from tilewright.ir.visit import pre_order
from tilewright.tir.buffer import loads_in
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter, all_statements, inner_statements
from tilewright.tir.stmt import Allocate, Assert, BufferStore, Evaluate, For, IfThenElse, Stmt


@dataclass(frozen=True, slots=True)
class Window:
    """Where conditions certainly hold: from `low` on and before `high` (None: no limit on that side)."""

    low: PrimExpr | None
    high: PrimExpr | None
    holding: tuple[PrimExpr, ...] = ()
    """The conditions that hold there, whatever the loops inside do."""


@lru_cache(maxsize=1 << 8)
def conditions_below(stmt: Stmt) -> list[tuple[PrimExpr, dict[Var, Range]]]:
    """Conditions below a statement, each with the loops between (as domains of their variables).

    Asked several times in a row of the same loops: the latest answers are kept, and must not be changed.
    """
    conditions: list[tuple[PrimExpr, dict[Var, Range]]] = []
    _collect(stmt, {}, conditions)
    return conditions


Guards = tuple[tuple[PrimExpr, ...], tuple[tuple[Var, Range], ...]]
"""The conditions that must hold for a statement to run, and the loops around it."""


def guards_below(stmt: Stmt, *, seen_outside: bool = False) -> list[Guards]:
    """What keeps each statement below (a store, a call, an assertion) from running, each once.

    `seen_outside`: of all statements but stores to what is allocated below, too.
    """
    own = {item.buffer for item in all_statements(stmt) if isinstance(item, Allocate)} if seen_outside else set()
    sets_of_guards: dict[Guards, None] = {}

    def visit(item: Stmt, guards: tuple[PrimExpr, ...], domains: tuple[tuple[Var, Range], ...]) -> None:
        match item:
            case IfThenElse():
                visit(item.then_body, (*guards, *conjuncts(item.condition)), domains)
                if item.else_body is not None:
                    visit(item.else_body, guards, domains)
            case For():
                visit(item.body, guards, (*domains, (item.var, Range(item.min, item.extent))))
            case BufferStore() if item.buffer in own:
                pass
            case BufferStore() | Evaluate() | Assert():
                sets_of_guards[guards, domains] = None
            case _:
                for inner in inner_statements(item):
                    visit(inner, guards, domains)

    visit(stmt, (), ())
    return list(sets_of_guards)


def _collect(stmt: Stmt, domains: dict[Var, Range], collected: list[tuple[PrimExpr, dict[Var, Range]]]) -> None:
    if isinstance(stmt, IfThenElse):
        collected.append((stmt.condition, domains))
    if isinstance(stmt, For):
        domains = {**domains, stmt.var: Range(stmt.min, stmt.extent)}
    for child in stmt.children():
        if isinstance(child, Stmt):
            _collect(child, domains, collected)
        elif isinstance(child, PrimExpr):
            collected.extend([(condition, domains) for condition in _choices_in(child)])


def _choices_in(expr: PrimExpr) -> tuple[PrimExpr, ...]:
    """The conditions that selections in an expression choose by, lanes alike; the expression keeps them."""
    try:
        return expr.choices
    except AttributeError:
        pass
    selections = [item for item in pre_order(expr) if type(item) is Select]
    expr.choices = tuple([item.condition for item in selections if item.condition.dtype.is_scalar])
    return expr.choices


def solve(condition: PrimExpr, var: Var, domains: dict[Var, Range], analyzer: Analyzer) -> Window | None:
    """Where a comparison certainly holds as a range of `var`, whatever the variables of the domains are.

    The comparison becomes `c * var + rest > 0`; the least value of the rest over the domains decides.
    """
    difference = positive_form(condition)
    if difference is None or loads_in(condition):
        return None
    form = analyzer.form(difference)
    coefficient = form.terms.get(var, 0)
    others = [term for term in form.terms if term is not var]
    if coefficient == 0 or any(var in analyzer.variables_of(term) for term in others):
        return None
    rest = sub(analyzer.render(form), var * coefficient)
    least = touched([rest], domains, analyzer)[0]
    if least is None or var in analyzer.variables_of(least.min):
        return None
    if isinstance(condition, EQ):
        return None
    low = least.min
    if coefficient > 0:
        # c * var > -low
        return Window(analyzer.simplify(add(floordiv(neg(low), coefficient), 1)), None)
    # |c| * var < low
    return Window(
        None, analyzer.simplify(floordiv(add(low, const(-coefficient - 1, INDEX)), const(-coefficient, INDEX)))
    )


def positive_form(condition: PrimExpr) -> PrimExpr | None:
    """An index expression that is positive exactly where a comparison holds."""
    if isinstance(condition, Not):
        inner = condition.a
        if isinstance(inner, LT):
            return positive_form(LE(inner.b, inner.a))
        if isinstance(inner, LE):
            return positive_form(LT(inner.b, inner.a))
        return None
    if not isinstance(condition, (LT, LE)) or condition.a.dtype is not INDEX:
        return None
    difference = sub(condition.b, condition.a)
    return difference if isinstance(condition, LT) else add(difference, 1)


def assume_held(stmt: Stmt, conditions: Container[PrimExpr]) -> Stmt:
    """A statement with conditions that hold taken for granted: ends that are symbolic say little."""
    rewriter = StmtRewriter()
    rewriter.expr = ExprRewriter(lambda expr: TRUE if expr in conditions else None)  # type: ignore[method-assign]
    return rewriter.stmt(stmt)
