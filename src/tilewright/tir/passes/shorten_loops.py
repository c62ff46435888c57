"""Loops over blocks of an open size end where nothing is left to do.

    for t in range(509):                          for t in range(max(min(509, (n - b * 3054 + 5) // 6), 0)):
        if b * 3054 + t * 6 + 5 < n:                  if b * 3054 + t * 6 + 5 < n:
            whole tile                      ->            whole tile
        else:                                         else:
            if b * 3054 + t * 6 < n:                      if b * 3054 + t * 6 < n:
                a part of it                                  a part of it

A block of rows is as large as the caches are; a product of one row would look at the conditions of hundreds of tiles.
"""

from __future__ import annotations

from tilewright.arith.linear import Linear
from tilewright.ir.build import const, floordiv, maximum, minimum
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import LT, And, PrimExpr, Var, const_value
from tilewright.tir.analysis.linear import expression, linear, mentions
from tilewright.tir.buffer import loads_in
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import StmtRewriter
from tilewright.tir.stmt import Allocate, For, IfThenElse, LoopKind, SeqStmt, Stmt


def shorten_loops(func: PrimFunc) -> PrimFunc:
    """The function with loops that end where their conditions end."""
    return func.replace(body=_Shorten().stmt(func.body))


class _Shorten(StmtRewriter):
    def visit_for(self, loop: For) -> Stmt:
        done = super().visit_for(loop)
        assert isinstance(done, For)
        extent = const_value(done.extent)
        if done.kind is not LoopKind.SERIAL or const_value(done.min) != 0 or extent is None or extent < 2:
            return done
        conditions = _any_of(done.body)
        forms = [_limit(condition, done.var) for condition in conditions or ()]
        known = [form for form in forms if form is not None]
        if not known or len(known) < len(forms) or any(_differ(form, known[0]) for form in known):
            return done
        step, rest = min(known, key=lambda form: form[1].constant)
        # step * var + rest < 0
        last = floordiv(expression(rest.scaled(-1).plus(Linear({}, step - 1))), const(step))
        return done.replace(extent=maximum(minimum(done.extent, last), const(0, INDEX)))


def _any_of(stmt: Stmt) -> list[PrimExpr] | None:
    """Conditions of which one holds wherever the statement does something; None if it always may."""
    if isinstance(stmt, SeqStmt):
        parts = [_any_of(item) for item in stmt.stmts]
        return None if any(part is None for part in parts) else [item for part in parts for item in part or ()]
    if isinstance(stmt, Allocate):
        return _any_of(stmt.body)
    if not isinstance(stmt, IfThenElse):
        return None
    rest: list[PrimExpr] | None = [] if stmt.else_body is None else _any_of(stmt.else_body)
    return None if rest is None else [stmt.condition, *rest]


def _limit(condition: PrimExpr, var: Var) -> tuple[int, Linear] | None:
    """Of `step * var + rest < 0`, which the condition implies: step (at least 1) and rest, which has open sizes."""
    if isinstance(condition, And):
        return _limit(condition.a, var) or _limit(condition.b, var)
    if not isinstance(condition, LT) or not condition.dtype.is_scalar or condition.a.dtype is not INDEX:
        return None
    form = linear(condition.a).plus(linear(condition.b), -1)
    step = form.terms.get(var, 0)
    rest = form.plus(Linear({var: 1}, 0), -step)
    if step < 1 or not rest.terms or any(mentions(term, [var]) for term in rest.terms):
        return None
    loads = any(loads_in(term) for term in rest.terms)
    return None if loads else (step, rest)


def _differ(form: tuple[int, Linear], other: tuple[int, Linear]) -> bool:
    """Whether two limits differ in more than a constant."""
    return form[0] != other[0] or bool(form[1].plus(other[1], -1).terms)
