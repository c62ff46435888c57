"""Memory of tensors that the virtual machine makes: given back when the last array over it dies, and used again.

An array is made over a block, and every view of it holds the block. So Python's own count of references says when the
memory is free, whatever tuples, data or closures held it; freeing is putting the memory on a list.
"""

from __future__ import annotations

import ctypes
from collections import deque
from functools import cache
from typing import Any

import numpy as np

from tilewright.runtime.convert import ALIGNMENT, Array, address_of
from tilewright.support.errors import UserError
from tilewright.support.text import human_bytes

_SMALLEST = 64
_MOST_FREE = 16
"""Blocks of one size that are kept."""


@cache
def _block_type(size: int) -> Any:
    """Borrowed memory of a size; on its death the memory goes back to where it came from.

    A ctypes array: numpy would look through an array of its own kind, and views would not hold it.
    """

    def give_back(block: Any) -> None:
        if len(block.home) < _MOST_FREE:
            block.home.append(block.memory)

    return type("Block", (ctypes.c_char * size,), {"__del__": give_back})


class Storage:
    """The memory of one program; safe to use from several threads."""

    def __init__(self) -> None:
        self._free: dict[int, deque[Array]] = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised, aligned array."""
        count = dtype.itemsize
        for extent in shape:
            count *= extent
        size = _size_class(count)
        home = self._free.get(size)
        if home is None:
            home = self._free.setdefault(size, deque())
        try:
            raw = home.pop()
        except IndexError:
            raw = _new(size)
        block = _block_type(size).from_buffer(raw)
        block.memory, block.home = raw, home
        return np.ndarray(shape, dtype, block)


def _size_class(count: int) -> int:
    """A size rounded up so that few different ones exist: four steps an octave."""
    if count <= _SMALLEST:
        return _SMALLEST
    step = 1 << max((count - 1).bit_length() - 3, 6)
    return -(-count // step) * step


def _new(size: int) -> Array:
    """Aligned memory, as an array of bytes."""
    try:
        raw = np.empty(size + ALIGNMENT, np.uint8)
    except MemoryError:
        raise UserError(f"no memory for a value of {human_bytes(size)}") from None
    start = -address_of(raw) % ALIGNMENT
    return raw[start : start + size]
