"""Vectorized loops become vector statements: the loop variable turns into a ramp of lanes.

    for v in vectorized(8):                   B[ramp(i * 8, 1, 8)] = A[ramp(i * 8, 1, 8)] * broadcast(s[i], 8)
        B[i * 8 + v] = A[i * 8 + v] * s[i]  ->

A condition that is the same in every lane stays a plain conditional. One that differs becomes a vector condition: an
`IfThenElse` whose condition has lanes runs its store (a single one, without `else`) only in the lanes where it holds,
and a `Select` with a vector condition does not evaluate the side a lane does not choose. What has no vector form (an
extern call, a store of many lanes to one place) runs in a serial loop of its own.

The iterations of a vectorized loop are independent (that is what the loop kind promises), so each statement of the
body may run for all lanes before the next one.
"""

from __future__ import annotations

from typing import Final

from tilewright.arith.analyzer import conjuncts
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import BOOL, INDEX
from tilewright.ir.expr import ONE, IntImm, PrimExpr, Var
from tilewright.ir.intrinsics import is_pure
from tilewright.ir.visit import pre_order, uses_any
from tilewright.tir.buffer import Buffer, BufferLoad, loads_in
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter, all_statements, fresh_copy, substitute_stmt
from tilewright.tir.stmt import (
    Allocate,
    Assert,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    LoopKind,
    SeqStmt,
    Stmt,
    seq,
)

MAX_LANES: Final = 64
"""Lanes of the longest vector; longer vectorized loops become a serial loop over vectors."""


def vectorize_loops(func: PrimFunc, max_lanes: int = MAX_LANES) -> PrimFunc:
    """The function without vectorized loops."""
    return func.replace(body=_Vectorize(max_lanes).stmt(func.body))


class _NoVectorForm(Exception):
    """Raised inside this file only: the statement at hand has to run lane by lane."""


class _Vectorize(StmtRewriter):
    def __init__(self, max_lanes: int) -> None:
        self._max_lanes = max_lanes

    def visit_for(self, loop: For) -> Stmt:
        if loop.kind is not LoopKind.VECTORIZED:
            return super().visit_for(loop)
        inner = any(isinstance(item, For) and item.kind is LoopKind.VECTORIZED for item in all_statements(loop.body))
        if inner or not isinstance(loop.extent, IntImm):
            # The innermost vectorized loop has the lanes; vectors of symbolic length do not exist.
            return super().visit_for(loop.replace(kind=LoopKind.SERIAL))
        lanes = loop.extent.value
        if lanes <= self._max_lanes:
            return _vector_body(loop.body, loop.var, loop.min, lanes)
        whole, rest = divmod(lanes, self._max_lanes)
        outer, inside = Var(f"{loop.var.name}_o", INDEX), Var(loop.var.name, INDEX)
        position = build.add(loop.min, build.add(build.mul(outer, self._max_lanes), inside))
        part = loop.replace(
            var=inside,
            min=e.ZERO,
            extent=build.const(self._max_lanes),
            body=fresh_copy(loop.body, {loop.var: position}),
        )
        main: Stmt = For(outer, e.ZERO, build.const(whole), LoopKind.SERIAL, self.visit_for(part))
        if rest == 0:
            return main
        tail = loop.replace(
            var=Var(loop.var.name, INDEX),
            min=build.add(loop.min, whole * self._max_lanes),
            extent=build.const(rest),
        )
        tail = tail.replace(body=fresh_copy(loop.body, {loop.var: tail.var}))
        return seq(main, self.visit_for(tail))


def _vector_body(body: Stmt, var: Var, low: PrimExpr, lanes: int) -> Stmt:
    if lanes == 1:
        return substitute_stmt(body, {var: low})
    if any(isinstance(item, Allocate) for item in all_statements(body)):
        body = _ExpandAllocations(var, low, lanes).stmt(body)
    return _Lanes(var, low, lanes).stmt(body, None)


