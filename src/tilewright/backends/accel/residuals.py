"""Residuals are loaded where results go: EPI reads and writes the same tensors of OUT.

res = alloc((4, 8), "accel.out")                    out = alloc((4, 8), "accel.out")
res[y, x] = residual[y, x]                          out[y, x] = residual[y, x]
out = alloc((4, 8), "accel.out")             ->     accel.epi_residual(&out[y, x], &out[y, x], ...)
accel.epi_residual(&out[y, x], &res[y, x], ...)
"""

from __future__ import annotations

from tilewright.ir.expr import Call, PrimExpr
from tilewright.ir.structural import structural_equal
from tilewright.ir.visit import find_all
from tilewright.support.errors import UnsupportedError
from tilewright.tir.accel_instructions import EPI_RESIDUAL
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter
from tilewright.tir.stmt import Allocate, BufferStore, Stmt


def residuals_in_place(func: PrimFunc) -> PrimFunc:
    """The function with residuals in the buffers of results."""
    merged: dict[Buffer, Buffer] = {}
    for call in find_all(func.body, Call):
        if call.name != EPI_RESIDUAL:
            continue
        result, residual = (_first(call.args[number]) for number in range(2))
        if result.buffer is residual.buffer:
            continue
        same = len(result.indices) == len(residual.indices) and all(
            structural_equal(a, b) for a, b in zip(result.indices, residual.indices, strict=True)
        )
        if not same or result.buffer.shape != residual.buffer.shape:
            raise UnsupportedError(f"the residual {residual.buffer.name} does not lie as its results do")
        merged[residual.buffer] = result.buffer
    return func.replace(body=_Merge(merged).stmt(func.body)) if merged else func


def _first(pointer: PrimExpr) -> BufferLoad:
    assert isinstance(pointer, Call) and isinstance(pointer.args[1], BufferLoad)
    return pointer.args[1]


class _Merge(StmtRewriter):
    """Buffers take the place of others; each is allocated where the outer of both was."""

    def __init__(self, merged: dict[Buffer, Buffer]) -> None:
        self._merged = merged
        self._around: list[Buffer] = []
        self.expr = ExprRewriter(self._load)  # type: ignore[method-assign]

    def _load(self, expr: PrimExpr) -> PrimExpr | None:
        if isinstance(expr, BufferLoad) and expr.buffer in self._merged:
            return BufferLoad(self._merged[expr.buffer], expr.indices)
        return None

    def visit_store(self, stmt: BufferStore) -> Stmt:
        indices, value = self.exprs(stmt.indices), self.expr(stmt.value)
        return stmt.replace(buffer=self._merged.get(stmt.buffer, stmt.buffer), indices=indices, value=value)

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        buffer = self._merged.get(stmt.buffer, stmt.buffer)
        if buffer in self._around:
            return self.stmt(stmt.body)
        self._around.append(buffer)
        body = self.stmt(stmt.body)
        self._around.pop()
        return Allocate(buffer, body)
