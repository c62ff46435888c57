"""Accesses outside of buffers in lowered programs: what passes after the check of a schedule may have made.

    refuse_lowered_outside(lowered)

Vectors are read lane by lane, so that masks count: `A[ramp(0, 1, 16)] if ramp(0, 1, 16) < 10 else 0` reads ten numbers.
What cannot be decided quickly is taken to be right, and so are vectors of other lengths that instructions take, and
programs of open sizes, of which it is not known what runs.
"""

from __future__ import annotations

from tilewright.ir.build import add, const, mul
from tilewright.ir.expr import ZERO, Broadcast, Call, Cast, PrimExpr, Ramp, Var
from tilewright.ir.node import Node
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import StmtRewriter
from tilewright.tir.stmt import BufferStore, For, IfThenElse, LetStmt, LoopKind, Stmt
from tilewright.tir.verify_bounds import refuse_outside


def refuse_lowered_outside(func: PrimFunc) -> None:
    """Raise a `UserError` for the first access of a lowered program that certainly leaves its buffer in some lane."""
    if any(isinstance(param, Var) for param in func.params):
        return
    refuse_outside(func.replace(body=_Lanes().stmt(func.body)))


class _Lanes(StmtRewriter):
    """Statements about vectors as loops over their lanes."""

    def __init__(self) -> None:
        self._lane: tuple[PrimExpr, int] = (ZERO, 1)
        self._scalars: dict[Var, Var] = {}

    def stmt(self, stmt: Stmt) -> Stmt:
        lanes = _lanes(stmt)
        if lanes in (1, self._lane[1]):
            return super().stmt(stmt)
        outer, lane = self._lane, Var("lane")
        self._lane = (lane, lanes)
        body = super().stmt(stmt)
        self._lane = outer
        return For(lane, ZERO, const(lanes), LoopKind.SERIAL, body)

    def visit_let(self, stmt: LetStmt) -> Stmt:
        if stmt.var.dtype.is_scalar:
            return super().visit_let(stmt)
        value = self.expr(stmt.value)
        self._scalars[stmt.var] = var = Var(stmt.var.name, stmt.var.dtype.with_lanes(1))
        return stmt.replace(var=var, value=value, body=self.stmt(stmt.body))

    def expr(self, expr: PrimExpr) -> PrimExpr:
        result = self._scalar(expr)
        assert isinstance(result, PrimExpr)
        return result

    def _scalar(self, item: Node) -> Node:
        match item:
            case Ramp():
                return add(self.expr(item.base), mul(self.expr(item.stride), self._lane[0]))
            case Broadcast():
                return self.expr(item.value)
            case Var():
                return self._scalars.get(item, item)
            case Cast():
                return Cast(self.expr(item.value), item.dtype.with_lanes(1))
            case Call():
                # Instructions take vectors of other lengths, too.
                args = [arg for arg in item.args if arg.dtype.lanes in (1, self._lane[1])]
                return item.replace(args=tuple(map(self.expr, args)), dtype=item.dtype.with_lanes(1))
            case _:
                return item.rebuild(self._scalar) if isinstance(item, PrimExpr) else item


def _lanes(stmt: Stmt) -> int:
    """How many lanes a statement is about itself, whatever is inside it."""
    match stmt:
        case BufferStore():
            return max(item.dtype.lanes for item in (stmt.value, *stmt.indices))
        case LetStmt():
            return stmt.value.dtype.lanes
        case IfThenElse():
            return stmt.condition.dtype.lanes
        case _:
            return 1
