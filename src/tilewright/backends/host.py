"""Back ends for CPUs: functions to text to an object file, which is linked with the objects of other functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tilewright.backends.backend import Backend, Scheduler, backend_of, lower, lowered
from tilewright.backends.code_stages import compile_source, staged_source
from tilewright.ir.passes import Pipeline
from tilewright.ir.stage_files import StageText
from tilewright.support import trace
from tilewright.target.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.pipeline import cpu_pipeline
from tilewright.topi.schedule.cpu.plain import schedule_plain_cpu
from tilewright.topi.schedule.cpu.strategy import schedule_cpu


@dataclass(frozen=True, kw_only=True)
class HostBackend(Backend):
    """A back end whose code runs on a CPU, in the process that calls it (`docs/abi.md`)."""

    lowering: Callable[[Target], Pipeline] = field(default=cpu_pipeline)
    planned_lowering: Callable[[Target], Pipeline] = field(default=partial(cpu_pipeline, planned=True))
    """The same for functions whose callers plan memory, and give them their scratch memory."""
    schedule: Scheduler = field(default=schedule_cpu)
    plain_schedule: Callable[[PrimFunc, Target], PrimFunc] = field(default=schedule_plain_cpu)
    language: str
    """The name of the language that functions are written in."""
    suffix: str = ".txt"
    """What names of files in it end with."""
    emit: Callable[[Sequence[PrimFunc], Target], str]
    """The text of lowered functions: one C function each, which takes slots and returns a status."""
    has_entry: bool = True
    """Whether models have an entry in machine code beside their kernels; else what writes them to disk makes one."""


def host_source(funcs: Sequence[PrimFunc], target: Target) -> str:
    """The text of scheduled functions, lowered for a target."""
    with trace.span("lower"):
        plain = [lower(func, target) for func in funcs]
    return _text(plain, target)


def lower_planned(func: PrimFunc, target: Target) -> PrimFunc:
    """A scheduled function, lowered for callers that plan memory."""
    return lowered(func, backend_of(target, HostBackend).planned_lowering(target))


def compile_functions(funcs: Sequence[PrimFunc], target: Target) -> bytes:
    """The object of scheduled functions."""
    return _object(funcs[0].name, host_source(funcs, target), target)


def compile_lowered(func: PrimFunc, target: Target) -> bytes:
    """The object of a function that is lowered already."""
    return _object(func.name, _text([func], target), target)


def staged_function(func: PrimFunc, target: Target) -> StageText:
    """The text of a function that is lowered already, as it goes on to the compiler."""
    backend = backend_of(target, HostBackend)
    return staged_source(func.name, _text([func], target), backend.suffix, backend.compiler)


def _text(plain: Sequence[PrimFunc], target: Target) -> str:
    with trace.span("emit"):
        return backend_of(target, HostBackend).emit(plain, target)


def _object(name: str, text: str, target: Target) -> bytes:
    backend = backend_of(target, HostBackend)
    return compile_source(name, text, backend.suffix, backend.compiler, target)
