"""Loops that change direction with each iteration of the loop around them.

    for t in range(T):                         for t in range(T):
        for p in zigzag(8):          ->            for p in range(8):
            use(W[p])                                  use(W[p if t % 2 == 0 else 7 - p])

A loop that streams more data than a cache holds finds nothing of it there the next time if it starts over: what it
needs first went first. Turned round, it starts with what it used last. Loops of one iteration never turn another.
Serial loops turn with serial ones. Unrolled ones turn with the unrolled or serial loop just around them: the operand
that a thread's last product of one iteration read is then read again by the first one of the next.

Blocks of threads turn with the parallel loop inside of them: where the last of them have the most to do, each is one
of the last and one of the first.

    for b in zigzag(blockIdx, 8):              for b in thread_binding("blockIdx.x", 8):
        for t in parallel(T):        ->            for t in parallel(T):
            use(b, t)                                  use(b if t % 2 == 0 else 7 - b, t)

Loops in a software pipeline are turned there (`turned_inside`): what is woven into them counts their steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tilewright.ir.build import add, const, eq, floormod, select, sub
from tilewright.ir.expr import Var, is_const_int
from tilewright.tir.annotations import ZIGZAG
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import StmtRewriter, substitute_stmt
from tilewright.tir.stmt import Allocate, For, LoopKind, Stmt

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
        if loop.kind is LoopKind.THREAD:
            return _with_turned_blocks(lowered)
        if turning is None or not turns:
            return lowered
        return lowered.replace(body=_turned(lowered.body, lowered, turning))


def _turned(stmt: Stmt, loop: For, turning: Var) -> Stmt:
    """What a loop does, backwards in every second iteration of another one."""
    last = sub(add(add(loop.min, loop.min), loop.extent), 1)
    forward = eq(floormod(turning, const(2)), 0)
    return substitute_stmt(stmt, {loop.var: select(forward, loop.var, sub(last, loop.var))})


def _with_turned_blocks(blocks: For) -> For:
    """A loop over blocks of threads, turned inside of the parallel loop that is just inside, if it is still there."""
    allocated, stmt = [], blocks.body
    while isinstance(stmt, Allocate):
        allocated.append(stmt.buffer)
        stmt = stmt.body
    if not isinstance(stmt, For) or stmt.kind is not LoopKind.PARALLEL:
        return blocks
    stmt = stmt.replace(body=_turned(stmt.body, blocks, stmt.var))
    for buffer in reversed(allocated):
        stmt = Allocate(buffer, stmt)
    return blocks.replace(body=stmt)
