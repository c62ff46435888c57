"""Functions to modules that run on a device: which dialect, compiler and runtime belong to each kind of target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tilewright.backends.cuda.dialect import CudaDialect, has_dependent_launch
from tilewright.backends.cuda.driver import compile_cuda
from tilewright.backends.metal.dialect import MetalDialect
from tilewright.backends.opencl.dialect import OpenCLDialect
from tilewright.backends.rocm.dialect import HipDialect
from tilewright.backends.rocm.driver import compile_hip
from tilewright.backends.vulkan.assembler import assemble
from tilewright.backends.vulkan.kernels import SpirvLanguage
from tilewright.backends.webgpu.kernels import WgslLanguage
from tilewright.codegen.c.program import device_program, launches_of, nbytes
from tilewright.codegen.language import KernelLanguage
from tilewright.ir.expr import PrimExpr
from tilewright.runtime.core.artifact import Extent, FunctionInfo, LaunchInfo
from tilewright.runtime.device.devices import find_device
from tilewright.runtime.device.program import DeviceModule
from tilewright.support import trace
from tilewright.target.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.split_host_device import SplitFunction, split_host_device
from tilewright.tir.pipeline import lower


def _text(source: str, target: Target) -> bytes:
    """Text, for devices whose driver compiles it."""
    return source.encode()


def _cubin(source: str, target: Target) -> bytes:
    return compile_cuda(source, target.arch)


def _code_object(source: str, target: Target) -> bytes:
    return compile_hip(source, target.arch)


def _spirv(source: str, target: Target) -> bytes:
    return assemble(source)


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """One kind of device: the language of its kernels, and how they are compiled."""

    language: type[KernelLanguage]
    compile: Callable[[str, Target], bytes] = _text
    """What an artifact keeps of a program's text: machine code where a compiler can make it without the device."""
    starts_early: Callable[[Target], bool] = lambda target: False
    """Whether kernels wait for those before them themselves, and so may be started before these are done."""
    flat_memory: bool = False
    """Whether a place inside memory is memory like any other: models then live in one block of it."""


DEVICE_KINDS: Final[dict[str, DeviceKind]] = {
    "opencl": DeviceKind(OpenCLDialect),
    "webgpu": DeviceKind(WgslLanguage),
    "vulkan": DeviceKind(SpirvLanguage, _spirv),
    "rocm": DeviceKind(HipDialect, _code_object, flat_memory=True),
    "metal": DeviceKind(MetalDialect),
    "cuda": DeviceKind(CudaDialect, _cubin, has_dependent_launch, flat_memory=True),
}


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """A function compiled for a device: code, launches, and the workspaces that its kernels share."""

    code: bytes
    launches: tuple[LaunchInfo, ...]
    workspaces: tuple[PrimExpr, ...]
    """Their sizes in bytes."""


def device_kernels(func: PrimFunc, target: Target) -> SplitFunction:
    """The kernels of a scheduled function; an error where the target cannot run them."""
    with trace.span("lower"):
        return split_host_device(lower(func, target), target)


def device_source(split: SplitFunction, target: Target) -> str:
    """The text of a function's kernels."""
    with trace.span("emit"):
        return DEVICE_KINDS[target.kind].language().emit(split.kernels) if split.kernels else ""


def device_code(split: SplitFunction, source: str, target: Target, show: Callable[[PrimExpr], Extent]) -> DeviceCode:
    """Kernels and their text, compiled for a target. `show` writes extents of launches down."""
    with trace.span("compile"):
        code = DEVICE_KINDS[target.kind].compile(source, target) if source else b""
    early = DEVICE_KINDS[target.kind].starts_early(target)
    launches = tuple(replace(launch, dependent=early) for launch in launches_of(split, show))
    return DeviceCode(code, launches, tuple(nbytes(buffer) for buffer in split.workspaces))


def device_module(funcs: Sequence[PrimFunc], infos: Sequence[FunctionInfo], target: Target) -> DeviceModule:
    """Scheduled functions with their signatures, compiled for a target and loaded on its first device here."""
    kind = DEVICE_KINDS[target.kind]
    return DeviceModule(device_program(funcs, infos, target, kind.language()), find_device(target.kind))
