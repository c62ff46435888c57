"""Unrolled loops become copies of their body, one an iteration.

    for i in unroll(3):            B[0] = A[0]
        B[i] = A[i]          ->    B[1] = A[1]
                                   B[2] = A[2]

Loops marked unrolled and of constant extent are copied whatever is inside, up to a bound on the statements that
result; beyond it the loop stays as a serial loop. Short serial loops that index a `local` buffer by their variable are
unrolled too: such a buffer is meant for registers, and registers have no addresses. Not those with the note `ROLLED`:
what they index is better left in memory. An unrolled loop with that note was unrolled for the passes before this one,
which divide other loops around it; here it is a loop again. For languages that are text to the end, loops that index no
registers are copied as far as that is short (`most_statements`).

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
from tilewright.ir.expr import IntImm, PrimExpr, is_const_int
from tilewright.ir.node import Node
from tilewright.ir.visit import transform, variables_in
from tilewright.tir.annotations import PREFETCH, ROLLED, Prefetch
from tilewright.tir.buffer import Buffer, BufferLoad, loads_in
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.folding import FoldedReplacement
from tilewright.tir.rewrite.statements import FreshCopy, StmtRewriter, all_statements, inner_statements
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
    return func.replace(body=_Unroll(_Plan(func.body, options)).stmt(func.body))


class _Plan:
    """What becomes of the loops of a program, decided before anything is copied: so nothing is copied twice."""

    def __init__(self, root: Stmt, options: UnrollLoopsOptions) -> None:
        self._copied = options.copied
        self._most = options.register_statements
        self._most_others = options.most_statements
        self.copies: dict[For, int] = {}
        """The loops that are copied out, and how often their bodies are."""
        self.kinds: dict[For, LoopKind] = {}
        """The kinds of loops that stay, as another kind."""
        self._statements(root)

    def _statements(self, stmt: Stmt) -> int:
        """The stores and calls that a statement becomes."""
        if isinstance(stmt, (BufferStore, Evaluate)):
            return 1
        inside = sum(map(self._statements, inner_statements(stmt)))
        if not isinstance(stmt, For):
            return inside
        self._decide(stmt, inside)
        return inside * self.copies.get(stmt, 1)

    def _decide(self, loop: For, inside: int) -> None:
        if not isinstance(loop.extent, IntImm):
            if loop.kind is LoopKind.UNROLLED:
                self.kinds[loop] = LoopKind.SERIAL
            return
        count = loop.extent.value
        if loop.kind is LoopKind.UNROLLED and ROLLED.is_on(loop):
            self.kinds[loop] = LoopKind.SERIAL
            return
        if loop.kind is LoopKind.UNROLLED:
            most = MAX_STATEMENTS if self._indexes_registers(loop) else self._most_others
            if count * inside > most:
                self.kinds[loop] = LoopKind.SERIAL
            else:
                self._unroll(loop, count)
            return
        fits = count <= 16 and count * inside <= self._most and not (self._copied and ROLLED.is_on(loop))
        if loop.kind is LoopKind.SERIAL and fits and self._indexes_registers(loop):
            self._unroll(loop, count)

    def _unroll(self, loop: For, count: int) -> None:
        if self._copied or count <= 1:
            self.copies[loop] = count
        else:
            self.kinds[loop] = LoopKind.UNROLLED

    def _indexes_registers(self, loop: For) -> bool:
        """Whether a loop's variable is in indices of registers, itself or in what variables of copied loops become."""
        moving = {loop.var}
        for item in all_statements(loop.body):
            if item in self.copies and isinstance(item, For) and not moving.isdisjoint(variables_in(item.min)):
                moving.add(item.var)
            accesses: list[BufferStore | BufferLoad] = [item] if isinstance(item, BufferStore) else []
            for child in item.children():
                accesses += loads_in(child) if isinstance(child, PrimExpr) else ()
            for access in accesses:
                if _is_registers(access.buffer) and not all(moving.isdisjoint(variables_in(i)) for i in access.indices):
                    return True
        return False


def _is_registers(buffer: Buffer) -> bool:
    return buffer.scope == "local" and buffer.static_shape is not None and not is_const_int(buffer.shape[0], 1)


class _Unroll(StmtRewriter):
    """Does what was planned, to the loops that are not inside copied ones."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan

    def visit_for(self, loop: For) -> Stmt:
        if loop in self._plan.copies:
            return _Copies(self._plan).stmt(loop)
        body, kind = self.stmt(loop.body), self._plan.kinds.get(loop, loop.kind)
        return loop if body is loop.body and kind is loop.kind else loop.replace(body=body, kind=kind)


class _Copies(FreshCopy):
    """Copies a loop that is copied out, with what was planned for the loops inside done in the same go."""

    def __init__(self, plan: _Plan) -> None:
        super().__init__(FoldedReplacement())
        self._plan = plan

    def visit_for(self, loop: For) -> Stmt:
        count = self._plan.copies.get(loop)
        if count is None:
            return super().visit_for(loop.replace(kind=self._plan.kinds[loop]) if loop in self._plan.kinds else loop)
        low = self.expr(loop.min)
        copies = []
        for step in range(count):
            self.replacement.bind(loop.var, add(low, step))
            copies.append(self.stmt(loop.body))
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
