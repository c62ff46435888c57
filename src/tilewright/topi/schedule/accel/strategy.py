"""Schedules of kernels for the tensor processor: the first template that fits; what none fits is the host's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilewright.accel.config import AccelConfig
from tilewright.support.errors import UnsupportedError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.schedule import Schedule
from tilewright.topi.schedule.accel.copy import find_copy, schedule_copy
from tilewright.topi.schedule.accel.pool import find_pool, schedule_pool
from tilewright.topi.schedule.accel.product import find_product, schedule_product
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.template import Scheduled, Template, apply_first


def _config(context: ScheduleContext) -> AccelConfig:
    return AccelConfig.from_text(context.target.arch)


def _why_not(find: Callable[[ScheduleContext, AccelConfig], object]) -> Callable[[ScheduleContext], str | None]:
    """Why a template's kernel is not there, in the words of what looks for it."""

    def matches(context: ScheduleContext) -> str | None:
        found = find(context, _config(context))
        return found if isinstance(found, str) else None

    return matches


TEMPLATES: Final = (
    Template(
        "product",
        "tiles of results in accumulators, for two virtual threads",
        _why_not(find_product),
        lambda context: schedule_product(context, _config(context)),
    ),
    Template(
        "pool",
        "windows of a tile as accumulators, of which ALU takes the greatest",
        _why_not(find_pool),
        lambda context: schedule_pool(context, _config(context)),
    ),
    Template(
        "copy",
        "tiles of rows through the memory of results, stored with strides",
        _why_not(find_copy),
        lambda context: schedule_copy(context, _config(context)),
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
