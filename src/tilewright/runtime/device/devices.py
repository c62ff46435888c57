"""The devices that programs run on, by kind of target."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

from tilewright.backends.cuda.driver import cuda_device, nvrtc_version
from tilewright.backends.metal.driver import metal_device
from tilewright.backends.opencl.driver import opencl_device
from tilewright.backends.rocm.driver import hip_compiler, hip_device
from tilewright.backends.vulkan.driver import vulkan_device
from tilewright.backends.webgpu.driver import webgpu_device
from tilewright.runtime.device.program import Device
from tilewright.support.errors import UnsupportedError, UserError

DEVICES: Final[dict[str, Callable[[int], Device]]] = {
    "cuda": cuda_device,
    "opencl": opencl_device,
    "webgpu": webgpu_device,
    "vulkan": vulkan_device,
    "rocm": hip_device,
    "metal": metal_device,
}
"""How the devices of a kind are found by their number; a `UserError` where there is none."""

_chosen: ContextVar[Mapping[str, int]] = ContextVar("tilewright_devices", default=MappingProxyType({}))
_NUMBERED: Final = re.compile(r"\s*([a-z]+):(\d+)(?=\s|$)")


def find_device(kind: str) -> Device:
    """The device of a kind here: the first, or the one that was chosen."""
    finder = DEVICES.get(kind)
    if finder is None:
        raise UnsupportedError(f"this runtime has no devices of the kind '{kind}'", hint=f"it has {', '.join(DEVICES)}")
    index = _chosen.get().get(kind, 0)
    device = finder(index)
    device.index = index
    return device


@contextmanager
def choosing(kind: str, index: int) -> Iterator[None]:
    """While the body runs, `find_device` finds this device of a kind."""
    token = _chosen.set({**_chosen.get(), kind: index})
    try:
        yield
    finally:
        _chosen.reset(token)


def split_index(text: str) -> tuple[str, int]:
    """A target's text without a device's number, and the number: "cuda:1 -arch=sm_90" is "cuda -arch=sm_90" and 1."""
    found = _NUMBERED.match(text)
    if found is None:
        return text, 0
    if found[1] not in DEVICES:
        raise UserError(f"'{found[1]}' is no kind of device, so none has a number", hint=f"one of {', '.join(DEVICES)}")
    return found[1] + text[found.end() :], int(found[2])


_COMPILERS: Final[dict[str, Callable[[], str]]] = {"cuda": nvrtc_version, "rocm": hip_compiler}


def device_compiler(kind: str) -> str:
    """The name and version of the compiler that makes machine code for devices of a kind; they decide the code.

    For other kinds than these the compiler is part of Tilewright, or of the device's driver, which is given text.
    """
    return _COMPILERS[kind]() if kind in _COMPILERS else "text"
