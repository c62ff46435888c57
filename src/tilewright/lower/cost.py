"""How much work a kernel does: floating-point operations and bytes moved, for profiles and choices."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir.build import add, as_expr, mul
from tilewright.ir.expr import (
    EQ,
    LE,
    LT,
    NE,
    ONE,
    ZERO,
    Add,
    And,
    Call,
    Cast,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    Not,
    Or,
    PrimExpr,
    Select,
    Sub,
    Var,
)
from tilewright.ir.visit import post_order, pre_order
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Block, BufferStore, For, LetStmt, SeqStmt, Stmt

_ARITHMETIC = (Add, Sub, Mul, Div, Min, Max)
_NUMBERS: dict[type, Callable[..., int]] = {
    Add: operator.add,
    Sub: operator.sub,
    Mul: operator.mul,
    FloorDiv: operator.floordiv,
    FloorMod: operator.mod,
    Min: min,
    Max: max,
    EQ: operator.eq,
    NE: operator.ne,
    LT: operator.lt,
    LE: operator.le,
    And: lambda a, b: a and b,
    Or: lambda a, b: a or b,
    Not: lambda a: not a,
    Select: lambda condition, a, b: a if condition else b,
    Cast: lambda value: value,
}
"""What sizes are made of, in Python's integers: products of several large sizes are more than 64 bits."""


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes of one call; expressions where extents are symbolic."""

    flops: PrimExpr
    bytes: PrimExpr

    def at(self, size: int) -> tuple[int, int]:
        """Both as numbers, with `size` for every symbol."""
        return number_at(self.flops, size), number_at(self.bytes, size)


def work_of(func: PrimFunc) -> Work:
    """The work of an unscheduled program: arithmetic on floats, and each parameter moved once."""
    moved: PrimExpr = ZERO
    for buffer in func.buffers:
        moved = add(moved, _nbytes(buffer))
    return Work(_flops(func.body, ONE), moved)


def number_at(expr: PrimExpr, size: int) -> int:
    """An expression as a number, with `size` for every variable; 0 where that is none, as for what memory holds."""
    values: dict[int, int] = {}
    for item in post_order(expr):
        parts = [values.get(id(child)) for child in item.children()]
        if isinstance(item, IntImm):
            values[id(item)] = item.value
        elif isinstance(item, Var):
            values[id(item)] = size
        elif type(item) in _NUMBERS and all(part is not None for part in parts):
            numbers = [part for part in parts if part is not None]
            if not isinstance(item, (FloorDiv, FloorMod)) or numbers[1]:
                values[id(item)] = int(_NUMBERS[type(item)](*numbers))
    return values.get(id(expr), 0)


def _nbytes(buffer: Buffer) -> PrimExpr:
    count = as_expr(buffer.dtype.itemsize)
    for dim in buffer.shape:
        count = mul(count, dim)
    return count


def _flops(stmt: Stmt, times: PrimExpr) -> PrimExpr:
    if isinstance(stmt, For):
        return _flops(stmt.body, mul(times, stmt.extent))
    if isinstance(stmt, SeqStmt):
        total: PrimExpr = ZERO
        for item in stmt.stmts:
            total = add(total, _flops(item, times))
        return total
    if isinstance(stmt, Block):
        return _flops(stmt.body, times)
    if isinstance(stmt, LetStmt):
        return add(mul(times, _operations(stmt.value)), _flops(stmt.body, times))
    if isinstance(stmt, BufferStore):
        is_product = stmt.buffer.dtype.is_integer and _adds_to(stmt)
        return mul(times, _operations(stmt.value, integers=is_product))
    return ZERO


def _adds_to(store: BufferStore) -> bool:
    """Whether a store goes on with what it overwrites: a step of a sum or product."""
    return any(isinstance(item, BufferLoad) and item.buffer is store.buffer for item in pre_order(store.value))


def _operations(expr: PrimExpr, integers: bool = False) -> int:
    """Float operations of one evaluation (`integers`: and integer ones); a math function counts as one."""
    total = 0
    seen: set[int] = set()
    stack = [expr]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, (BufferLoad, IntImm, FloatImm)):
            continue
        seen.add(id(item))
        counts = item.dtype.is_float or (integers and item.dtype.is_integer)
        if counts and isinstance(item, (*_ARITHMETIC, Call)) and not isinstance(item, Cast):
            total += 1
        stack.extend(child for child in item.children() if isinstance(child, PrimExpr))
    return total
