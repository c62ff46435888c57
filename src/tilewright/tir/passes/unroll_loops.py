"""Unrolled loops become copies of their body, one an iteration.

    for i in unroll(3):            B[0] = A[0]
        B[i] = A[i]          ->    B[1] = A[1]
                                   B[2] = A[2]

Loops marked unrolled and of constant extent are copied whatever is inside, up to a bound on the statements that
result; beyond it the loop stays as a serial loop. Short serial loops that index a `local` buffer by their variable are
unrolled too: such a buffer is meant for registers, and registers have no addresses. Not those with the note `ROLLED`:
what they index is better left in memory. For languages that are text to the end, loops that index no registers are
copied as far as that is short (`most_statements`).

A copied loop with the note `PREFETCH` hands a share of what is to be fetched to each copy, in whose innermost loop that
is done.

For languages whose compilers unroll loops themselves (`copied=False`) the loops stay, marked as unrolled; those
compilers heed `ROLLED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tilewright.ir.build import add
from tilewright.ir.expr import IntImm, Var, is_const_int
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, transform, uses_any
from tilewright.tir.annotations import PREFETCH, ROLLED, Prefetch
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import StmtRewriter, all_statements, fresh_copy
from tilewright.tir.stmt import BufferStore, Evaluate, For, LoopKind, Stmt, seq

MAX_STATEMENTS: Final = 4096
"""Statements that one unrolled loop may become."""
REGISTER_STATEMENTS: Final = 64
"""The same of a serial loop over a register array that is unrolled without being asked."""


@dataclass(frozen=True, slots=True)
class UnrollLoopsOptions:
    """Who copies the bodies of unrolled loops."""

    copied: bool = True
    """Whether they are copied here; else loops are marked for a compiler that does it."""
    register_statements: int = REGISTER_STATEMENTS
    """Statements up to which a serial loop over a register array is unrolled without being asked."""
    most_statements: int = MAX_STATEMENTS
    """Statements that a loop may become which indexes no registers: it is as right, and shorter, as a loop."""


_USUAL: Final = UnrollLoopsOptions()


def unroll_loops(func: PrimFunc, options: UnrollLoopsOptions = _USUAL) -> PrimFunc:
    """The function with unrolled loops copied out, or marked for a compiler that does."""
    return func.replace(body=_Unroll(options).stmt(func.body))


class _Unroll(StmtRewriter):
    def __init__(self, options: UnrollLoopsOptions) -> None:
        self._copied = options.copied
        self._most = options.register_statements
        self._most_others = options.most_statements

    def visit_for(self, loop: For) -> Stmt:
        body = self.stmt(loop.body)
        loop = loop if body is loop.body else loop.replace(body=body)
        if not isinstance(loop.extent, IntImm):
            return loop.replace(kind=LoopKind.SERIAL) if loop.kind is LoopKind.UNROLLED else loop
        count = loop.extent.value
        if loop.kind is LoopKind.UNROLLED:
            most = MAX_STATEMENTS if _indexes_registers(body, loop.var) else self._most_others
            if count * _statements(body) > most:
                return loop.replace(kind=LoopKind.SERIAL)
            return self._unrolled(loop, count)
        if self._copied and ROLLED.is_on(loop):
            return loop
        fits = count <= 16 and count * _statements(body) <= self._most
        if loop.kind is LoopKind.SERIAL and fits and _indexes_registers(body, loop.var):
            return self._unrolled(loop, count)
        return loop

    def _unrolled(self, loop: For, count: int) -> Stmt:
        if self._copied or count <= 1:
            return _copies(loop, count)
        return loop.replace(kind=LoopKind.UNROLLED)


def _copies(loop: For, count: int) -> Stmt:
    copies = [fresh_copy(loop.body, {loop.var: add(loop.min, step)}) for step in range(count)]
    prefetches = PREFETCH.of(loop)
    if prefetches is not None:
        copies = [_fetching(copy, _share(prefetches, step, count)) for step, copy in enumerate(copies)]
    return seq(*copies)


def _share(prefetches: Mapping[str, Prefetch], step: int, count: int) -> dict[str, Prefetch]:
    """What one of some copies fetches: its part of each run."""
    return {
        name: item._replace(elements=-(-item.elements // count), start=item.start + step * item.elements // count)
        for name, item in prefetches.items()
    }


def _fetching(stmt: Stmt, prefetches: dict[str, Prefetch]) -> Stmt:
    """A statement whose first innermost loop fetches ahead."""
    loops = [item for item in all_statements(stmt) if isinstance(item, For)]
    innermost = next((item for item in loops if not any(isinstance(x, For) for x in all_statements(item.body))), None)

    def visit(item: Node) -> Node | None:
        if item is not innermost or innermost is None:
            return None
        return PREFETCH.put(innermost, prefetches)

    return transform(stmt, visit)


def _statements(stmt: Stmt) -> int:
    return sum(1 for item in all_statements(stmt) if isinstance(item, (BufferStore, Evaluate)))


def _indexes_registers(body: Stmt, var: Var) -> bool:
    for item in pre_order(body):
        if isinstance(item, (BufferStore, BufferLoad)) and item.buffer.scope == "local":
            small = item.buffer.static_shape is not None and not is_const_int(item.buffer.shape[0], 1)
            if small and any(uses_any(index, [var]) for index in item.indices):
                return True
    return False
