"""Helpers of tests that run kernels: programs of several functions on a device, or compiled for CUDA."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.requirements import absent, missing, need
from tilewright.backends.device import device_program, load_program
from tilewright.compiler import _function_info
from tilewright.runtime.device.devices import find_device
from tilewright.runtime.device.program import DeviceModule, DeviceProgram
from tilewright.target import Target
from tilewright.tir.function import PrimFunc

OPENCL = Target("opencl")
WEBGPU = Target("webgpu")
VULKAN = Target("vulkan")
CUDA = Target("cuda -arch=sm_80")


def program_of(funcs: Sequence[PrimFunc], target: Target) -> DeviceProgram:
    """Functions with names of their own as one program."""
    infos = [_function_info(func) for func in funcs]
    return device_program(funcs, infos, target)


def require_device(target: Target) -> None:
    """Skip a test where there is no device for a target."""
    need(target.kind)


@functools.cache
def _halves_crash_vulkan() -> bool:
    """Whether the Vulkan driver here ends a process that computes with 16-bit floats (Mesa 22 on aarch64 does)."""
    imports = "from tests.codegen import portable; from tests.codegen.on_device import on_vulkan"
    program = f"{imports}; portable.check_halves(on_vulkan)"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, check=False)
    return done.returncode < 0


def require_halves(target: Target) -> None:
    """Skip a test where a driver cannot be given 16-bit floats."""
    if target.kind == "vulkan" and not missing("vulkan") and _halves_crash_vulkan():
        absent("vulkan-halves", "the Vulkan driver of this machine crashes on 16-bit floats")


def require_nvrtc() -> None:
    """Skip a test where NVRTC is not installed."""
    need("nvrtc")


def require_opencl() -> None:
    """Skip a test where there is no OpenCL device."""
    require_device(OPENCL)


def require_webgpu() -> None:
    """Skip a test where there is no WebGPU device."""
    require_device(WEBGPU)


def require_vulkan() -> None:
    """Skip a test where there is no Vulkan device."""
    require_device(VULKAN)


def on_device(funcs: Sequence[PrimFunc], target: Target) -> DeviceModule:
    """Functions with names of their own, built as one program for the device that is here."""
    require_device(target)
    return load_program(program_of(funcs, target), target, find_device(target.kind))


def on_opencl(funcs: Sequence[PrimFunc]) -> DeviceModule:
    """Functions on an OpenCL device."""
    return on_device(funcs, OPENCL)


def on_webgpu(funcs: Sequence[PrimFunc]) -> DeviceModule:
    """Functions on a WebGPU device."""
    return on_device(funcs, WEBGPU)


def on_vulkan(funcs: Sequence[PrimFunc]) -> DeviceModule:
    """Functions on a Vulkan device."""
    return on_device(funcs, VULKAN)


def cuda_text(funcs: Sequence[PrimFunc], target: Target = CUDA) -> str:
    """The CUDA C of functions."""
    return program_of(funcs, target).source


def opencl_text(funcs: Sequence[PrimFunc]) -> str:
    """The OpenCL C of functions."""
    return program_of(funcs, OPENCL).source
