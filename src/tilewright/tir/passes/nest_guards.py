"""Conditions of which each implies the one before are asked one inside the other.

    if t * 6 < n:                          if t * 6 < n:
        a                                      a
    if t * 6 + 1 < n:              ->          if t * 6 + 1 < n:
        b                                          b
    if t * 6 + 1 < n:                              c
        c

The rows of a tile at the end of an open size are such statements, in the loop of their sums: for one row that is left
one condition is asked, and not one for each row of the tile. So are the taps of a window at the edge of an image, where
all those of a row are asked the same (`1 <= y`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tilewright.arith.linear import Linear
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import LE, LT, PrimExpr
from tilewright.tir.analysis.linear import linear
from tilewright.tir.buffer import loads_in
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import StmtRewriter
from tilewright.tir.stmt import IfThenElse, SeqStmt, Stmt, seq


def nest_guards(func: PrimFunc) -> PrimFunc:
    """The function with conditions inside those that they imply."""
    return func.replace(body=_Nest().stmt(func.body))


class _Nest(StmtRewriter):
    def visit_seq(self, stmt: SeqStmt) -> Stmt:
        done = super().visit_seq(stmt)
        return _nested(done) if isinstance(done, SeqStmt) else done


def _nested(stmt: SeqStmt) -> Stmt:
    result: list[Stmt] = []
    run: list[tuple[Linear, IfThenElse]] = []
    for item in stmt.stmts:
        form = _below_zero(item)
        if run and (form is None or not _implies(form, run[-1][0])):
            result.append(_one_inside_the_other(run))
            run = []
        if form is None:
            result.append(item)
        else:
            assert isinstance(item, IfThenElse)
            run.append((form, item))
    if run:
        result.append(_one_inside_the_other(run))
    return stmt if len(result) == len(stmt.stmts) else seq(*result)


def _below_zero(stmt: Stmt) -> Linear | None:
    """The form that is negative where a guarded statement runs, if sizes and loops decide it."""
    if not isinstance(stmt, IfThenElse) or stmt.else_body is not None:
        return None
    condition: PrimExpr = stmt.condition
    if not isinstance(condition, (LT, LE)) or not condition.dtype.is_scalar or condition.a.dtype is not INDEX:
        return None
    if loads_in(condition):
        return None
    difference = linear(condition.a).minus(linear(condition.b))
    return difference if isinstance(condition, LT) else difference.shifted(-1)


def _implies(form: Linear, other: Linear) -> bool:
    """Whether a form that is negative shows that another one is."""
    difference = form.minus(other)
    return difference.is_constant and difference.constant >= 0


def _one_inside_the_other(run: Sequence[tuple[Linear, IfThenElse]]) -> Stmt:
    inner: Stmt | None = None
    groups = [[item for _, item in group] for _, group in groupby(run, key=lambda pair: pair[0].constant)]
    for group in reversed(groups):
        body = seq(*(item.then_body for item in group), *([] if inner is None else [inner]))
        inner = group[0].replace(then_body=body)
    assert inner is not None
    return inner
