"""The process that compiles candidates: a crash or a hang of the compiler costs one candidate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.backends.host import compile_functions
from tilewright.lower.kernel import CompiledKernel, Kernel, compile_kernel, compile_scheduled
from tilewright.lower.schedules import use_schedule
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
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
        if request.program is not None:
            return _compiled(request.program, target)
        used = use_schedule(kernel.func, target, kernel.answers, lambda func: _compiled(func, target))
        return _as_asked(replace(used.result, failed_template=used.failure), kernel)
    if request.program is None:
        made = _as_asked(compile_kernel(kernel, target, planned=True), kernel)
    else:
        made = compile_scheduled(kernel.func, request.program, target, planned=True)
    if made.refused:
        raise UserError(f"the device does not run it: {made.refused}")
    return made


def _compiled(scheduled: PrimFunc, target: Target) -> CompiledKernel:
    return CompiledKernel(compile_functions([scheduled], target), packing_of(scheduled))


def _as_asked(made: CompiledKernel, kernel: Kernel) -> CompiledKernel:
    """A candidate must be the schedule of its answers: what a plainer one takes says nothing about them."""
    if made.failed_template and kernel.answers:
        raise UserError(f"the template fails for these answers: {made.failed_template}")
    return made


def answer(request: object) -> CompiledKernel:
    """Build one candidate."""
    assert isinstance(request, BuildRequest)
    return build_candidate(request)
