"""Schedules of a kernel, from the fastest to the plainest: where a template fails, the next one is taken.

A template that fails is a defect of Tilewright, but never a reason for a model not to compile: kernels have several
schedules, each made from the unscheduled program anew, and what fails leaves nothing behind. Whoever compiles hears
which kernels have a plainer schedule than they should, and why (`Compilation.failed_templates`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from tilewright.backends.backend import Backend, backend_of
from tilewright.lower.opaque_sizes import hide_sizes, show_sizes
from tilewright.support import settings, trace
from tilewright.support.errors import CompilerBug
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.legality import Proven, require_legal
from tilewright.tir.schedule.schedule import Schedule
from tilewright.topi.schedule.choices import Answer, Choices
from tilewright.topi.schedule.template import Scheduled, TemplateChoice

T = TypeVar("T")


def schedule_kernel(
    func: PrimFunc, target: Target, choices: Choices | None = None, sch: Schedule | None = None
) -> Scheduled:
    """The schedule that templates make of a program, with `choices` in place of their own where given.

    `sch` is a schedule of the program to begin with, where it is to be a special one. A template that fails raises.
    """
    scheduled = _by_templates(func, target, choices, sch)
    if scheduled.failures:
        raise ScheduleError("; ".join(scheduled.failures))
    return scheduled


def _by_templates(func: PrimFunc, target: Target, choices: Choices | None, sch: Schedule | None = None) -> Scheduled:
    """The same, where another template may stand in for one that fails (`Scheduled.failures`)."""
    try:
        with trace.span("schedule"):
            schedule = backend_of(target, Backend).schedule
            if sch is not None:
                return schedule(func, target, choices, sch)
            plain, hidden = hide_sizes(func)
            scheduled = schedule(plain, target, choices, None)
            return replace(scheduled, func=show_sizes(scheduled.func, hidden))
    except (ScheduleError, CompilerBug, MemoryError):
        raise
    except Exception as error:
        # A template that trips over a shape (an index, a division by zero) fails like one that asks for the impossible.
        raise CompilerBug(f"{type(error).__name__} in the schedule template of {func.name}: {error}") from error


@dataclass(frozen=True, slots=True)
class Used(Generic[T]):
    """What came of the first schedule that works, and why those before it do not; empty if the first one does."""

    result: T
    templates: tuple[TemplateChoice, ...]
    """The templates of that schedule, and why others were passed over."""
    failure: str = ""


def use_schedule(
    func: PrimFunc, target: Target, answers: Mapping[str, Answer], use: Callable[[PrimFunc], T]
) -> Used[T]:
    """Use the first schedule of a program that can be made and used; `answers` are tuned choices of the fastest.

    `use` lowers and compiles, say: a schedule that only turns out later to be none is as bad. With the setting
    STRICT_TEMPLATES the first failure is raised.
    """
    failures: list[str] = []
    first: Exception | None = None
    for name, make in _schedules(func, target, answers):
        try:
            scheduled = make()
            result = use(scheduled.func)
        except (ScheduleError, CompilerBug) as error:
            if settings.STRICT_TEMPLATES.get():
                raise
            first = first or error
            failures.append(f"{name} failed: {_message(error)}")
        else:
            failures += [f"the template {failure}" for failure in scheduled.failures]
            return Used(result, scheduled.templates, "; ".join(failures and [*failures, f"it has {name}"]))
    assert first is not None
    raise first


def require_legal_schedule(scheduled: PrimFunc) -> None:
    """Templates use primitives alone, which prove their steps: what they make and must not run is a bug of ours."""
    with trace.span("verify"):
        try:
            require_legal(scheduled, Proven.THREADS)
        except ScheduleError as error:
            raise CompilerBug(f"the schedule of kernel {scheduled.name} must not run: {error}") from error


def _schedules(
    func: PrimFunc, target: Target, answers: Mapping[str, Answer]
) -> Iterator[tuple[str, Callable[[], Scheduled]]]:
    """Names and makers of the schedules of a program, the fastest first. The last one is the program as it is."""
    if answers:
        yield "the tuned schedule", lambda: schedule_kernel(func, target, Choices(answers))
    yield "the template's schedule", lambda: _by_templates(func, target, Choices())
    plain = backend_of(target, Backend).plain_schedule
    yield "the plain schedule", lambda: Scheduled(plain(func, target), (TemplateChoice("plain"),))
    yield "no schedule", lambda: Scheduled(func, (TemplateChoice(""),))


def _message(error: ScheduleError | CompilerBug) -> str:
    """What went wrong in one line: without the program as it was."""
    return (error.message if isinstance(error, ScheduleError) else str(error)).splitlines()[0]
