"""Loops that change direction with each iteration of the loop around them.

    for t in range(T):                         for t in range(T):
        for p in zigzag(8):          ->            for p in range(8):
            use(W[p])                                  use(W[p if t % 2 == 0 else 7 - p])

A loop that streams more data than a cache holds finds nothing of it there the next time if it starts over: what it
needs first went first. Turned round, it starts with what it used last. Loops of one iteration never turn another.
Serial loops turn with serial ones. Unrolled ones turn with the unrolled or serial loop just around them: the operand
that a thread's last product of one iteration read is then read again by the first one of the next.

Loops in a software pipeline are turned there (`turned_inside`): what is woven into them counts their steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tilewright.ir.build import add, const, eq, floormod, select, sub
from tilewright.ir.expr import is_const_int
from tilewright.tir.annotations import ZIGZAG
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import StmtRewriter, substitute_stmt
from tilewright.tir.stmt import For, LoopKind, Stmt

_TURNS_WITH: Final = {
    LoopKind.SERIAL: (LoopKind.SERIAL,),
    LoopKind.UNROLLED: (LoopKind.SERIAL, LoopKind.UNROLLED),
}
"""The kinds of loops that one turns with."""


def zigzag_loops(func: PrimFunc) -> PrimFunc:
    """The function with the directions of zigzag loops spelled out."""
    return func.replace(body=_ZigzagLoops(()).stmt(func.body))


def turned_inside(loop: For) -> For:
    """A serial loop with the directions of the zigzag loops inside it spelled out."""
    return loop.replace(body=_ZigzagLoops([loop]).stmt(loop.body))


class _ZigzagLoops(StmtRewriter):
    def __init__(self, around: Sequence[For]) -> None:
        self._around = list(around)

    def visit_for(self, loop: For) -> Stmt:
        kinds = _TURNS_WITH.get(loop.kind, ())
        turning = next((other.var for other in reversed(self._around) if other.kind in kinds), None)
        turns = bool(kinds) and not is_const_int(loop.extent, 1)
        if turns:
            self._around.append(loop)
        lowered = super().visit_for(loop)
        if turns:
            self._around.pop()
        if not ZIGZAG.of(loop):
            return lowered
        assert isinstance(lowered, For)
        lowered = ZIGZAG.drop(lowered)
        if turning is None or not turns:
            return lowered
        last = sub(add(add(lowered.min, lowered.min), lowered.extent), 1)
        forward = eq(floormod(turning, const(2)), 0)
        turned = select(forward, loop.var, sub(last, loop.var))
        return lowered.replace(body=substitute_stmt(lowered.body, {loop.var: turned}))
