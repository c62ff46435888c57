"""WebGPU, Vulkan and AMD devices: what is said where something is missing or too large."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.on_device import require_webgpu
from tilewright import te
from tilewright.runtime import hip, vulkan, webgpu
from tilewright.support.errors import UserError


def test_parts_of_memory() -> None:
    """Copies and writes come in order with launches."""
    require_webgpu()
    device = webgpu.webgpu_device()
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] + 1.0, name="B")
    module = tw.build(te.create_schedule(b.op), [a, b], target="webgpu")
    source, target = device.upload(np.zeros(8, np.float32)), device.allocate(32)
    (kernel,) = module.kernels.values()
    device.launch(kernel, (1, 1, 1), (1, 1, 1), [source, target])
    device.copy(target, 0, source, 16, 8)
    device.launch(kernel, (1, 1, 1), (1, 1, 1), [source, target])
    got = np.zeros(8, np.float32)
    device.read(target, 0, got)
    np.testing.assert_array_equal(got, [1, 1, 1, 1, 2, 2, 1, 1])
    device.write(source, np.full(3, 5, np.uint8))
    small = np.zeros(3, np.uint8)
    device.download(source, small)
    np.testing.assert_array_equal(small, [5, 5, 5])
    assert device.numbers() == {"max_threads": 256, "shared_bytes": 16384}


def test_arrays_that_are_too_large() -> None:
    require_webgpu()
    with pytest.raises(UserError, match=r"takes arrays of up to .* bytes in WebGPU programs, not 1099511627776"):
        webgpu.webgpu_device().allocate(1 << 40)


def test_kernels_of_too_many_buffers() -> None:
    require_webgpu()
    inputs = [te.placeholder((4,), name=f"A{n}") for n in range(webgpu.webgpu_device().most_buffers)]
    total = te.compute((4,), lambda i: sum((one[i] for one in inputs[1:]), start=inputs[0][i]), name="B")
    with pytest.raises(UserError, match=r"the kernel main_kernel0 uses \d+ buffers, .* allows \d+"):
        tw.build(te.create_schedule(total.op), [*inputs, total], target="webgpu")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wgpu", None)
    with pytest.raises(UserError, match="WebGPU programs need the package wgpu"):
        webgpu.webgpu_device.__wrapped__()


def test_opengl_is_not_looked_for() -> None:
    """Its drivers bring an LLVM of their own into the process, next to which `import triton` crashes."""
    require_webgpu()
    code = (
        "from tilewright.runtime.webgpu import webgpu_device\n"
        "webgpu_device()\n"
        "print([line for line in open('/proc/self/maps') if 'libEGL' in line or 'libGL' in line])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[]\n"


def test_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = SimpleNamespace(gpu=SimpleNamespace(enumerate_adapters_sync=list))
    monkeypatch.setitem(sys.modules, "wgpu", nothing)
    extras = SimpleNamespace(set_instance_extras=lambda backends: None)
    monkeypatch.setitem(sys.modules, "wgpu.backends.wgpu_native.extras", extras)
    with pytest.raises(UserError, match="there is no WebGPU device here"):
        webgpu.webgpu_device.__wrapped__()


def test_without_vulkan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "_LIBRARIES", ("libnothing.so",))
    with pytest.raises(UserError, match="need its loader, libvulkan"):
        vulkan.vulkan_device.__wrapped__()


def test_without_a_compiler_for_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        ctypes.CDLL("libhiprtc.so")
    except OSError:
        monkeypatch.setattr(shutil, "which", lambda name: None)
        with pytest.raises(UserError, match="need ROCm's libhiprtc or clang with lld"):
            hip._compiler.__wrapped__()
    else:
        pytest.skip("hipRTC is here")
