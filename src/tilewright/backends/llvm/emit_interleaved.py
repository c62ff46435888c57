"""Stores whose elements lie between one another's: neighbouring statements that each write every n-th element.

    b[0:64:4] = red                put red, green, blue and alpha side by side, element by element, in registers
    b[1:64:4] = green       ->     store b[0:64]
    b[2:64:4] = blue
    b[3:64:4] = alpha

Single elements would be taken out of their vectors and stored one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.backends.llvm.context import FunctionContext
from tilewright.backends.llvm.emit_memory import contiguous_store, element_address, in_memory
from tilewright.backends.llvm.types import memory_type
from tilewright.ir.expr import Ramp, const_value
from tilewright.ir.visit import find_all
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.stmt import BufferStore, Stmt

MOST_INTERLEAVED = 4
"""Statements whose elements are put side by side: as many as processors have instructions for."""


def interleaved_at(c: FunctionContext, stmts: Sequence[Stmt], start: int) -> int:
    """How many of these statements, from one on, fill a run of memory between them; 0 for none."""
    head = _spread(stmts[start])
    if head is None or c.mask is not None:
        return 0
    count = const_value(head.stride)
    if count is None or not 2 <= count <= MOST_INTERLEAVED or len(stmts) < start + count:
        return 0
    first = stmts[start]
    form = c.analyzer.form(head.base)
    for number, stmt in enumerate(stmts[start : start + count]):
        place = _spread(stmt)
        if place is None or const_value(place.stride) != count or place.lanes != head.lanes:
            return 0
        assert isinstance(stmt, BufferStore) and isinstance(first, BufferStore)
        if stmt.buffer is not first.buffer or any(load.buffer is stmt.buffer for load in find_all(stmt, BufferLoad)):
            return 0
        other = c.analyzer.form(place.base)
        if other.terms != form.terms or other.constant - form.constant != number:
            return 0
    return count


def emit_interleaved(c: FunctionContext, stmts: Sequence[Stmt]) -> None:
    """The stores of as many statements as `interleaved_at` found."""
    head = stmts[0]
    assert isinstance(head, BufferStore) and isinstance(head.indices[0], Ramp)
    place, buffer = head.indices[0], head.buffer
    values = [in_memory(c, c.value(stmt.value), stmt.value.dtype) for stmt in stmts if isinstance(stmt, BufferStore)]
    element, lanes = memory_type(buffer.dtype), place.lanes
    if len(values) == 3:
        pair = _zipped(c, values[0], values[1], element, lanes)
        order = [index // 3 * 2 + index % 3 if index % 3 < 2 else 2 * lanes + index // 3 for index in range(3 * lanes)]
        wide = _widened(c, values[2], element, lanes)
        stored = _shuffled(c, pair, wide, element, 2 * lanes, order)
    else:
        while len(values) > 1:
            half = len(values) // 2
            values = [_zipped(c, *pair, element, lanes) for pair in zip(values[:half], values[half:], strict=True)]
            lanes *= 2
        (stored,) = values
    address = element_address(c, buffer, (place.base,))
    contiguous_store(c, buffer, address, stored, buffer.dtype.with_lanes(place.lanes * len(stmts)))


def _spread(stmt: Stmt) -> Ramp | None:
    """The places of a statement that stores every n-th element."""
    if not isinstance(stmt, BufferStore) or len(stmt.indices) != 1:
        return None
    (place,) = stmt.indices
    return place if isinstance(place, Ramp) and const_value(place.stride) != 1 else None


def _zipped(c: FunctionContext, first: str, second: str, element: str, lanes: int) -> str:
    """The elements of two vectors in turn."""
    order = [index // 2 + index % 2 * lanes for index in range(2 * lanes)]
    return _shuffled(c, first, second, element, lanes, order)


def _widened(c: FunctionContext, vector: str, element: str, lanes: int) -> str:
    """A vector and as many lanes that nobody reads."""
    order = ", ".join(f"i32 {index}" if index < lanes else "i32 poison" for index in range(2 * lanes))
    kind = f"<{lanes} x {element}>"
    return c.op(f"shufflevector {kind} {vector}, {kind} poison, <{2 * lanes} x i32> <{order}>")


def _shuffled(c: FunctionContext, first: str, second: str, element: str, lanes: int, order: Sequence[int]) -> str:
    kind, places = f"<{lanes} x {element}>", ", ".join(f"i32 {index}" for index in order)
    return c.op(f"shufflevector {kind} {first}, {kind} {second}, <{len(order)} x i32> <{places}>")
