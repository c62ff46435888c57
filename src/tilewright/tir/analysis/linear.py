"""Index expressions as integer-linear forms: a quick, exact path for the affine indices that most programs have.

What is not linear (divisions, data-dependent parts) becomes an opaque term, so that differences still cancel;
questions that need knowledge of such terms go to `tilewright.arith`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from tilewright.arith.linear import Linear
from tilewright.ir.build import add, const, mul
from tilewright.ir.expr import Add, IntImm, Mul, PrimExpr, Sub, Var
from tilewright.ir.visit import variables


@lru_cache(maxsize=1 << 14)
def linear(expr: PrimExpr) -> Linear:
    """The linear form of an integer expression."""
    if type(expr) is Var:
        return Linear({expr: 1}, 0)
    if isinstance(expr, IntImm):
        return Linear({}, expr.value)
    if isinstance(expr, Add):
        return linear(expr.a).plus(linear(expr.b))
    if isinstance(expr, Sub):
        return linear(expr.a).plus(linear(expr.b), -1)
    if isinstance(expr, Mul):
        left, right = linear(expr.a), linear(expr.b)
        if not right.terms:
            return left.scaled(right.constant)
        if not left.terms:
            return right.scaled(left.constant)
    return Linear({expr: 1}, 0)


def expression(form: Linear) -> PrimExpr:
    """A form as an expression, terms in order of entry, the constant last."""
    result: PrimExpr | None = None
    for term, coefficient in form.terms.items():
        item = term if coefficient == 1 else mul(term, const(coefficient))
        result = item if result is None else add(result, item)
    return const(form.constant) if result is None else add(result, const(form.constant))


def mentions(expr: PrimExpr, symbols: Iterable[Var]) -> bool:
    """Whether any of the variables occurs in an expression."""
    names = symbols if isinstance(symbols, (set, frozenset, dict)) else set(symbols)
    if type(expr) is Var:
        return expr in names
    return bool(names) and not _variables(expr).isdisjoint(names)


@lru_cache(maxsize=1 << 14)
def _variables(expr: PrimExpr) -> frozenset[Var]:
    """The variables of an expression."""
    return frozenset(variables(expr))


def linear_substituted(expr: PrimExpr, values: Mapping[Var, Linear]) -> Linear | None:
    """The linear form of an expression with variables replaced by forms; None when one sits in an opaque term."""
    form = linear(expr)
    result = Linear({}, form.constant)
    for term, coefficient in form.terms.items():
        if type(term) is Var:
            value = values.get(term)
            result = result.plus(Linear({term: 1}, 0) if value is None else value, coefficient)
        elif mentions(term, values.keys()):
            return None
        else:
            result = result.plus(Linear({term: 1}, 0), coefficient)
    return result
