"""Back ends for devices with kernels: functions to kernels to text to code, with the launches of the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tilewright.backends.backend import Backend, backend_of, lowered
from tilewright.backends.code_stages import compile_source, staged_source
from tilewright.codegen.c.horizontal import emit_launches
from tilewright.codegen.c.kernels import CLanguage
from tilewright.codegen.c.program import device_functions, launches_of, nbytes
from tilewright.codegen.language import KernelLanguage
from tilewright.ir.expr import PrimExpr
from tilewright.ir.passes import Pipeline
from tilewright.runtime.core.artifact import Extent, FunctionInfo, LaunchInfo
from tilewright.runtime.device.devices import find_device
from tilewright.runtime.device.program import Device, DeviceModule, DeviceProgram
from tilewright.support import trace
from tilewright.support.errors import CompilerBug
from tilewright.target.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.horizontal import HorizontalLaunch, Run
from tilewright.tir.passes.split_host_device import DeviceKernel, SplitFunction
from tilewright.tir.pipeline import gpu_pipeline


@dataclass(frozen=True, kw_only=True)
class DeviceBackend(Backend):
    """A back end whose code runs on a device that the host launches kernels on."""

    lowering: Callable[[Target], Pipeline] = field(default=gpu_pipeline)
    language: type[KernelLanguage]
    """The language of its kernels."""


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
        pipeline = backend_of(target, DeviceBackend).lowering(target)
        return pipeline.finish(lowered(func, pipeline), SplitFunction)


def device_source(kernels: Sequence[DeviceKernel], target: Target) -> str:
    """The text of kernels as one program."""
    with trace.span("emit"):
        return backend_of(target, DeviceBackend).language().emit(kernels) if kernels else ""


def device_code(split: SplitFunction, source: str, target: Target, show: Callable[[PrimExpr], Extent]) -> DeviceCode:
    """Kernels and their text, compiled for a target. `show` writes extents of launches down."""
    code = compiled_source(split.func.name, source, target)
    launches = tuple(replace(launch, dependent=target.has_dependent_launch) for launch in launches_of(split, show))
    return DeviceCode(code, launches, tuple(nbytes(buffer) for buffer in split.workspaces))


def horizontal_source(launches: Sequence[Run | HorizontalLaunch], target: Target) -> str:
    """The text of launches that do the work of several kernels, as one program."""
    language = backend_of(target, DeviceBackend).language()
    if not isinstance(language, CLanguage):
        raise CompilerBug(f"launches in {language.name} are not shared by kernels")
    with trace.span("emit"):
        return emit_launches(launches, language)


def compiled_source(name: str, source: str, target: Target) -> bytes:
    """Text as the code of a target."""
    backend = backend_of(target, DeviceBackend)
    return compile_source(name, source, backend.language.suffix, backend.compiler, target) if source else b""


def shown_source(name: str, kernels: Sequence[DeviceKernel], target: Target) -> str:
    """The text of kernels as it goes on to the compiler: of a file, if there is one in its place."""
    return shown_text(name, device_source(kernels, target), target)


def shown_text(name: str, source: str, target: Target) -> str:
    """Text as it goes on to the compiler of a target: of a file, if there is one in its place."""
    backend = backend_of(target, DeviceBackend)
    return staged_source(name, source, backend.language.suffix, backend.compiler).text if source else ""


def device_program(funcs: Sequence[PrimFunc], infos: Sequence[FunctionInfo], target: Target) -> DeviceProgram:
    """The program of scheduled functions with the given signatures."""
    split = [device_kernels(func, target) for func in funcs]
    source = shown_source(funcs[0].name, [kernel for function in split for kernel in function.kernels], target)
    return DeviceProgram(target.kind, source, device_functions(split, infos))


def load_program(program: DeviceProgram, target: Target, device: Device) -> DeviceModule:
    """A program compiled for a device and loaded on it: what a target says of the architecture gives way to it."""
    arch = device.numbers().get("arch")
    name = program.functions[0].info.symbol
    target = target if arch is None else target.replace(arch=arch)
    return DeviceModule(program, device, compiled_source(name, program.source, target))


def device_module(funcs: Sequence[PrimFunc], infos: Sequence[FunctionInfo], target: Target) -> DeviceModule:
    """Scheduled functions with their signatures, compiled for a target and loaded on its first device here."""
    return load_program(device_program(funcs, infos, target), target, find_device(target.kind))
