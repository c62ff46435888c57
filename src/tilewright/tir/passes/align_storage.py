"""Intermediate buffers get the strides that the schedule asked for (`storage_align`).

    T = alloc((16, 32))                               T = alloc((16, 32), strides=(33, 1))
    ... T[i, j] ...                             ->    ... T[i, j] ...
    # storage_align: {"T": [-2, 32, 1]}

Runs when buffers have their final shapes and before they become one-dimensional.
"""

from __future__ import annotations

from typing import Final

from tilewright.ir.build import const
from tilewright.ir.expr import PrimExpr
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter
from tilewright.tir.stmt import Allocate, BufferStore, Stmt

ATTRIBUTE: Final = "storage_align"
"""The attribute of a function: for aligned buffers (by name) the axis (the last is -1), the factor and the offset."""


def align_storage(func: PrimFunc) -> PrimFunc:
    """The function with aligned strides where they were asked for."""
    notes = func.attributes.get(ATTRIBUTE)
    if not isinstance(notes, dict) or not notes:
        return func
    return func.replace(body=_Align(notes).stmt(func.body))


class _Align(StmtRewriter):
    def __init__(self, notes: dict[str, list[int]]) -> None:
        self._notes = notes
        self._buffers: dict[Buffer, Buffer] = {}
        self.expr = ExprRewriter(self._load, of_memory=True)  # type: ignore[method-assign]

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        note, shape = self._notes.get(stmt.buffer.name), stmt.buffer.static_shape
        if note is None or shape is None or stmt.buffer.strides or -note[0] > len(shape):
            return super().visit_allocate(stmt)
        spaced = stmt.buffer.replace(strides=tuple(const(stride) for stride in aligned_strides(shape, *note)))
        self._buffers[stmt.buffer] = spaced
        # The memo of rewritten expressions must not hold accesses from before.
        self.expr = ExprRewriter(self._load, of_memory=True)  # type: ignore[method-assign]
        return Allocate(spaced, self.stmt(stmt.body))

    def _load(self, expr: PrimExpr) -> PrimExpr | None:
        if isinstance(expr, BufferLoad) and expr.buffer in self._buffers:
            return BufferLoad(self._buffers[expr.buffer], expr.indices)
        return None

    def visit_store(self, stmt: BufferStore) -> Stmt:
        buffer = self._buffers.get(stmt.buffer, stmt.buffer)
        return stmt.replace(buffer=buffer, indices=self.exprs(stmt.indices), value=self.expr(stmt.value))


def aligned_strides(shape: tuple[int, ...], axis: int, factor: int, offset: int) -> list[int]:
    """Row-major strides, that of one axis rounded up to `offset` more than a multiple of `factor`."""
    strides: list[int] = []
    step = 1
    for dimension in reversed(range(len(shape))):
        if dimension == axis % len(shape):
            step += (offset - step) % factor
        strides.append(step)
        step *= shape[dimension]
    return strides[::-1]
