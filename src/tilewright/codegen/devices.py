"""Functions to modules that run on a device: which dialect, compiler and runtime belong to each kind of target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tilewright.codegen.c.dialect import Dialect
from tilewright.codegen.c.program import device_program
from tilewright.codegen.cuda.dialect import CudaDialect
from tilewright.codegen.opencl.dialect import OpenCLDialect
from tilewright.runtime.artifact import FunctionInfo
from tilewright.runtime.cuda import cuda_device
from tilewright.runtime.device_program import Device, DeviceModule
from tilewright.runtime.opencl import opencl_device
from tilewright.target.target import Target
from tilewright.tir.function import PrimFunc


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """One kind of device: the language of its kernels, and how the first device here is found."""

    dialect: type[Dialect]
    device: Callable[[], Device]


DEVICE_KINDS: Final[dict[str, DeviceKind]] = {
    "opencl": DeviceKind(OpenCLDialect, opencl_device),
    "cuda": DeviceKind(CudaDialect, cuda_device),
}


def device_module(funcs: Sequence[PrimFunc], infos: Sequence[FunctionInfo], target: Target) -> DeviceModule:
    """Scheduled functions with their signatures, compiled for a target and loaded on its first device here."""
    kind = DEVICE_KINDS[target.kind]
    return DeviceModule(device_program(funcs, infos, target, kind.dialect()), kind.device())
