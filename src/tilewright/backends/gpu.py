"""Back ends for GPUs: devices whose kernels the templates of `topi/schedule/gpu` bind to blocks of threads.

Apart from `device.py`, which the compiler loads for every target: nobody pays for templates that are not used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.backends.backend import Scheduler
from tilewright.backends.device import DeviceBackend
from tilewright.target.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.topi.schedule.gpu.plain import schedule_plain_gpu
from tilewright.topi.schedule.gpu.strategy import schedule_gpu


@dataclass(frozen=True, kw_only=True)
class GpuBackend(DeviceBackend):
    """A device with the schedules of GPUs."""

    schedule: Scheduler = field(default=schedule_gpu)
    plain_schedule: Callable[[PrimFunc, Target], PrimFunc] = field(default=schedule_plain_gpu)
