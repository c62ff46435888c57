"""The devices that programs run on, by kind of target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilewright.runtime.cuda import cuda_device, nvrtc_version
from tilewright.runtime.device_program import Device
from tilewright.runtime.hip import hip_compiler, hip_device
from tilewright.runtime.metal import metal_device
from tilewright.runtime.opencl import opencl_device
from tilewright.runtime.vulkan import vulkan_device
from tilewright.runtime.webgpu import webgpu_device
from tilewright.support.errors import UnsupportedError

DEVICES: Final[dict[str, Callable[[], Device]]] = {
    "cuda": cuda_device,
    "opencl": opencl_device,
    "webgpu": webgpu_device,
    "vulkan": vulkan_device,
    "rocm": hip_device,
    "metal": metal_device,
}
"""How the first device of a kind is found; a `UserError` where there is none."""


def find_device(kind: str) -> Device:
    """The first device of a kind here."""
    finder = DEVICES.get(kind)
    if finder is None:
        raise UnsupportedError(f"this runtime has no devices of the kind '{kind}'", hint=f"it has {', '.join(DEVICES)}")
    return finder()


_COMPILERS: Final[dict[str, Callable[[], str]]] = {"cuda": nvrtc_version, "rocm": hip_compiler}


def device_compiler(kind: str) -> str:
    """The name and version of the compiler that makes machine code for devices of a kind; they decide the code.

    For other kinds than these the compiler is part of Tilewright, or of the device's driver, which is given text.
    """
    return _COMPILERS[kind]() if kind in _COMPILERS else "text"
