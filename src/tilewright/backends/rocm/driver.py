"""AMD GPUs, through libamdhip64."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tilewright.runtime.core.artifact import LaunchInfo
from tilewright.runtime.core.convert import Array, address_of
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.device.devices import Driver
from tilewright.runtime.device.program import Device, Scalar, pick
from tilewright.support.errors import UserError

_HINT: Final = "install ROCm, whose libamdhip64 drives the GPU and whose libhiprtc compiles for it"
_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3


class HipKernel:
    """A kernel, and the shared memory that its launches ask for."""

    __slots__ = ("dynamic_bytes", "function", "name")

    def __init__(self, function: Any, info: LaunchInfo) -> None:
        self.function = function
        self.name = info.symbol
        self.dynamic_bytes = info.dynamic_bytes


class HipDevice(Device):
    """One GPU; all its work goes through the default stream, in order."""

    flat_memory = True

    def __init__(self, library: Any, ordinal: int) -> None:
        super().__init__()
        self._library = library
        self._ordinal = ordinal
        self.activate()
        # The layout of the properties differs from version to version; the architecture is the only `gfx...` in it.
        properties = ctypes.create_string_buffer(1 << 13)
        get = getattr(library, "hipGetDevicePropertiesR0600", None) or library.hipGetDeviceProperties
        self._check(get(properties, ordinal), "hipGetDeviceProperties")
        found = re.search(rb"gfx[0-9a-f]+", properties.raw)
        self.arch = found[0].decode() if found else "gfx90a"
        self.name = properties.value.decode(errors="replace") or self.arch

    def _check(self, status: int, what: str) -> None:
        """Errors of earlier kernels show here too."""
        if status != 0:
            text = self._library.hipGetErrorString
            text.restype = ctypes.c_char_p
            raise UserError(f"the HIP runtime failed in {what}: {text(status).decode()}")

    def _call(self, name: str, *args: Any) -> None:
        self._check(getattr(self._library, name)(*args), name)

    def activate(self) -> None:
        """Make this GPU the thread's own."""
        self._call("hipSetDevice", self._ordinal)

    def numbers(self) -> dict[str, str | int]:
        """The architecture."""
        return {"arch": self.arch}

    def load(self, code: bytes, launches: Sequence[LaunchInfo]) -> dict[str, Any]:
        """Load a code object."""
        module = ctypes.c_void_p()
        status = self._library.hipModuleLoadData(ctypes.byref(module), code)
        if status != 0:
            raise UserError(
                f"{self.name} ({self.arch}) cannot load the code object: error {status}",
                hint=f"compile for this GPU: target='rocm -arch={self.arch}'",
            )
        kernels: dict[str, Any] = {}
        for launch in launches:
            function = ctypes.c_void_p()
            self._call("hipModuleGetFunction", ctypes.byref(function), module, launch.symbol.encode())
            kernels[launch.symbol] = HipKernel(function, launch)
        return kernels

    def allocate(self, size: int) -> Any:
        """Memory on the device, given back when nothing refers to it."""
        pointer = ctypes.c_void_p()
        self._call("hipMalloc", ctypes.byref(pointer), ctypes.c_size_t(max(1, size)))
        return _Memory(self, pointer.value or 0)

    def free(self, pointer: int) -> None:
        """Give memory back."""
        self._library.hipFree(ctypes.c_void_p(pointer))

    def view(self, memory: Any, offset: int, size: int) -> Any | None:
        """A place inside memory."""
        return _Memory(self, memory.pointer + offset, memory)

    def _copy(self, target: int, source: int, size: int, direction: int) -> None:
        if size:
            places = (ctypes.c_void_p(target), ctypes.c_void_p(source))
            self._call("hipMemcpy", *places, ctypes.c_size_t(size), direction)

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, size: int) -> None:
        """Copy on the stream."""
        self._copy(target.pointer + target_offset, source.pointer + source_offset, size, _ON_DEVICE)

    def write(self, memory: Any, array: Array) -> None:
        """Copy an array to memory."""
        self._copy(memory.pointer, address_of(array), array.nbytes, _TO_DEVICE)

    def download(self, memory: Any, array: Array) -> None:
        """Copy memory into an array."""
        self.wait()
        self._copy(address_of(array), memory.pointer, array.nbytes, _TO_HOST)

    def launch(self, kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any]) -> None:
        """Start a kernel on the stream."""
        values = [_packed(arg) for arg in args]
        addresses = (ctypes.c_void_p * max(1, len(values)))(*[value.ctypes.data for value in values])
        status = self._library.hipModuleLaunchKernel(
            kernel.function, *grid, *block, kernel.dynamic_bytes, None, addresses, None
        )
        self._check(status, f"the launch of {kernel.name} on {grid} blocks of {block} threads")

    def wait(self) -> None:
        """Wait for the device."""
        self._call("hipDeviceSynchronize")


class _Memory:
    """A piece of device memory, or a part of another that it keeps alive."""

    __slots__ = ("_device", "_owner", "pointer")

    def __init__(self, device: HipDevice, pointer: int, owner: _Memory | None = None) -> None:
        self._device = device
        self._owner = owner
        self.pointer = pointer

    def __del__(self) -> None:
        if self._owner is None:
            self._device.free(self.pointer)


def _packed(arg: Any) -> Array:
    if isinstance(arg, Scalar):
        return np.array([arg.bits], np.int64).view(storage_dtype(arg.dtype))[:1]
    return np.array([arg.pointer], np.uint64)


@functools.cache
def hip_device(index: int = 0) -> HipDevice:
    """The AMD GPU of a number. A `UserError` where there is none."""
    try:
        library = ctypes.CDLL("libamdhip64.so")
    except OSError as error:
        raise UserError("HIP programs need ROCm's libamdhip64, which is not here", hint=_HINT) from error
    count = ctypes.c_int()
    if library.hipGetDeviceCount(ctypes.byref(count)) != 0 or count.value == 0:
        raise UserError("there is no AMD GPU here", hint=_HINT)
    return HipDevice(library, pick(range(count.value), index, "HIP"))


DRIVER: Final = Driver(hip_device)
