"""Helpers of tests that run kernels: programs of several functions on an OpenCL device, or compiled for CUDA."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest

from tilewright.codegen.c.program import device_program
from tilewright.codegen.cuda.dialect import CudaDialect
from tilewright.codegen.opencl.dialect import OpenCLDialect
from tilewright.codegen.spirv.kernels import SpirvLanguage
from tilewright.codegen.wgsl.kernels import WgslLanguage
from tilewright.compiler import _function_info
from tilewright.runtime.cuda import compile_cuda
from tilewright.runtime.device_program import DeviceModule, DeviceProgram
from tilewright.runtime.opencl import opencl_device
from tilewright.runtime.vulkan import vulkan_device
from tilewright.runtime.webgpu import webgpu_device
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc

OPENCL = Target("opencl")
WEBGPU = Target("webgpu")
VULKAN = Target("vulkan")
CUDA = Target("cuda -arch=sm_80")


@functools.cache
def _missing_opencl() -> str:
    try:
        opencl_device()
    except UserError as error:
        return error.message
    return ""


@functools.cache
def _missing_webgpu() -> str:
    try:
        webgpu_device()
    except UserError as error:
        return error.message
    return ""


@functools.cache
def _missing_vulkan() -> str:
    try:
        vulkan_device()
    except UserError as error:
        return error.message
    return ""


@functools.cache
def _missing_nvrtc() -> str:
    try:
        compile_cuda("", "sm_80")
    except UserError as error:
        return error.message
    return ""


def require_opencl() -> None:
    """Skip a test where there is no OpenCL device."""
    if _missing_opencl():
        pytest.skip(_missing_opencl())


def require_nvrtc() -> None:
    """Skip a test where NVRTC is not installed."""
    if _missing_nvrtc():
        pytest.skip(_missing_nvrtc())


def require_webgpu() -> None:
    """Skip a test where there is no WebGPU device."""
    if _missing_webgpu():
        pytest.skip(_missing_webgpu())


def on_webgpu(funcs: Sequence[PrimFunc]) -> DeviceModule:
    """Functions with names of their own, built as one program."""
    require_webgpu()
    return DeviceModule(webgpu_program(funcs), webgpu_device())


def webgpu_program(funcs: Sequence[PrimFunc]) -> DeviceProgram:
    """Functions as a program in WGSL."""
    return device_program(funcs, [_function_info(func) for func in funcs], WEBGPU, WgslLanguage())


def require_vulkan() -> None:
    """Skip a test where there is no Vulkan device."""
    if _missing_vulkan():
        pytest.skip(_missing_vulkan())


def on_vulkan(funcs: Sequence[PrimFunc]) -> DeviceModule:
    """Functions with names of their own, built as one program."""
    require_vulkan()
    return DeviceModule(vulkan_program(funcs), vulkan_device())


def vulkan_program(funcs: Sequence[PrimFunc]) -> DeviceProgram:
    """Functions as a program in SPIR-V."""
    return device_program(funcs, [_function_info(func) for func in funcs], VULKAN, SpirvLanguage())


def on_opencl(funcs: Sequence[PrimFunc]) -> DeviceModule:
    """Functions with names of their own, built as one program."""
    require_opencl()
    program = device_program(funcs, [_function_info(func) for func in funcs], OPENCL, OpenCLDialect())
    return DeviceModule(program, opencl_device())


def cuda_text(funcs: Sequence[PrimFunc], target: Target = CUDA) -> str:
    """The CUDA C of functions."""
    return device_program(funcs, [_function_info(func) for func in funcs], target, CudaDialect()).source


def opencl_text(funcs: Sequence[PrimFunc]) -> str:
    """The OpenCL C of functions."""
    return device_program(funcs, [_function_info(func) for func in funcs], OPENCL, OpenCLDialect()).source
