"""OpenCL devices, through pyopencl."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tilewright.runtime.core.artifact import LaunchInfo
from tilewright.runtime.core.convert import Array
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.device.devices import Driver
from tilewright.runtime.device.program import BoundCall, Device, Scalar, pick
from tilewright.support.errors import CompilerBug, UserError

_USUAL_THREADS = 256
_USUAL_SHARED = 32 * 1024
_HINT = "pip install 'tilewright[opencl]', and a driver (on Debian and Ubuntu without a GPU: pocl-opencl-icd)"


class OpenCLDevice(Device):
    """One OpenCL device with a queue of its own, in order."""

    def __init__(self, device: Any, cl: Any) -> None:
        super().__init__()
        self._cl = cl
        self._device = device
        self._context = cl.Context([device])
        self._queue = cl.CommandQueue(self._context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        self._alignment = max(1, int(device.mem_base_addr_align) // 8)
        self.name = str(device.name)
        self.shared_bytes = int(device.local_mem_size)
        self.max_threads = int(device.max_work_group_size)
        self.cores = int(device.max_compute_units)
        self._has_dot4 = "cl_khr_integer_dot_product" in str(device.extensions).split()

    def load(self, code: bytes, launches: Sequence[LaunchInfo]) -> dict[str, Any]:
        """Compile the text; errors of the device's compiler are bugs of ours."""
        try:
            # Drivers keep caches of their own; a second one on disk only adds stale entries.
            options = ["-cl-std=CL3.0" if self._has_dot4 else "-cl-std=CL1.2"]
            built = self._cl.Program(self._context, code.decode()).build(options=options, cache_dir=False)
        except self._cl.RuntimeError as error:
            raise CompilerBug(f"the OpenCL compiler of {self.name} refused a program: {error}") from error
        return {kernel.function_name: kernel for kernel in built.all_kernels()}

    def numbers(self) -> dict[str, str | int]:
        """The limits of blocks, as far as they are tighter than usual."""
        return {
            "max_threads": min(self.max_threads, _USUAL_THREADS),
            "shared_bytes": min(self.shared_bytes, _USUAL_SHARED),
            # Functions of the extension are those of OpenCL C 3.0.
            "features": "+dot4" if self._has_dot4 else "",
        }

    def allocate(self, size: int) -> Any:
        """A buffer on the device."""
        return self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, max(1, size))

    def view(self, memory: Any, offset: int, size: int) -> Any | None:
        """A sub-buffer, where the device lets one start."""
        if offset % self._alignment or not size:
            return None
        return memory.get_sub_region(offset, size)

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, size: int) -> None:
        """Copy on the queue."""
        if size:
            self._cl.enqueue_copy(
                self._queue, target, source, byte_count=size, src_offset=source_offset, dst_offset=target_offset
            )

    def write(self, memory: Any, array: Array) -> None:
        """Copy an array to a buffer."""
        if array.nbytes:
            self._cl.enqueue_copy(self._queue, memory, array)

    def download(self, memory: Any, array: Array) -> None:
        """Copy a buffer into an array."""
        if array.nbytes:
            self._cl.enqueue_copy(self._queue, array, memory)
        self._queue.finish()

    def launch(self, kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any]) -> None:
        """Start a kernel on work-groups of work-items."""
        self._enqueue(kernel, grid, block, args)

    def _enqueue(self, kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any]) -> Any:
        for number, arg in enumerate(args):
            kernel.set_arg(number, _packed(arg) if isinstance(arg, Scalar) else arg)
        size = tuple(blocks * threads for blocks, threads in zip(grid, block, strict=True))
        return self._cl.enqueue_nd_range_kernel(self._queue, kernel, size, block)

    def measure(self, calls: Sequence[BoundCall], repeat: int) -> list[float]:
        """Seconds by the queue's own record of each kernel's start and end."""
        results = []
        for _ in range(repeat):
            events = [self._enqueue(call.kernel, call.grid, call.block, call.args) for call in calls]
            self.wait()
            results.append(sum(event.profile.end - event.profile.start for event in events) * 1e-9)
        return results

    def wait(self) -> None:
        """Wait for the queue."""
        self._queue.finish()


def _packed(scalar: Scalar) -> np.generic[Any]:
    raw = np.array([scalar.bits], np.int64)
    value: np.generic[Any] = raw.view(storage_dtype(scalar.dtype))[0]
    # A bool is a byte for a kernel; a half is passed as its bits.
    return np.uint8(value) if value.dtype.kind == "b" else value


@functools.cache
def opencl_device(index: int = 0) -> OpenCLDevice:
    """The OpenCL device of a number, GPUs first. A `UserError` where there is none."""
    try:
        import pyopencl as cl
    except ImportError as error:
        raise UserError("OpenCL programs need the package pyopencl", hint=_HINT) from error
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise UserError("no OpenCL driver is installed here", hint=_HINT) from error
    devices = [device for platform in platforms for device in platform.get_devices()]
    if not devices:
        raise UserError("there is no OpenCL device here", hint=_HINT)
    devices.sort(key=lambda device: not device.type & cl.device_type.GPU)
    return OpenCLDevice(pick(devices, index, "OpenCL"), cl)


DRIVER: Final = Driver(opencl_device)
