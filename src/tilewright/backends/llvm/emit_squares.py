"""Squares of a matrix that are turned: neighbouring stores, each of a vector whose elements lie far apart.

    b[0:16] = a[0], a[100], a[200], ...            load rows a[0:16], a[100:116], ...
    b[48:64] = a[1], a[101], a[201], ...    ->     exchange their elements in registers
    ... 14 more                                    store b[0:16], b[48:64], ...

Where rows are a power of two apart, they share few places in the first cache level: by the time that the next element
of a row is gathered, the row is gone. Rows are read once here, and log2(n) exchanges of elements turn n of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.backends.llvm.context import FunctionContext
from tilewright.backends.llvm.emit_memory import element_address
from tilewright.backends.llvm.vector_parts import side_by_side
from tilewright.ir.build import add, mul
from tilewright.ir.expr import IntImm, PrimExpr, Ramp, const_value
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.stmt import BufferStore, Stmt

_BITS = 32
_LEAST_SIDE = 4


def square_at(c: FunctionContext, stmts: Sequence[Stmt], start: int) -> int:
    """How many of these statements, from one on, turn squares of a matrix; 0 for none."""
    head = stmts[start]
    first = _turned(head) if c.mask is None and c.target.has_feature("avx2") else None
    if first is None:
        return 0
    side = _side(c, first[1].lanes)
    if side < _LEAST_SIDE or len(stmts) < start + side:
        return 0
    form = c.analyzer.form(first[1].base)
    for number, stmt in enumerate(stmts[start + 1 : start + side], 1):
        found = _turned(stmt)
        if found is None or found[0].buffer is not first[0].buffer or found[1].lanes != first[1].lanes:
            return 0
        assert isinstance(stmt, BufferStore) and isinstance(head, BufferStore)
        other = c.analyzer.form(found[1].base)
        if stmt.buffer is not head.buffer or found[1].stride is not first[1].stride:
            return 0
        if other.terms != form.terms or other.constant - form.constant != number:
            return 0
    return side


def emit_square(c: FunctionContext, stmts: Sequence[Stmt]) -> None:
    """The stores of as many statements as `square_at` found."""
    found = _turned(stmts[0])
    assert found is not None
    load, places = found
    side, element = len(stmts), "float" if load.dtype.is_float else "i32"
    columns: list[list[str]] = [[] for _ in stmts]
    for start in range(0, places.lanes, side):
        rows = []
        for row in range(start, start + side):
            index = c.analyzer.simplify(add(places.base, mul(places.stride, IntImm(row, places.base.dtype))))
            address = element_address(c, load.buffer, (index,))
            rows.append(c.op(f"load <{side} x {element}>, ptr {address}, align {_BITS // 8}"))
        for column, vector in zip(columns, _transposed(c, rows, element), strict=True):
            column.append(vector)
    for stmt, parts in zip(stmts, columns, strict=True):
        assert isinstance(stmt, BufferStore) and isinstance(stmt.indices[0], Ramp)
        address = element_address(c, stmt.buffer, (stmt.indices[0].base,))
        stored = side_by_side(c, parts, element, side, places.lanes)
        c.do(f"store <{places.lanes} x {element}> {stored}, ptr {address}, align {_BITS // 8}")


def _turned(stmt: Stmt) -> tuple[BufferLoad, Ramp] | None:
    """The load of a statement that stores a vector of elements which lie far apart as they are, and their places."""
    if not isinstance(stmt, BufferStore) or not isinstance(stmt.value, BufferLoad) or len(stmt.indices) != 1:
        return None
    (target,), load = stmt.indices, stmt.value
    place = load.indices[0] if len(load.indices) == 1 else None
    if not isinstance(target, Ramp) or const_value(target.stride) != 1 or not isinstance(place, Ramp):
        return None
    element = load.buffer.dtype
    plain = element.bits == _BITS and (element.is_float or element.is_int) and load.buffer is not stmt.buffer
    return (load, place) if plain and _is_far(place.stride) else None


def _is_far(stride: PrimExpr) -> bool:
    """Whether elements are farther apart than the strides that loads and shuffles serve."""
    value = const_value(stride)
    return value is None or value > 4


def _side(c: FunctionContext, lanes: int) -> int:
    """The side of squares: as many elements as a register has, or fewer where the vector is no multiple of them."""
    side = c.target.lanes(_BITS)
    while side > 1 and lanes % side:
        side //= 2
    return side


def _transposed(c: FunctionContext, rows: list[str], element: str) -> list[str]:
    """The columns of a square, whose side is a power of two, by exchanging halves, quarters and so on of its rows."""
    side = len(rows)
    kind, found = f"<{side} x {element}>", list(rows)
    distance = side // 2
    while distance:
        lower = [lane if not lane & distance else side + lane - distance for lane in range(side)]
        upper = [lane + distance if not lane & distance else side + lane for lane in range(side)]
        for row in range(side):
            if row & distance:
                continue
            pair = f"{kind} {found[row]}, {kind} {found[row + distance]}"
            found[row], found[row + distance] = (
                c.op(f"shufflevector {pair}, <{side} x i32> <{', '.join(f'i32 {lane}' for lane in order)}>")
                for order in (lower, upper)
            )
        distance //= 2
    return found
