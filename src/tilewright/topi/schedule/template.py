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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tilewright.support import settings
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.topi.schedule.context import ScheduleContext

Kind = TypeVar("Kind", bound=ScheduleContext)
Fitting = TypeVar("Fitting", bound=ScheduleContext, contravariant=True)


@dataclass(frozen=True, slots=True)
class Template(Generic[Fitting]):
    """One way to schedule a family of kernels, or of stages: contexts of stages say which."""

    name: str
    meaning: str
    """What the schedule does, in a few words."""
    matches: Callable[[Fitting], str | None]
    """None where the template fits the kernel, else why not. It never changes the schedule."""
    apply: Callable[[Fitting], None]
    """Schedule the kernel."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A template that did not schedule a kernel, and why."""

    name: str
    reason: str
    failed: bool = False
    """Whether it said that it fits, and then was not legal: a defect of Tilewright."""


@dataclass(frozen=True, slots=True)
class TemplateChoice:
    """Which template scheduled a kernel (or one stage of it), and why those before it in the table did not."""

    name: str
    """Empty where no template fits."""
    passed_over: tuple[PassedOver, ...] = ()
    stage: str = ""
    """The stage that it scheduled; empty for a whole kernel."""

    @property
    def failures(self) -> tuple[str, ...]:
        """What went wrong in templates that said they fit."""
        return tuple(f"{item.name}: {item.reason}" for item in self.passed_over if item.failed)

    def describe(self) -> str:
        """A line for the template, and one for each that was passed over."""
        stage = f"{self.stage}: " if self.stage else ""
        others = [f"  not {item.name}: {'failed: ' if item.failed else ''}{item.reason}" for item in self.passed_over]
        return "\n".join([stage + (self.name or "no template"), *others])


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A scheduled program, and which templates scheduled it: one the whole kernel, or one each stage."""

    func: PrimFunc
    templates: tuple[TemplateChoice, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """What went wrong in templates that said they fit."""
        return tuple(failure for choice in self.templates for failure in choice.failures)


def apply_first(
    templates: Sequence[Template[Kind]], context: Kind, before: Sequence[PassedOver] = ()
) -> TemplateChoice:
    """Apply the first template that fits; the choice has no name where none does.

    `before` are templates of an earlier table that were passed over. One that says it fits and then is not legal is a
    defect: an error with the setting STRICT_TEMPLATES, else the next one is taken.
    """
    passed_over = list(before)
    for template in templates:
        reason = template.matches(context)
        if reason is not None:
            passed_over.append(PassedOver(template.name, reason))
            continue
        trial = context.copy()
        asked = context.choices.copy()
        try:
            template.apply(trial)
        except ScheduleError as error:
            if settings.STRICT_TEMPLATES.get():
                raise
            # The next one asks its own questions.
            context.choices.take(asked)
            passed_over.append(PassedOver(template.name, error.message.splitlines()[0], failed=True))
            continue
        context.take(trial)
        return TemplateChoice(template.name, tuple(passed_over))
    return TemplateChoice("", tuple(passed_over))


def apply_first_legal(steps: Iterable[Callable[[Kind], None]], context: Kind) -> None:
    """Do the first of several things that turns out to be legal: tiles, say, whose guards a proof may not see through.

    The error of the last one is raised where none is.
    """
    last: ScheduleError | None = None
    for step in steps:
        trial = context.copy()
        try:
            step(trial)
        except ScheduleError as error:
            last = error
            continue
        context.take(trial)
        return
    raise last or ScheduleError("there is nothing to try", func=context.sch.func)
