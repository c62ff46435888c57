"""Virtual threads run interleaved: each statement for all threads before the next, with private buffers side by side.

    for t in vthread(2):                        T = alloc((2, 8))
        T = alloc((8,))                         for k in range(4):
        for k in range(4):               ->         for t in range(2): load(T[t], t, k)
            load(T, t, k)                           for t in range(2): use(T[t], t, k)
            use(T, t, k)

Virtual threads are independent (`bind` proves it), so any interleaving computes the same. Interleaved they share what
does not depend on the thread, and give hardware independent work to overlap. Where it cannot be seen here that the
threads keep to their own elements of a buffer from outside, they run one after another instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import Final

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.linear import Linear
from tilewright.arith.region import union_range
from tilewright.ir.build import const
from tilewright.ir.expr import Call, PrimExpr, Range, StringImm, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, substitute, uses_any
from tilewright.tir.analysis.flat_accesses import Addresses, accesses_of
from tilewright.tir.analysis.linear import linear
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.compact_buffers import compact_buffers
from tilewright.tir.passes.flatten_buffers import row_major_strides
from tilewright.tir.rewrite.statements import NOTHING, ExprRewriter, StmtRewriter, all_statements, fresh_copy
from tilewright.tir.stmt import Allocate, BufferStore, For, IfThenElse, LoopKind, SeqStmt, Stmt, seq


@dataclass(frozen=True, slots=True)
class VirtualThreadsOptions:
    """How fine threads are interleaved."""

    whole_nests: bool = False
    """Whether a nest of loops around single statements stays whole, since it will be one instruction. Such nests that
    follow each other are one step: a thread loads and uses before the next thread loads."""
    distances: tuple[tuple[str, int], ...] = ()
    """How many elements apart the buffers of two threads begin, by scope; side by side where it is not said, and where
    a thread has several buffers of that scope."""


_USUAL: Final = VirtualThreadsOptions()
_MOST_ITERATIONS: Final = 32
"""Of loops whose iterations are looked at one by one."""


def inject_virtual_threads(func: PrimFunc, options: VirtualThreadsOptions = _USUAL) -> PrimFunc:
    """The function with its virtual threads interleaved."""
    if not any(isinstance(item, For) and item.kind is LoopKind.VTHREAD for item in all_statements(func.body)):
        return func
    # Buffers sink into the threads they belong to: those are the private ones.
    func = compact_buffers(func)
    return func.replace(body=_Inject(options).stmt(func.body))


class _Inject(StmtRewriter):
    def __init__(self, options: VirtualThreadsOptions) -> None:
        self._options = options

    def visit_for(self, loop: For) -> Stmt:
        lowered = super().visit_for(loop)
        assert isinstance(lowered, For)
        if loop.kind is not LoopKind.VTHREAD:
            return lowered
        plain = lowered.replace(kind=LoopKind.SERIAL)
        return _Interleave(plain, self._options).stmt(plain.body) if _keep_apart(plain) else plain


def _keep_apart(loop: For) -> bool:
    """Whether every buffer from outside that the threads write is written and read apart by each."""
    own = {item.buffer for item in all_statements(loop.body) if isinstance(item, Allocate)}
    written: dict[Buffer, None] = {}
    for item in pre_order(loop.body):
        if isinstance(item, BufferStore) and item.buffer not in own:
            written.setdefault(item.buffer)
        elif isinstance(item, BufferLoad) and item.buffer not in own and item.buffer.scope == "shared":
            return False
    if any(_may_escape(item, own, written) for item in pre_order(loop.body)):
        return False
    return all(is_apart(buffer, loop) for buffer in written)


def _may_escape(item: Node, own: set[Buffer], written: dict[Buffer, None]) -> bool:
    """Whether it is an address by which threads may meet: not of their own buffers, nor of what nobody writes."""
    if not (isinstance(item, Call) and item.name == "access_ptr"):
        return False
    mode, first, _ = item.args
    assert isinstance(mode, StringImm) and isinstance(first, BufferLoad)
    return first.buffer not in own and (mode.value != "r" or first.buffer in written)


def is_apart(buffer: Buffer, loop: For) -> bool:
    """Whether every iteration of a loop keeps to elements of a buffer that no other iteration touches."""
    analyzer = Analyzer()
    analyzer.bind(loop.var, Range(loop.min, loop.extent))
    boxes = [access.box(0, analyzer, guarded=False) for access in accesses_of(buffer, loop.body, Addresses())]
    digits: list[tuple[PrimExpr, int]] = []
    for dimension in range(buffer.ndim):
        ranges = [box[dimension] for box in boxes]
        known = [item for item in ranges if item is not None]
        if len(known) != len(ranges) or not known:
            continue
        whole = union_range(known, analyzer)
        extent = const_value(analyzer.simplify(whole.extent))
        first = analyzer.simplify(whole.min)
        terms = linear(first).terms
        if extent is None:
            continue
        if any(term is not loop.var and uses_any(term, [loop.var]) for term in terms):
            digits.append((first, extent))
        elif abs(terms.get(loop.var, 0)) >= extent:
            return True
    return _apart_by_digits(digits, loop)


def _apart_by_digits(dimensions: Sequence[tuple[PrimExpr, int]], loop: For) -> bool:
    """Whether the places of iterations (the first element and the extent of each dimension) differ, taken together.

    The number of an iteration is divided among the dimensions (`i // 4`, `i % 4`), so that none alone tells all apart.
    """
    first, count = const_value(loop.min), const_value(loop.extent)
    if not dimensions or first is None or count is None or count > _MOST_ITERATIONS:
        return False
    analyzer = Analyzer()
    places = [
        [linear(analyzer.simplify(substitute(begin, {loop.var: const(at)}))) for begin, _ in dimensions]
        for at in range(first, first + count)
    ]
    return all(
        any(_distance(a, b) >= extent for a, b, (_, extent) in zip(one, other, dimensions, strict=True))
        for one, other in combinations(places, 2)
    )


def _distance(a: Linear, b: Linear) -> int:
    """How far two forms are from each other; 0 where that is unknown."""
    return abs(a.constant - b.constant) if a.terms == b.terms else 0


class _Interleave:
    """Moves a loop over threads inward, to the single statements."""

    def __init__(self, loop: For, options: VirtualThreadsOptions) -> None:
        # Loops over threads that stay whole are no part of the nests inside them.
        self._loop = loop.replace(kind=LoopKind.UNROLLED) if options.whole_nests else loop
        self._options = options
        self._copies: dict[Buffer, Buffer] = {}
        scopes = [item.buffer.scope for item in all_statements(loop.body) if isinstance(item, Allocate)]
        self._distances = {scope: apart for scope, apart in options.distances if scopes.count(scope) == 1}

    def stmt(self, stmt: Stmt) -> Stmt:
        """A statement for all threads."""
        if self._options.whole_nests and _is_step(stmt):
            return self._together([stmt])
        if isinstance(stmt, SeqStmt):
            return self._sequence(stmt.stmts) if stmt.stmts else NOTHING
        if isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL and self._is_common(stmt.min, stmt.extent):
            return stmt.replace(body=self.stmt(stmt.body))
        if isinstance(stmt, IfThenElse) and self._is_common(stmt.condition):
            other = None if stmt.else_body is None else self.stmt(stmt.else_body)
            return stmt.replace(then_body=self.stmt(stmt.then_body), else_body=other)
        if isinstance(stmt, Allocate):
            return Allocate(self._copied(stmt.buffer), self.stmt(stmt.body))
        return self._for_each(stmt)

    def _sequence(self, stmts: Sequence[Stmt]) -> Stmt:
        """Statements one after another; steps of threads that follow each other are one."""
        if not self._options.whole_nests:
            return seq(*[self.stmt(item) for item in stmts])
        result: list[Stmt] = []
        for is_step, group in groupby(stmts, _is_step):
            items = list(group)
            result += [self._together(items)] if is_step else [self.stmt(item) for item in items]
        return seq(*result)

    def _together(self, stmts: list[Stmt]) -> Stmt:
        """A thread does all of some statements before the next one; their buffers are allocated for all threads."""
        own: list[Buffer] = []
        body = self._for_each(seq(*[_without_allocations(item, own) for item in stmts]), own)
        for buffer in reversed(own):
            body = Allocate(self._copies[buffer], body)
        return body

    def _for_each(self, stmt: Stmt, own: Sequence[Buffer] = ()) -> Stmt:
        for buffer in own:
            self._copied(buffer)
        body = _Copies(self._copies, self._loop.var - self._loop.min).stmt(stmt)
        return fresh_copy(self._loop.replace(body=body, annotations={}), {})

    def _copied(self, old: Buffer) -> Buffer:
        shape: tuple[PrimExpr, ...] = (self._loop.extent, *old.shape)
        distance, size = self._distances.get(old.scope, 0), row_major_strides((const(1), *old.shape))[0]
        if (const_value(size) or distance) < distance:
            strides: tuple[PrimExpr, ...] = (const(distance), *row_major_strides(old.shape))
        else:
            strides = ()
        self._copies[old] = old.replace(shape=shape, strides=strides)
        return self._copies[old]

    def _is_common(self, *exprs: PrimExpr) -> bool:
        """Whether expressions are the same for all threads, whenever they are evaluated."""
        return not any(uses_any(expr, [self._loop.var]) or _loads(expr) for expr in exprs)


def _is_step(stmt: Stmt) -> bool:
    """Whether a statement has no loops around several statements."""
    for item in all_statements(stmt):
        if isinstance(item, For):
            inner: Stmt = item
            while isinstance(inner, For):
                inner = inner.body
            if any(isinstance(below, (For, Allocate)) for below in all_statements(inner)):
                return False
    return True


def _without_allocations(stmt: Stmt, found: list[Buffer]) -> Stmt:
    if isinstance(stmt, Allocate):
        found.append(stmt.buffer)
        return _without_allocations(stmt.body, found)
    if isinstance(stmt, SeqStmt):
        return seq(*[_without_allocations(item, found) for item in stmt.stmts])
    return stmt


class _Copies(StmtRewriter):
    """Accesses of private buffers go to the copy of the thread."""

    def __init__(self, copies: dict[Buffer, Buffer], thread: PrimExpr) -> None:
        self._copies = copies
        self._thread = thread
        self.expr = ExprRewriter(self._load)  # type: ignore[method-assign]

    def _load(self, expr: PrimExpr) -> PrimExpr | None:
        if isinstance(expr, BufferLoad) and expr.buffer in self._copies:
            return BufferLoad(self._copies[expr.buffer], (self._thread, *expr.indices))
        return None

    def visit_store(self, stmt: BufferStore) -> Stmt:
        indices, value = self.exprs(stmt.indices), self.expr(stmt.value)
        copied = self._copies.get(stmt.buffer)
        if copied is None:
            return stmt.replace(indices=indices, value=value)
        return stmt.replace(buffer=copied, indices=(self._thread, *indices), value=value)


def _loads(expr: PrimExpr) -> bool:
    return any(isinstance(item, BufferLoad) for item in pre_order(expr))
