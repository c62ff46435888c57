"""Measuring candidates: built in some processes, checked and timed in another, while the next ones are being built.

Where what is timed runs on all processors, all of a batch are built before the first is timed.

    with LocalMeasurer() as measurer:
        for result in measurer.measure(task, points): ...

A measurer is anything with `measure`: here on this machine; over the network and on a cluster in files of their own.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.lower.kernel import CompiledKernel
from tilewright.support.errors import TilewrightError, UnsupportedError
from tilewright.support.processors import usable_cpus
from tilewright.target import Target
from tilewright.topi.schedule.choices import Answer
from tilewright.tune.builder import build_candidate
from tilewright.tune.child import Child
from tilewright.tune.runner import Budget, Timing, Trial
from tilewright.tune.space import Point
from tilewright.tune.task import Task


@dataclass(frozen=True, slots=True)
class Measurement:
    """What came of one candidate: its time and the default schedule's beside it, or why there is none."""

    answers: Mapping[str, Answer]
    seconds: float | None
    reference: float | None = None
    error: str | None = None


class Measurer(Protocol):
    """Measures candidates somewhere."""

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        """The measurements of some points, in their order, each as soon as it and those before it are there."""

    def close(self) -> None:
        """Give back what it holds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long building and running one candidate may take, and how much memory its process."""

    build_seconds: float = 60.0
    run_seconds: float = 30.0
    memory_bytes: int = 8 << 30


class Defaults:
    """The compiled default schedules of the tasks met so far, for CPUs: every batch is measured against them."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CompiledKernel] = {}

    def code(self, task: Task) -> CompiledKernel:
        """The code of a task's default schedule."""
        if not task.target.is_cpu:
            raise UnsupportedError(
                f"kernels for '{task.target.kind}' are measured where the device is",
                hint="tune on the machine with the device, without a tracker or a cluster",
            )
        key = (task.key, str(task.target))
        if key not in self._codes:
            self._codes[key] = build_candidate(task.request({}))
        return self._codes[key]


def divided_cpus() -> tuple[frozenset[int] | None, frozenset[int] | None]:
    """The processors for all work but what is timed, and the one for that alone; None where there is none to spare."""
    cpus = sorted(usable_cpus())
    return (frozenset(cpus[:-1]), frozenset(cpus[-1:])) if len(cpus) > 1 else (None, None)


def spares_a_cpu(target: Target) -> bool:
    """Whether this machine can do something else while a kernel for a target is timed."""
    return target.cores < len(usable_cpus())


class LocalMeasurer:
    """Measures on this machine: one process runs candidates, the others build them."""

    def __init__(
        self, builders: int | None = None, *, budget: Budget | None = None, limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        self.budget = budget or Budget()
        self._defaults = Defaults()
        others, quiet = divided_cpus()
        beside = builders if builders is not None else len(others or (0,))
        before = builders if builders is not None else len(usable_cpus())
        self._beside = [self._builder(others) for _ in range(max(1, beside))]
        self._before = [self._builder(None) for _ in range(max(1, before))]
        self._single = Child("tilewright.tune.runner", memory_bytes=self.limits.memory_bytes, cpus=quiet)
        self._several = Child("tilewright.tune.runner", memory_bytes=self.limits.memory_bytes)

    def close(self) -> None:
        """End the processes."""
        for child in (*self._beside, *self._before, self._single, self._several):
            child.close()

    def __enter__(self) -> LocalMeasurer:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        """Build and run; errors are part of the answer."""
        default = self._defaults.code(task)
        runner = self._single if task.target.cores == 1 else self._several
        found = self._built(task, points, self._beside) if spares_a_cpu(task.target) else self._all_built(task, points)
        for point, built in zip(points, found, strict=True):
            if isinstance(built, TilewrightError):
                yield Measurement(point, None, error=f"build: {built}")
                continue
            trial = Trial(task.kernel.func, task.target, built, default, self.budget)
            try:
                timing = runner.ask(trial, self.limits.run_seconds)
            except TilewrightError as error:
                yield Measurement(point, None, error=f"run: {error}")
                continue
            assert isinstance(timing, Timing)
            yield Measurement(point, timing.seconds, timing.reference)

    def _builder(self, cpus: frozenset[int] | None) -> Child:
        return Child("tilewright.tune.builder", memory_bytes=self.limits.memory_bytes, cpus=cpus)

    def _all_built(self, task: Task, points: Sequence[Point]) -> list[CompiledKernel | TilewrightError]:
        """The same when none is being run: a compiler beside a kernel on all processors would slow down some of it."""
        return list(self._built(task, points, self._before))

    def _built(
        self, task: Task, points: Sequence[Point], builders: Sequence[Child]
    ) -> Iterator[CompiledKernel | TilewrightError]:
        """The code of each point or what went wrong, in order, a few ahead of what is being run."""
        slots: list[queue.Queue[CompiledKernel | TilewrightError]] = [queue.Queue(1) for _ in points]
        waiting = iter(range(len(points)))
        lock = threading.Lock()
        stopped = threading.Event()

        def work(child: Child) -> None:
            while not stopped.is_set():
                with lock:
                    number = next(waiting, None)
                if number is None:
                    return
                try:
                    reply = child.ask(task.request(points[number]), self.limits.build_seconds)
                    assert isinstance(reply, CompiledKernel)
                    slots[number].put(reply)
                except TilewrightError as error:
                    slots[number].put(error)

        threads = [threading.Thread(target=work, args=(child,), daemon=True) for child in builders]
        for thread in threads:
            thread.start()
        try:
            for slot in slots:
                yield slot.get()
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
