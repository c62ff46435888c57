"""Elements of fewer than 8 bits packed into bytes as ONNX packs them: the first one in the lowest bits.

The last byte of a tensor is filled up with zeros; rows do not start at bytes of their own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.runtime.core.dtypes import bits_of, storage_dtype

Array = npt.NDArray[Any]


def packed_size(shape: tuple[int, ...], dtype: str) -> int:
    """The bytes of a tensor whose elements are packed where they have fewer than 8 bits."""
    return -(-math.prod(shape) * bits_of(dtype) // 8)


def pack(array: Array, dtype: str) -> npt.NDArray[np.uint8]:
    """A tensor of one element a byte (int8 or uint8; the upper bits do not count) as packed bytes."""
    bits = bits_of(dtype)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    each = 8 // bits
    padded = np.zeros(-(-flat.size // each) * each, np.uint8)
    padded[: flat.size] = flat & np.uint8((1 << bits) - 1)
    places = np.arange(each, dtype=np.uint8) * np.uint8(bits)
    return np.asarray(np.bitwise_or.reduce(padded.reshape(-1, each) << places, axis=1), np.uint8)


def unpack(packed: Array, shape: tuple[int, ...], dtype: str) -> Array:
    """Packed bytes as a tensor of one element a byte, in the type that stores them."""
    bits, storage = bits_of(dtype), storage_dtype(dtype)
    each = 8 // bits
    places = np.arange(each, dtype=np.uint8) * np.uint8(bits)
    # Up with the highest bit, and down again: signed types spread it.
    upper = np.ascontiguousarray(packed).reshape(-1, 1).view(np.uint8) >> places << np.uint8(8 - bits)
    flat = upper.reshape(-1)[: math.prod(shape)].view(storage) >> storage.type(8 - bits)
    return np.asarray(flat, storage).reshape(shape)
