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

from tilewright.runtime.core.convert import ALIGNMENT, Array, address_of, addressof, from_buffer
from tilewright.support.errors import UserError
from tilewright.support.text import human_bytes

_SMALLEST = 64
_SMALL = 4096
"""Tensors up to this size come from numpy, which keeps such memory itself: a block costs more than it saves."""
_MOST_FREE = 16
"""Blocks of one size that are kept,"""
_MOST_BYTES = 1 << 26
"""as long as they take no more than this; two are always kept."""


_Memory = tuple[Array, int]


class _Block:
    """Marks the types of blocks."""


@cache
def _block_type(size: int) -> Any:
    """Borrowed memory of a size; on its death the memory goes back to where it came from.

    A ctypes array: numpy would look through an array of its own kind, and views would not hold it.
    """

    most = max(2, min(_MOST_FREE, _MOST_BYTES // size))

    def give_back(block: Any) -> None:
        if len(block.home) < most:
            block.home.append(block.memory)

    return type("Block", (ctypes.c_char * size, _Block), {"__del__": give_back})


class Storage:
    """The memory of one program; safe to use from several threads."""

    def __init__(self) -> None:
        self._free: dict[int, deque[_Memory]] = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, int]:
        """An uninitialised, aligned array, and its address."""
        count = dtype.itemsize
        for extent in shape:
            count *= extent
        if 0 < count <= _SMALL:
            array: Array = np.empty(shape, dtype)
            return array, addressof(from_buffer(array))
        size = _size_class(count)
        home = self._free.get(size)
        if home is None:
            home = self._free.setdefault(size, deque())
        try:
            memory = home.pop()
        except IndexError:
            memory = _new(size)
        raw, address = memory
        block = _block_type(size).from_buffer(raw)
        block.memory, block.home = memory, home
        return np.ndarray(shape, dtype, block), address


def _size_class(count: int) -> int:
    """A size rounded up so that few different ones exist: four steps an octave."""
    if count <= _SMALLEST:
        return _SMALLEST
    step = 1 << max((count - 1).bit_length() - 3, 6)
    return -(-count // step) * step


def owner_of(array: Array) -> object | None:
    """What an array's memory belongs to: a block of a storage, or an array of numpy's; None if to neither."""
    base: Any = array.base
    while isinstance(base, np.ndarray):
        array, base = base, base.base
    return array if base is None else base if isinstance(base, _Block) else None


def _new(size: int) -> _Memory:
    """Aligned memory, as an array of bytes, and its address."""
    try:
        raw = np.empty(size + ALIGNMENT, np.uint8)
    except MemoryError:
        raise UserError(f"no memory for a value of {human_bytes(size)}") from None
    address = address_of(raw)
    start = -address % ALIGNMENT
    return raw[start : start + size], address + start
