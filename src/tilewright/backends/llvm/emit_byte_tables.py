"""Bytes looked up in a table of 256 bytes that lies in sixteen registers, on Arm.

    r = tbl(table[0:64], x);  r = tbx(r, table[64:128], x - 64);  r = tbx(r, table[128:192], x - 128);  ...

`tbl` gives zero for places past its 64 bytes, and `tbx` leaves what was there.
"""

from __future__ import annotations

from tilewright.backends.llvm.context import FunctionContext
from tilewright.tir.analysis.byte_lookups import TABLE

LEAST_LOOKED_UP = 8
"""Bytes that are looked up at once, at least: half a register."""
_REGISTER = 16
_AT_ONCE = 64
_PART = f"<{_REGISTER} x i8>"


def look_up(c: FunctionContext, table: str, places: str, lanes: int) -> str:
    """The bytes of a table at places below 256, a multiple of eight of them."""
    parts = _table(c, table)
    width = _REGISTER if lanes % _REGISTER == 0 else LEAST_LOOKED_UP
    found = [_look_up(c, parts, _cut(c, places, lanes, start, width), width) for start in range(0, lanes, width)]
    while len(found) > 1:
        # Neighbours side by side; the last one by itself goes with itself, and is cut off.
        paired = found if len(found) % 2 == 0 else [*found, found[-1]]
        order = ", ".join(f"i32 {lane}" for lane in range(2 * width))
        kind = f"<{width} x i8>"
        found = [
            c.op(f"shufflevector {kind} {first}, {kind} {second}, <{2 * width} x i32> <{order}>")
            for first, second in zip(paired[::2], paired[1::2], strict=True)
        ]
        width *= 2
    return found[0] if width == lanes else _cut(c, found[0], width, 0, lanes)


def _table(c: FunctionContext, table: str) -> list[str]:
    places = [table] + [
        c.op(f"getelementptr inbounds i8, ptr {table}, i64 {at}", "p") for at in range(_REGISTER, TABLE, _REGISTER)
    ]
    return [c.op(f"load {_PART}, ptr {place}, align 1") for place in places]


def _cut(c: FunctionContext, vector: str, lanes: int, start: int, width: int) -> str:
    if lanes == width:
        return vector
    order = ", ".join(f"i32 {lane}" for lane in range(start, start + width))
    return c.op(f"shufflevector <{lanes} x i8> {vector}, <{lanes} x i8> poison, <{width} x i32> <{order}>")


def _look_up(c: FunctionContext, table: list[str], places: str, width: int) -> str:
    kind, tables = f"<{width} x i8>", ", ".join([_PART] * 4)
    first = c.module.declare(f"llvm.aarch64.neon.tbl4.v{width}i8", kind, f"{tables}, {kind}", "")
    others = c.module.declare(f"llvm.aarch64.neon.tbx4.v{width}i8", kind, f"{kind}, {tables}, {kind}", "")
    found = ""
    for begin in range(0, TABLE, _AT_ONCE):
        count = begin // _REGISTER
        parts = ", ".join(f"{_PART} {part}" for part in table[count : count + 4])
        if begin == 0:
            found = c.op(f"call {kind} {first}({parts}, {kind} {places})")
            continue
        inside = c.op(f"sub {kind} {places}, splat (i8 {begin if begin < 128 else begin - 256})")
        found = c.op(f"call {kind} {others}({kind} {found}, {parts}, {kind} {inside})")
    return found
