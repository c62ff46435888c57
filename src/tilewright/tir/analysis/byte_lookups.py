"""Bytes that are looked up by bytes: every place is in the table, and some processors hold the table in registers."""

from __future__ import annotations

from tilewright.ir.dtype import UINT8
from tilewright.ir.expr import Cast, PrimExpr
from tilewright.tir.buffer import BufferLoad

TABLE = 256
"""Entries of a table for all bytes."""
_BYTE = 8


def looked_up_byte(load: BufferLoad) -> PrimExpr | None:
    """The byte (or vector of bytes) that a load looks up in a table of bytes; None for any other load."""
    if load.buffer.static_shape != (TABLE,) or load.buffer.dtype.bits != _BYTE or len(load.indices) != 1:
        return None
    place = load.indices[0]
    if not isinstance(place, Cast) or place.value.dtype.element is not UINT8:
        return None
    return place.value


def is_byte_lookup(load: BufferLoad) -> bool:
    """Whether a load looks a byte up in a table of bytes."""
    return looked_up_byte(load) is not None
