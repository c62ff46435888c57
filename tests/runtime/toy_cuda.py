"""A CUDA driver that is a toy: memory is the host's, and kernels are Python functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

CALLS = 3
"""Launches whose time is measured together."""
SUCCESS = SimpleNamespace(name="CUDA_SUCCESS")
NO_MEMORY = SimpleNamespace(name="CUDA_ERROR_OUT_OF_MEMORY")
BAD_ADDRESS = SimpleNamespace(name="CUDA_ERROR_ILLEGAL_ADDRESS")
NOT_READY = SimpleNamespace(name="CUDA_ERROR_NOT_READY")
BAD_IMAGE = SimpleNamespace(name="CUDA_ERROR_NO_BINARY_FOR_GPU")
BROKEN_CAPTURE = SimpleNamespace(name="CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")


class Names:
    """An enumeration in which every name stands for itself."""

    def __getattr__(self, name: str) -> str:
        return name


class ToyDriver:
    """As much of the driver as the runtime calls. Kernels are Python functions of the addresses that they are given."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=SUCCESS, CUDA_ERROR_OUT_OF_MEMORY=NO_MEMORY, CUDA_ERROR_NOT_READY=NOT_READY)
    CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP = 1, 2
    cuuint64_t = int
    CUdevice_attribute = CUfunction_attribute = CUlaunchAttributeID = CUstream_flags = Names()
    CUmemPool_attribute = CUstreamCaptureMode = CUevent_flags = Names()

    def __init__(self, kernels: dict[str, Callable[..., None]]) -> None:
        self.kernels = kernels
        self.calls: list[str] = []
        self.launches: list[tuple[Any, list[Any]]] = []
        self.memory: dict[int, Any] = {}
        self.host_memory: dict[int, Any] = {}
        """What the host and the GPU both see."""
        self.capturing: list[Callable[[], None]] | None = None
        self.numbers = {
            "COMPUTE_CAPABILITY_MAJOR": 9,
            "COMPUTE_CAPABILITY_MINOR": 0,
            "MULTIPROCESSOR_COUNT": 4,
            "L2_CACHE_SIZE": 1 << 20,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 1 << 17,
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 1 << 18,
            "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
        }
        self.state = SUCCESS
        self.is_whole = True
        """Whether what is recorded can become a graph."""
        self.time_of: Callable[[list[Any]], float] = lambda configs: 1.0

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        def call(*args: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            result = {"cuStreamCreate": len(self.calls), "cuDeviceGetName": b"Toy\0\0", "cuFuncGetAttribute": 32,
                      "cuOccupancyMaxActiveBlocksPerMultiprocessor": 2}.get(name)  # fmt: skip
            return (SUCCESS,) if result is None and name in _NOTHING else (SUCCESS, result)

        return call

    def cuDeviceGetAttribute(self, kind: str, device: Any) -> tuple[Any, int]:
        return SUCCESS, self.numbers[kind.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def cuModuleLoadData(self, code: bytes) -> tuple[Any, ...]:
        return (SUCCESS, "module") if code.startswith(b"\x7fELF") else (BAD_IMAGE, None)

    def cuModuleGetFunction(self, module: Any, name: bytes) -> tuple[Any, Any]:
        return SUCCESS, self.kernels[name.decode()]

    def cuFuncSetAttribute(self, function: Any, kind: str, value: int) -> tuple[Any]:
        self.calls.append(f"{kind}={value}")
        return (SUCCESS,)

    def cuMemAllocAsync(self, size: int, stream: Any) -> tuple[Any, int]:
        if size > 1 << 30:
            return NO_MEMORY, 0
        block = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(block)] = block
        return SUCCESS, ctypes.addressof(block)

    def cuMemFreeAsync(self, address: int, stream: Any) -> tuple[Any]:
        del self.memory[address]
        return (SUCCESS,)

    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: Any) -> tuple[Any]:
        ctypes.memmove(target, source, size)
        return (SUCCESS,)

    cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = cuMemcpyHtoDAsync

    def cuStreamSynchronize(self, stream: Any) -> tuple[Any]:
        return (self.state,)

    def cuStreamQuery(self, stream: Any) -> tuple[Any]:
        return (self.state,)

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[Any, int]:
        if flags != 3:
            return NO_MEMORY, 0
        block = ctypes.create_string_buffer(size)
        self.host_memory[ctypes.addressof(block)] = block
        return SUCCESS, ctypes.addressof(block)

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> tuple[Any, int]:
        return SUCCESS, address

    def CUlaunchAttribute(self) -> Any:
        return SimpleNamespace(value=SimpleNamespace(clusterDim=SimpleNamespace()))

    def CUlaunchConfig(self) -> Any:
        return SimpleNamespace()

    def cuLaunchKernelEx(self, config: Any, function: Any, params: int, extra: int) -> tuple[Any]:
        if config.blockDimX > 1024 or max(config.gridDimY, config.gridDimZ) > 65535:
            self.is_whole = self.capturing is None
            return (SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE"),)
        count = function.__code__.co_argcount
        slots = (ctypes.c_void_p * count).from_address(params)
        values = [ctypes.c_int64.from_address(slot or 0).value for slot in slots]
        self.launches.append((config, values))
        if self.capturing is None:
            function(*values)
        else:
            self.capturing.append(lambda: function(*values))
        return (SUCCESS,)

    def cuStreamBeginCapture(self, stream: Any, mode: Any) -> tuple[Any]:
        self.capturing = []
        return (SUCCESS,)

    def cuStreamEndCapture(self, stream: Any) -> tuple[Any, Any]:
        found, self.capturing = self.capturing, None
        self.calls.append("cuStreamEndCapture")
        return (SUCCESS, found) if self.is_whole else (BROKEN_CAPTURE, None)

    def cuGraphInstantiate(self, graph: Any, flags: int) -> tuple[Any, Any]:
        self.calls.append("cuGraphInstantiate")
        return SUCCESS, graph

    def cuEventElapsedTime(self, start: Any, end: Any) -> tuple[Any, float]:
        """The last graph's time, by the way that its kernels were launched."""
        return SUCCESS, self.time_of([config for config, _ in self.launches[-CALLS:]])

    def cuGraphLaunch(self, graph: Any, stream: Any) -> tuple[Any]:
        for run in graph:
            run()
        return (SUCCESS,)


_NOTHING = ("cuCtxSetCurrent", "cuMemPoolSetAttribute", "cuGraphDestroy", "cuGraphExecDestroy", "cuEventRecord",
            "cuEventDestroy", "cuStreamWaitEvent")  # fmt: skip


def floats(address: int, count: int = 4) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
