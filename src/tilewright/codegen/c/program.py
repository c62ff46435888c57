"""Functions to a program for a device: lowered, split in kernels, emitted in a dialect, with their launches."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.c.dialect import Dialect
from tilewright.codegen.c.kernels import emit_kernels
from tilewright.ir.build import mul
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import IntImm, PrimExpr, const_value
from tilewright.runtime.artifact import Extent, FunctionInfo, LaunchInfo
from tilewright.runtime.device_program import DeviceFunctionInfo, DeviceProgram
from tilewright.support import trace
from tilewright.target.target import Target
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.split_host_device import DeviceKernel, SplitFunction, buffer_bytes, split_host_device
from tilewright.tir.pipeline import lower
from tilewright.tir.script import to_script


def device_program(
    funcs: Sequence[PrimFunc], infos: Sequence[FunctionInfo], target: Target, dialect: Dialect
) -> DeviceProgram:
    """The program of scheduled functions with the given signatures."""
    with trace.span("lower"):
        split = [split_host_device(lower(func, target), target) for func in funcs]
    with trace.span("emit"):
        kernels = [kernel for function in split for kernel in function.kernels]
        source = emit_kernels(kernels, dialect) if kernels else ""
    functions = tuple(_function(function, info) for function, info in zip(split, infos, strict=True))
    return DeviceProgram(target.kind, source, functions)


def _function(function: SplitFunction, info: FunctionInfo) -> DeviceFunctionInfo:
    places = [*function.func.params, *function.workspaces]
    launches = tuple(_launch(kernel, places) for kernel in function.kernels)
    return DeviceFunctionInfo(info, launches, tuple(_bytes(buffer) for buffer in function.workspaces))


def _launch(kernel: DeviceKernel, places: Sequence[object]) -> LaunchInfo:
    args = tuple(next(n for n, place in enumerate(places) if place is param) for param in kernel.func.params)
    x, y, z = (_extent(extent) for extent in kernel.grid)
    shared = sum(buffer_bytes(buffer) or 0 for buffer in kernel.shared)
    return LaunchInfo(kernel.func.name, (x, y, z), kernel.block, args, shared)


def _extent(extent: PrimExpr) -> Extent:
    value = const_value(extent)
    return to_script(extent) if value is None else value


def _bytes(buffer: Buffer) -> Extent:
    total: PrimExpr = IntImm(buffer.dtype.itemsize, INDEX)
    for dim in buffer.shape:
        total = mul(total, dim)
    return _extent(total)
