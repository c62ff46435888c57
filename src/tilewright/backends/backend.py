"""`Backend`: what the compiler knows of one back end, as an object; `backend_of` finds that of a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from tilewright.backends import slices
from tilewright.backends.compiler import Compiler, compiler_of
from tilewright.ir.passes import Pipeline
from tilewright.support import settings
from tilewright.support.errors import UnsupportedError
from tilewright.target.kinds import TargetKind
from tilewright.target.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.stmt import Block
from tilewright.tir.verify import verify
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.template import Scheduled

B = TypeVar("B", bound="Backend")

Scheduler: TypeAlias = Callable[[PrimFunc, Target, Choices | None, Schedule | None], Scheduled]
"""Schedules a function for a target, with choices of a tuner, from a schedule of it that was begun."""


@dataclass(frozen=True)
class Backend:
    """One back end. `HostBackend` and `DeviceBackend` have what CPUs and devices with kernels need beside this."""

    kind: TargetKind
    lowering: Callable[[Target], Pipeline]
    """The passes from a scheduled function to what the code generator takes."""
    schedule: Scheduler
    """The schedule templates for this back end."""
    plain_schedule: Callable[[PrimFunc, Target], PrimFunc]
    """A schedule that works for every function; taken where templates fail."""

    @property
    def compiler(self) -> Compiler:
        """From the text of kernels to their code."""
        return compiler_of(self.kind.name)


def backend_of(target: Target, kind: type[B]) -> B:
    """The back end of a target: a `HostBackend` for a CPU, a `DeviceBackend` for a device, either as `Backend`."""
    if target.kind not in slices.names("backend"):
        raise UnsupportedError(f"there is no back end for the target kind {target.kind!r} yet")
    return slices.load(target.kind, "backend", kind)


def lower(func: PrimFunc, target: Target) -> PrimFunc:
    """A scheduled function after the passes of a target's lowering list."""
    return lowered(func, backend_of(target, Backend).lowering(target))


def lowered(func: PrimFunc, pipeline: Pipeline) -> PrimFunc:
    """A scheduled function after the passes of a lowering list."""
    if settings.VERIFY.get() and isinstance(func.body, Block):
        verify(func, "scheduled")
    return pipeline.run(func)
