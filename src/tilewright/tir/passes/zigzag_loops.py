"""Loops that change direction with each iteration of the loop around them.

    for t in range(T):                         for t in range(T):
        for p in zigzag(8):          ->            for p in range(8):
            use(W[p])                                  q = p if t % 2 == 0 else 7 - p
                                                       use(W[q])

A loop that streams more data than a cache holds finds nothing of it there the next time if it starts over: what it
needs first went first. Turned round, it starts with what it used last.
"""

from __future__ import annotations

from tilewright.ir.build import add, const, eq, floormod, select, sub
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import Var, is_const_int
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.rewriting import StmtRewriter, substitute_stmt
from tilewright.tir.schedule.annotations import ZIGZAG
from tilewright.tir.stmt import For, LetStmt, LoopKind, Stmt


def zigzag_loops(func: PrimFunc) -> PrimFunc:
    """The function with the directions of zigzag loops spelled out."""
    return func.replace(body=_ZigzagLoops().stmt(func.body))


class _ZigzagLoops(StmtRewriter):
    def __init__(self) -> None:
        self._serial: list[Var] = []

    def visit_for(self, loop: For) -> Stmt:
        turning = self._serial[-1] if self._serial and loop.annotations.get(ZIGZAG) else None
        if loop.kind is LoopKind.SERIAL:
            self._serial.append(loop.var)
        lowered = super().visit_for(loop)
        if loop.kind is LoopKind.SERIAL:
            self._serial.pop()
        if not loop.annotations.get(ZIGZAG):
            return lowered
        assert isinstance(lowered, For)
        notes = {key: value for key, value in lowered.annotations.items() if key != ZIGZAG}
        if turning is None or loop.kind is not LoopKind.SERIAL or is_const_int(lowered.extent, 1):
            return lowered.replace(annotations=notes)
        place = Var(loop.var.name, INDEX)
        last = sub(add(add(lowered.min, lowered.min), lowered.extent), 1)
        forward = eq(floormod(turning, const(2)), 0)
        body = substitute_stmt(lowered.body, {loop.var: place})
        turned = LetStmt(place, select(forward, loop.var, sub(last, loop.var)), body)
        return lowered.replace(body=turned, annotations=notes)
