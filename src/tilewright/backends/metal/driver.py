"""Apple GPUs: Metal's compiler and queues, through the runtime of Objective-C.

Launches are collected in a command buffer, which goes to the GPU when something waits for it. Memory is shared with the
host. Written and tested against a stand-in for Apple's frameworks; nobody here has run it on a Mac.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tilewright.backends.metal.objc import ID, ObjectiveC, Signature
from tilewright.runtime.core.artifact import LaunchInfo
from tilewright.runtime.core.convert import Array, address_of
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.device.devices import Driver
from tilewright.runtime.device.program import BoundCall, Device, Scalar, pick
from tilewright.support.errors import CompilerBug, UserError

_FRAMEWORKS: Final = "/System/Library/Frameworks"
_LANGUAGE: Final = (2 << 16) + 3
"""Version 2.3 of the language."""
_SHARED_STORAGE: Final = 0
_FAILED: Final = 5
"""The status of a command buffer that did not finish."""
_ALIGNMENT: Final = 16
"""Bytes that memory of a kernel starts at multiples of: the widest access."""
_NUMBER: Final = ctypes.c_ulong


class _Size(ctypes.Structure):
    _fields_ = (("width", _NUMBER), ("height", _NUMBER), ("depth", _NUMBER))


SIGNATURES: Final[dict[str, Signature]] = {
    # Devices.
    "name": (ID, ()),
    "maxThreadgroupMemoryLength": (_NUMBER, ()),
    "maxBufferLength": (_NUMBER, ()),
    "newCommandQueue": (ID, ()),
    "newBufferWithLength:options:": (ID, (_NUMBER, _NUMBER)),
    "newLibraryWithSource:options:error:": (ID, (ID, ID, ctypes.POINTER(ID))),
    "newComputePipelineStateWithFunction:error:": (ID, (ID, ctypes.POINTER(ID))),
    # Options of the compiler, and what it makes.
    "setFastMathEnabled:": (None, (ctypes.c_bool,)),
    "setLanguageVersion:": (None, (_NUMBER,)),
    "newFunctionWithName:": (ID, (ID,)),
    # Memory.
    "contents": (ctypes.c_void_p, ()),
    # Queues and what goes through them.
    "commandBuffer": (ID, ()),
    "commit": (None, ()),
    "waitUntilCompleted": (None, ()),
    "status": (_NUMBER, ()),
    "error": (ID, ()),
    "GPUStartTime": (ctypes.c_double, ()),
    "GPUEndTime": (ctypes.c_double, ()),
    "computeCommandEncoder": (ID, ()),
    "blitCommandEncoder": (ID, ()),
    "endEncoding": (None, ()),
    "setComputePipelineState:": (None, (ID,)),
    "setBuffer:offset:atIndex:": (None, (ID, _NUMBER, _NUMBER)),
    "setBytes:length:atIndex:": (None, (ctypes.c_void_p, _NUMBER, _NUMBER)),
    "dispatchThreadgroups:threadsPerThreadgroup:": (None, (_Size, _Size)),
    "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:": (None, (ID, _NUMBER, ID, _NUMBER, _NUMBER)),
}
"""The methods of Metal that this runtime calls."""


class MetalDevice(Device):
    """One GPU with a queue of its own, in order. `objects` speaks to `device`, an object of Metal's."""

    def __init__(self, objects: ObjectiveC, device: int) -> None:
        super().__init__()
        self._objects = objects
        self._device = device
        self._buffer: int | None = None
        """The command buffer that launches are collected in."""
        self._encoder: int | None = None
        self._last: int | None = None
        """The last command buffer that went to the GPU."""
        with objects.pool():
            self._queue = objects.send(device, "newCommandQueue")
            self.name = objects.text(objects.send(device, "name"))
        self.shared_bytes = int(objects.send(device, "maxThreadgroupMemoryLength"))
        self.most_bytes = int(objects.send(device, "maxBufferLength"))

    def numbers(self) -> dict[str, str | int]:
        """The shared memory of a block."""
        return {"shared_bytes": self.shared_bytes}

    # ---------------------------------------------------------------- programs

    def load(self, code: bytes, launches: Sequence[LaunchInfo]) -> dict[str, Any]:
        """Compile the text; errors of Metal's compiler are bugs of ours."""
        objects = self._objects
        with objects.pool():
            options, failure = objects.create("MTLCompileOptions"), ID()
            # Sums stay as they are written, and functions are precise unless the text says otherwise.
            objects.send(options, "setFastMathEnabled:", False)
            objects.send(options, "setLanguageVersion:", _LANGUAGE)
            source = objects.string(code.decode())
            library = objects.send(
                self._device, "newLibraryWithSource:options:error:", source, options, ctypes.byref(failure)
            )
            objects.release(options)
            if library is None:
                raise CompilerBug(f"Metal's compiler refused a program: {self._reason(failure)}")
            try:
                return {launch.symbol: self._kernel(library, launch.symbol) for launch in launches}
            finally:
                objects.release(library)

    def _kernel(self, library: int, name: str) -> MetalKernel:
        objects, failure = self._objects, ID()
        function = objects.send(library, "newFunctionWithName:", objects.string(name))
        if function is None:
            raise CompilerBug(f"Metal's compiler lost the kernel {name}")
        made = objects.send(self._device, "newComputePipelineStateWithFunction:error:", function, ctypes.byref(failure))
        objects.release(function)
        if made is None:
            raise UserError(f"{self.name} cannot run the kernel {name}: {self._reason(failure)}")
        return MetalKernel(objects, made, name)

    def _reason(self, failure: Any) -> str:
        return self._objects.text(self._objects.send(failure.value, "localizedDescription")) or "no reason is given"

    # ---------------------------------------------------------------- memory

    def allocate(self, size: int) -> Any:
        """Memory of the GPU and of the host, given back when nothing refers to it."""
        found = None
        if size <= self.most_bytes:
            found = self._objects.send(self._device, "newBufferWithLength:options:", max(1, size), _SHARED_STORAGE)
        if found is None:
            raise UserError(f"{self.name} has no room for {size} bytes in one piece")
        return MetalMemory(self._objects, found)

    def view(self, memory: Any, offset: int, size: int) -> Any | None:
        """A place inside memory that any access may start at."""
        if (memory.offset + offset) % _ALIGNMENT:
            return None
        return MetalMemory(self._objects, memory.buffer, memory.offset + offset, memory)

    def upload(self, array: Array) -> Any:
        """Memory with the contents of an array."""
        memory = self.allocate(array.nbytes)
        ctypes.memmove(memory.address, address_of(array), array.nbytes)
        return memory

    def write(self, memory: Any, array: Array) -> None:
        """Copy an array to memory, after what was started before."""
        self.wait()
        ctypes.memmove(memory.address, address_of(array), array.nbytes)

    def download(self, memory: Any, array: Array) -> None:
        """Copy memory into an array."""
        self.wait()
        ctypes.memmove(address_of(array), memory.address, array.nbytes)

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, size: int) -> None:
        """Copy on the queue."""
        if not size:
            return
        objects = self._objects
        with objects.pool():
            self._end_encoding()
            encoder = objects.send(self._commands(), "blitCommandEncoder")
            objects.send(
                encoder,
                "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:",
                source.buffer,
                source.offset + source_offset,
                target.buffer,
                target.offset + target_offset,
                size,
            )
            objects.send(encoder, "endEncoding")

    # ---------------------------------------------------------------- launches

    def launch(self, kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any]) -> None:
        """Add a kernel to what goes to the GPU next."""
        objects = self._objects
        with objects.pool():
            if self._encoder is None:
                # Kernels of one encoder run one after another.
                made = objects.send(self._commands(), "computeCommandEncoder")
                self._encoder = objects.send(made, "retain")
            encoder = self._encoder
            objects.send(encoder, "setComputePipelineState:", kernel.pipeline)
            for number, arg in enumerate(args):
                if isinstance(arg, Scalar):
                    value = np.array([arg.bits], np.int64).view(storage_dtype(arg.dtype))[:1]
                    objects.send(encoder, "setBytes:length:atIndex:", value.ctypes.data, value.nbytes, number)
                else:
                    objects.send(encoder, "setBuffer:offset:atIndex:", arg.buffer, arg.offset, number)
            objects.send(encoder, "dispatchThreadgroups:threadsPerThreadgroup:", _Size(*grid), _Size(*block))

    def _commands(self) -> int:
        if self._buffer is None:
            self._buffer = self._objects.send(self._objects.send(self._queue, "commandBuffer"), "retain")
        assert self._buffer is not None
        return self._buffer

    def _end_encoding(self) -> None:
        if self._encoder is not None:
            self._objects.send(self._encoder, "endEncoding")
            self._objects.release(self._encoder)
            self._encoder = None

    def _commit(self) -> None:
        """Send what was collected to the GPU."""
        if self._buffer is not None:
            with self._objects.pool():
                self._end_encoding()
                self._objects.send(self._buffer, "commit")
            self._objects.release(self._last)
            self._last, self._buffer = self._buffer, None

    def wait(self) -> None:
        """Send what was collected, and wait until it is done. What is committed runs in order."""
        self._commit()
        if self._last is None:
            return
        last, self._last = self._last, None
        objects = self._objects
        with objects.pool():
            objects.send(last, "waitUntilCompleted")
            failed = objects.send(last, "status") == _FAILED
            reason = objects.text(objects.send(objects.send(last, "error"), "localizedDescription")) if failed else ""
        objects.release(last)
        if failed:
            raise UserError(f"{self.name} did not finish its kernels: {reason or 'no reason is given'}")

    def measure(self, calls: Sequence[BoundCall], repeat: int) -> list[float]:
        """Seconds by the GPU's own record of a command buffer's start and end."""
        results = []
        for _ in range(repeat):
            self.wait()
            for call in calls:
                self.launch(call.kernel, call.grid, call.block, call.args)
            self._commit()
            last = self._objects.send(self._last, "retain")
            self.wait()
            start, end = (self._objects.send(last, name) for name in ("GPUStartTime", "GPUEndTime"))
            self._objects.release(last)
            results.append(end - start)
        return results


