"""Intermediate buffers shrink to what is live: allocated under the innermost loop that holds all their accesses.

    T = alloc((1024, 1024))                          for i in parallel(1024):
    for i in parallel(1024):                             T = alloc((1024,))
        for j in range(1024):                   ->       for j in range(1024):
            T[i, j] = A[i, j] * 2.0                          T[j] = A[i, j] * 2.0
        for j in range(1024):                            for j in range(1024):
            B[i, j] = T[i, j] + T[i, 1023 - j]               B[i, j] = T[j] + T[1023 - j]

An allocation sinks into a loop only if no value crosses from one iteration to the next; so a buffer that lives inside
one iteration of a parallel loop becomes private to it. It never sinks into a vectorized loop, whose lanes share
memory, and `shared` memory never into a loop over the threads that share it. Every dimension whose touched range is
provably shorter is cut to that range and its indices rebased.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.region import union_range
from tilewright.ir.build import const, sub
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import ZERO, IntImm, PrimExpr, Range, Var, const_value
from tilewright.tir.analysis.flat_accesses import (
    Access,
    Addresses,
    accesses_of,
    are_written_first,
    may_cross,
    touches,
)
from tilewright.tir.annotations import PIPELINE, PRODUCERS
from tilewright.tir.buffer import Buffer, BufferLoad, loads_in
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter
from tilewright.tir.stmt import Allocate, BufferStore, For, IfThenElse, LetStmt, LoopKind, SeqStmt, Stmt, seq


@dataclass(frozen=True, slots=True)
class CompactBuffersOptions:
    """Which buffers are placed anew."""

    keep: tuple[str, ...] = ()
    """Scopes whose buffers stay where they are."""


_USUAL: Final = CompactBuffersOptions()


def compact_buffers(func: PrimFunc, options: CompactBuffersOptions = _USUAL) -> PrimFunc:
    """The function with its intermediate buffers placed and sized by what they hold."""
    scalars = [param for param in func.params if isinstance(param, Var)]
    return func.replace(body=_Compact({*scalars, *func.symbolic_dims()}, options.keep).stmt(func.body))


class _Compact(StmtRewriter):
    def __init__(self, scalars: set[Var], keep: Sequence[str]) -> None:
        self._keep = keep
        self._analyzer = Analyzer()
        self._addresses = Addresses()
        self._outer = scalars

    def visit_for(self, loop: For) -> Stmt:
        with self._analyzer.scope():
            self._enter(loop)
            result = super().visit_for(loop)
        self._outer.discard(loop.var)
        return result

    def visit_let(self, stmt: LetStmt) -> Stmt:
        self._outer.add(stmt.var)
        result = super().visit_let(stmt)
        self._outer.discard(stmt.var)
        return result

    def _enter(self, loop: For) -> None:
        self._analyzer.bind(loop.var, Range(loop.min, loop.extent))
        self._outer.add(loop.var)

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        # Inner allocations first: what they hold does not change where this one goes.
        body = self.stmt(stmt.body)
        if not touches(stmt.buffer, body):
            return body
        if stmt.buffer.scope in self._keep:
            return stmt.replace(body=body)
        return self._sink(stmt.buffer, body)

    def _sink(self, buffer: Buffer, stmt: Stmt, is_private: bool = False) -> Stmt:
        """Place the allocation at this statement or below, where all accesses are.

        `is_private` says that values cross between no iterations of a loop around, and so of none inside it.
        """
        match stmt:
            case SeqStmt():
                return self._sink_into_sequence(buffer, stmt, is_private)
            case For() if stmt.kind is not LoopKind.VECTORIZED and not _is_shared_in(buffer, stmt):
                with self._analyzer.scope():
                    self._enter(stmt)
                    is_private = is_private or not may_cross(buffer, stmt, self._analyzer, self._addresses)
                    result = stmt.replace(body=self._sink(buffer, stmt.body, True)) if is_private else None
                self._outer.discard(stmt.var)
                if result is not None:
                    return result
            case IfThenElse(else_body=None) if not touches(buffer, stmt.condition):
                with self._analyzer.assume(stmt.condition):
                    return stmt.replace(then_body=self._sink(buffer, stmt.then_body, is_private))
            case LetStmt() if not touches(buffer, stmt.value):
                self._outer.add(stmt.var)
                body = self._sink(buffer, stmt.body, is_private)
                self._outer.discard(stmt.var)
                return stmt.replace(body=body)
            case Allocate():
                return stmt.replace(body=self._sink(buffer, stmt.body, is_private))
            case _:
                pass
        return self._place(buffer, stmt)

    def _sink_into_sequence(self, buffer: Buffer, stmt: SeqStmt, is_private: bool) -> Stmt:
        users = [number for number, item in enumerate(stmt.stmts) if touches(buffer, item)]
        first, last = users[0], users[-1]
        if first == last:
            inner = self._sink(buffer, stmt.stmts[first], is_private)
        elif (first, last) == (0, len(stmt.stmts) - 1):
            return self._place(buffer, stmt)
        else:
            inner = self._place(buffer, SeqStmt(stmt.stmts[first : last + 1]))
        return seq(*stmt.stmts[:first], inner, *stmt.stmts[last + 1 :])

    def _place(self, buffer: Buffer, stmt: Stmt) -> Stmt:
        if buffer.strides:
            return Allocate(buffer, stmt)
        accesses = accesses_of(buffer, stmt, self._addresses)
        if self._is_filled(buffer, accesses):
            return Allocate(buffer, stmt)
        boxes = [self._boxes(access) for access in accesses]
        window = self._window(buffer, boxes)
        written = self._window(buffer, [box for access, box in zip(accesses, boxes, strict=True) if access.is_store])
        if written != window and are_written_first(accesses, self._analyzer):
            # A guard may hide that a load stays inside what was stored: `t < 1` turns `t * 4 + i` into `i`.
            window = written
        if all(item is None for item in window):
            return Allocate(buffer, stmt)
        origin: list[PrimExpr] = [ZERO if item is None else item.min for item in window]
        shape = tuple(dim if item is None else item.extent for dim, item in zip(buffer.shape, window, strict=True))
        compact = buffer.replace(shape=shape)
        return Allocate(compact, _Rebase(buffer, compact, origin, self._analyzer.simplify).stmt(stmt))

    def _is_filled(self, buffer: Buffer, accesses: Sequence[Access]) -> bool:
        """Whether the first stores reach from one end of each dimension to the other: nothing can be cut off."""
        sizes = [dim.value for dim in buffer.shape if isinstance(dim, IntImm)]
        if len(sizes) < buffer.ndim:
            return False
        spans: list[tuple[int, int]] = []
        for access in accesses:
            if not access.is_store:
                continue
            if access.guards_below(0):
                return False
            for number, item in enumerate(self._boxes(access)[0]):
                low = None if item is None else const_value(item.min)
                extent = None if item is None else const_value(item.extent)
                if low is None or extent is None:
                    return False
                if number == len(spans):
                    spans.append((low, low + extent))
                else:
                    spans[number] = min(spans[number][0], low), max(spans[number][1], low + extent)
            if all(high - low >= size for (low, high), size in zip(spans, sizes, strict=True)):
                return True
        return False

    def _window(self, buffer: Buffer, boxes: list[list[list[Range | None]]]) -> list[Range | None]:
        """The range that each dimension needs for the boxes of some accesses; None for those that stay whole."""
        return [self._dimension(buffer, number, boxes) for number in range(buffer.ndim)]

    def _boxes(self, access: Access) -> list[list[Range | None]]:
        """The region of an access whatever its guards, and by its guards if it has any: the shorter range counts."""
        boxes = [access.box(0, self._analyzer, guarded=False)]
        if access.guards_below(0):
            boxes.append(access.box(0, self._analyzer))
        return boxes

    def _dimension(self, buffer: Buffer, number: int, boxes: list[list[list[Range | None]]]) -> Range | None:
        """The range that a dimension needs, with a constant extent; None to keep it whole."""
        ranges: list[Range] = []
        for alternatives in boxes:
            item = self._needed([box[number] for box in alternatives])
            if item is None:
                return None
            ranges.append(item)
        needed = union_range(ranges, self._analyzer)
        extent = self._analyzer.upper_bound(needed.extent)
        if extent is None or extent < 1:
            return None
        whole = buffer.shape[number]
        if isinstance(whole, IntImm) and whole.value <= extent:
            return None
        return Range(needed.min, const(extent, INDEX))

    def _needed(self, alternatives: list[Range | None]) -> Range | None:
        """The shortest of the ranges of an index that are fixed."""
        best: Range | None = None
        for item in alternatives:
            if item is None or not self._is_fixed(item.min) or not self._is_fixed(item.extent):
                continue
            if best is None or _is_shorter(item.extent, best.extent):
                best = item
        return best

    def _is_fixed(self, expr: PrimExpr) -> bool:
        """Whether an expression can be evaluated where the allocation is: no variable of a loop inside, no load."""
        return not loads_in(expr) and self._analyzer.variables_of(expr) <= self._outer


def _is_shorter(extent: PrimExpr, other: PrimExpr) -> bool:
    """Whether an extent is constant, and less than another if that is constant too."""
    return isinstance(extent, IntImm) and (not isinstance(other, IntImm) or extent.value < other.value)


def _is_shared_in(buffer: Buffer, loop: For) -> bool:
    if PRODUCERS.is_on(loop) and not PIPELINE.is_on(loop) and buffer.scope == "shared":
        # Those who fill it are iterations ahead of those who read it.
        return True
    if buffer.scope == "shared.cluster":
        return (loop.thread or "").startswith(("threadIdx", "clusterIdx"))
    return buffer.scope in ("shared", "warp") and (loop.thread or "").startswith("threadIdx")


class _Rebase(StmtRewriter):
    """Accesses to one buffer go to another, whose origin lies at some indices of the first."""

    def __init__(
        self, old: Buffer, new: Buffer, origin: list[PrimExpr], simplify: Callable[[PrimExpr], PrimExpr]
    ) -> None:
        def rebased(indices: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
            wide = [index if index.dtype is INDEX else index.astype(INDEX) for index in indices]
            return tuple([simplify(sub(index, start)) for index, start in zip(wide, origin, strict=True)])

        def load(expr: PrimExpr) -> PrimExpr | None:
            if type(expr) is BufferLoad and expr.buffer is old:
                return BufferLoad(new, rebased(expr.indices))
            return None

        self._old, self._new, self._rebased = old, new, rebased
        # No method of its own: in a cycle, all that the analyzer found out would live on.
        self.expr = ExprRewriter(load, of_memory=True)  # type: ignore[method-assign]

    def visit_store(self, stmt: BufferStore) -> Stmt:
        indices, value = self.exprs(stmt.indices), self.expr(stmt.value)
        if stmt.buffer is self._old:
            return stmt.replace(buffer=self._new, indices=self._rebased(indices), value=value)
        if indices is stmt.indices and value is stmt.value:
            return stmt
        return stmt.replace(indices=indices, value=value)
