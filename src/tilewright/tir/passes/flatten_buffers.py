"""Multi-dimensional accesses become one-dimensional: row-major by default, by strides and offset where given.

    A: Buffer[(4, 8)]                     A: Buffer[(32,)]
    A[i, j] = A[i, j + 1]           ->    A[i * 8 + j] = A[i * 8 + (j + 1)]

A buffer without dimensions becomes one of a single element. Parameters become one-dimensional as well: their data
pointer is what the calling convention passes. Symbolic dimensions that are not parameters yet are appended as trailing
scalar parameters, by first use (the calling convention of compiled functions).
"""

from __future__ import annotations

from functools import lru_cache

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import add, as_expr, mul
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import FALSE, ONE, ZERO, Broadcast, Call, IntImm, PrimExpr, Ramp, Range, Var
from tilewright.ir.visit import pre_order
from tilewright.support.errors import UserError
from tilewright.tir.analysis.lanes import in_lane
from tilewright.tir.analysis.linear import expression, linear, mentions
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import NOTHING, ExprRewriter, StmtRewriter, inside_loop
from tilewright.tir.stmt import Allocate, Assert, BufferStore, For, Stmt


def flatten_buffers(func: PrimFunc) -> PrimFunc:
    """The function with every buffer one-dimensional."""
    flattener = _Flatten()
    params = tuple(flattener.buffer(param) if isinstance(param, Buffer) else param for param in func.params)
    return func.replace(params=(*params, *func.symbolic_dims()), body=flattener.stmt(func.body))


