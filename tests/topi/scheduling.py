"""The scheduled program of a kernel alone, for tests that ask nothing else of its schedule."""

from __future__ import annotations

from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.cpu import strategy as cpu
from tilewright.topi.schedule.gpu import strategy as gpu


def schedule_cpu(func: PrimFunc, target: Target, choices: Choices | None = None) -> PrimFunc:
    """The program that the templates for CPUs make."""
    return cpu.schedule_cpu(func, target, choices).func


def schedule_gpu(func: PrimFunc, target: Target, choices: Choices | None = None) -> PrimFunc:
    """The program that the templates for GPUs make."""
    return gpu.schedule_gpu(func, target, choices).func
