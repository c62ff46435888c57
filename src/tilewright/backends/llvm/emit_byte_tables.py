"""Bytes looked up in a table of 256 bytes that lies in sixteen registers, on Arm.

    tbl(table[0:64], x) | tbl(table[64:128], x - 64) | tbl(table[128:192], x - 128) | tbl(table[192:256], x - 192)

`tbl` gives zero for places past its 64 bytes. (`tbx`, which leaves what was there, takes longer, and each one waits for
the last.)
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
    function = c.module.declare(f"llvm.aarch64.neon.tbl4.v{width}i8", kind, f"{tables}, {kind}", "")
    found: list[str] = []
    for begin in range(0, TABLE, _AT_ONCE):
        count = begin // _REGISTER
        parts = ", ".join(f"{_PART} {part}" for part in table[count : count + 4])
        inside = c.op(f"sub {kind} {places}, splat (i8 {begin if begin < 128 else begin - 256})") if begin else places
        found.append(c.op(f"call {kind} {function}({parts}, {kind} {inside})"))
    while len(found) > 1:
        pairs = zip(found[::2], found[1::2], strict=True)
        found = [c.op(f"or {kind} {first}, {second}") for first, second in pairs]
    return found[0]
