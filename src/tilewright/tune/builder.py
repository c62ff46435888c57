"""The process that compiles candidates: a crash or a hang of the compiler costs one candidate."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.llvm.build import compile_functions
from tilewright.lower.kernel import CompiledKernel, Kernel, compile_kernel, compile_scheduled, schedule_kernel
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.packing import packing_of


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One candidate: a kernel with the answers to try, or its `program` where no template of the library makes it."""

    kernel: Kernel
    target: Target
    program: PrimFunc | None = None


def build_candidate(request: BuildRequest) -> CompiledKernel:
    """The code of a candidate.

    Objects for CPUs do not go through the cache: most are never wanted again. Compiling for a device takes longer, and
    the best candidates are wanted again when they are tried in the whole model.
    """
    kernel, target = request.kernel, request.target
    if target.is_cpu:
        scheduled = request.program
        if scheduled is None:
            scheduled = schedule_kernel(kernel.func, target, Choices(kernel.answers))
        return CompiledKernel(compile_functions([scheduled], target), packing_of(scheduled))
    if request.program is None:
        made = compile_kernel(kernel, target, planned=True)
    else:
        made = compile_scheduled(kernel.func, request.program, target, planned=True)
    if made.refused:
        raise UserError(f"the device does not run it: {made.refused}")
    return made


def answer(request: object) -> CompiledKernel:
    """Build one candidate."""
    assert isinstance(request, BuildRequest)
    return build_candidate(request)
