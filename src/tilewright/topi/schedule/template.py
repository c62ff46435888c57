"""Schedule templates as ordered tables: the first one that fits a kernel schedules it.

    TEMPLATES = (
        Template("attention", "online softmax, a block of rows at a time", matches=..., apply=...),
        ...
    )
    choice = apply_first(TEMPLATES, context)        # choice.name, choice.passed_over

`matches` only looks: it returns None where a template fits, else why it does not, in a few words. `apply` changes the
schedule; it works on a copy, so that one that fails leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.support import settings
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.topi.schedule.context import ScheduleContext


@dataclass(frozen=True, slots=True)
class Template:
    """One way to schedule a family of kernels."""

    name: str
    meaning: str
    """What the schedule does, in a few words."""
    matches: Callable[[ScheduleContext], str | None]
    """None where the template fits the kernel, else why not. It never changes the schedule."""
    apply: Callable[[ScheduleContext], None]
    """Schedule the kernel."""


@dataclass(slots=True)
class TemplateChoice:
    """Which template scheduled a kernel, and why those before it in the table did not."""

    name: str = ""
    passed_over: list[tuple[str, str]] = field(default_factory=list)
    """Names of templates, and reasons."""

    def describe(self) -> str:
        """One line for people: the template, and behind it those that were passed over."""
        others = "; ".join(f"{name}: {reason}" for name, reason in self.passed_over)
        return self.name + (f" (not {others})" if others else "")


def apply_first(templates: Sequence[Template], context: ScheduleContext) -> TemplateChoice | None:
    """Apply the first template that fits; None where none does.

    One that says it fits and then is not legal is a defect: an error with the setting STRICT_TEMPLATES, else the next
    one is taken.
    """
    choice = TemplateChoice()
    for template in templates:
        reason = template.matches(context)
        if reason is None:
            trial = context.copy()
            try:
                template.apply(trial)
            except ScheduleError as error:
                if settings.STRICT_TEMPLATES.get():
                    raise
                reason = f"failed: {error.message.splitlines()[0]}"
            else:
                context.take(trial)
                choice.name = template.name
                return choice
        choice.passed_over.append((template.name, reason))
    return None
