"""Measuring on devices: candidates are built here, for the devices' target, and run on a pool leased from a tracker.

    with RemoteMeasurer(tw.rpc.connect_tracker("farm", 9190), "rpi5") as measurer:
        tune(tasks, database, options, measurer=measurer)

Each device is served by a thread of its own that holds a session. A candidate that crashes or hangs ends that session,
and is recorded as failed; a device that goes away is not the candidate's fault, so the candidate goes to another.
"""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tilewright.backends.llvm import deploy
from tilewright.lower.kernel import CompiledKernel
from tilewright.rpc.client import RemoteArray, RemoteModule, RemoteSession
from tilewright.rpc.pool import TrackerClient
from tilewright.rpc.wire import Disconnected, SessionDied
from tilewright.runtime.core.artifact import Artifact, FunctionInfo, ParamInfo
from tilewright.support.errors import TilewrightError, UserError
from tilewright.support.processors import usable_cpus
from tilewright.tir.function import PrimFunc
from tilewright.tir.index_map import IndexMap
from tilewright.tune.child import Child
from tilewright.tune.measure import Defaults, Limits, Measurement
from tilewright.tune.runner import Array, Budget, compare, inputs_of, result_numbers
from tilewright.tune.space import Point
from tilewright.tune.task import Task

_MOST_MOVES = 3
"""How often a candidate may lose its device before it counts as failed."""
_MOMENT, _PATIENCE = 0.1, 2.0
"""Seconds between looks at what changed, and for one question for a device."""


@dataclass(slots=True)
class _Job:
    number: int
    task: Task
    point: Point
    code: CompiledKernel
    default: CompiledKernel
    moves: int = 0


@dataclass(slots=True)
class _Bench:
    """A task on a device: the arrays there and the right results here."""

    arrays: list[Array]
    right: list[Array]
    default: RemoteModule
    kept: dict[int, RemoteArray] = field(default_factory=dict)


class RemoteMeasurer:
    """Measures on up to `devices` devices of a key at once."""

    def __init__(
        self,
        tracker: TrackerClient,
        key: str,
        *,
        devices: int = 1,
        builders: int | None = None,
        budget: Budget | None = None,
        limits: Limits | None = None,
        wait_seconds: float = 120.0,
    ) -> None:
        if devices < 1:
            raise UserError(f"the number of devices must be at least 1, not {devices}")
        self.tracker = tracker
        self.key = key
        self.limits = limits or Limits()
        # One sample a call over the network: a longer one than where a candidate and the default alternate.
        self.budget = budget or Budget(sample_seconds=0.001)
        self.wait_seconds = wait_seconds
        self._defaults = Defaults()
        count = builders if builders is not None else max(1, len(usable_cpus()))
        module = "tilewright.tune.builder"
        self._builders = [Child(module, memory_bytes=self.limits.memory_bytes) for _ in range(max(1, count))]
        self._devices = [_Device(self) for _ in range(devices)]

    def close(self) -> None:
        """Give the devices back."""
        for child in self._builders:
            child.close()
        for device in self._devices:
            device.close()

    def __enter__(self) -> RemoteMeasurer:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        """Build here, run there; results in order."""
        default = self._defaults.code(task)
        results: list[queue.Queue[Measurement]] = [queue.Queue(1) for _ in points]
        jobs: queue.Queue[_Job] = queue.Queue()
        finished = threading.Event()
        numbers = iter(range(len(points)))
        lock = threading.Lock()

        def build(child: Child) -> None:
            while not finished.is_set():
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                try:
                    code = child.ask(task.request(points[number]), self.limits.build_seconds)
                except TilewrightError as error:
                    results[number].put(Measurement(points[number], None, error=f"build: {error}"))
                    continue
                assert isinstance(code, CompiledKernel)
                jobs.put(_Job(number, task, points[number], code, default))

        def run(device: _Device) -> None:
            while not finished.is_set():
                # First a device, then a job: who waits for a device holds nothing up.
                if not device.open():
                    continue
                try:
                    job = jobs.get(timeout=_MOMENT)
                except queue.Empty:
                    continue
                try:
                    results[job.number].put(device.measure(job))
                except Disconnected as error:
                    job.moves += 1
                    if job.moves > _MOST_MOVES:
                        results[job.number].put(Measurement(job.point, None, error=f"run: no device kept it: {error}"))
                    else:
                        jobs.put(job)

        threads = [threading.Thread(target=build, args=(child,), daemon=True) for child in self._builders]
        threads += [threading.Thread(target=run, args=(device,), daemon=True) for device in self._devices]
        for thread in threads:
            thread.start()
        try:
            for slot in results:
                yield self._wait(slot)
        finally:
            finished.set()
            for thread in threads:
                thread.join()

    def _wait(self, slot: queue.Queue[Measurement]) -> Measurement:
        """A result; an error when no device could be had for too long."""
        alone_since = time.monotonic()
        while True:
            try:
                return slot.get(timeout=_MOMENT)
            except queue.Empty:
                now = time.monotonic()
                if any(device.is_open for device in self._devices):
                    alone_since = now
                elif now - alone_since > self.wait_seconds:
                    raise UserError(
                        f"no device of the key '{self.key}' could be had for {self.wait_seconds:g} s",
                        where=f"{self.tracker.host}:{self.tracker.port}",
                        hint="tilewright rpc query shows the devices of a tracker",
                    ) from None


