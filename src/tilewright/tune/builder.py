"""The process that compiles candidates: a crash or a hang of the compiler costs one candidate."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.llvm.build import compile_functions
from tilewright.lower.kernel import CompiledKernel, Kernel, schedule_kernel
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
    """The code of a candidate. Not through the cache of objects: most candidates are never wanted again."""
    kernel = request.kernel
    scheduled = request.program
    if scheduled is None:
        scheduled = schedule_kernel(kernel.func, request.target, Choices(kernel.answers))
    return CompiledKernel(compile_functions([scheduled], request.target), packing_of(scheduled))


def answer(request: object) -> CompiledKernel:
    """Build one candidate."""
    assert isinstance(request, BuildRequest)
    return build_candidate(request)
