"""CUDA devices, through the driver API of cuda-bindings."""

from __future__ import annotations

import atexit
import ctypes
import functools
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import numpy as np

from tilewright.backends.cuda.graph import CudaRecording, LaunchAs, Policy, even_share, plain, quickest
from tilewright.backends.cuda.tensors import VECTOR_BYTES, maker, reader, torch_stream
from tilewright.runtime.core.artifact import LaunchInfo
from tilewright.runtime.core.convert import Array, address_of, is_torch
from tilewright.runtime.core.dlpack import read_capsule
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.device.devices import Driver
from tilewright.runtime.device.program import (
    BoundCall,
    Device,
    ImportedArray,
    Recording,
    Scalar,
    TensorMaker,
    TensorReader,
    pick,
)
from tilewright.support.errors import UserError
from tilewright.support.text import human_bytes

_DLPACK_CUDA = 2
_PLAIN_SHARED = 48 * 1024
"""Shared memory that every kernel may ask for; more has to be announced."""
_PORTABLE_CLUSTER = 8
_NO_SYNCHRONIZATION = -1
_DEFAULT_STREAM = 1
_COPIES = 20
_PAGE = 4096
"""Bytes: memory of the host's comes in so many."""
_HINT = "pip install 'tilewright[cuda]', and NVIDIA's driver"


class CudaKernel:
    """A function on the GPU, with what each of its launches asks for."""

    __slots__ = ("cluster", "dependent", "dynamic_bytes", "function", "name")

    def __init__(self, function: Any, info: LaunchInfo) -> None:
        self.function = function
        self.name = info.symbol
        self.dynamic_bytes = info.dynamic_bytes
        self.cluster = info.cluster
        self.dependent = info.dependent


