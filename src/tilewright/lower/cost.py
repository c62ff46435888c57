"""How much work a kernel does: floating-point operations and bytes moved, for profiles and choices."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import Add, Call, Cast, Div, FloatImm, IntImm, Max, Min, Mul, PrimExpr, Sub, const_value
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Block, BufferStore, For, LetStmt, SeqStmt, Stmt

_ARITHMETIC = (Add, Sub, Mul, Div, Min, Max)


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes of one call."""

    flops: int
    bytes: int


def work_of(func: PrimFunc) -> Work:
    """The work of an unscheduled program: arithmetic on floats, and each parameter moved once.

    Symbolic extents count as one.
    """
    return Work(_flops(func.body, 1), sum(_nbytes(buffer) for buffer in func.buffers))


def _nbytes(buffer: Buffer) -> int:
    count = buffer.dtype.itemsize
    for dim in buffer.shape:
        count *= const_value(dim) or 1
    return count


def _flops(stmt: Stmt, times: int) -> int:
    if isinstance(stmt, For):
        extent = const_value(stmt.extent)
        return _flops(stmt.body, times * (1 if extent is None else extent))
    if isinstance(stmt, SeqStmt):
        return sum(_flops(item, times) for item in stmt.stmts)
    if isinstance(stmt, Block):
        return _flops(stmt.body, times)
    if isinstance(stmt, LetStmt):
        return times * _operations(stmt.value) + _flops(stmt.body, times)
    if isinstance(stmt, BufferStore):
        return times * _operations(stmt.value)
    return 0


def _operations(expr: PrimExpr) -> int:
    """Float operations of one evaluation; a math function counts as one."""
    total = 0
    seen: set[int] = set()
    stack = [expr]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, (BufferLoad, IntImm, FloatImm)):
            continue
        seen.add(id(item))
        if item.dtype.is_float and isinstance(item, (*_ARITHMETIC, Call)) and not isinstance(item, Cast):
            total += 1
        stack.extend(child for child in item.children() if isinstance(child, PrimExpr))
    return total
