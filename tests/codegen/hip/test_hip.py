"""HIP kernels: run on threads, compiled to code objects for AMD's GPUs, and driven through a driver without a GPU."""

from __future__ import annotations

import ctypes
import functools
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import tilewright.runtime.hip as hip
from tests.codegen import portable, portable_kernels
from tests.codegen.c.test_c_expressions import TYPES, _float_program
from tests.codegen.on_threads import ThreadDevice, require_clang
from tests.tir.passes.test_bind_threads import tiled_product
from tests.topi.test_scheduled import CASES
from tilewright import te
from tilewright.codegen.c.program import device_program
from tilewright.codegen.hip.dialect import HipDialect
from tilewright.compiler import _function_info
from tilewright.runtime.device_program import DeviceModule, DeviceProgram
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc

ROCM = Target("rocm")


def _program(funcs: Sequence[PrimFunc]) -> DeviceProgram:
    return device_program(funcs, [_function_info(func) for func in funcs], ROCM, HipDialect())


@functools.cache
def _device() -> ThreadDevice:
    return ThreadDevice(r'extern "C" __attribute__\(\(global.*?\)\)\) void (\w+)\((.*)\) {', "hip.h", {})


def on_hip(funcs: Sequence[PrimFunc]) -> DeviceModule:
    """Functions as HIP kernels, run on threads."""
    require_clang()
    return DeviceModule(_program(funcs), _device())


def test_integers() -> None:
    portable.check_integers(on_hip)


def test_floats() -> None:
    portable.check_floats(on_hip, (*TYPES, "float16", "bfloat16"))
    portable.check_integers_to_floats(on_hip, ("float16", "bfloat16", "float32", "float64"))
    portable.check_halves(on_hip)


def test_scalars() -> None:
    portable_kernels.check_scalars(on_hip, (*portable_kernels.SCALARS, "float64"))


def test_tiles_and_operators() -> None:
    portable_kernels.check_tiles(on_hip)
    portable_kernels.check_operators(on_hip, ROCM, CASES[::5])


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
def test_code_objects(arch: str) -> None:
    """What comes out is an ELF file for AMD's GPUs with a descriptor a kernel, and lacks no function."""
    require_clang()
    program = _program([_float_program()[0], tiled_product(9, 17, 8, (2, 8), (3, 2), 4)])
    code = hip.compile_hip(program.source, arch)
    assert code[:4] == b"\x7fELF" and int.from_bytes(code[18:20], "little") == 224
    for function in program.functions:
        for launch in function.launches:
            assert f"{launch.symbol}.kd".encode() in code
    assert b"__ocml" not in code


def test_unknown_architectures() -> None:
    require_clang()
    with pytest.raises(UserError, match="does not compile for 'gfx1'"):
        hip.compile_hip("", "gfx1")


def test_without_rocm() -> None:
    try:
        ctypes.CDLL("libamdhip64.so")
    except OSError:
        with pytest.raises(UserError, match="need ROCm's libamdhip64"):
            hip.hip_device()
    else:
        pytest.skip("ROCm is here")


def test_the_runtime_drives_the_driver(tmp_path: Path, c_compiler: str) -> None:
    """Arrays go to the device and back, scalars are packed, memory is given back."""
    require_clang()
    library = tmp_path / "libfake.so"
    source = Path(__file__).parent / "fake_hip.c"
    subprocess.run([c_compiler, "-shared", "-fPIC", "-w", "-o", str(library), str(source)], check=True)
    driver = ctypes.CDLL(str(library))
    device = hip.HipDevice(driver, 0)
    assert device.arch == "gfx942" and device.name == "Fake Instinct" and device.numbers() == {"arch": "gfx942"}
    a = te.placeholder((4,), name="A")
    n, x = te.var("n", "int32"), te.var("x", "float32")
    b = te.compute((4,), lambda i: a[i] * x + n.astype("float32"), name="B")
    s = te.create_schedule(b.op)
    s[b].bind(b.op.axis[0], te.thread_axis("threadIdx.x"))
    module = DeviceModule(_program([s.func([a, n, x, b])]), device)
    result = np.zeros(4, np.float32)
    module(np.arange(4, dtype=np.float32), -3, 2.5, result)
    np.testing.assert_array_equal(result, np.arange(4, dtype=np.float32) * 2.5 - 3)
    assert driver.fake_threads() == 4
    assert driver.fake_allocated() == 0
    whole = device.upload(np.arange(8, dtype=np.float32))
    part = np.zeros(2, np.float32)
    device.read(whole, 8, part)
    np.testing.assert_array_equal(part, [2, 3])
    device.copy(whole, 0, whole, 16, 8)
    device.download(device.view(whole, 16, 8), part)
    np.testing.assert_array_equal(part, [0, 1])
    with pytest.raises(UserError, match="failed in hipMalloc: out of memory"):
        device.allocate(1 << 31)
    with pytest.raises(UserError, match="cannot load the code object"):
        device.load_code(b"none", ())
