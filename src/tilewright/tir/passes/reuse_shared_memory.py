"""Shared memory is used again: a barrier stands between the last use of some buffers and the first of later ones.

    for tx in threads:                                 for tx in threads:
        for k: ... S[tx] ... S[31 - tx] ...                for k: ... S[tx] ... S[31 - tx] ...
        P[tx] = sum                            ->          barrier("shared")
        barrier("shared")                                  P[tx] = sum
        B[tx] = P[31 - tx]                                 barrier("shared")
                                                           B[tx] = P[31 - tx]

Buffers whose uses a barrier at the top of the kernel separates may lie at the same place (`shared_offsets`): all
threads are done with the first when any thread begins with the second. The barrier is added where that saves memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import Call, IntImm
from tilewright.ir.intrinsics import barrier
from tilewright.tir.analysis.flat_accesses import touches
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import StmtRewriter
from tilewright.tir.stmt import Allocate, Evaluate, For, LoopKind, SeqStmt, Stmt, seq

_ALIGNMENT = 16
"""Bytes that shared buffers start at multiples of: the widest access."""
_TILE_ALIGNMENT = 1024
"""Bytes that tiles of warp groups start at multiples of."""


def reuse_shared_memory(func: PrimFunc) -> PrimFunc:
    """The function with barriers that let later buffers take the place of earlier ones."""
    return func.replace(body=_Kernels().stmt(func.body))


def shared_offsets(buffers: Sequence[Buffer], body: Stmt, cluster: int = 1) -> tuple[list[int], int]:
    """Where the shared buffers of a kernel lie, in bytes, and how many bytes that is in all.

    Each block of a cluster holds its part of what they exchange.
    """
    sizes = [_size(buffer, cluster if buffer.scope == "shared.cluster" else 1) for buffer in buffers]
    items = _top(body)
    spans = [_span(buffer, items) for buffer in buffers]
    meets = [number for number, item in enumerate(items) if _is_barrier(item)]
    placed: dict[int, int] = {}
    # Swizzled tiles start at multiples of what they are multiples of: smaller things lie behind them.
    for number in sorted(range(len(sizes)), key=lambda n: sizes[n] % _TILE_ALIGNMENT != 0):
        size, place = sizes[number], 0
        # The lowest place at which nothing lies that is used at the same time.
        others = sorted(
            (start, start + sizes[n]) for n, start in placed.items() if not _is_apart(spans[n], spans[number], meets)
        )
        for start, end in others:
            if place + size <= start:
                break
            place = max(place, end)
        placed[number] = place
    total = max((offset + sizes[number] for number, offset in placed.items()), default=0)
    return [placed[number] for number in range(len(sizes))], total


class _Kernels(StmtRewriter):
    """Adds barriers in each kernel."""

    def __init__(self) -> None:
        self._shared: list[Buffer] = []

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        if stmt.buffer.scope not in ("shared", "shared.cluster"):
            return super().visit_allocate(stmt)
        self._shared.append(stmt.buffer)
        result = super().visit_allocate(stmt)
        self._shared.pop()
        return result

    def visit_for(self, loop: For) -> Stmt:
        inner = loop.body
        innermost = not (isinstance(inner, For) and inner.kind is LoopKind.THREAD)
        if innermost and loop.kind is LoopKind.THREAD and (loop.thread or "").startswith("threadIdx"):
            return loop.replace(body=_with_barriers(inner, self._shared))
        return super().visit_for(loop)


def _with_barriers(body: Stmt, shared: Sequence[Buffer]) -> Stmt:
    items = _top(body)
    spans = [_span(buffer, items) for buffer in shared]
    starts: set[int] = set()
    for first in spans:
        for second in spans:
            if first is None or second is None or first[1] >= second[0]:
                continue
            if not any(first[1] < n < second[0] and _is_barrier(items[n]) for n in range(len(items))):
                starts.add(second[0])
    return _insert(body, starts, [0]) if starts else body


def _insert(stmt: Stmt, places: set[int], count: list[int]) -> Stmt:
    """Put barriers before some statements at the top of a kernel, by their numbers."""
    if isinstance(stmt, Allocate):
        return stmt.replace(body=_insert(stmt.body, places, count))
    if isinstance(stmt, SeqStmt):
        return seq(*[_insert(item, places, count) for item in stmt.stmts])
    number = count[0]
    count[0] += 1
    return seq(Evaluate(barrier("shared")), stmt) if number in places else stmt


def _top(stmt: Stmt) -> list[Stmt]:
    """The statements that a kernel runs one after another."""
    if isinstance(stmt, Allocate):
        return _top(stmt.body)
    if isinstance(stmt, SeqStmt):
        return [item for part in stmt.stmts for item in _top(part)]
    return [stmt]


def _span(buffer: Buffer, items: Sequence[Stmt]) -> tuple[int, int] | None:
    users = [number for number, item in enumerate(items) if touches(buffer, item)]
    return (users[0], users[-1]) if users else None


def _is_apart(a: tuple[int, int] | None, b: tuple[int, int] | None, meets: Sequence[int]) -> bool:
    """Whether a barrier separates the uses of two buffers."""
    if a is None or b is None:
        return True
    first, second = (a, b) if a[0] <= b[0] else (b, a)
    return first[1] < second[0] and any(first[1] < number < second[0] for number in meets)


def _is_barrier(stmt: Stmt) -> bool:
    return isinstance(stmt, Evaluate) and isinstance(stmt.value, Call) and stmt.value.name == "barrier"


def _size(buffer: Buffer, parts: int) -> int:
    """The bytes of one of some equal parts of a buffer of constant size, rounded up."""
    total = buffer.dtype.itemsize
    for dim in buffer.shape:
        assert isinstance(dim, IntImm)
        total *= dim.value
    return -(-total // parts // _ALIGNMENT) * _ALIGNMENT
