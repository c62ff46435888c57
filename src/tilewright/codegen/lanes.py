"""Single lanes of vector expressions, for languages without vectors: GPUs compute scalars in each thread."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import expr as e
from tilewright.ir.expr import PrimExpr, Var
from tilewright.support.errors import UnsupportedError
from tilewright.tir.buffer import BufferLoad


class Lanes:
    """The scalar expression of one lane, remembered by expression."""

    def __init__(self) -> None:
        self._memo: dict[tuple[PrimExpr, int | Var], PrimExpr] = {}
        self._names: dict[Var, Sequence[Var]] = {}

    def name(self, vector: Var, lanes: Sequence[Var]) -> None:
        """Let the lanes of a variable have names of their own."""
        self._names[vector] = lanes

    def of(self, expr: PrimExpr, lane: int | Var) -> PrimExpr:
        """Lane number `lane` of an expression, a variable for any of them; a scalar is all its lanes."""
        if expr.dtype.is_scalar and not isinstance(expr, (e.Ramp, e.Broadcast)):
            return expr
        key = (expr, lane)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._lane(expr, lane)
        return found

    def _lane(self, expr: PrimExpr, lane: int | Var) -> PrimExpr:
        match expr:
            case e.Ramp():
                return expr.base + expr.stride * lane
            case e.Broadcast():
                return expr.value
            case Var() if expr in self._names and isinstance(lane, int):
                return self._names[expr][lane]
            case BufferLoad():
                return BufferLoad(expr.buffer, tuple(self.of(index, lane) for index in expr.indices))
            case e.Select():
                condition = self.of(expr.condition, lane)
                return e.Select(condition, self.of(expr.a, lane), self.of(expr.b, lane))
            case e.Not():
                return e.Not(self.of(expr.a, lane))
            case e.Cast():
                return e.Cast(self.of(expr.value, lane), expr.dtype.element)
            case e.BinaryExpr():
                return type(expr)(self.of(expr.a, lane), self.of(expr.b, lane))  # type: ignore[call-arg]
            case e.Call() if all(arg.dtype.lanes == expr.dtype.lanes for arg in expr.args):
                return e.Call(expr.name, tuple(self.of(arg, lane) for arg in expr.args), expr.dtype.element)
            case _:
                raise UnsupportedError(f"kernels without vectors have no lanes of {type(expr).__name__} {expr.dtype}")
