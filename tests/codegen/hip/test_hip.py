"""HIP kernels compiled to code objects for AMD's GPUs, and driven through a driver without a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright.backends.rocm.compiler as hip
import tilewright.backends.rocm.driver as hip_driver
from tests.codegen.c.test_c_expressions import _float_program
from tests.codegen.on_device import program_of
from tests.codegen.on_threads import ROCM, check_scaling, require_clang, stand_in
from tests.requirements import need
from tests.tir.passes.test_bind_threads import tiled_product
from tilewright.support.errors import UserError


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
def test_code_objects(arch: str) -> None:
    """What comes out is an ELF file for AMD's GPUs with a descriptor a kernel, and lacks no function."""
    require_clang()
    program = program_of([_float_program()[0], tiled_product(9, 17, 8, (2, 8), (3, 2), 4)], ROCM)
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
    need("no-rocm")
    with pytest.raises(UserError, match="need ROCm's libamdhip64"):
        hip_driver.hip_device()


def test_the_runtime_drives_the_driver(tmp_path: Path, c_compiler: str) -> None:
    """Arrays go to the device and back, scalars are packed, memory is given back."""
    require_clang()
    driver = stand_in(Path(__file__).parent / "fake_hip.c", tmp_path, c_compiler)
    device = hip_driver.HipDevice(driver, 0)
    assert device.arch == "gfx942" and device.name == "Fake Instinct" and device.numbers() == {"arch": "gfx942"}
    check_scaling(ROCM, device)
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
        device.load(b"none", ())
