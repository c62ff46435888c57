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

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.region import union_range
from tilewright.ir.expr import Call, PrimExpr, Range, const_value
from tilewright.ir.visit import pre_order, uses_any
from tilewright.tir.analysis.flat_accesses import accesses_of
from tilewright.tir.analysis.linear import linear
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.compact_buffers import compact_buffers
from tilewright.tir.rewrite.statements import NOTHING, ExprRewriter, StmtRewriter, all_statements, fresh_copy
from tilewright.tir.stmt import Allocate, BufferStore, For, IfThenElse, LoopKind, SeqStmt, Stmt, seq


def inject_virtual_threads(func: PrimFunc) -> PrimFunc:
    """The function with its virtual threads interleaved."""
    if not any(isinstance(item, For) and item.kind is LoopKind.VTHREAD for item in all_statements(func.body)):
        return func
    # Buffers sink into the threads they belong to: those are the private ones.
    func = compact_buffers(func)
    return func.replace(body=_Inject().stmt(func.body))


class _Inject(StmtRewriter):
    def visit_for(self, loop: For) -> Stmt:
        lowered = super().visit_for(loop)
        assert isinstance(lowered, For)
        if loop.kind is not LoopKind.VTHREAD:
            return lowered
        plain = lowered.replace(kind=LoopKind.SERIAL)
        return _Interleave(plain).stmt(plain.body) if _keep_apart(plain) else plain


def _keep_apart(loop: For) -> bool:
    """Whether every buffer from outside that the threads write is written and read apart by each."""
    own = {item.buffer for item in all_statements(loop.body) if isinstance(item, Allocate)}
    written: dict[Buffer, None] = {}
    for item in pre_order(loop.body):
        if isinstance(item, BufferStore) and item.buffer not in own:
            written.setdefault(item.buffer)
        elif isinstance(item, BufferLoad) and item.buffer not in own and item.buffer.scope == "shared":
            return False
    if any(isinstance(item, Call) and item.name == "access_ptr" for item in pre_order(loop.body)):
        return False
    return all(is_apart(buffer, loop) for buffer in written)


def is_apart(buffer: Buffer, loop: For) -> bool:
    """Whether every iteration of a loop keeps to elements of a buffer that no other iteration touches."""
    analyzer = Analyzer()
    analyzer.bind(loop.var, Range(loop.min, loop.extent))
    boxes = [access.box(0, analyzer, guarded=False) for access in accesses_of(buffer, loop.body)]
    for dimension in range(buffer.ndim):
        ranges = [box[dimension] for box in boxes]
        known = [item for item in ranges if item is not None]
        if len(known) != len(ranges) or not known:
            continue
        whole = union_range(known, analyzer)
        extent = const_value(analyzer.simplify(whole.extent))
        terms = linear(analyzer.simplify(whole.min)).terms
        step = terms.get(loop.var, 0)
        if any(term is not loop.var and uses_any(term, [loop.var]) for term in terms):
            continue
        if extent is not None and abs(step) >= extent:
            return True
    return False


class _Interleave:
    """Moves a loop over threads inward, to the single statements."""

    def __init__(self, loop: For) -> None:
        self._loop = loop
        self._copies: dict[Buffer, Buffer] = {}

    def stmt(self, stmt: Stmt) -> Stmt:
        """A statement for all threads."""
        if isinstance(stmt, SeqStmt):
            return seq(*[self.stmt(item) for item in stmt.stmts]) if stmt.stmts else NOTHING
        if isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL and self._is_common(stmt.min, stmt.extent):
            return stmt.replace(body=self.stmt(stmt.body))
        if isinstance(stmt, IfThenElse) and self._is_common(stmt.condition):
            other = None if stmt.else_body is None else self.stmt(stmt.else_body)
            return stmt.replace(then_body=self.stmt(stmt.then_body), else_body=other)
        if isinstance(stmt, Allocate):
            old = stmt.buffer
            self._copies[old] = old.replace(shape=(self._loop.extent, *old.shape), strides=())
            return Allocate(self._copies[old], self.stmt(stmt.body))
        body = _Copies(self._copies, self._loop.var - self._loop.min).stmt(stmt)
        return fresh_copy(self._loop.replace(body=body, annotations={}), {})

    def _is_common(self, *exprs: PrimExpr) -> bool:
        """Whether expressions are the same for all threads, whenever they are evaluated."""
        return not any(uses_any(expr, [self._loop.var]) or _loads(expr) for expr in exprs)


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