@lru_cache(maxsize=1 << 10)
def row_major_strides(shape: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
    """The strides (in elements) of a compact row-major buffer."""
    strides: list[PrimExpr] = []
    step: PrimExpr = ONE
    for dim in reversed(shape):
        strides.append(step)
        step = mul(step, dim)
    return tuple(reversed(strides))


class _Flatten(StmtRewriter):
    def __init__(self) -> None:
        self._buffers: dict[Buffer, Buffer] = {}
        self._analyzer = Analyzer()
        self.expr = ExprRewriter(self._load, of_memory=True)  # type: ignore[method-assign]

    def buffer(self, old: Buffer) -> Buffer:
        """The one-dimensional buffer that stands for `old`."""
        new = self._buffers.get(old)
        if new is None:
            new = old if _is_flat(old) else old.replace(shape=(self._size(old),), strides=(), offset=ZERO)
            self._buffers[old] = new
        return new

    def _size(self, buffer: Buffer) -> PrimExpr:
        if not buffer.strides:
            size: PrimExpr = ONE
            for dim in buffer.shape:
                size = mul(size, dim)
            return add(size, buffer.offset)
        if any(isinstance(dim, IntImm) and dim.value == 0 for dim in buffer.shape):
            return ZERO
        # One past the furthest element (strides are not negative: the offset comes first).
        size = add(buffer.offset, ONE)
        for dim, stride in zip(buffer.shape, buffer.strides, strict=True):
            size = add(size, mul(dim - 1, stride))
        return size

    def index(self, buffer: Buffer, indices: tuple[PrimExpr, ...]) -> PrimExpr:
        """The position of an element in memory."""
        strides = buffer.strides or row_major_strides(buffer.shape)
        lanes = max([index.dtype.lanes for index in indices], default=1)
        if lanes > 1 and all(isinstance(index, Ramp) or index.dtype.is_scalar for index in indices):
            return self._ramp(buffer.offset, indices, strides, lanes)
        run = self._run(buffer.offset, indices, strides, lanes) if lanes > 1 else None
        if run is not None:
            return run
        total = buffer.offset
        for index, stride in zip(indices, strides, strict=True):
            wide = index if index.dtype.element is INDEX else index.astype(INDEX)
            total = add(total, mul(wide, stride))
        if lanes > 1:
            return total if total.dtype.lanes == lanes else Broadcast(as_expr(total), lanes)
        return self._analyzer.simplify(total)

    def _ramp(
        self, start: PrimExpr, indices: tuple[PrimExpr, ...], strides: tuple[PrimExpr, ...], lanes: int
    ) -> PrimExpr:
        """Steps along dimensions are steps in memory: one ramp, which the code generator knows as a vector access."""
        step: PrimExpr = ZERO
        for index, stride in zip(indices, strides, strict=True):
            base = index.base if isinstance(index, Ramp) else index
            start = add(start, mul(base.astype(INDEX), stride))
            if isinstance(index, Ramp):
                step = add(step, mul(index.stride.astype(INDEX), stride))
        return Ramp(self._analyzer.simplify(start), self._analyzer.simplify(step), lanes)

    def _run(
        self, start: PrimExpr, indices: tuple[PrimExpr, ...], strides: tuple[PrimExpr, ...], lanes: int
    ) -> PrimExpr | None:
        """Lanes that go through inner dimensions one after another are a run in memory: l // 4 * 4 + l % 4 is l."""
        lane = Var("lane")
        total = start
        for index, stride in zip(indices, strides, strict=True):
            part = in_lane(index, lane)
            if part is None:
                return None
            total = add(total, mul(part.astype(INDEX), stride))
        with self._analyzer.scope():
            self._analyzer.bind(lane, Range(ZERO, IntImm(lanes)))
            form = linear(self._analyzer.simplify(total))
        step = form.terms.get(lane, 0)
        rest = form.minus(linear(lane).scaled(step))
        if step == 0 or any(mentions(term, {lane}) for term in rest.terms):
            return None
        return Ramp(expression(rest), IntImm(step), lanes)

    def _load(self, expr: PrimExpr) -> PrimExpr | None:
        if type(expr) is Call and expr.name == "element_distance":
            first, second = expr.args
            assert isinstance(first, BufferLoad) and isinstance(second, BufferLoad)
            return self._analyzer.simplify(second.indices[0] - first.indices[0])
        if type(expr) is not BufferLoad or _is_flat(expr.buffer):
            return None
        return BufferLoad(self.buffer(expr.buffer), (self.index(expr.buffer, expr.indices),))

    def visit_for(self, loop: For) -> Stmt:
        low, extent, outer = self.expr(loop.min), self.expr(loop.extent), self.expr
        with inside_loop(self._analyzer, loop):
            # What is simplified inside the loop may rest on the loop running at all.
            self.expr = ExprRewriter(self._load, of_memory=True)  # type: ignore[method-assign]
            body = self.stmt(loop.body)
        self.expr = outer  # type: ignore[method-assign]
        return loop.replace(min=low, extent=extent, body=body)

    def visit_store(self, stmt: BufferStore) -> Stmt:
        indices, value = self.exprs(stmt.indices), self.expr(stmt.value)
        if _is_flat(stmt.buffer):
            return stmt.replace(indices=indices, value=value)
        return stmt.replace(buffer=self.buffer(stmt.buffer), indices=(self.index(stmt.buffer, indices),), value=value)

    def visit_assert(self, stmt: Assert) -> Stmt:
        """An assertion about where elements lie is decided now that it is known."""
        about_layout = any(isinstance(item, Call) and item.name == "element_distance" for item in pre_order(stmt))
        condition = self.expr(stmt.condition)
        if about_layout and self._analyzer.prove(condition):
            return NOTHING
        if about_layout and self._analyzer.simplify(condition) is FALSE:
            raise UserError(stmt.message)
        return stmt if condition is stmt.condition else stmt.replace(condition=condition)

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        return stmt.replace(buffer=self.buffer(stmt.buffer), body=self.stmt(stmt.body))


def _is_flat(buffer: Buffer) -> bool:
    plain = not buffer.strides and isinstance(buffer.offset, IntImm) and buffer.offset.value == 0
    return len(buffer.shape) == 1 and plain


__all__ = ["flatten_buffers", "row_major_strides"]
