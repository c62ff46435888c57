"""Templates that may turn out not to fit a program: tried on a copy of the schedule."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.tir.schedule.errors import ScheduleError
from tilewright.topi.schedule.context import ScheduleContext


def attempt(context: ScheduleContext, template: Callable[[ScheduleContext], bool]) -> bool:
    """Whether a template applied. Where it says no, or a step of it is not legal, the program stays as it was."""
    trial = ScheduleContext(context.sch.copy(), context.target, dict(context.packing), context.choices)
    try:
        if not template(trial):
            return False
    except ScheduleError:
        return False
    context.sch, context.packing = trial.sch, trial.packing
    return True
