"""Stores of vectors of floats that are rounded to bytes: several are narrowed as one, by saturating packs of x86.

    b[0:16] = uint8(round(x) + 3)             words of 32 bits to halves, in pairs; 3 added to the halves
    b[16:32] = uint8(round(y) + 3)      ->    halves to bytes, in pairs
    b[32:48] = uint8(round(z) + 3)            the fours of each vector put side by side
    b[48:64] = uint8(round(w) + 3)            store b[0:64]

A vector that is narrowed by itself takes two shuffles and an addition of 32-bit numbers; four together take a pack and
less than an addition each. Packs saturate, so that numbers need no bounds but one: x86 converts what does not fit 32
bits, NaN too, to the least number, which becomes the least byte. That is right for all but large positive floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from tilewright.backends.llvm.context import FunctionContext
from tilewright.backends.llvm.emit_memory import contiguous_store, element_address
from tilewright.backends.llvm.emit_rounding import rounded_number, whole_numbers
from tilewright.backends.llvm.types import float_constant, register_type
from tilewright.ir.dtype import FLOAT32, INT8, INT16, INT32, UINT8
from tilewright.ir.expr import Add, Broadcast, Cast, FloatImm, IntImm, Mul, PrimExpr, Ramp, Sub, const_value
from tilewright.ir.visit import find_all
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.stmt import BufferStore, Stmt

_COUNTS = (4, 2)
"""Vectors that are narrowed together."""
_FOUR = 4
"""Words of 32 bits in the part of a vector that a pack works within."""
_PACKS = {
    16: ("avx512bw", "llvm.x86.avx512.packssdw.512", "llvm.x86.avx512.pack{}swb.512"),
    8: ("avx2", "llvm.x86.avx2.packssdw", "llvm.x86.avx2.pack{}swb"),
}
"""By lanes of 32 bits: the feature, and the saturating packs to 16 and to 8 bits."""
_FLIP = 128
_MOST_ADDED = 1 << 14
"""A number that can be added to halves: with it the ends of 16 bits stay beyond all bytes."""
_MOST_FLOAT = float(1 << 20)
"""Floats above this one become bytes as this one does."""
_MOST_WHOLE = float((1 << 31) - (1 << 8))
"""The magnitude up to which floats are converted to 32 bits."""
_MOST_FINITE = 2.0**100
"""A magnitude of numbers that are certainly no infinities."""


@dataclass(frozen=True, slots=True)
class _Rounded:
    """The byte `cut(round(value) + added)`, cut to the range of signed or unsigned bytes."""

    value: PrimExpr
    added: int
    is_signed: bool


def narrowed_at(c: FunctionContext, stmts: Sequence[Stmt], start: int) -> int:
    """How many of these statements, from one on, store vectors that are rounded to bytes; 0 if there are not two."""
    head = stmts[start]
    first = _rounded_store(c, head)
    if first is None:
        return 0
    assert isinstance(head, BufferStore)
    found = 0
    for stmt in stmts[start : start + _COUNTS[0]]:
        other = _rounded_store(c, stmt)
        if other is None or (other.added, other.is_signed) != (first.added, first.is_signed):
            break
        assert isinstance(stmt, BufferStore)
        # What a statement reads may be what the one before it stores.
        if stmt.buffer is not head.buffer or any(load.buffer is head.buffer for load in find_all(stmt, BufferLoad)):
            break
        if stmt.value.dtype is not head.value.dtype:
            break
        found += 1
    return next((count for count in _COUNTS if count <= found), 0)


def _rounded_store(c: FunctionContext, stmt: Stmt) -> _Rounded | None:
    """What a statement stores, if that is a whole vector in one run of memory, rounded to bytes."""
    if not isinstance(stmt, BufferStore) or len(stmt.indices) != 1 or c.mask is not None:
        return None
    (place,), lanes = stmt.indices, stmt.value.dtype.lanes
    if c.target.arch != "x86_64" or lanes not in _PACKS or not c.target.has_feature(_PACKS[lanes][0]):
        return None
    if not isinstance(place, Ramp) or const_value(place.stride) != 1 or not isinstance(stmt.value, Cast):
        return None
    return _rounded_bytes(stmt.value)


def _rounded_bytes(expr: Cast) -> _Rounded | None:
    """`uint8(round(x) + zero)`, or `int8(int32(uint8(round(x) + zero)) - 128)`, which cuts to signed bytes."""
    element = expr.dtype.element
    if element is UINT8 and expr.value.dtype.element is FLOAT32:
        rounded = rounded_number(expr.value)
        if rounded is None or abs(rounded[1]) > _MOST_ADDED:
            return None
        return _Rounded(*rounded, is_signed=False)
    moved = expr.value
    if element is not INT8 or not isinstance(moved, Add) or _whole(moved.b) != -_FLIP:
        return None
    wide = moved.a
    if not isinstance(wide, Cast) or wide.dtype.element is not INT32 or not isinstance(wide.value, Cast):
        return None
    unsigned = _rounded_bytes(wide.value) if wide.value.dtype.element is UINT8 else None
    return None if unsigned is None else _Rounded(unsigned.value, unsigned.added - _FLIP, is_signed=True)


def _whole(expr: PrimExpr) -> int | None:
    number = expr.value if isinstance(expr, Broadcast) else expr
    return number.value if isinstance(number, IntImm) else None


def emit_narrowed(c: FunctionContext, stmts: Sequence[Stmt]) -> None:
    """The stores of as many statements as `narrowed_at` found."""
    stores = [stmt for stmt in stmts if isinstance(stmt, BufferStore)]
    items = [item for stmt in stores if (item := _rounded_store(c, stmt)) is not None]
    dtype = stores[0].value.dtype
    lanes, added, is_signed = dtype.lanes, items[0].added, items[0].is_signed
    # A number that moves all bytes to the other sign is added to them, by flipping a bit, instead of to the halves.
    is_flipped = added == (-_FLIP if is_signed else _FLIP)
    words = [_words(c, item.value, lanes) for item in items]
    halves = _packed(c, _PACKS[lanes][1], words, "i32", lanes)
    if added and not is_flipped:
        kind = f"<{2 * lanes} x i16>"
        function = c.module.declare(f"llvm.sadd.sat.v{2 * lanes}i16", kind, f"{kind}, {kind}", "")
        number = c.broadcast(str(added), INT16, 2 * lanes)
        halves = [c.op(f"call {kind} {function}({kind} {half}, {kind} {number})") for half in halves]
    name = _PACKS[lanes][2].format("s" if is_signed != is_flipped else "u")
    # The two of a pair alone are packed with themselves, and the second half of the bytes is left.
    (packed,) = _packed(c, name, halves if len(halves) > 1 else halves * 2, "i16", 2 * lanes)
    count = lanes * len(stores)
    ordered = _in_order(c, packed, lanes, len(stores))
    if is_flipped:
        ordered = c.op(f"xor <{count} x i8> {ordered}, {c.broadcast(str(-_FLIP), INT8, count)}")
    _store(c, stores, ordered)


def _words(c: FunctionContext, value: PrimExpr, lanes: int) -> str:
    """A vector of floats as whole numbers that packs saturate as bytes are to be."""
    operand, text = c.value(value), register_type(value.dtype)
    if not _fits_words(value):
        most = c.broadcast(float_constant(_MOST_FLOAT, FLOAT32), FLOAT32, lanes)
        # NaN stays NaN.
        above = c.op(f"fcmp olt {text} {most}, {operand}")
        operand = c.op(f"select <{lanes} x i1> {above}, {text} {most}, {text} {operand}")
    return whole_numbers(c, operand, lanes)


def _fits_words(value: PrimExpr) -> bool:
    """Whether a float is known to be a number that 32 bits hold."""
    magnitude = _magnitude(value)
    return magnitude is not None and magnitude <= _MOST_WHOLE


def _magnitude(value: PrimExpr) -> float | None:
    """A bound of the magnitude of a float that is computed from integers and constants; None if it is not."""
    if isinstance(value, Broadcast):
        return _magnitude(value.value)
    if isinstance(value, FloatImm):
        return abs(value.value) if isfinite(value.value) else None
    if isinstance(value, Cast) and (value.value.dtype.is_int or value.value.dtype.is_uint):
        return 2.0 ** (value.value.dtype.bits - value.value.dtype.is_int)
    if not isinstance(value, (Add, Sub, Mul)):
        return None
    a, b = _magnitude(value.a), _magnitude(value.b)
    if a is None or b is None:
        return None
    # Each step is rounded, by less than this.
    bound = (a * b if isinstance(value, Mul) else a + b) * (1 + 2.0**-20)
    return bound if bound <= _MOST_FINITE else None


def _packed(c: FunctionContext, name: str, vectors: list[str], element: str, lanes: int) -> list[str]:
    """Vectors packed in pairs to elements of half the width."""
    kind, narrow = f"<{lanes} x {element}>", f"<{2 * lanes} x i{int(element[1:]) // 2}>"
    function = c.module.declare(name, narrow, f"{kind}, {kind}")
    pairs = zip(vectors[::2], vectors[1::2], strict=True)
    return [c.op(f"call {narrow} {function}({kind} {first}, {kind} {second})") for first, second in pairs]


def _in_order(c: FunctionContext, packed: str, lanes: int, count: int) -> str:
    """The bytes of each vector side by side: packs leave four of each in turn."""
    parts = lanes // _FOUR
    order = [part * _FOUR + vector for vector in range(count) for part in range(parts)]
    kind = f"<{lanes} x i32>"
    words = c.op(f"bitcast <{4 * lanes} x i8> {packed} to {kind}")
    places = ", ".join(f"i32 {place}" for place in order)
    moved = c.op(f"shufflevector {kind} {words}, {kind} poison, <{len(order)} x i32> <{places}>")
    return c.op(f"bitcast <{len(order)} x i32> {moved} to <{lanes * count} x i8>")


def _store(c: FunctionContext, stores: Sequence[BufferStore], ordered: str) -> None:
    """Store the bytes of all statements, those of neighbouring places at once."""
    lanes, buffer = stores[0].value.dtype.lanes, stores[0].buffer
    forms = [c.analyzer.form(stmt.indices[0].base) for stmt in stores if isinstance(stmt.indices[0], Ramp)]
    begin = 0
    for end in range(1, len(stores) + 1):
        apart = forms[end].constant - forms[begin].constant if end < len(stores) else None
        if apart == (end - begin) * lanes and forms[end].terms == forms[begin].terms:
            continue
        part, count = ordered, (end - begin) * lanes
        if count < lanes * len(stores):
            places = ", ".join(f"i32 {lane}" for lane in range(begin * lanes, end * lanes))
            kind = f"<{lanes * len(stores)} x i8>"
            part = c.op(f"shufflevector {kind} {ordered}, {kind} poison, <{count} x i32> <{places}>")
        place = stores[begin].indices[0]
        assert isinstance(place, Ramp)
        contiguous_store(c, buffer, element_address(c, buffer, (place.base,)), part, buffer.dtype.with_lanes(count))
        begin = end
