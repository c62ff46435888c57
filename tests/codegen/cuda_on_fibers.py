"""A GPU that is not here: CUDA kernels run as fibers of this machine, under the project's own CUDA runtime.

Everything is as on a GPU of compute capability 9.0 but the driver and NVRTC: schedules, text, graphs, launch policies.
Asynchronous copies, barriers, shuffles, clusters and products of tensor cores are what they are there.
Blocks run one after the other, so what only a race would show is not seen.
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.codegen.on_device import program_of
from tests.codegen.on_threads import SHIMS, require_clang
from tests.codegen.ptx_on_fibers import host_text
from tests.runtime.toy_cuda import BAD_ADDRESS, SUCCESS, ToyDriver
from tilewright.backends.compiler import Compiler
from tilewright.backends.cuda import compiler, driver
from tilewright.runtime.device.devices import Driver
from tilewright.runtime.device.program import DeviceModule
from tilewright.target import Target
from tilewright.tir.function import PrimFunc

_HEAD = re.compile(r'extern "C" __global__ void __launch_bounds__\(\d+\) (\w+)\((.*?)\) \{')
_MEMORY = r"(?:extern )?__shared__ __align__\(1024\) unsigned char tw_memory\[\d*\];"
_STATIC_SHARED = 48 << 10


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tilewright-fibers-")


def _compiled(name: str, text: str, mode: int, *options: str) -> ctypes.CDLL:
    """A library of C++ (or C) text."""
    source = Path(_folder().name, name)
    source.write_text(text, encoding="utf-8")
    result = source.with_suffix(".so")
    command = [require_clang(), *options, "-O1", "-w", "-fPIC", "-shared", "-ffp-contract=off", "-fsigned-char"]
    command += ["-fno-math-errno", "-I", str(SHIMS), "-o", str(result), str(source), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(result), mode=mode)


@functools.cache
def _fibers() -> ctypes.CDLL:
    text = (SHIMS / "fibers.c").read_text(encoding="utf-8")
    return _compiled("fibers.c", text, ctypes.RTLD_GLOBAL)


class FiberKernel:
    """A function of a library, and how many parameters it has."""

    def __init__(self, run: Any, count: int) -> None:
        self.run = run
        self.count = count


class FiberDriver(ToyDriver):
    """A driver whose programs are CUDA C++; each launch runs at once, or when its graph does."""

    def __init__(self) -> None:
        super().__init__({})
        self.numbers |= {"MULTIPROCESSOR_COUNT": 132, "L2_CACHE_SIZE": 50 << 20}
        self.numbers |= {
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 << 10,
        }
        self.count = 0

    def cuModuleLoadData(self, code: bytes) -> tuple[Any, ...]:
        """Compile a program, with a function for each kernel that runs its grid."""
        text = code.decode()
        memory = "unsigned char* const tw_memory = memory_of_block(fiber->rank);"
        lines, counts = ['#include "cuda.h"', host_text(re.sub(_MEMORY, memory, text))], {}
        for name, parameters in _HEAD.findall(text):
            kinds = [
                re.sub(r"(__restrict__ )?\w+$", "", item.strip()) for item in parameters.split(",") if item.strip()
            ]
            args = ", ".join(f"*({kind}*)args[{number}]" for number, kind in enumerate(kinds))
            lines.append(f"static void body_{name}(void** args) {{ {name}({args}); }}")
            sizes = "const int* grid, const int* block, const int* cluster, int bytes"
            lines.append(f'extern "C" int run_{name}(void** args, {sizes}) {{')
            lines.append(f"return run_grid(body_{name}, args, grid, block, cluster, bytes); }}")
            counts[name] = len(kinds)
        _fibers()
        self.count += 1
        name = f"kernels{id(self)}_{self.count}.cc"
        # Kernels of other programs may have the same names.
        library = _compiled(name, "\n".join(lines), ctypes.RTLD_LOCAL, "-std=c++20", "-nostdlib++")
        return SUCCESS, {name: FiberKernel(getattr(library, f"run_{name}"), count) for name, count in counts.items()}

    def cuModuleGetFunction(self, module: Any, name: bytes) -> tuple[Any, Any]:
        return SUCCESS, module[name.decode()]

    def cuMemAllocAsync(self, size: int, stream: Any) -> tuple[Any, int]:
        """Memory that holds no number yet."""
        block = ctypes.create_string_buffer(size + 256)
        ctypes.memset(block, 0xFF, size + 256)
        address = -(-ctypes.addressof(block) // 256) * 256
        self.memory[address] = block
        return SUCCESS, address

    def cuLaunchKernelEx(self, config: Any, function: Any, params: int, extra: int) -> tuple[Any]:
        slots = (ctypes.c_void_p * function.count).from_address(params)
        values = (ctypes.c_int64 * function.count)(*[ctypes.c_int64.from_address(slot or 0).value for slot in slots])
        cluster = next((item.value.clusterDim for item in config.attrs if hasattr(item.value.clusterDim, "x")), None)
        shape = (1, 1, 1) if cluster is None else (cluster.x, cluster.y, cluster.z)
        sizes = [
            (config.gridDimX, config.gridDimY, config.gridDimZ),
            (config.blockDimX, config.blockDimY, config.blockDimZ),
        ]
        args = [(ctypes.c_int * 3)(*item) for item in (*sizes, shape)]

        def run() -> None:
            start = ctypes.addressof(values)
            given = (ctypes.c_void_p * len(values))(*range(start, start + 8 * len(values), 8))
            if function.run(given, *args, max(config.sharedMemBytes, _STATIC_SHARED)):
                self.state = BAD_ADDRESS

        self.launches.append((config, list(values)))
        if self.capturing is None:
            run()
        else:
            self.capturing.append(run)
        return (SUCCESS,)


@functools.cache
def fiber_device() -> driver.CudaDevice:
    """The GPU of fibers."""
    require_clang()
    return driver.CudaDevice(FiberDriver(), 0)


def use_fibers(monkeypatch: pytest.MonkeyPatch, device: driver.CudaDevice | None = None) -> driver.CudaDevice:
    """Let `target="cuda"` be the GPU of fibers (or this one) while a test runs."""
    device = device or fiber_device()
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    monkeypatch.setenv("TILEWRIGHT_COMPILE_PROCESSES", "1")
    monkeypatch.setattr(compiler, "COMPILER", Compiler(lambda source, target: source.encode(), lambda: "fibers"))
    monkeypatch.setattr(driver, "DRIVER", Driver(lambda index: device))
    return device


def on_cuda(funcs: Sequence[PrimFunc], target: Target) -> DeviceModule:
    """Functions as CUDA kernels on fibers."""
    program = program_of(funcs, target)
    return DeviceModule(program, fiber_device(), program.source.encode())
