"""Numbers of 2, 4, 8, 16 or 32 bits packed to bytes, as elements lie in DRAM, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Lanes = npt.NDArray[np.signedinteger[Any]]

_TYPES: dict[int, np.dtype[np.signedinteger[Any]]] = {8: np.dtype("<i1"), 16: np.dtype("<i2"), 32: np.dtype("<i4")}


def lane_type(bits: int) -> np.dtype[np.signedinteger[Any]]:
    """The type that holds lanes of a width outside of DRAM."""
    return _TYPES[max(bits, 8)]


def unpack(data: Bytes, bits: int) -> Lanes:
    """The signed lanes of packed bytes, along the last axis; the first lane is in the lowest bits."""
    if bits >= 8:
        return np.ascontiguousarray(data).view(_TYPES[bits])
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    # Up to the top of a byte, and back with the sign.
    high = ((data[..., None] >> shifts) << np.uint8(8 - bits)).view(np.int8)
    return (high >> np.int8(8 - bits)).reshape(*data.shape[:-1], -1)


def pack(lanes: Lanes, bits: int) -> Bytes:
    """Lanes packed to bytes along the last axis; higher bits of a lane are dropped."""
    if bits >= 8:
        return np.ascontiguousarray(lanes, _TYPES[bits]).view(np.uint8)
    each = 8 // bits
    low = (lanes.astype(np.int8, copy=False).view(np.uint8) & np.uint8((1 << bits) - 1)).reshape(
        *lanes.shape[:-1], -1, each
    )
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    packed: Bytes = np.bitwise_or.reduce(low << shifts, axis=-1)
    return packed


def wrap(values: npt.NDArray[np.int64], bits: int) -> Lanes:
    """Values modulo 2^bits, as signed numbers of the type of such lanes."""
    if bits >= 8:
        return values.astype(_TYPES[bits])
    shift = np.int64(64 - bits)
    return ((values << shift) >> shift).astype(np.int8)
