"""AMD GPUs: HIP C++ compiled by hipRTC or clang, run through libamdhip64."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tilewright.runtime.core.artifact import LaunchInfo
from tilewright.runtime.core.convert import Array, address_of
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.device.program import Device, DeviceProgram, Scalar, pick
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.fingerprint import environment_fingerprint

_HINT: Final = "install ROCm, whose libamdhip64 drives the GPU and whose libhiprtc compiles for it"
_CLANGS: Final = ("amdclang++", *(f"clang-{version}" for version in range(22, 16, -1)), "clang")
_ENVIRONMENT: Final = ("AMD_COMGR", "HIP_", "HIPRTC", "LLVM_", "ROCM_")
"""Beginnings of the names of variables that hipRTC and the compiler inside it may read."""
_KEPT: Final = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR")
_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3


def compile_hip(source: str, arch: str) -> bytes:
    """The code object (ELF) of HIP C++ for an architecture such as `gfx942`; no GPU is needed."""
    compiler = _compiler()
    if isinstance(compiler, str):
        return _compile_with_clang(compiler, source, arch)
    return _compile_with_hiprtc(compiler, source, arch)


def hip_compiler() -> str:
    """The name and version of the compiler that `compile_hip` uses."""
    compiler = _compiler()
    if isinstance(compiler, str):
        return _clang_version(compiler)
    major, minor = ctypes.c_int(), ctypes.c_int()
    compiler.hiprtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"hiprtc {major.value}.{minor.value} {environment_fingerprint(_ENVIRONMENT)}"


@functools.cache
def _clang_version(clang: str) -> str:
    """All that clang says of itself, and where it lies: two of one version may be built apart."""
    done = subprocess.run([clang, "--version"], capture_output=True, text=True, check=True, env=_clean_environment())
    return f"{clang} {done.stdout.strip()}"


def _clean_environment() -> dict[str, str]:
    """What clang sees: no variable that would add options or folders of headers to those that are given here."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | {"LC_ALL": "C"}


@functools.cache
def _compiler() -> Any:
    """The library hipRTC, or the path of a clang."""
    try:
        return ctypes.CDLL("libhiprtc.so")
    except OSError:
        clang = next(filter(None, map(shutil.which, _CLANGS)), None)
    if clang is None:
        raise UserError("HIP programs need ROCm's libhiprtc or clang with lld, and neither is here", hint=_HINT)
    return clang


def _compile_with_clang(clang: str, source: str, arch: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="tilewright-hip-") as folder:
        text, result = Path(folder, "kernels.hip"), Path(folder, "kernels.hsaco")
        text.write_text(source, encoding="utf-8")
        command = [clang, "-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib"]
        command += [f"--offload-arch={arch}", "-O3", "-std=c++17", "-o", str(result), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_clean_environment())
        if done.returncode == 0:
            return result.read_bytes()
    if any(words in done.stderr for words in ("invalid target ID", "offload arch", "unsupported HIP gpu")):
        raise UserError(f"{clang} does not compile for '{arch}'", hint="give the target another -arch, such as gfx942")
    if "lld" in done.stderr and "error" in done.stderr:
        raise UserError(f"{clang} finds no lld to link with: {done.stderr.strip()}", hint="install lld beside it")
    raise CompilerBug(f"{clang} refused a program: {done.stderr.strip()}")


def _compile_with_hiprtc(library: Any, source: str, arch: str) -> bytes:
    program = ctypes.c_void_p()
    options = (ctypes.c_char_p * 2)(f"--offload-arch={arch}".encode(), b"-std=c++17")
    created = library.hiprtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.hip", 0, None, None)
    if created != 0:
        raise CompilerBug(f"hipRTC could not create a program: error {created}")
    try:
        compiled = library.hiprtcCompileProgram(program, len(options), options)
        size = ctypes.c_size_t()
        if compiled != 0:
            library.hiprtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value + 1)
            library.hiprtcGetProgramLog(program, log)
            raise CompilerBug(f"hipRTC refused a program for {arch}: {log.value.decode(errors='replace').strip()}")
        library.hiprtcGetCodeSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        library.hiprtcGetCode(program, code)
        return code.raw
    finally:
        library.hiprtcDestroyProgram(ctypes.byref(program))


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

    def load(self, program: DeviceProgram) -> dict[str, Any]:
        """Compile the program for this GPU and load it."""
        if not program.source:
            return {}
        launches = [launch for function in program.functions for launch in function.launches]
        return self.load_code(compile_hip(program.source, self.arch), launches)

    def load_code(self, code: bytes, launches: Sequence[LaunchInfo]) -> dict[str, Any]:
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
