"""Metal: what its kernels cannot be, and the runtime that drives a stand-in of its frameworks."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.on_device import program_of
from tests.codegen.on_threads import METAL, check_scaling, stand_in
from tests.requirements import need
from tilewright import te
from tilewright.backends.metal import driver as metal
from tilewright.backends.metal.objc import ObjectiveC
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError


def test_float64_is_refused_by_name() -> None:
    a = te.placeholder((4,), "float64", name="A")
    b = te.compute((4,), lambda i: a[i] * 2.0, name="B")
    with pytest.raises(UnsupportedError, match="Metal kernels do not compute in float64"):
        program_of([te.create_prim_func([a, b], "double")], METAL)


def test_metal_programs_run_on_macs() -> None:
    need("no-metal")
    a = te.placeholder((4,), name="A")
    b = te.compute((4,), lambda i: a[i] * 2.0, name="B")
    with pytest.raises(UserError, match="programs for Metal run on macOS, and this is"):
        tw.build(te.create_schedule(b.op), [a, b], target="metal")


def test_signatures_have_an_argument_a_colon() -> None:
    for selector, (_, arguments) in metal.SIGNATURES.items():
        assert len(arguments) == selector.count(":"), selector


def test_methods_without_a_signature_are_not_called(fake: ctypes.CDLL) -> None:
    with pytest.raises(CompilerBug, match="the signature of the method explode: is not known"):
        ObjectiveC(fake, {}).send(1, "explode:", 0)


@pytest.fixture
def fake(tmp_path: Path, c_compiler: str) -> ctypes.CDLL:
    """Objects of Metal without a GPU."""
    need("x86_64")
    return stand_in(Path(__file__).parent / "fake_metal.c", tmp_path, c_compiler)


def _fake_device(fake: ctypes.CDLL) -> metal.MetalDevice:
    fake.MTLCreateSystemDefaultDevice.restype = ctypes.c_void_p
    return metal.MetalDevice(ObjectiveC(fake, metal.SIGNATURES), fake.MTLCreateSystemDefaultDevice())


def test_the_runtime_drives_the_frameworks(fake: ctypes.CDLL) -> None:
    """Arrays go to the device and back, scalars are packed, everything is given back."""
    device = _fake_device(fake)
    assert device.name == "Fake M9" and device.numbers() == {"shared_bytes": 32768}
    held = fake.fake_alive()
    check_scaling(METAL, device)
    assert fake.fake_threads() == 4
    assert (fake.fake_fast_math(), fake.fake_version()) == (0, 0x20003)
    gc.collect()
    assert fake.fake_alive() == held


def test_parts_of_memory(fake: ctypes.CDLL) -> None:
    device = _fake_device(fake)
    held = fake.fake_alive()
    whole, part = device.upload(np.arange(16, dtype=np.float32)), np.zeros(2, np.float32)
    device.read(whole, 16, part)
    np.testing.assert_array_equal(part, [4, 5])
    assert device.view(whole, 8, 8) is None
    device.read(whole, 8, part)
    np.testing.assert_array_equal(part, [2, 3])
    device.copy(whole, 0, device.view(whole, 32, 32), 16, 8)
    device.download(device.view(whole, 48, 8), part)
    np.testing.assert_array_equal(part, [0, 1])
    device.write(whole, np.full(2, 7, np.float32))
    device.download(whole, part)
    np.testing.assert_array_equal(part, [7, 7])
    with pytest.raises(UserError, match="Fake M9 has no room for 2147483648 bytes"):
        device.allocate(1 << 31)
    del whole
    device.wait()
    assert fake.fake_alive() == held


def test_what_metal_refuses(fake: ctypes.CDLL) -> None:
    device = _fake_device(fake)
    with pytest.raises(CompilerBug, match="Metal's compiler refused a program: it is broken"):
        device.load(b"none", ())
    fake.fake_fail(1)
    device.copy(device.allocate(16), 0, device.allocate(16), 0, 16)
    with pytest.raises(UserError, match="Fake M9 did not finish its kernels: it is broken"):
        device.wait()
