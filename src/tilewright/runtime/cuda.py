"""CUDA devices, through NVRTC and the driver API of cuda-bindings."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from tilewright.runtime.convert import Array, address_of
from tilewright.runtime.device_program import Device, DeviceProgram, Scalar
from tilewright.runtime.dtypes import storage_dtype
from tilewright.support.errors import CompilerBug, UserError

_HINT = "pip install 'tilewright[cuda]', and NVIDIA's driver"


def compile_cuda(source: str, arch: str) -> bytes:
    """The machine code (cubin) of CUDA C for an architecture such as `sm_90`; no GPU is needed."""
    nvrtc = _nvrtc()
    error, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], [])
    _check(nvrtc, error, "create a program")
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        if error == nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION:
            raise UserError(f"NVRTC does not compile for '{arch}'", hint="give the target another -arch, such as sm_90")
        raise CompilerBug(f"NVRTC refused a program: {log.decode(errors='replace').strip()}")
    error, size = nvrtc.nvrtcGetCUBINSize(program)
    _check(nvrtc, error, "compile for the machine")
    code = bytes(int(size))
    (error,) = nvrtc.nvrtcGetCUBIN(program, code)
    _check(nvrtc, error, "read the machine code")
    nvrtc.nvrtcDestroyProgram(program)
    return code


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise UserError("CUDA programs need cuda-bindings and NVRTC", hint=_HINT) from error
    return nvrtc


def _check(module: Any, error: Any, what: str) -> None:
    if int(error) != 0:
        raise CompilerBug(f"{module.__name__} could not {what}: {error.name}")


class CudaDevice(Device):
    """One GPU, with the stream that all its work goes through."""

    def __init__(self, driver: Any, ordinal: int) -> None:
        self._driver = driver
        device = self._call("cuDeviceGet", ordinal)
        self._context = self._call("cuDevicePrimaryCtxRetain", device)
        self._call("cuCtxSetCurrent", self._context)
        kinds = driver.CUdevice_attribute
        major = self._call("cuDeviceGetAttribute", kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
        minor = self._call("cuDeviceGetAttribute", kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
        self.arch = f"sm_{major}{minor}"
        self._stream = self._call("cuStreamCreate", 0)

    def _call(self, name: str, *args: Any) -> Any:
        """Call the driver; errors of earlier kernels show here too."""
        error, *results = getattr(self._driver, name)(*args)
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise UserError(f"the CUDA driver failed in {name}: {error.name}")
        return results[0] if results else None

    def load(self, program: DeviceProgram) -> dict[str, Any]:
        """Compile the program for this GPU and load it."""
        if not program.source:
            return {}
        module = self._call("cuModuleLoadData", compile_cuda(program.source, self.arch))
        names = [launch.symbol for function in program.functions for launch in function.launches]
        return {name: self._call("cuModuleGetFunction", module, name.encode()) for name in names}

    def allocate(self, size: int) -> Any:
        """Memory on the device, given back when nothing refers to it."""
        return _Memory(self, self._call("cuMemAlloc", max(1, size)))

    def free(self, pointer: Any) -> None:
        """Give memory back."""
        self._driver.cuMemFree(pointer)

    def upload(self, array: Array) -> Any:
        """Memory with the contents of an array."""
        memory = self.allocate(array.nbytes)
        if array.nbytes:
            self._call("cuMemcpyHtoD", memory.pointer, address_of(array), array.nbytes)
        return memory

    def download(self, memory: Any, array: Array) -> None:
        """Copy memory into an array."""
        self.wait()
        self._call("cuMemcpyDtoH", address_of(array), memory.pointer, array.nbytes)

    def launch(self, kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any]) -> None:
        """Start a kernel on the stream."""
        values = [np.array([int(arg.pointer)], np.uint64) if isinstance(arg, _Memory) else _packed(arg) for arg in args]
        addresses = (ctypes.c_void_p * max(1, len(values)))(*[value.ctypes.data for value in values])
        self._call("cuLaunchKernel", kernel, *grid, *block, 0, self._stream, ctypes.addressof(addresses), 0)

    def wait(self) -> None:
        """Wait for the stream."""
        self._call("cuStreamSynchronize", self._stream)


class _Memory:
    """A piece of device memory."""

    def __init__(self, device: CudaDevice, pointer: Any) -> None:
        self._device = device
        self.pointer = pointer

    def __del__(self) -> None:
        self._device.free(self.pointer)


def _packed(scalar: Scalar) -> Array:
    return np.array([scalar.bits], np.int64).view(storage_dtype(scalar.dtype))[:1]


@functools.cache
def cuda_device() -> CudaDevice:
    """The first GPU. A `UserError` where there is none."""
    _nvrtc()
    try:
        from cuda.bindings import driver

        (error,) = driver.cuInit(0)
        found = error == driver.CUresult.CUDA_SUCCESS and int(driver.cuDeviceGetCount()[1]) > 0
    except (ImportError, RuntimeError) as error:
        raise UserError("CUDA programs need NVIDIA's driver, which is not here", hint=_HINT) from error
    if not found:
        raise UserError("there is no CUDA device here", hint=_HINT)
    return CudaDevice(driver, 0)
