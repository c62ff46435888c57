"""Schedules of kernels for the tensor processor: the first template that fits; what none fits is the host's."""

from __future__ import annotations

from typing import Final

from tilewright.accel.config import AccelConfig
from tilewright.support.errors import UnsupportedError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.schedule import Schedule
from tilewright.topi.schedule.accel.product import find_product, schedule_product
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.template import Scheduled, Template, apply_first


def _config(context: ScheduleContext) -> AccelConfig:
    return AccelConfig.from_text(context.target.arch)


def _why_not_product(context: ScheduleContext) -> str | None:
    found = find_product(context, _config(context))
    return found if isinstance(found, str) else None


TEMPLATES: Final = (
    Template(
        "product",
        "tiles of results in accumulators, for two virtual threads",
        _why_not_product,
        lambda context: schedule_product(context, _config(context)),
    ),
)


def schedule_accel(
    func: PrimFunc, target: Target, choices: Choices | None = None, sch: Schedule | None = None
) -> Scheduled:
    """A scheduled program for the tensor processor; itself where it has no instructions for the kernel."""
    context = ScheduleContext(sch or Schedule(func), target, choices=choices or Choices())
    choice = apply_first(TEMPLATES, context)
    return Scheduled(context.sch.func, (choice,))


def unscheduled(func: PrimFunc, target: Target) -> PrimFunc:
    """There is no plain way on a processor of few instructions: the host computes the kernel."""
    raise UnsupportedError("the tensor processor has no schedule for this kernel", where=f"function {func.name}")
