"""Rows of shared memory are stored so that neighbouring rows begin in different banks (`storage_swizzle`).

    S[i * 64 + j]                            S[i * 64 + (j // 8 ^ i % 8) * 8 + j % 8]
    # storage_swizzle: ["S"], 2 bytes   ->

Of every eight rows of 128 bytes, row r has its eight runs of 16 bytes in the order r ^ 0, r ^ 1, ..., r ^ 7: eight rows
read at one column are then in different banks, as matrix instructions read them, and the instructions that read shared
memory themselves expect this order. Runs of 16 bytes stay whole. The order depends on the address alone, so this runs
when accesses are one-dimensional and vectors are ramps; the address of the first of eight rows does not change.
"""

from __future__ import annotations

from typing import Final

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.linear import Linear
from tilewright.ir.build import add, const, floordiv, floormod, mul
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import Call, PrimExpr, Ramp, is_const_int
from tilewright.support.errors import UserError
from tilewright.tir.analysis.linear import expression, linear
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter, inside_loop
from tilewright.tir.stmt import BufferStore, For, Stmt

ATTRIBUTE: Final = "storage_swizzle"
"""The attribute of a function: the names of the buffers that are stored so."""
_RUN_BYTES: Final = 16
_RUNS: Final = 8


def swizzle_storage(func: PrimFunc) -> PrimFunc:
    """The function with accesses to swizzled buffers where their elements are."""
    names = func.attributes.get(ATTRIBUTE)
    if not isinstance(names, (list, tuple)) or not names:
        return func
    return func.replace(body=_Swizzle(frozenset(str(name) for name in names)).stmt(func.body))


class _Swizzle(StmtRewriter):
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._analyzer = Analyzer()
        self.expr = ExprRewriter(self._load)  # type: ignore[method-assign]

    def visit_for(self, loop: For) -> Stmt:
        with inside_loop(self._analyzer, loop):
            return super().visit_for(loop)

    def _load(self, expr: PrimExpr) -> PrimExpr | None:
        if isinstance(expr, BufferLoad) and self._is_swizzled(expr.buffer):
            return BufferLoad(expr.buffer, (self._place(expr.buffer, expr.indices[0]),))
        return None

    def visit_store(self, stmt: BufferStore) -> Stmt:
        indices, value = self.exprs(stmt.indices), self.expr(stmt.value)
        if self._is_swizzled(stmt.buffer):
            indices = (self._place(stmt.buffer, indices[0]),)
        return stmt.replace(indices=indices, value=value)

    def _is_swizzled(self, buffer: Buffer) -> bool:
        return buffer.name in self._names and buffer.scope == "shared"

    def _place(self, buffer: Buffer, index: PrimExpr) -> PrimExpr:
        run = _RUN_BYTES // buffer.dtype.itemsize
        if isinstance(index, Ramp):
            aligned = self._analyzer.prove_equal(floormod(index.base, const(index.lanes)), const(0))
            if not is_const_int(index.stride, 1) or run % index.lanes or not aligned:
                raise UserError(
                    f"the swizzled buffer {buffer.name} is accessed by vectors that are not within runs of 16 bytes",
                    hint=f"vectorize loops of at most {run} neighbours",
                )
            return Ramp(self._swizzled(index.base, run), index.stride, index.lanes)
        if not index.dtype.is_scalar:
            raise UserError(f"the swizzled buffer {buffer.name} is accessed at a vector of places")
        return self._swizzled(index, run)

    def _swizzled(self, index: PrimExpr, run: int) -> PrimExpr:
        """The place of an element; whole groups of eight rows are set apart, so that what is left is often constant."""
        group = run * _RUNS * _RUNS
        form = linear(index)
        whole = {term: c for term, c in form.terms.items() if c % group == 0}
        rest = Linear({term: c for term, c in form.terms.items() if c % group}, form.constant % group)
        inside = expression(rest)
        row = self._analyzer.simplify(floormod(floordiv(inside, const(run * _RUNS)), const(_RUNS)))
        if is_const_int(row, 0):
            return index
        simplify = self._analyzer.simplify
        # In runs: the code generator sees by this form that vectors start at multiples of their size.
        moved = mul(Call("bitwise_xor", (simplify(floordiv(inside, const(run))), row), INDEX), const(run))
        start = add(expression(Linear(whole, form.constant - form.constant % group)), moved)
        return add(start, simplify(floormod(inside, const(run))))
