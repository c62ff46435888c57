"""Functions to a program for a device: lowered, split in kernels, emitted in a language, with their launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.ir.build import mul
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import IntImm, PrimExpr, const_value
from tilewright.runtime.core.artifact import Extent, FunctionInfo, LaunchInfo
from tilewright.runtime.device.program import DeviceFunctionInfo
from tilewright.tir.buffer import Buffer
from tilewright.tir.passes.split_host_device import DeviceKernel, SplitFunction
from tilewright.tir.script import to_script


def device_functions(split: Sequence[SplitFunction], infos: Sequence[FunctionInfo]) -> tuple[DeviceFunctionInfo, ...]:
    """Functions with the given signatures, as the host runs them."""
    return tuple(_function(function, info) for function, info in zip(split, infos, strict=True))


def _function(function: SplitFunction, info: FunctionInfo) -> DeviceFunctionInfo:
    sizes = tuple(_extent(nbytes(buffer)) for buffer in function.workspaces)
    return DeviceFunctionInfo(info, launches_of(function, _extent), sizes)


def launches_of(function: SplitFunction, show: Callable[[PrimExpr], Extent]) -> tuple[LaunchInfo, ...]:
    """The launches of a function's kernels; `show` writes extents down, in whatever names symbols have there."""
    places = {id(place): number for number, place in enumerate((*function.func.params, *function.workspaces))}
    given = [kernel.func.params[: len(kernel.func.params) - len(kernel.steps)] for kernel in function.kernels]
    launches = [
        launch_of(kernel, tuple(places[id(param)] for param in params), show)
        for kernel, params in zip(function.kernels, given, strict=True)
    ]
    return tuple(replace(launches[number], values=values) for number, values in function.order)


def launch_of(kernel: DeviceKernel, args: tuple[int, ...], show: Callable[[PrimExpr], Extent]) -> LaunchInfo:
    """The launch of a kernel by itself, with the numbers of what it is given."""
    x, y, z = (show(extent) for extent in kernel.launched)
    dynamic = kernel.shared_bytes if kernel.is_dynamic else 0
    return LaunchInfo(
        kernel.func.name, (x, y, z), kernel.block, args, kernel.shared_bytes, dynamic, (kernel.cluster, 1, 1)
    )


def _extent(extent: PrimExpr) -> Extent:
    value = const_value(extent)
    return to_script(extent) if value is None else value


def nbytes(buffer: Buffer) -> PrimExpr:
    """The size of a buffer in bytes, as an expression of its dimensions."""
    total: PrimExpr = IntImm(buffer.dtype.itemsize, INDEX)
    for dim in buffer.shape:
        total = mul(total, dim)
    return total
