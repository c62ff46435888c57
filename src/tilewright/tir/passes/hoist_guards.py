"""Conditions that a loop does not change go around the loop.

    for k in unroll(16):                     if tx < 7:
        if tx < 7:                     ->        for k in unroll(16):
            s[0] = s[0] + P[k, tx]                   s[0] = s[0] + P[k, tx]

A thread then branches once, and its loads are all on their way before the first one is used.
"""

from __future__ import annotations

from tilewright.ir.expr import PrimExpr
from tilewright.ir.visit import uses_any
from tilewright.tir.buffer import loads_in
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import StmtRewriter
from tilewright.tir.stmt import For, IfThenElse, LoopKind, Stmt


def hoist_guards(func: PrimFunc) -> PrimFunc:
    """The function with conditions outside the loops that they do not depend on."""
    return func.replace(body=hoist_conditions(func.body))


def hoist_conditions(stmt: Stmt) -> Stmt:
    """A statement with conditions outside the loops that they do not depend on."""
    return _Hoist().stmt(stmt)


class _Hoist(StmtRewriter):
    def visit_for(self, loop: For) -> Stmt:
        done = super().visit_for(loop)
        assert isinstance(done, For)
        body = done.body
        if (
            done.kind in (LoopKind.SERIAL, LoopKind.UNROLLED)
            and isinstance(body, IfThenElse)
            and body.else_body is None
            and body.condition.dtype.is_scalar
            and not uses_any(body.condition, [done.var])
            and not _loads(body.condition)
        ):
            return body.replace(then_body=done.replace(body=body.then_body))
        return done


def _loads(expr: PrimExpr) -> bool:
    return bool(loads_in(expr))
