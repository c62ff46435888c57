"""The constants of a model: arranged as kernels want them, each arrangement stored once, in one block of bytes.

Equal constants are stored once even if they are different objects: those of the variants of a model are, and weights
that passes have packed for both sides of an `If`.

Elements of fewer than 8 bits are packed, as kernels read them (`legalize_small_types`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import Constant
from tilewright.ir.structural import structural_key
from tilewright.runtime.core.artifact import ConstantInfo
from tilewright.runtime.core.convert import ALIGNMENT, lasting_empty
from tilewright.runtime.core.packing import pack, packed_size
from tilewright.support.collecting import return_freed_memory
from tilewright.tir.index_map import IndexMap

_LET_GO_BYTES = 32 << 20
"""Bytes of constants after which memory goes back to the system: the allocator keeps what it could use again."""
_SAMPLE = 256
"""Elements of a constant, all over it, that are looked at before all are compared with those of another one."""


class ConstantStore:
    """Collects constants and gives each its place, at a multiple of `line` bytes."""

    def __init__(self, line: int = ALIGNMENT) -> None:
        self._line = line
        self._equal: dict[int, tuple[Constant, Constant]] = {}
        """Each constant by its identity, for which it must live, with the first that is equal to it."""
        self._alike: dict[tuple[object, ...], list[Constant]] = {}
        self._arranged: list[tuple[Constant, IndexMap | None]] = []
        self._infos: list[ConstantInfo] = []
        self._offsets: dict[tuple[object, object], int] = {}
        self._size = 0

    def add(self, constant: Constant, arrangement: IndexMap | None) -> int:
        """The offset of a constant, rearranged if a map is given."""
        constant = self._first_equal(constant)
        key = (id(constant), None if arrangement is None else structural_key(arrangement))
        known = self._offsets.get(key)
        if known is not None:
            return known
        shape = constant.data.shape if arrangement is None else arrangement.new_shape(constant.data.shape)
        offset = self._size
        self._arranged.append((constant, arrangement))
        shape = tuple(int(dim) for dim in shape)
        self._infos.append(ConstantInfo(f"constant_{len(self._infos)}", shape, str(constant.dtype), offset))
        self._offsets[key] = offset
        kind = constant.dtype
        size = packed_size(shape, kind.name) if kind.is_sub_byte else math.prod(shape) * constant.data.itemsize
        self._size += -(-size // self._line) * self._line
        return offset

    def _first_equal(self, constant: Constant) -> Constant:
        """The first constant that is equal to one."""
        if id(constant) not in self._equal:
            data = constant.data
            sample = data.flat[:: max(1, data.size // _SAMPLE)].tobytes()
            alike = self._alike.setdefault((str(constant.dtype), data.shape, sample), [])
            first = next((other for other in alike if _same_bytes(other.data, data)), constant)
            if first is constant:
                alike.append(constant)
            self._equal[id(constant)] = (constant, first)
        return self._equal[id(constant)][1]

    def table(self) -> tuple[ConstantInfo, ...]:
        """What is stored, and where."""
        return tuple(self._infos)

    def blob(self) -> npt.NDArray[np.uint8]:
        """All constants in one block of bytes, aligned as kernels read them; the store is empty afterwards.

        Each is arranged when its turn comes, and let go: where nothing else holds them, there are never two copies of
        all constants.
        """
        self._equal.clear()
        self._alike.clear()
        block = lasting_empty(self._size)
        end = returned = 0
        self._arranged.reverse()
        for info in self._infos:
            if end - returned > _LET_GO_BYTES:
                return_freed_memory()
                returned = end
            constant, arrangement = self._arranged.pop()
            array = constant.data if arrangement is None else arrangement.rearrange(constant.data)
            array = np.ascontiguousarray(array)
            if constant.dtype.is_sub_byte:
                array = pack(array, constant.dtype.name)
            block[end : info.offset] = 0
            end = info.offset + array.nbytes
            block[info.offset : end] = array.reshape(-1).view(np.uint8)
        block[end:] = 0
        self._offsets.clear()
        return block


def _same_bytes(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Whether arrays of one type are equal to the bit: zeros have signs, and NaN is not equal to itself."""
    first, second = (np.ascontiguousarray(item).reshape(-1).view(np.uint8).data for item in (a, b))
    return first == second
