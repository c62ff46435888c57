"""A deployed runtime: drivers load, and exported models run on devices, where the compiler does not exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.on_device import require_opencl
from tests.graph.helpers import function, op, var
from tilewright.backends.compiler import Compiler
from tilewright.backends.cuda import compiler as cuda_compiler
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.function import IRModule
from tilewright.support import settings

WITHOUT_COMPILER = '''
import sys

PACKAGES = ("ir", "arith", "tir", "graph", "te", "codegen", "frontend", "topi", "lower", "request", "compiler", "tune")
PARTS = ("backend", "compiler", "dialect", "kernels", "assembler", "emit", "toolchain")

class Missing:
    """Nothing that compiles can be imported."""

    def find_spec(self, name, path=None, target=None):
        parts = name.split(".")
        gone = parts[0] == "llvmlite" or (parts[0] == "tilewright" and parts[1:2] and parts[1] in PACKAGES)
        if gone or (parts[:2] == ["tilewright", "backends"] and parts[-1] in PARTS) or name.endswith("nvrtc"):
            raise ImportError(f"{name} is not deployed")

sys.meta_path.insert(0, Missing())
'''

DRIVERS = """
from importlib import import_module
from tilewright.runtime.device.devices import device_kinds, find_device
from tilewright.support.errors import UserError

for kind in device_kinds():
    import_module(f"tilewright.backends.{kind}.driver")
    try:
        find_device(kind)
    except UserError:
        pass
print(*device_kinds())
"""

OPENCL = """
import numpy as np, tilewright as tw
np.save(sys.argv[2], tw.load(sys.argv[1])(np.linspace(-1, 1, 4, dtype=np.float32)))
"""

CUDA = (
    """
from tests.runtime.toy_cuda import ToyDriver, floats
from tilewright.backends.cuda import driver
from tilewright.runtime.device.devices import Driver

def relu(source: int, target: int) -> None:
    floats(target)[:] = floats(source).clip(0)

class Kernels(dict):
    def __missing__(self, name):
        return relu

driver.DRIVER = Driver(lambda index: device)
device = driver.CudaDevice(ToyDriver(Kernels()), 0)
"""
    + OPENCL
)


def _run(code: str, *args: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER + code, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _model() -> IRModule:
    x = var("x", 4)
    return infer_types(IRModule([function([x], op("nn.relu", x))]))


def _check(code: str, target: str, folder: Path) -> None:
    library, result = folder / "model.so", folder / "y.npy"
    tw.Compilation(_model(), target=target, threads=1).export_library(library)
    _run(code, library, result)
    np.testing.assert_array_equal(np.load(result), np.linspace(-1, 1, 4, dtype=np.float32).clip(0))


def test_all_drivers_load_without_the_compiler() -> None:
    assert _run(DRIVERS).split() == ["cuda", "rocm", "opencl", "metal", "vulkan", "webgpu", "accel"]


def test_a_model_runs_on_opencl_without_the_compiler(tmp_path: Path) -> None:
    require_opencl()
    _check(OPENCL, "opencl", tmp_path)


def test_a_model_runs_on_cuda_without_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code and driver are toys; all between them is the runtime itself."""
    monkeypatch.setattr(cuda_compiler, "COMPILER", Compiler(lambda source, target: b"\x7fELF", lambda: "toy"))
    with settings.CACHE.override(False):
        _check(CUDA, "cuda -arch=sm_90a", tmp_path)
