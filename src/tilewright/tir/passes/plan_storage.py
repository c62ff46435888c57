"""Temporaries share memory: a buffer takes over that of one that is dead by then.

    T = alloc((1000,)); U = alloc((1000,)); V = alloc((500,))       T = alloc((1000,)); U = alloc((1000,))
    T = f(A)                                                        T = f(A)
    U = g(T)                                                  ->    U = g(T)
    V = h(U)                                                        T = h(U)
    B = k(V)                                                        B = k(T)

Allocations of constant size first rise to the start of the function, or of the parallel loop body they belong to (each
thread has scratch of its own): taking memory once is cheaper than once an iteration. Then those that hold more than a
few kilobytes and the same type of element are put in the memory of others by the order of first and last use: in the
function, and in each loop among those that its body allocates (no value of theirs outlives an iteration). Small buffers
stay as they are: they live in registers or on the stack. Works on flat buffers.
"""

from __future__ import annotations

from typing import Final

from tilewright.ir.expr import IntImm
from tilewright.tir.analysis.flat_accesses import touches
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter
from tilewright.tir.stmt import Allocate, BufferStore, For, LoopKind, SeqStmt, Stmt

SMALLEST_SHARED: Final = 4096
"""Buffers below this many bytes keep memory of their own."""


def plan_storage(func: PrimFunc) -> PrimFunc:
    """The function with scratch memory taken early and shared between temporaries that are not alive together."""
    return func.replace(body=_plan_frame(func.body))


def _plan_frame(body: Stmt) -> Stmt:
    """One function or parallel body: lift its allocations, share memory, and wrap it in what remains."""
    lift = _Lift()
    body = lift.body(body)
    for buffer in reversed(lift.buffers):
        body = Allocate(buffer, body)
    return body


class _Lift(StmtRewriter):
    """Takes allocations of constant size out, those of parallel bodies to the start of the body."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []

    def body(self, body: Stmt) -> Stmt:
        """The body of a function or loop, whose allocations share memory."""
        outside, self.buffers = self.buffers, []
        body = self.stmt(body)
        replaced = _share(self.buffers, body) if isinstance(body, SeqStmt) else {}
        self.buffers = [*outside, *(buffer for buffer in self.buffers if buffer not in replaced)]
        return _Replace(replaced).stmt(body) if replaced else body

    def visit_for(self, loop: For) -> Stmt:
        if loop.kind is LoopKind.PARALLEL:
            return loop.replace(body=_plan_frame(loop.body))
        return loop.replace(body=self.body(loop.body))

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        body = self.stmt(stmt.body)
        if not isinstance(stmt.buffer.shape[0], IntImm):
            return stmt.replace(body=body)
        self.buffers.append(stmt.buffer)
        return body


def _bytes(buffer: Buffer) -> int:
    size = buffer.shape[0]
    assert isinstance(size, IntImm)
    return size.value * buffer.dtype.itemsize


def _share(buffers: list[Buffer], body: SeqStmt) -> dict[Buffer, Buffer]:
    """Which buffers go to the memory of which others, by first and last use in a sequence of statements."""
    users: dict[Buffer, list[int]] = {buffer: [] for buffer in buffers if _bytes(buffer) >= SMALLEST_SHARED}
    for number, stmt in enumerate(body.stmts if len(users) > 1 else ()):
        for buffer, numbers in users.items():
            if touches(buffer, stmt):
                numbers.append(number)
    lives = [(numbers[0], numbers[-1], buffer) for buffer, numbers in users.items() if numbers]
    lives.sort(key=lambda life: (life[0], life[1]))
    replaced: dict[Buffer, Buffer] = {}
    ends: dict[Buffer, int] = {}
    for first, last, buffer in lives:
        candidates = [
            owner
            for owner, end in ends.items()
            if end < first
            and owner.dtype is buffer.dtype
            and owner.scope == buffer.scope
            and _bytes(owner) >= _bytes(buffer)
        ]
        if candidates:
            owner = min(candidates, key=_bytes)
            replaced[buffer] = owner
            ends[owner] = last
        else:
            ends[buffer] = last
    return replaced


class _Replace(StmtRewriter):
    def __init__(self, mapping: dict[Buffer, Buffer]) -> None:
        self._mapping = mapping
        self.expr = ExprRewriter(self._load, of_memory=True)  # type: ignore[method-assign]

    def _load(self, expr: BufferLoad | object) -> BufferLoad | None:
        if isinstance(expr, BufferLoad) and expr.buffer in self._mapping:
            return BufferLoad(self._mapping[expr.buffer], expr.indices)
        return None

    def visit_store(self, stmt: BufferStore) -> Stmt:
        buffer = self._mapping.get(stmt.buffer, stmt.buffer)
        return stmt.replace(buffer=buffer, indices=self.exprs(stmt.indices), value=self.expr(stmt.value))
