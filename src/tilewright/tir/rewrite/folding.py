"""Folding of constants after substitution: rebuild an expression through the folding constructors of `ir.build`."""

from __future__ import annotations

from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.expr import PrimExpr
from tilewright.tir.rewrite.statements import ExprRewriter


def fold_node(expr: PrimExpr) -> PrimExpr | None:
    """One node rebuilt by its folding constructor; None where it stays."""
    builder = build.BINARY_BUILDERS.get(type(expr))
    if builder is not None:
        assert isinstance(expr, e.BinaryExpr)
        return builder(expr.a, expr.b)
    if type(expr) is e.Not:
        return build.logical_not(expr.a)
    if type(expr) is e.Select:
        return build.select(expr.condition, expr.a, expr.b) if expr.condition.dtype.is_scalar else None
    if type(expr) is e.Cast:
        return build.cast(expr.value, expr.dtype)
    if type(expr) is e.Call and expr.name == "likely" and isinstance(expr.args[0], e.IntImm):
        return expr.args[0]
    return None


def fold(expr: PrimExpr) -> PrimExpr:
    """The expression with constant parts computed and neutral operands dropped (needs no knowledge of variables)."""
    return ExprRewriter(fold_node)(expr)
