"""Statements of hand-made rows (`te.extern_rows`): loops, conditions, stores and memory, as functions.

What CPUs compute step by step is written in these words: sorting, writing at places that are data, running sums.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

from tilewright.ir.build import as_expr, const, floordiv, floormod
from tilewright.ir.dtype import INDEX, DataType
from tilewright.ir.expr import ExprLike, PrimExpr, Var
from tilewright.tir.annotations import REDUCTION
from tilewright.tir.buffer import Buffer
from tilewright.tir.stmt import Block, BufferStore, For, IfThenElse, LetStmt, LoopKind, Stmt, seq

_LANES: Final = 64
"""Elements of a line that are worked on at once."""
_VECTOR: Final = 16
"""Elements of a vector at the end of a line."""


def repeat(extent: ExprLike, body: Callable[[Var], Stmt], name: str = "i", start: ExprLike = 0) -> Stmt:
    """`for i in range(start, start + extent): body(i)`."""
    variable = Var(name)
    return For(variable, as_expr(start, INDEX), as_expr(extent, INDEX), LoopKind.SERIAL, body(variable))


def at_once(extent: int, body: Callable[[Var], Stmt]) -> Stmt:
    """The same for a vector of elements."""
    variable = Var("lane")
    return For(variable, const(0), const(extent), LoopKind.VECTORIZED, body(variable))


def when(condition: PrimExpr, then: Stmt, otherwise: Stmt | None = None) -> Stmt:
    """`if condition: then; else: otherwise`."""
    return IfThenElse(condition, then, otherwise)


def put(buffer: Buffer, place: ExprLike | tuple[ExprLike, ...], value: ExprLike) -> Stmt:
    """`buffer[place] = value`."""
    indices = place if isinstance(place, tuple) else (place,)
    return BufferStore(buffer, tuple(as_expr(index, INDEX) for index in indices), as_expr(value, buffer.dtype))


def let(value: PrimExpr, body: Callable[[Var], Stmt], name: str = "value") -> Stmt:
    """The statement with a value that is computed once."""
    variable = Var(name, value.dtype)
    return LetStmt(variable, value, body(variable))


def memory(name: str, size: int, dtype: DataType) -> Buffer:
    """Memory of a row's own: small pieces are on the stack."""
    return Buffer(name, (const(size),), dtype)


def with_memory(name: str, buffers: list[Buffer], reads: list[Buffer], writes: list[Buffer], *body: Stmt) -> Stmt:
    """Statements with memory of their own."""
    regions = (tuple(item.full_region() for item in reads), tuple(item.full_region() for item in writes))
    return Block(name, (), *regions, seq(*body), allocations=tuple(buffers))


def in_vectors(extent: int, part: Callable[[PrimExpr, int], Stmt], *, again: bool = True) -> Stmt:
    """Statements for parts of a line: whole vectors, and what is left.

    With `again`, elements may be computed twice: the last vector then ends where the line ends.
    """
    whole = extent // _LANES
    steps = [repeat(whole, lambda n: part(n * _LANES, _LANES), "n")] if whole else []
    begin = whole * _LANES
    while begin < extent:
        width = _VECTOR
        while width > extent - begin and (width > extent or not again):
            width //= 2
        steps.append(part(const(min(begin, extent - width)), width))
        begin += width
    return seq(*steps)


def combined(total: Buffer, parts: Buffer, start: PrimExpr, join: Callable[[PrimExpr, PrimExpr], PrimExpr]) -> Stmt:
    """One value of all parts, in any order."""
    variable = Var("part")
    body = put(total, 0, join(total[0], parts[variable]))
    loop = For(variable, const(0), parts.shape[0], LoopKind.SERIAL, body, annotations=REDUCTION.entry(True))
    return seq(put(total, 0, start), loop)


def parts_of(index: PrimExpr, sizes: list[int]) -> list[PrimExpr]:
    """The indices of axes, from one index over all of them."""
    indices: list[PrimExpr] = []
    for number, size in enumerate(sizes):
        inner = prod(sizes[number + 1 :])
        part = floordiv(index, inner) if inner > 1 else index
        indices.append(floormod(part, size) if number else part)
    return indices
