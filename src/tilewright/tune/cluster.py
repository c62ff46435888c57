"""Measuring on a Ray cluster (extra `cluster`): building and running candidates are tasks of the cluster.

    with ClusterMeasurer("local") as measurer:              # or "ray://head:10001", "head:6379", "auto"
        tune(tasks, database, options, measurer=measurer)

Ray decides which machine does what; inside a task the work is done as on one machine, by a child process with limits.
So a candidate that crashes or hangs is that candidate's failure, while a machine that goes away is Ray's affair: the
task is done again elsewhere. A running task takes as many processors as the target has, so timings do not share them.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from tilewright.lower.kernel import CompiledKernel
from tilewright.support.errors import MissingDependencyError, TilewrightError, UserError
from tilewright.target import Target
from tilewright.tune.builder import BuildRequest
from tilewright.tune.child import Child
from tilewright.tune.measure import Defaults, Limits, Measurement
from tilewright.tune.runner import Budget, Timing, Trial
from tilewright.tune.space import Point
from tilewright.tune.task import Task

_MOVES = 3
"""How often a task may lose its machine."""


class UnfitMachineError(UserError):
    """A machine of the cluster cannot run programs for the target."""


class ClusterMeasurer:
    """Measures on a Ray cluster: one that runs at an address, or one of this machine's own (`local`)."""

    def __init__(
        self,
        address: str = "local",
        *,
        workers: int | None = None,
        budget: Budget | None = None,
        limits: Limits | None = None,
    ) -> None:
        if workers is not None and (workers < 1 or address != "local"):
            raise UserError("the number of workers is at least 1, and for a local cluster only")
        self.limits = limits or Limits()
        self.budget = budget or Budget()
        self._defaults = Defaults()
        self._ray = _ray()
        self._own = not self._ray.is_initialized()
        if self._own:
            _connect(self._ray, address, workers)
        remote = self._ray.remote(max_retries=_MOVES)
        self._build = remote(_build)
        self._run = remote(_run)

    def close(self) -> None:
        """Leave the cluster; a local one ends."""
        if self._own:
            self._ray.shutdown()

    def __enter__(self) -> ClusterMeasurer:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        """Build and run on the cluster, all at once; results in order."""
        self._check_room(task.target)
        default = self._ray.put(self._defaults.code(task))
        run = self._run.options(num_cpus=task.target.cores)
        waiting: deque[object] = deque()
        for point in points:
            # What is built goes from task to task, not through this process.
            code = self._build.remote(task.request(point), self.limits)
            waiting.append(run.remote(task.kernel.func, task.target, code, default, self.budget, self.limits))
        try:
            for point in points:
                result = self._result(point, waiting[0])
                waiting.popleft()
                yield result
        finally:
            # Only what is not done: Ray does not bear that a task that has just ended is called off.
            for reference in waiting:
                self._ray.cancel(reference)

    def _result(self, point: Point, reference: object) -> Measurement:
        try:
            found = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return Measurement(point, None, error=f"run: no machine kept it: {str(error).splitlines()[0]}")
        if isinstance(found, UnfitMachineError):
            raise found
        if isinstance(found, str):
            return Measurement(point, None, error=found)
        assert isinstance(found, Timing)
        return Measurement(point, found.seconds, found.reference)

    def _check_room(self, target: Target) -> None:
        """A task that no machine is large enough for would wait for ever."""
        most = max((int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"]), default=0)
        if most < target.cores:
            raise UserError(
                f"the target has {target.cores} cores, but no machine of the cluster has more than {most}",
                hint="tune for fewer threads, or add workers",
            )


def _connect(ray: Any, address: str, workers: int | None) -> None:
    # Ray would send figures of its use to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options = {"num_cpus": workers, "include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address, configure_logging=False, log_to_driver=False, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(
            f"no Ray cluster answers: {str(error).splitlines()[0]}",
            where=address,
            hint="`ray start --head` starts one; `local` is one of this machine's own",
        ) from None


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingDependencyError.for_extra("ray", "cluster", "tuning on a cluster") from None
    return ray


@cache
def _child(module: str, memory: int) -> Child:
    """The child of this worker of the cluster; it ends with the worker, whose end of their pipe closes then."""
    return Child(module, memory_bytes=memory)


def _build(request: BuildRequest, limits: Limits) -> CompiledKernel | str:
    """A task of the cluster: the code of a candidate, or what went wrong with it."""
    try:
        built = _child("tilewright.tune.builder", limits.memory_bytes).ask(request, limits.build_seconds)
    except TilewrightError as error:
        return f"build: {error}"
    assert isinstance(built, CompiledKernel)
    return built


def _run(
    func: Any, target: Target, code: CompiledKernel | str, default: CompiledKernel, budget: Budget, limits: Limits
) -> Timing | str | UnfitMachineError:
    """A task of the cluster: the times of a candidate, or what went wrong with it."""
    if not target.is_host:
        return UnfitMachineError(
            f"the machine {socket.gethostname()} of the cluster cannot run programs for {target.cpu}",
            hint="a cluster for tuning has machines of one kind, the target's",
        )
    if isinstance(code, str):
        return code
    trial = Trial(func, target, code, default, budget)
    try:
        timing = _child("tilewright.tune.runner", limits.memory_bytes).ask(trial, limits.run_seconds)
    except TilewrightError as error:
        return f"run: {error}"
    assert isinstance(timing, Timing)
    return timing