class _Device:
    """One leased device at a time, with the arrays of the task at hand on it."""

    def __init__(self, owner: RemoteMeasurer) -> None:
        self._owner = owner
        self._session: RemoteSession | None = None
        self._bench: tuple[str, _Bench] | None = None

    def close(self) -> None:
        """Give the device back."""
        if self._session is not None:
            self._session.close()
        self._session, self._bench = None, None

    def measure(self, job: _Job) -> Measurement:
        """Run one candidate; `Disconnected` if the device went away."""
        session = self._session
        assert session is not None
        try:
            return self._measure(session, job)
        except SessionDied as error:
            self.close()
            return Measurement(job.point, None, error=f"run: {error.message}")
        except Disconnected:
            self.close()
            raise
        except TilewrightError as error:
            # The device's own error, or a candidate that cannot be linked for it.
            return Measurement(job.point, None, error=f"run: {error}")

    @property
    def is_open(self) -> bool:
        """Whether a device is held."""
        return self._session is not None

    def open(self) -> bool:
        """Hold a device; False if none is free at the moment."""
        if self._session is None:
            owner = self._owner
            try:
                self._session = owner.tracker.request(
                    owner.key, wait_seconds=_PATIENCE, timeout=owner.limits.run_seconds
                )
            except UserError:
                # None is free, or the tracker is away for a moment.
                time.sleep(_MOMENT)
                return False
        return True

    def _measure(self, session: RemoteSession, job: _Job) -> Measurement:
        bench = self._bench_of(session, job)
        func = job.task.kernel.func
        module = _send(session, job.task, job.code, bench.arrays)
        arguments = _arguments(session, bench, job.code)
        for number in result_numbers(func):
            spoiled = np.full_like(bench.right[number], 0)
            bench.kept[number].copy_from(spoiled)
        module[func.name](*arguments)
        got = {number: bench.kept[number].numpy() for number in result_numbers(func)}
        try:
            compare(func, got, bench.right)
        except UserError as error:
            return Measurement(job.point, None, error=f"run: {error.message}")
        once = module.time_evaluator(func.name, number=1, repeat=1)(*arguments).mean
        calls = max(1, round(self._owner.budget.sample_seconds / max(once, 1e-7)))
        samples = self._owner.budget.samples
        mine = module.time_evaluator(func.name, number=calls, repeat=samples)(*arguments)
        reference = _arguments(session, bench, job.default)
        theirs = bench.default.time_evaluator(func.name, number=calls, repeat=max(1, samples // 2))(*reference)
        return Measurement(job.point, min(mine.results), min(theirs.results))

    def _bench_of(self, session: RemoteSession, job: _Job) -> _Bench:
        if self._bench is not None and self._bench[0] == job.task.key:
            return self._bench[1]
        func = job.task.kernel.func
        arrays = inputs_of(func)
        default = _send(session, job.task, job.default, arrays)
        bench = _Bench(arrays, [array.copy() for array in arrays], default)
        arguments = _arguments(session, bench, job.default)
        default[func.name](*arguments)
        for number in result_numbers(func):
            bench.right[number] = bench.kept[number].numpy()
        self._bench = (job.task.key, bench)
        return bench


def _arguments(session: RemoteSession, bench: _Bench, code: CompiledKernel) -> list[RemoteArray]:
    """Arguments on the device: those that the schedule packs are sent packed, the others are kept there."""
    arguments: list[RemoteArray] = []
    for number, array in enumerate(bench.arrays):
        if number in code.packing:
            arguments.append(session.array(code.packing[number].rearrange(array)))
            continue
        if number not in bench.kept:
            bench.kept[number] = session.array(array)
        arguments.append(bench.kept[number])
    return arguments


def _send(session: RemoteSession, task: Task, code: CompiledKernel, arrays: Sequence[Array]) -> RemoteModule:
    """A kernel as a library on the device."""
    target, func = task.target, task.kernel.func
    artifact = Artifact(
        target.triple,
        target.cpu,
        target.features,
        [code.code],
        functions=[_function_info(func, code.packing, arrays)],
        requires=tuple(sorted(target.feature_set)),
    )
    with tempfile.TemporaryDirectory(prefix="tilewright-tune-") as folder:
        path = Path(folder) / f"kernel{time.monotonic_ns()}.so"
        deploy.export_library(artifact, path)
        session.upload(path)
        module = session.load_module(path.name)
    assert isinstance(module, RemoteModule)
    return module


def _function_info(func: PrimFunc, packing: Mapping[int, IndexMap], arrays: Sequence[Array]) -> FunctionInfo:
    written = set(result_numbers(func))
    params = []
    for number, (param, array) in enumerate(zip(func.buffers, arrays, strict=True)):
        shape = packing[number].rearrange(array).shape if number in packing else array.shape
        params.append(ParamInfo(param.name, str(param.dtype), tuple(map(int, shape)), number in written))
    return FunctionInfo(func.name, tuple(params))
