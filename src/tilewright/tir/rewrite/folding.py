"""Folding of constants after substitution: rebuild an expression through the folding constructors of `ir.build`."""

from __future__ import annotations

from typing import Final

from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.expr import FALSE, TRUE, PrimExpr
from tilewright.ir.node import Node
from tilewright.tir.rewrite.statements import ExprRewriter, Replacement

_CONSTANTS: Final = (e.IntImm, e.FloatImm)
_ALWAYS_FOLDED: Final = (e.FloorDiv, e.FloorMod)
"""Operations that the folding constructors write in another way where they are of floats."""


def _may_fold(kind: type[PrimExpr], a: PrimExpr, b: PrimExpr) -> bool:
    """Whether the folding constructor of an operation might make something else of two operands."""
    return type(a) in _CONSTANTS or type(b) in _CONSTANTS or a is b or kind in _ALWAYS_FOLDED


def fold_node(expr: PrimExpr) -> PrimExpr | None:
    """One node rebuilt by its folding constructor; None where it stays."""
    if isinstance(expr, e.BinaryExpr):
        kind = type(expr)
        return build.BINARY_BUILDERS[kind](expr.a, expr.b) if _may_fold(kind, expr.a, expr.b) else None
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


class FoldedReplacement(Replacement):
    """Replaces and folds in one go; of a choice that is decided by that, the other side is not looked at.

    What became of an expression is remembered with all that was replaced in it, and found again when the same is
    replaced by the same: by the copies of a loop's body whose other variables differ.
    """

    def __init__(self) -> None:
        super().__init__({})
        self._mentioned: dict[Node, tuple[Node, ...]] = {}
        self._became: dict[tuple[Node, ...], Node] = {}

    def bind(self, old: Node, new: Node) -> None:
        """Replace a variable or a buffer, by something else than before if it was."""
        if old in self.values:
            self.values[old] = new
        else:
            super().bind(old, new)
            self._mentioned.clear()

    def visit(self, item: Node) -> Node:
        """What an expression, a part of one, or a buffer becomes."""
        mentioned = self._mentioned.get(item)
        if mentioned is None:
            mentioned = self._mentioned[item] = self.mentioned(item)
        if not mentioned:
            return item
        values = self.values
        key = (item, values[mentioned[0]]) if len(mentioned) == 1 else (item, *[values[part] for part in mentioned])
        done = self._became.get(key)
        if done is None:
            done = self._became[key] = values[item] if item is mentioned[0] else self._folded(item)
        return done

    def _folded(self, item: Node) -> Node:
        if isinstance(item, e.BinaryExpr):
            kind, a, b = type(item), self.expr(item.a), self.expr(item.b)
            return build.BINARY_BUILDERS[kind](a, b) if _may_fold(kind, a, b) else kind(a, b)  # type: ignore[call-arg]
        if type(item) is e.Select:
            condition = self.expr(item.condition)
            if condition is TRUE:
                return self.expr(item.a)
            if condition is FALSE:
                return self.expr(item.b)
        rebuilt = item.rebuild(self.visit)
        folded = fold_node(rebuilt) if isinstance(rebuilt, PrimExpr) else None
        return rebuilt if folded is None else folded
