"""Measuring candidates on a device of this machine: built in several processes, checked and timed in another one.

with DeviceMeasurer() as measurer:
    measurer.prepare(other, points)                       # built while something else is measured
    for result in measurer.measure(task, points): ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock

from tilewright.lower.kernel import CompiledKernel
from tilewright.support.errors import TilewrightError
from tilewright.support.processors import usable_cpus
from tilewright.tune.child import Child
from tilewright.tune.device_runner import DeviceBudget, DeviceLost, DeviceTrial
from tilewright.tune.measure import Limits, Measurement
from tilewright.tune.runner import Timing
from tilewright.tune.space import Key, Point, key_of
from tilewright.tune.task import Task


class DeviceMeasurer:
    """Measures on the first device of the target's kind: one process owns it, the others build."""

    def __init__(
        self,
        builders: int | None = None,
        *,
        budget: DeviceBudget | None = None,
        limits: Limits | None = None,
        runner: str = "tilewright.tune.device_runner",
    ) -> None:
        self.limits = limits or Limits()
        self.budget = budget or DeviceBudget()
        # One processor is left to the process that runs candidates and to the search.
        count = max(1, builders if builders is not None else len(usable_cpus()) - 1)
        self._builders = [Child("tilewright.tune.builder", memory_bytes=self.limits.memory_bytes) for _ in range(count)]
        self._free: SimpleQueue[Child] = SimpleQueue()
        for child in self._builders:
            self._free.put(child)
        self._threads = ThreadPoolExecutor(count, "tilewright-build")
        self._lock = Lock()  # points are prepared in the search's thread
        self._begun: dict[tuple[str, str, Key], Future[CompiledKernel]] = {}
        self._defaults: dict[tuple[str, str], Future[CompiledKernel]] = {}
        # Drivers of devices reserve addresses without end: no limit on memory there.
        self._runner = Child(runner)

    def close(self) -> None:
        """End the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in (*self._builders, self._runner):
            child.close()

    def __enter__(self) -> DeviceMeasurer:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def prepare(self, task: Task, points: Sequence[Point]) -> None:
        """Begin to build points that will be measured soon."""
        self._default(task)
        for point in points:
            self._building(task, point)

    def code(self, task: Task, point: Point) -> CompiledKernel:
        """A candidate, built in one of the processes (unless the cache of kernels has it)."""
        try:
            return self._building(task, point).result()
        finally:
            self._forget(task, point)

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        """Build and run; errors are part of the answer."""
        self.prepare(task, points)
        try:
            for point in points:
                yield self._measured(task, point)
        finally:
            for point in points:
                # What an interrupt left over.
                self._forget(task, point)

    def _trial(self, task: Task, code: CompiledKernel, default: CompiledKernel, on_hardware: bool) -> object:
        """What the process that runs candidates is asked. A device is its own hardware."""
        return DeviceTrial(task.kernel.func, task.target, code, default, self.budget)

    def _run_seconds(self, on_hardware: bool) -> float:
        return self.limits.run_seconds

    def _measured(self, task: Task, point: Point, *, on_hardware: bool = False) -> Measurement:
        try:
            default = self._default(task).result()
            code = self.code(task, point)
        except TilewrightError as error:
            return Measurement(point, None, error=f"build: {error}")
        trial = self._trial(task, code, default, on_hardware)
        try:
            timing = self._runner.ask(trial, self._run_seconds(on_hardware))
        except DeviceLost as error:
            # Nothing runs in that process any more; the next candidate gets another one.
            self._runner.close()
            return Measurement(point, None, error=f"run: {error}")
        except TilewrightError as error:
            return Measurement(point, None, error=f"run: {error}")
        assert isinstance(timing, Timing)
        return Measurement(point, timing.seconds, timing.reference)

    def _building(self, task: Task, point: Point) -> Future[CompiledKernel]:
        name = _name(task, point)
        with self._lock:
            if name not in self._begun:
                self._begun[name] = self._threads.submit(self._build, task, point)
            return self._begun[name]

    def _forget(self, task: Task, point: Point) -> None:
        with self._lock:
            left = self._begun.pop(_name(task, point), None)
        if left is not None:
            left.cancel()

    def _default(self, task: Task) -> Future[CompiledKernel]:
        key = (task.key, str(task.target))
        with self._lock:
            if key not in self._defaults:
                self._defaults[key] = self._threads.submit(self._build, task, {})
            return self._defaults[key]

    def _build(self, task: Task, point: Point) -> CompiledKernel:
        child = self._free.get()
        try:
            made = child.ask(task.request(point), self.limits.build_seconds)
        finally:
            self._free.put(child)
        assert isinstance(made, CompiledKernel)
        return made


def _name(task: Task, point: Point) -> tuple[str, str, Key]:
    return task.key, str(task.target), key_of(point)
