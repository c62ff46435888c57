"""A stand-in for devices that are not here: their C++ kernels run on threads of this machine, against a shim header."""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.codegen.on_device import program_of
from tests.requirements import CLANGS, need_tool
from tilewright import te
from tilewright.backends.device import load_program
from tilewright.runtime.core.artifact import LaunchInfo
from tilewright.runtime.core.convert import Array
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.device.program import Device, DeviceModule, DeviceProgram, Scalar
from tilewright.target import Target
from tilewright.tir.function import PrimFunc

ROCM = Target("rocm")
METAL = Target("metal")

SHIMS = Path(__file__).parent / "shims"


def require_clang() -> str:
    """The path of clang, or a skip."""
    return need_tool("clang", *CLANGS)


class ThreadDevice(Device):
    """A device made of threads. `heads` matches a kernel's head, `include` is the shim its text is compiled with."""

    def __init__(self, heads: str, include: str, replaced: dict[str, str]) -> None:
        super().__init__()
        self._heads = re.compile(heads)
        self._include = include
        self._replaced = replaced

    def load(self, code: bytes, launches: Sequence[LaunchInfo]) -> dict[str, Any]:
        """Compile the kernels and functions that run their grids."""
        text = source = code.decode()
        for old, new in self._replaced.items():
            source = source.replace(old, new)
        lines = [f'#include "{self._include}"' if self._include else "", source]
        names = []
        for match in self._heads.finditer(text):
            name, parameters = match[1], match[2].split(", ")
            names.append(name)
            args = ", ".join(_argument(text, number) for number, text in enumerate(parameters) if "tw_" not in text)
            places = ", b, t" if "tw_group" in match[2] else ""
            body = text[match.end() : text.index("\n}", match.end())]
            meets = "true" if "barrier(" in body else "false"
            call = f"[&](Place b, Place t) {{ {name}({args}{places}); }}"
            head = f'extern "C" void run_{name}(void** args, const int* grid, const int* block)'
            lines.append(f"{head} {{ run_grid(grid, block, {meets}, {call}); }}")
        assert sorted(names) == sorted({launch.symbol for launch in launches})
        library = self._compile("\n".join(lines))
        return {name: getattr(library, f"run_{name}") for name in names}

    @staticmethod
    def _compile(text: str) -> ctypes.CDLL:
        with tempfile.TemporaryDirectory(prefix="tilewright-threads-") as folder:
            source, result = Path(folder, "kernels.cc"), Path(folder, "kernels.so")
            source.write_text(text, encoding="utf-8")
            command = [
                require_clang(),
                "-x",
                "c++",
                "-std=c++20",
                "-O1",
                "-w",
                "-fPIC",
                "-shared",
                "-ffp-contract=off",
                "-fsigned-char",
            ]
            command += ["-I", str(SHIMS), "-o", str(result), str(source), "-nostdlib++", "-lpthread", "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{done.stderr[:3000]}"
            return ctypes.CDLL(str(result))

    def allocate(self, size: int) -> Any:
        """Bytes."""
        return np.zeros(max(16, size), np.uint8)

    def upload(self, array: Array) -> Any:
        """A copy of the bytes."""
        memory = self.allocate(array.nbytes)
        memory[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return memory

    def download(self, memory: Any, array: Array) -> None:
        """A copy back."""
        array[...] = memory[: array.nbytes].view(array.dtype).reshape(array.shape)

    def launch(self, kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any]) -> None:
        """Run the grid."""
        values = [_packed(arg) if isinstance(arg, Scalar) else arg for arg in args]
        places = (ctypes.c_void_p * max(1, len(values)))(*[value.ctypes.data for value in values])
        kernel(places, (ctypes.c_int * 3)(*grid), (ctypes.c_int * 3)(*block))

    def wait(self) -> None:
        """Everything is done already."""


def _argument(text: str, number: int) -> str:
    """An argument of a kernel out of the array of addresses."""
    if "*" in text:
        kind = text.split("*")[0].replace("device ", "")
        return f"({kind}*)args[{number}]"
    kind = re.sub(r"\[\[.*", "", text).replace("constant ", "").replace("const ", "").strip().rpartition(" ")[0]
    return f"*(const {kind.rstrip('&')}*)args[{number}]"


def _packed(scalar: Scalar) -> Array:
    return np.array([scalar.bits], np.int64).view(storage_dtype(scalar.dtype))[:1]


@functools.cache
def _threads(kind: str) -> ThreadDevice:
    if kind == "metal":
        shared = {"threadgroup __attribute__": "static __attribute__"}
        return ThreadDevice(r"kernel void (\w+)\((.*)\) {", "", shared)
    return ThreadDevice(r'extern "C" __attribute__\(\(global.*?\)\)\) void (\w+)\((.*)\) {', "hip.h", {})


def _loaded(program: DeviceProgram, kind: str) -> DeviceModule:
    return DeviceModule(program, _threads(kind), program.source.encode())


def on_hip(funcs: Sequence[PrimFunc]) -> DeviceModule:
    """Functions as HIP kernels, run on threads."""
    require_clang()
    return _loaded(program_of(funcs, ROCM), "rocm")


def on_metal(funcs: Sequence[PrimFunc]) -> DeviceModule:
    """Functions as Metal kernels, run on threads."""
    require_clang()
    return _loaded(program_of(funcs, METAL), "metal")


def stand_in(source: Path, folder: Path, compiler: str) -> ctypes.CDLL:
    """A library of C that has the functions of a driver and no device."""
    library = folder / "libfake.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", str(library), str(source)], check=True)
    return ctypes.CDLL(str(library))


def check_scaling(target: Target, device: Device) -> None:
    """A kernel of four threads on a driver's stand-in: arrays go there and back, scalars are packed."""
    a = te.placeholder((4,), name="A")
    n, x = te.var("n", "int32"), te.var("x", "float32")
    b = te.compute((4,), lambda i: a[i] * x + n.astype("float32"), name="B")
    s = te.create_schedule(b.op)
    s[b].bind(b.op.axis[0], te.thread_axis("threadIdx.x"))
    module = load_program(program_of([s.func([a, n, x, b])], target), target, device)
    result = np.zeros(4, np.float32)
    module(np.arange(4, dtype=np.float32), -3, 2.5, result)
    np.testing.assert_array_equal(result, np.arange(4, dtype=np.float32) * 2.5 - 3)
