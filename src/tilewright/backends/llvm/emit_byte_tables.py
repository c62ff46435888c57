"""Bytes looked up in a table of 256 bytes that lies in sixteen registers, on Arm.

    r = tbl(table[0:64], x);  r = tbx(r, table[64:128], x - 64);  r = tbx(r, table[128:192], x - 128);  ...

`tbl` gives zero for places past its 64 bytes, and `tbx` leaves what was there.
"""

from __future__ import annotations

from tilewright.backends.llvm.context import FunctionContext
from tilewright.backends.llvm.vector_parts import parts_of, side_by_side
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
    found = [_look_up(c, parts, item, width) for item in parts_of(c, places, "i8", lanes, width)]
    return side_by_side(c, found, "i8", width, lanes)


def _table(c: FunctionContext, table: str) -> list[str]:
    places = [table] + [
        c.op(f"getelementptr inbounds i8, ptr {table}, i64 {at}", "p") for at in range(_REGISTER, TABLE, _REGISTER)
    ]
    return [c.op(f"load {_PART}, ptr {place}, align 1") for place in places]


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
