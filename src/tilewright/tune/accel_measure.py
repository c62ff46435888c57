"""Measuring candidates for the accelerator: built in several processes, their cycles counted in another one.

Cycles are counted by a model of the hardware's control, so nothing else on the machine disturbs them. Where Verilator
is installed the winner of each task is confirmed on the simulated hardware.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.accel.hardware.build import can_simulate
from tilewright.lower.kernel import CompiledKernel
from tilewright.target import Target
from tilewright.tune.accel_runner import CycleTrial
from tilewright.tune.device_measure import DeviceMeasurer
from tilewright.tune.device_runner import DeviceBudget
from tilewright.tune.measure import Limits, Measurement
from tilewright.tune.space import Point
from tilewright.tune.task import Task

_LIMITS = Limits(build_seconds=300.0, run_seconds=300.0)
"""Nothing is timed, so a machine that is busy with something else only makes it take longer."""
_HARDWARE_SECONDS = 900.0
"""How long the hardware's simulation of one candidate may take, with building it."""


class CycleMeasurer(DeviceMeasurer):
    """Counts cycles by the cycle model; confirms on the simulated hardware where it can."""

    def __init__(self, builders: int | None = None, *, limits: Limits | None = None) -> None:
        super().__init__(builders, limits=limits or _LIMITS, runner="tilewright.tune.accel_runner")
        self.can_confirm = can_simulate()
        """Whether the hardware can be simulated here."""

    def confirm(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        """What points take on the simulated hardware."""
        for point in points:
            yield self._measured(task, point, on_hardware=True)

    def _trial(self, task: Task, code: CompiledKernel, default: CompiledKernel, on_hardware: bool) -> CycleTrial:
        return CycleTrial(task.kernel.func, task.target, code, default, on_hardware)

    def _run_seconds(self, on_hardware: bool) -> float:
        return _HARDWARE_SECONDS if on_hardware else self.limits.run_seconds


def device_measurer(target: Target, budget: DeviceBudget | None = None) -> DeviceMeasurer:
    """What measures candidates for a device of this machine."""
    return CycleMeasurer() if target.capabilities.counted_cycles else DeviceMeasurer(budget=budget)