class MetalKernel:
    """A compiled kernel."""

    __slots__ = ("_objects", "name", "pipeline")

    def __init__(self, objects: ObjectiveC, pipeline: int, name: str) -> None:
        self._objects = objects
        self.pipeline = pipeline
        self.name = name

    def __del__(self) -> None:
        self._objects.release(self.pipeline)


class MetalMemory:
    """A buffer of Metal's, or a place in one that it keeps alive."""

    __slots__ = ("_objects", "_owner", "buffer", "offset")

    def __init__(self, objects: ObjectiveC, buffer: int, offset: int = 0, owner: MetalMemory | None = None) -> None:
        self._objects = objects
        self._owner = owner
        self.buffer = buffer
        self.offset = offset

    @property
    def address(self) -> int:
        """Where it is in the memory of the host."""
        start: int = self._objects.send(self.buffer, "contents")
        return start + self.offset

    def __del__(self) -> None:
        if self._owner is None:
            self._objects.release(self.buffer)


@functools.cache
def metal_device(index: int = 0) -> Device:
    """The GPU that macOS prefers, which is number 0. A `UserError` on other systems, and where there is none."""
    if platform.system() != "Darwin":
        raise UserError(
            f"programs for Metal run on macOS, and this is {platform.system()}",
            hint="compilation.source(kernel) gives their text; target='webgpu' runs on the GPUs of any system",
        )
    # Without CoreGraphics in the process, programs of the command line are given no GPU.
    ctypes.CDLL(f"{_FRAMEWORKS}/CoreGraphics.framework/CoreGraphics")
    metal = ctypes.CDLL(f"{_FRAMEWORKS}/Metal.framework/Metal")
    device = ctypes.CFUNCTYPE(ID)(("MTLCreateSystemDefaultDevice", metal))()
    if device is None:
        raise UserError("there is no GPU for Metal here", hint="target='native' compiles for the CPU")
    pick([device], index, "Metal")
    return MetalDevice(ObjectiveC(ctypes.CDLL("/usr/lib/libobjc.A.dylib"), SIGNATURES), device)


DRIVER: Final = Driver(metal_device)
