"""Schedules: eager, traced, legality-checked transformations of loop programs. See `docs/schedules.md`."""

from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle, SampledInt
from tilewright.tir.schedule.schedule import Schedule, replay
from tilewright.tir.schedule.trace import Instruction, Trace

__all__ = ["BlockHandle", "Instruction", "LoopHandle", "SampledInt", "Schedule", "ScheduleError", "Trace", "replay"]
