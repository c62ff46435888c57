"""`DeviceArray`: an array in a device's memory, exchanged with other packages through DLPack without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.core.convert import Array, aligned_empty
from tilewright.runtime.core.dlpack import make_capsule
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.device.checks import PendingChecks
from tilewright.runtime.device.program import Device
from tilewright.support.errors import UnsupportedError


class DeviceArray:
    """A contiguous array on a device: `shape` and `dtype` (a name); `numpy()` copies it to the host.

    What computes it may still run: whoever reads it through this class, or through DLPack, reads it afterwards. If its
    data was wrong (an index out of range), that is an error then; where checks are pending, DLPack waits for them.
    """

    __slots__ = ("_host", "checks", "device", "dtype", "memory", "shape")

    def __init__(
        self,
        memory: Any,
        shape: tuple[int, ...],
        dtype: str,
        device: Device,
        checks: PendingChecks | None = None,
    ) -> None:
        self.memory = memory
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.checks = checks
        """What the run that computes the array checks of its data, until somebody has looked."""
        self._host: Array | None = None

    def _verify(self) -> None:
        if self.checks is not None:
            self.checks.verify()
            self.checks = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        count = storage_dtype(self.dtype).itemsize
        for extent in self.shape:
            count *= extent
        return count

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.nbytes // storage_dtype(self.dtype).itemsize

    def numpy(self) -> Array:
        """A copy on the host (the bits as uint16 for bfloat16)."""
        array = aligned_empty(self.shape, storage_dtype(self.dtype))
        self.device.activate()
        self._verify()
        self.device.download(self.memory, array)
        return array

    def host(self) -> Array:
        """A copy on the host that is made once, for values that nobody overwrites."""
        if self._host is None:
            self._host = self.numpy()
        return self._host

    def view(self, start: int, shape: tuple[int, ...]) -> DeviceArray:
        """The elements from `start` on, as an array of another shape; a copy where memory cannot start there."""
        part = DeviceArray(self.memory, shape, self.dtype, self.device, self.checks)
        if start:
            offset = start * storage_dtype(self.dtype).itemsize
            self.device.activate()
            memory = self.device.view(self.memory, offset, part.nbytes)
            if memory is None:
                memory = self.device.allocate(part.nbytes)
                self.device.copy(self.memory, offset, memory, 0, part.nbytes)
            part.memory = memory
        return part

    @property
    def storage(self) -> Array:
        """The same copy, for whatever takes arrays of our own."""
        return self.numpy()

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("an array on a device cannot become a numpy array without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        place = self.__dlpack_device__()
        self.device.activate()
        self._verify()
        if stream is not None:
            self.device.order_after(stream)
        return make_capsule(self.memory.address, self.shape, self.dtype, place, self.memory)

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.device.dlpack is None:
            raise UnsupportedError(
                f"arrays on {self.device.name} are not shared through DLPack", hint="copy them with .numpy()"
            )
        return self.device.dlpack

    def __bool__(self) -> bool:
        return bool(self.host())

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}{list(self.shape)} on {self.device.name})"