class _ExpandAllocations(StmtRewriter):
    """A (flat) buffer allocated inside the loop gets a place for each lane: `t[i]` becomes `t[i * lanes + lane]`."""

    def __init__(self, var: Var, low: PrimExpr, lanes: int) -> None:
        self._lane = build.sub(var, low)
        self._lanes = lanes
        self._buffers: dict[Buffer, Buffer] = {}
        self.expr = ExprRewriter(self._load, of_memory=True)  # type: ignore[method-assign]

    def _index(self, indices: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
        return (build.add(build.mul(indices[0], self._lanes), self._lane),)

    def _load(self, expr: PrimExpr) -> PrimExpr | None:
        if type(expr) is BufferLoad and expr.buffer in self._buffers:
            return BufferLoad(self._buffers[expr.buffer], self._index(expr.indices))
        return None

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        old = stmt.buffer
        self._buffers[old] = old.replace(shape=(build.mul(old.shape[0], self._lanes),))
        return stmt.replace(buffer=self._buffers[old], body=self.stmt(stmt.body))

    def visit_store(self, stmt: BufferStore) -> Stmt:
        rewritten = super().visit_store(stmt)
        assert isinstance(rewritten, BufferStore)
        if stmt.buffer not in self._buffers:
            return rewritten
        return rewritten.replace(buffer=self._buffers[stmt.buffer], indices=self._index(rewritten.indices))


class _Lanes:
    """Turns the statements of one vectorized loop into vector statements."""

    def __init__(self, var: Var, low: PrimExpr, lanes: int) -> None:
        self._var = var
        self._low = low
        self._lanes = lanes
        self._vectors: dict[Var, PrimExpr] = {var: e.Ramp(low, ONE, lanes)}
        self._memo: dict[PrimExpr, PrimExpr] = {}

    def stmt(self, stmt: Stmt, mask: PrimExpr | None) -> Stmt:
        """The vector form of a statement under a mask (None: all lanes), or a serial loop where there is none."""
        try:
            match stmt:
                case SeqStmt():
                    return seq(*[self.stmt(item, mask) for item in stmt.stmts])
                case For():
                    return self._for(stmt, mask)
                case Allocate():
                    return stmt.replace(body=self.stmt(stmt.body, mask))
                case BufferStore():
                    return self._store(stmt, mask)
                case IfThenElse():
                    return self._if(stmt, mask)
                case LetStmt():
                    return self._let(stmt, mask)
                case Evaluate() | Assert():
                    if mask is None and not self._varies(stmt):
                        return stmt
            raise _NoVectorForm
        except _NoVectorForm:
            if mask is not None:
                raise
            return self._serial(stmt)

    def _serial(self, stmt: Stmt) -> Stmt:
        """The statement for one lane after another."""
        if not self._varies(stmt):
            return stmt
        if uses_any(stmt, [var for var in self._vectors if var is not self._var]):
            # The value of an outer binding exists as a vector only: the statement that binds it runs lane by lane.
            raise _NoVectorForm
        lane = Var(self._var.name, INDEX)
        return For(lane, self._low, build.const(self._lanes), LoopKind.SERIAL, fresh_copy(stmt, {self._var: lane}))

    def _varies(self, item: Stmt | PrimExpr) -> bool:
        return uses_any(item, self._vectors)

    def _for(self, loop: For, mask: PrimExpr | None) -> Stmt:
        if self._varies(loop.min) or self._varies(loop.extent):
            raise _NoVectorForm
        return loop.replace(body=self.stmt(loop.body, mask))

    def _store(self, stmt: BufferStore, mask: PrimExpr | None) -> Stmt:
        index, value = self.expr(stmt.indices[0]), self.expr(stmt.value)
        if index.dtype.is_scalar:
            if value.dtype.is_scalar and mask is None:
                return stmt
            raise _NoVectorForm
        if isinstance(index, e.Broadcast):
            raise _NoVectorForm
        vector = stmt.replace(indices=(index,), value=self.widen(value))
        return vector if mask is None else IfThenElse(mask, vector)

    def _if(self, stmt: IfThenElse, mask: PrimExpr | None) -> Stmt:
        if not self._varies(stmt.condition):
            then_body = self.stmt(stmt.then_body, mask)
            else_body = None if stmt.else_body is None else self.stmt(stmt.else_body, mask)
            return stmt.replace(then_body=then_body, else_body=else_body)
        uniform = [part for part in conjuncts(stmt.condition) if not self._varies(part)]
        if uniform and stmt.else_body is None and all(is_safe(part) for part in conjuncts(stmt.condition)):
            varying = [part for part in conjuncts(stmt.condition) if self._varies(part)]
            inner = stmt.replace(condition=build.all_of(varying))
            return IfThenElse(build.all_of(uniform), self.stmt(inner, mask))
        condition = self.expr(stmt.condition)
        bound: Var | None = None
        if loads_in(condition):
            # The body may change what the condition read: it is decided once, before.
            bound = Var("mask", BOOL.with_lanes(self._lanes))
            value, condition = condition, bound
        chosen = condition if mask is None else e.And(mask, condition)
        then_body = self.stmt(stmt.then_body, chosen)
        result = then_body
        if stmt.else_body is not None:
            refused: PrimExpr = e.Not(condition)
            result = seq(then_body, self.stmt(stmt.else_body, refused if mask is None else e.And(mask, refused)))
        if bound is not None:
            if mask is not None:
                raise _NoVectorForm
            return LetStmt(bound, value, result)
        return result

    def _let(self, stmt: LetStmt, mask: PrimExpr | None) -> Stmt:
        if not self._varies(stmt.value):
            if mask is not None and not is_safe(stmt.value):
                raise _NoVectorForm
            return stmt.replace(body=self.stmt(stmt.body, mask))
        if mask is not None and not is_safe(stmt.value):
            raise _NoVectorForm
        value = self.widen(self.expr(stmt.value))
        vector = Var(stmt.var.name, value.dtype)
        self._vectors[stmt.var] = vector
        try:
            body = self.stmt(stmt.body, mask)
        except _NoVectorForm:
            del self._vectors[stmt.var]
            if mask is not None:
                raise
            return self._serial(stmt)
        del self._vectors[stmt.var]
        return LetStmt(vector, value, body)

    def widen(self, value: PrimExpr) -> PrimExpr:
        """The value with all lanes."""
        return value if value.dtype.lanes == self._lanes else e.Broadcast(value, self._lanes)

    def expr(self, expr: PrimExpr) -> PrimExpr:
        """The vector form of an expression; one that is the same in every lane stays scalar."""
        done = self._memo.get(expr)
        if done is None:
            done = self._expr(expr)
            self._memo[expr] = done
        return done

    def _expr(self, expr: PrimExpr) -> PrimExpr:
        if type(expr) is Var:
            return self._vectors.get(expr, expr)
        if isinstance(expr, (IntImm, e.FloatImm, e.StringImm)):
            return expr
        if expr.dtype.lanes != 1:
            if self._varies(expr):
                raise _NoVectorForm
            return expr
        if isinstance(expr, e.BinaryExpr):
            return self._binary(expr, self.expr(expr.a), self.expr(expr.b))
        if isinstance(expr, BufferLoad):
            return BufferLoad(expr.buffer, (self.expr(expr.indices[0]),))
        if isinstance(expr, e.Cast):
            value = self.expr(expr.value)
            return e.Cast(value, expr.dtype.with_lanes(value.dtype.lanes))
        if isinstance(expr, e.Not):
            return e.Not(self.expr(expr.a))
        if isinstance(expr, e.Select):
            return self._select(expr)
        if isinstance(expr, e.Call):
            return self._call(expr)
        raise _NoVectorForm

    def _binary(self, expr: e.BinaryExpr, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        if a is expr.a and b is expr.b:
            return expr
        ramp = _ramp_arithmetic(type(expr), a, b)
        return type(expr)(self.widen(a), self.widen(b)) if ramp is None else ramp  # type: ignore[call-arg]

    def _select(self, expr: e.Select) -> PrimExpr:
        condition, a, b = self.expr(expr.condition), self.expr(expr.a), self.expr(expr.b)
        if max(condition.dtype.lanes, a.dtype.lanes, b.dtype.lanes) == 1:
            return e.Select(condition, a, b)
        return e.Select(condition, self.widen(a), self.widen(b))

    def _call(self, expr: e.Call) -> PrimExpr:
        args = [self.expr(arg) for arg in expr.args]
        if all(old is new for old, new in zip(expr.args, args, strict=True)):
            return expr
        if not is_pure(expr):
            raise _NoVectorForm
        return e.Call(expr.name, tuple(self.widen(arg) for arg in args), expr.dtype.with_lanes(self._lanes))


def _ramp_arithmetic(kind: type[e.BinaryExpr], a: PrimExpr, b: PrimExpr) -> PrimExpr | None:
    """Sums and multiples of ramps as ramps, so that addresses stay a base and a stride."""
    if isinstance(a, e.Ramp) and isinstance(b, e.Ramp):
        if kind is e.Add:
            return _ramp(build.add(a.base, b.base), build.add(a.stride, b.stride), a.lanes)
        if kind is e.Sub:
            return _ramp(build.sub(a.base, b.base), build.sub(a.stride, b.stride), a.lanes)
        return None
    if isinstance(a, e.Ramp) and b.dtype.is_scalar:
        if kind is e.Add:
            return e.Ramp(build.add(a.base, b), a.stride, a.lanes)
        if kind is e.Sub:
            return e.Ramp(build.sub(a.base, b), a.stride, a.lanes)
        if kind is e.Mul:
            return e.Ramp(build.mul(a.base, b), build.mul(a.stride, b), a.lanes)
        return None
    if isinstance(b, e.Ramp) and a.dtype.is_scalar:
        if kind is e.Add:
            return e.Ramp(build.add(a, b.base), b.stride, b.lanes)
        if kind is e.Sub:
            return e.Ramp(build.sub(a, b.base), build.neg(b.stride), b.lanes)
        if kind is e.Mul:
            return e.Ramp(build.mul(a, b.base), build.mul(a, b.stride), b.lanes)
    return None


def _ramp(base: PrimExpr, stride: PrimExpr, lanes: int) -> PrimExpr:
    return e.Broadcast(base, lanes) if e.is_const_int(stride, 0) else e.Ramp(base, stride, lanes)


def is_safe(expr: PrimExpr) -> bool:
    """Whether evaluating an expression needlessly does no harm: no load, no effect, no division by what may be zero."""
    for item in pre_order(expr):
        if isinstance(item, BufferLoad) or (isinstance(item, e.Call) and not is_pure(item)):
            return False
        if isinstance(item, (e.FloorDiv, e.FloorMod, e.Div, e.Mod)) and not item.dtype.is_float:
            divisor = item.b.value if isinstance(item.b, e.Broadcast) else item.b
            if not isinstance(divisor, IntImm) or divisor.value == 0:
                return False
    return True
