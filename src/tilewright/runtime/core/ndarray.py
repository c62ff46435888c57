"""`NDArray`: an array on a device, exchanged with numpy, torch, jax and others through DLPack without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.core.convert import Array, aligned_empty, direct, to_storage
from tilewright.runtime.core.dtypes import dtype_of, storage_dtype
from tilewright.runtime.device.device import Device, cpu
from tilewright.support.errors import UnsupportedError, UserError


class NDArray:
    """A contiguous array: `shape`, `dtype` (a name such as 'float32'), `device` and 64-byte-aligned storage.

    bfloat16 is kept as uint16 bits in `storage` and from `numpy()`, with `dtype` saying what they mean.
    """

    __slots__ = ("_device", "_dtype", "_storage")

    def __init__(self, storage: Array, dtype: str, device: Device) -> None:
        self._storage = storage
        self._dtype = dtype
        self._device = device

    @property
    def storage(self) -> Array:
        """The elements as numpy stores them; shares memory."""
        return self._storage

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self._storage.shape

    @property
    def dtype(self) -> str:
        """The name of the data type."""
        return self._dtype

    @property
    def device(self) -> Device:
        """Where the array lives."""
        return self._device

    @property
    def nbytes(self) -> int:
        """Size of the storage in bytes."""
        return self._storage.nbytes

    def numpy(self) -> Array:
        """The array as numpy, sharing memory (the bits as uint16 for bfloat16)."""
        return self._storage

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> Array:
        if dtype is None or dtype == self._storage.dtype:
            return self._storage.copy() if copy else self._storage
        if copy is False:
            raise ValueError(f"an array of {self._dtype} cannot become {dtype} without a copy")
        return self._storage.astype(dtype)

    def copy_from(self, source: object) -> NDArray:
        """Overwrite the elements with those of `source` (same shape and data type); returns self."""
        array, name = to_storage(source, self._dtype, "the source")
        if array.shape != self.shape or name != self._dtype:
            raise UserError(
                f"cannot copy {name}{list(array.shape)} into an array of {self._dtype}{list(self.shape)}",
                hint="shapes and data types must be equal",
            )
        self._storage[...] = array
        return self

    def __dlpack__(self, **options: Any) -> Any:
        if self._dtype == "bfloat16":
            raise UnsupportedError(
                "DLPack export of bfloat16 is not supported", hint="take the bits with .numpy() (uint16) instead"
            )
        return self._storage.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device.dlpack

    def __len__(self) -> int:
        return len(self._storage)

    def __repr__(self) -> str:
        return f"NDArray({self._dtype}{list(self.shape)} on {self._device})\n{self._storage}"


def empty(shape: int | tuple[int, ...], dtype: object = "float32", device: Device | None = None) -> NDArray:
    """An uninitialised array."""
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(extent < 0 for extent in extents):
        raise UserError(f"an array cannot have the shape {list(extents)}: an extent is negative")
    name = dtype_of(dtype)
    return NDArray(aligned_empty(extents, storage_dtype(name)), name, device or cpu())


def array(value: object, dtype: object = None, device: Device | None = None) -> NDArray:
    """A new array with a copy of `value` (numpy, torch, jax, any DLPack exporter, a list, a scalar)."""
    expected = None if dtype is None else dtype_of(dtype)
    source, name = to_storage(value, expected, "the value")
    if expected is not None and name != expected:
        raise UserError(f"the value has the data type {name}, not {expected}", hint="convert it before")
    storage = aligned_empty(source.shape, storage_dtype(name))
    storage[...] = source
    return NDArray(storage, name, device or cpu())


def from_dlpack(value: object) -> NDArray:
    """An array over the memory of a DLPack exporter; a copy only where the memory is strided or unaligned."""
    if not hasattr(value, "__dlpack__"):
        raise UserError(f"a {type(value).__name__} does not export DLPack (it has no __dlpack__)")
    source, name = to_storage(value, None, "the value")
    return NDArray(direct(source), name, cpu())