class CudaDevice(Device):
    """One GPU, with the stream that all its work goes through.

    The stream is ordered with CUDA's default stream, which other packages use unless told otherwise. While torch
    captures a CUDA graph, calls of the capturing thread go into it (`joined`): on torch's stream, with torch's memory,
    which lives as long as the graph.
    """

    flat_memory = True

    def __init__(self, driver: Any, ordinal: int) -> None:
        super().__init__()
        self._driver = driver
        self._ordinal = ordinal
        self.dlpack = (_DLPACK_CUDA, ordinal)
        device = self._call("cuDeviceGet", ordinal)
        self._device = device
        self._context = self._call("cuDevicePrimaryCtxRetain", device)
        self._call("cuCtxSetCurrent", self._context)
        self.name = self._call("cuDeviceGetName", 256, device).split(b"\0")[0].decode()
        major = self._attribute("COMPUTE_CAPABILITY_MAJOR")
        minor = self._attribute("COMPUTE_CAPABILITY_MINOR")
        # The code of this very architecture has instructions that later ones do not promise.
        self.arch = f"sm_{major}{minor}{'a' if major >= 9 else ''}"
        self._stream = self._call("cuStreamCreate", 0)
        self._stream_number = int(self._stream)
        self._joined = _Joined()
        self._set_current, self._launch_graph = driver.cuCtxSetCurrent, driver.cuGraphLaunch
        self._success = driver.CUresult.CUDA_SUCCESS
        self._host_pages: dict[int, list[tuple[int, int]]] = {}
        """Memory of the host's that nobody uses, by its size: addresses there and here."""
        self._private = self._call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        pool = self._call("cuDeviceGetDefaultMemPool", device)
        kept = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self._call("cuMemPoolSetAttribute", pool, kept, driver.cuuint64_t(2**64 - 1))
        # When Python ends, the driver's functions may be gone before what was to be given back through them.
        self._ending = False
        atexit.register(self._end)

    def _end(self) -> None:
        self._ending = True

    @property
    def stream(self) -> Any:
        """The stream that this thread's work goes to."""
        return self._joined.stream or self._stream

    @property
    def capturing(self) -> bool:
        """Whether this thread's work goes into a graph that torch captures."""
        return self._joined.stream is not None

    def joined(self) -> AbstractContextManager[None]:
        """Where torch captures a CUDA graph in this thread, work goes into it."""
        stream = _captured_stream(self._ordinal)
        return nullcontext() if stream is None or self.capturing else self._join(stream)

    @contextmanager
    def _join(self, stream: int) -> Iterator[None]:
        self._joined.stream = self._driver.CUstream(stream)
        try:
            yield
        finally:
            self._joined.stream = None

    def _attribute(self, name: str) -> int:
        kinds = self._driver.CUdevice_attribute
        return int(self._call("cuDeviceGetAttribute", getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}"), self._device))

    def numbers(self) -> dict[str, str | int]:
        """The architecture, and the sizes that schedules ask for."""
        return {
            "arch": self.arch,
            "cores": self._attribute("MULTIPROCESSOR_COUNT"),
            "l2_bytes": self._attribute("L2_CACHE_SIZE"),
            "shared_bytes": self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        }

    def _call(self, name: str, *args: Any) -> Any:
        """Call the driver; errors of earlier kernels show here too."""
        error, *results = getattr(self._driver, name)(*args)
        self._check(error, name)
        return results[0] if results else None

    def activate(self) -> None:
        """Contexts belong to threads: this one is to be the GPU's."""
        (error,) = self._set_current(self._context)
        if error is not self._success:
            self._check(error, "cuCtxSetCurrent")

    def load(self, code: bytes, launches: Sequence[LaunchInfo]) -> dict[str, Any]:
        """Load machine code."""
        error, module = self._driver.cuModuleLoadData(code)
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise UserError(
                f"{self.name} ({self.arch}) cannot load the machine code: {error.name}",
                hint="compile the model for this GPU: target='cuda'",
            )
        kernels: dict[str, Any] = {}
        for launch in launches:
            function = self._call("cuModuleGetFunction", module, launch.symbol.encode())
            if launch.dynamic_bytes > _PLAIN_SHARED:
                self._allow_shared(function, launch.dynamic_bytes)
            if math.prod(launch.cluster) > _PORTABLE_CLUSTER:
                large = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
                self._call("cuFuncSetAttribute", function, large, 1)
            kernels[launch.symbol] = CudaKernel(function, launch)
        return kernels

    def allocate(self, size: int) -> Any:
        """Memory on the device, given back when nothing refers to it."""
        if self.capturing:
            # Of the graph's own memory: it must be there whenever the graph runs.
            torch = sys.modules["torch"]
            place = torch.empty(max(1, size), dtype=torch.uint8, device=f"cuda:{self._ordinal}")
            return _View(place, place.data_ptr())
        error, pointer = self._driver.cuMemAllocAsync(max(1, size), self.stream)
        if error == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise UserError(f"{self.name} has no memory left for {human_bytes(size)}")
        self._check(error, "cuMemAllocAsync")
        return _Memory(self, int(pointer))

    def _check(self, error: Any, name: str) -> None:
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise UserError(f"the CUDA driver failed in {name}: {error.name}")

    def free(self, address: int) -> None:
        """Give memory back, after the work that was started on it."""
        if not self._ending:
            # Always on our own stream: what dies while a graph is captured is no part of it.
            self._driver.cuMemFreeAsync(address, self._stream)

    def host_memory(self, size: int) -> _HostMemory | None:
        """Memory of the host's that kernels write; None where the driver has none to give.

        It is used again and never given back: that would be an error while torch captures a graph.
        """
        pages = -(-size // _PAGE)
        try:
            places = self._host_pages.setdefault(pages, []).pop()
        except IndexError:
            flags = self._driver.CU_MEMHOSTALLOC_DEVICEMAP | self._driver.CU_MEMHOSTALLOC_PORTABLE
            error, here = self._driver.cuMemHostAlloc(pages * _PAGE, flags)
            if error != self._success:
                return None
            places = int(self._call("cuMemHostGetDevicePointer", here, 0)), int(here)
        else:
            # What was started on it may write yet.
            self.wait()
        return _HostMemory(self._host_pages[pages], *places, pages * _PAGE)

    def at(self, addresses: Sequence[int]) -> list[Any]:
        """Memory of torch's."""
        return [_View(None, address) for address in addresses]

    def view(self, memory: Any, offset: int, size: int) -> Any:
        """A place inside memory, which it keeps alive."""
        return _View(memory, memory.address + offset)

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, size: int) -> None:
        """Copy on the stream."""
        if size:
            places = target.address + target_offset, source.address + source_offset
            self._call("cuMemcpyDtoDAsync", *places, size, self.stream)

    def write(self, memory: Any, array: Array) -> None:
        """Copy an array to memory, on the stream; the array may be changed afterwards."""
        self._refuse_captured("an input is on the host")
        if array.nbytes:
            self._call("cuMemcpyHtoDAsync", memory.address, address_of(array), array.nbytes, self.stream)

    def download(self, memory: Any, array: Array) -> None:
        """Copy memory into an array."""
        self._refuse_captured("a result is asked for on the host")
        if array.nbytes:
            self._call("cuMemcpyDtoHAsync", address_of(array), memory.address, array.nbytes, self.stream)
        self.wait()

    def launch(self, kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any]) -> None:
        """Start a kernel on the stream."""
        self._launch(self.stream, BoundCall(kernel, grid, block, args), LaunchAs(False, kernel.dynamic_bytes))

    def _launch(self, stream: Any, call: BoundCall, way: LaunchAs) -> None:
        """Start a kernel on a stream."""
        driver, kernel = self._driver, call.kernel
        values = [_packed(arg) for arg in call.args]
        addresses = (ctypes.c_void_p * max(1, len(values)))(*[value.ctypes.data for value in values])
        attributes = []
        if kernel.cluster != (1, 1, 1):
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = kernel.cluster
            attributes.append(attribute)
        if way.early:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = call.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = call.block
        config.sharedMemBytes = way.dynamic_bytes
        config.hStream = stream
        config.attrs = attributes
        config.numAttrs = len(attributes)
        (error,) = driver.cuLaunchKernelEx(config, kernel.function, ctypes.addressof(addresses), 0)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise UserError(
                f"{self.name} does not start the kernel {kernel.name} on {call.grid} blocks of {call.block} threads "
                f"(clusters of {kernel.cluster}, {way.dynamic_bytes} bytes of shared memory asked for): {error.name}"
            )

    def wait(self) -> None:
        """Wait for the stream; what failed in kernels shows here."""
        self._refuse_captured("the GPU is waited for")
        self._check_kernels(self._driver.cuStreamSynchronize(self.stream)[0])

    def is_done(self) -> bool:
        """Whether the stream has nothing left to do."""
        (error,) = self._driver.cuStreamQuery(self.stream)
        is_done: bool = error != self._driver.CUresult.CUDA_ERROR_NOT_READY
        if is_done:
            self._check_kernels(error)
        return is_done

    def _check_kernels(self, error: Any) -> None:
        if error != self._success:
            raise UserError(
                f"a kernel failed on {self.name}: {error.name}",
                hint="this process cannot use the GPU any more; run with TILEWRIGHT_TRACE=launch to see which it was",
            )

    def record(self, calls: Sequence[BoundCall]) -> Recording:
        """Launches as one CUDA graph; one by one where they become part of another graph."""
        return CudaRecording(self, self, calls) if calls and not self.capturing else Recording(self, calls)

    def _refuse_captured(self, what: str) -> None:
        if self.capturing:
            raise UserError(
                f"torch captures a CUDA graph, and {what}: graphs hold work of the GPU alone",
                hint="move the tensors to the GPU before the capture, and results to the host after a replay",
            )

    def captured(self, calls: Sequence[BoundCall], policy: Policy) -> Any:
        """An executable graph of calls in order, launched as a policy says; the first cannot start early."""
        self._call(
            "cuStreamBeginCapture", self._private, self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        )
        try:
            for number, call in enumerate(calls):
                self._launch(self._private, call, policy(self, call) if number else plain(self, call))
        except BaseException:
            # The stream must not stay in this state. That the graph is broken too must not hide what broke it.
            error, graph = self._driver.cuStreamEndCapture(self._private)
            if error == self._driver.CUresult.CUDA_SUCCESS:
                self._driver.cuGraphDestroy(graph)
            raise
        graph = self._call("cuStreamEndCapture", self._private)
        ready = self._call("cuGraphInstantiate", graph, 0)
        self._call("cuGraphDestroy", graph)
        return ready

    def spread_bytes(self, call: BoundCall, kernels: int = 1) -> int | None:
        """Shared memory with which blocks are spread evenly over the multiprocessors; None where that cannot be.

        `kernels` is how many alike should find room together.
        """
        kernel, blocks = call.kernel, math.prod(call.grid)
        if kernel.cluster != (1, 1, 1):
            # The blocks of a cluster go together, and not every multiprocessor has neighbours enough.
            return None
        kind = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        static = self._call("cuFuncGetAttribute", kind, kernel.function)
        threads, processors = math.prod(call.block), self._attribute("MULTIPROCESSOR_COUNT")
        fits = self._call("cuOccupancyMaxActiveBlocksPerMultiprocessor", kernel.function, threads, kernel.dynamic_bytes)
        if fits * processors < blocks:
            # Where there are more than fit at once, late ones fill the gaps.
            return int(kernel.dynamic_bytes)
        capacity = self._attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR")
        most = self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        size = even_share(blocks, processors, capacity, static + kernel.dynamic_bytes, most, kernels) - static
        self._allow_shared(kernel.function, size)
        return int(size)

    def _allow_shared(self, function: Any, size: int) -> None:
        most = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call("cuFuncSetAttribute", function, most, size)

    def start(self, graph: Any) -> None:
        """Run an executable graph on the stream."""
        (error,) = self._launch_graph(graph, self._joined.stream or self._stream)
        if error is not self._success:
            self._check(error, "cuGraphLaunch")

    def discard(self, graph: Any) -> None:
        """Give an executable graph back."""
        if not self._ending:
            self._driver.cuGraphExecDestroy(graph)

    def seconds(self, graph: Any, repeat: int, before: Callable[[], None] = lambda: None) -> list[float]:
        """Seconds of a graph by events around it, after one run to warm up; `before` comes before each run."""
        start, end = (self._call("cuEventCreate", 0) for _ in range(2))
        results = []
        for turn in range(repeat + 1):
            before()
            self._call("cuEventRecord", start, self.stream)
            self.start(graph)
            self._call("cuEventRecord", end, self.stream)
            self.wait()
            if turn:
                results.append(float(self._call("cuEventElapsedTime", start, end)) * 1e-3)
        for event in (start, end):
            self._call("cuEventDestroy", event)
        return results

    def measure(self, calls: Sequence[BoundCall], repeat: int) -> list[float]:
        """Seconds by events around runs of a graph. Calls come `_COPIES` times in it, so that starting costs little."""
        copies = max(1, _COPIES // len(calls))
        graph = self.captured([call for _ in range(copies) for call in calls], quickest(self, calls))
        results = [seconds / copies for seconds in self.seconds(graph, repeat)]
        self.discard(graph)
        return results

    def describe(self, call: BoundCall) -> str:
        """Blocks and threads, registers of a thread (and bytes that did not fit), warps of a multiprocessor in use."""
        function, kinds = call.kernel.function, self._driver.CUfunction_attribute
        registers = self._call("cuFuncGetAttribute", kinds.CU_FUNC_ATTRIBUTE_NUM_REGS, function)
        spilled = self._call("cuFuncGetAttribute", kinds.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function)
        threads = math.prod(call.block)
        blocks = self._call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, call.kernel.dynamic_bytes)
        # Blocks that are there at all may be fewer than fit.
        resident = min(blocks, math.prod(call.grid) / self._attribute("MULTIPROCESSOR_COUNT"))
        share = resident * threads / self._attribute("MAX_THREADS_PER_MULTIPROCESSOR")
        memory = f" +{spilled} B" if spilled else ""
        return f"{super().describe(call)}, {registers} registers{memory}, {100 * share:.0f}% full"

    def import_array(self, value: Any) -> ImportedArray | None:
        """An array of this GPU that exports DLPack (a torch, cupy or jax array), without a copy."""
        if not hasattr(value, "__dlpack_device__"):
            return None
        if is_torch(value) and value.is_cuda:
            # Tensors of which nothing is to be changed are as they are: each of these takes a microsecond or two.
            value = value.detach() if value.requires_grad else value
            value = value if value.is_contiguous() else value.contiguous()
            quick = self._from_torch(value)
            if quick is not None:
                return self._aligned(quick)
        kind, index = value.__dlpack_device__()
        if (int(kind), int(index)) != self.dlpack:
            return None
        found = read_capsule(value.__dlpack__(stream=int(self.stream)))
        if not found.contiguous:
            raise UserError(
                "an array on the GPU has strides", hint="make it contiguous, for example with .contiguous()"
            )
        return self._aligned(ImportedArray(_View(found.owner, found.address), found.shape, found.dtype))

    def _aligned(self, array: ImportedArray) -> ImportedArray:
        """The array, or a copy where it begins between the vectors that kernels read (a slice of a larger one)."""
        if array.memory.address % VECTOR_BYTES == 0:
            return array
        size = math.prod(array.shape) * storage_dtype(array.dtype).itemsize
        memory = self.allocate(size)
        self.copy(array.memory, 0, memory, 0, size)
        return ImportedArray(memory, array.shape, array.dtype)

    def _from_torch(self, tensor: Any) -> ImportedArray | None:
        """A tensor on the default stream, with which our stream is ordered anyway: much quicker than DLPack."""
        index = tensor.device.index
        if index != self._ordinal or not self._is_ordered_with_torch():
            return None
        dtype = _TORCH_TYPES.get(tensor.dtype) or _TORCH_TYPES.setdefault(tensor.dtype, str(tensor.dtype)[6:])
        return ImportedArray(_View(tensor, tensor.data_ptr()), tuple(tensor.shape), dtype)

    def _is_ordered_with_torch(self) -> bool:
        """Whether this thread's work in torch goes to a stream that ours is ordered with: the default one, or ours."""
        own = int(self.stream) if self.capturing else self._stream_number
        return torch_stream(self._ordinal) in (0, own)

    def tensor_reader(self, dtypes: Sequence[str]) -> TensorReader | None:
        """What reads tensors in torch's memory."""
        torch = sys.modules.get("torch")
        return None if torch is None else reader(torch, dtypes, self._ordinal, self._stream_number)

    def tensor_maker(self, types: Sequence[tuple[tuple[int, ...], str]]) -> TensorMaker | None:
        """What makes tensors of torch's own memory: much quicker than exporting ours."""
        return maker(sys.modules["torch"], types, self._ordinal)

    def order_after(self, stream: int) -> None:
        """Let a stream of another package wait for everything that was started here."""
        if stream in (_NO_SYNCHRONIZATION, _DEFAULT_STREAM, int(self.stream)):
            return
        event = self._call("cuEventCreate", self._driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        self._call("cuEventRecord", event, self.stream)
        self._call("cuStreamWaitEvent", stream, event, 0)
        self._call("cuEventDestroy", event)


class _Memory:
    """A piece of device memory."""

    __slots__ = ("_device", "address")

    def __init__(self, device: CudaDevice, address: int) -> None:
        self._device = device
        self.address = address

    def __del__(self) -> None:
        self._device.free(self.address)


class _HostMemory:
    """Memory of the host's that kernels write; whoever has it next waits for them."""

    __slots__ = ("_free", "_here", "address", "words")

    def __init__(self, free: list[tuple[int, int]], there: int, here: int, size: int) -> None:
        self._free = free
        self._here = here
        self.address = there
        self.words = (ctypes.c_int64 * (size // 8)).from_address(here)

    def __del__(self) -> None:
        self._free.append((self.address, self._here))


class _Joined(threading.local):
    """The stream of another package that a thread's work goes to."""

    stream: Any = None


class _View:
    """A place in memory that `owner` keeps alive."""

    __slots__ = ("address", "owner")

    def __init__(self, owner: Any, address: int) -> None:
        self.owner = owner
        self.address = address


_TORCH_TYPES: Final[dict[Any, str]] = {}
"""The names of torch's data types."""


def _captured_stream(ordinal: int) -> int | None:
    """The stream on which torch captures a CUDA graph of a GPU in this thread, if it does."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or not torch.cuda.is_current_stream_capturing():
        return None
    return int(torch.cuda.current_stream(ordinal).cuda_stream)


def _packed(arg: Any) -> Array:
    if isinstance(arg, Scalar):
        return np.array([arg.bits], np.int64).view(storage_dtype(arg.dtype))[:1]
    return np.array([arg.address], np.uint64)


@functools.cache
def cuda_device(index: int = 0) -> CudaDevice:
    """The GPU of a number. A `UserError` where there is none."""
    try:
        from cuda.bindings import driver

        (error,) = driver.cuInit(0)
        found = int(driver.cuDeviceGetCount()[1]) if error == driver.CUresult.CUDA_SUCCESS else 0
    except (ImportError, RuntimeError) as error:
        raise UserError("CUDA programs need NVIDIA's driver, which is not here", hint=_HINT) from error
    if not found:
        raise UserError("there is no CUDA device here", hint=_HINT)
    return CudaDevice(driver, pick(range(found), index, "CUDA"))


DRIVER: Final = Driver(cuda_device)
