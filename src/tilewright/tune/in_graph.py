"""Kernels chosen in their model: the best candidates of each are tried in it, and what makes it quicker stays.

Kernels run differently in a model than alone: caches hold what others left there, the next kernel starts before the
last one ends, and blocks fall on multiprocessors that are still busy. So the few best candidates of each kernel take
turns in the model's own sequence of launches, one kernel after the other, those that take most of the time first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.lower.database import Database
from tilewright.lower.kernel import CompiledKernel
from tilewright.lower.model import LoweredModel
from tilewright.lower.records import Selection
from tilewright.support.errors import TilewrightError, UnsupportedError
from tilewright.support.fingerprint import compiler_name
from tilewright.topi.schedule.choices import Answer
from tilewright.tune.child import Child
from tilewright.tune.device_measure import DeviceMeasurer
from tilewright.tune.device_runner import DeviceLost
from tilewright.tune.graph_runner import AS_COMPILED, Array, GraphModel, GraphTrial
from tilewright.tune.space import Point
from tilewright.tune.task import Task

_ROUNDS = 2
_WORTH = 0.998
"""What part of the model's time must be left by an exchange to be made."""
_LOADING_SECONDS = 120.0
_TRIAL_SECONDS = 20.0
_CONFIRMATIONS = 3

OnExchange = Callable[[Task, float, float], None]
"""Called for each kernel that was looked at: the model's seconds before any exchange, and now."""


@dataclass(frozen=True, slots=True)
class InGraph:
    """What choosing in the model brought: its seconds by default, with the best of each kernel alone, and now."""

    default: float
    alone: float
    together: float
    trials: int
    seconds: float
    exchanged: int
    """Kernels for which another schedule than the one that is best alone was chosen."""


def choose_in_graph(
    lowered: LoweredModel,
    tasks: Sequence[Task],
    database: Database,
    measurer: DeviceMeasurer,
    *,
    keep: int = 8,
    on_exchange: OnExchange = lambda task, before, now: None,
) -> InGraph:
    """Try the `keep` quickest records of each task in the whole model; the database is told what is to be used.

    An `UnsupportedError` where a model's kernels cannot be tried in it.
    """
    began = time.monotonic()
    check_straight(lowered)
    points = {task.key: _points(task, database, keep) for task in tasks}
    codes: dict[str, list[CompiledKernel]] = {}
    for task in tasks:
        measurer.prepare(task, points[task.key])
    model = replace(lowered, kernels=tuple(replace(kernel, answers={}) for kernel in lowered.kernels))
    artifact = model.assemble(model.compiled(), None)
    assert artifact.device is not None
    on_host = [info.symbol for info in artifact.device.kernels if info.on_host]
    if on_host:
        raise UnsupportedError(f"kernels are tried in models that the device runs alone: the host runs {on_host[0]}")
    own = {info.symbol: code for info, code in zip(artifact.device.kernels, artifact.device_code, strict=True)}
    for task in tasks:
        points[task.key], codes[task.key] = _built(task, points[task.key], measurer, own.get(task.key, b""))
    constants, places = _constants(lowered)
    with _Session(GraphModel(artifact, codes, constants, places)) as session:
        default = session.seconds({}, _CONFIRMATIONS)
        # The quickest record of each kernel comes first, unless the default schedule itself is quicker.
        quickest = {
            task.key: 0 if _is_quicker(task, points[task.key][0], database) else AS_COMPILED
            for task in tasks
            if points[task.key]
        }
        alone = session.seconds(quickest, _CONFIRMATIONS)
        plain = dict.fromkeys(quickest, AS_COMPILED)
        first = plain if default < alone else quickest
        chosen, now = dict(first), min(default, alone)
        for _ in range(_ROUNDS):
            before = now
            for task in tasks:
                options = [AS_COMPILED, *range(len(points[task.key]))]
                now = _exchange(session, chosen, task.key, options, now)
                on_exchange(task, default, now)
            if now > before * _WORTH:
                break
        together = session.seconds(chosen, _CONFIRMATIONS)
        if together > min(default, alone):
            # All of it was noise.
            chosen, together = dict(first), min(default, alone)
    answers = {task.key: _answers(points[task.key], chosen.get(task.key, AS_COMPILED)) for task in tasks}
    database.select(
        Selection(task.key, str(task.target), answers[task.key], compiler=compiler_name()) for task in tasks
    )
    exchanged = sum(chosen[key] != first[key] for key in chosen)
    return InGraph(default, alone, together, session.trials, time.monotonic() - began, exchanged)


def check_straight(lowered: LoweredModel) -> None:
    """An error where a model is more than one sequence of kernels of known sizes."""
    if lowered.program is not None:
        raise UnsupportedError("kernels are tried in straight models only: this one has control flow or data")
    if lowered.info.symbols:
        raise UnsupportedError("kernels are tried in models of known sizes only", hint="fix them by --shape")


def _points(task: Task, database: Database, keep: int) -> list[Point]:
    """The quickest candidates of a task, best first."""
    good = [record for record in database.current(task.key, str(task.target)) if record.ok]
    good.sort(key=lambda record: record.worth)
    return [record.answers for record in good[:keep]]


def _is_quicker(task: Task, point: Point, database: Database) -> bool:
    """Whether a point was measured to be quicker than the default schedule."""
    found = [record for record in database.current(task.key, str(task.target)) if record.answers == point]
    return any(record.relative is not None and record.relative < 1.0 for record in found)


def _built(
    task: Task, points: Sequence[Point], measurer: DeviceMeasurer, own: bytes
) -> tuple[list[Point], list[CompiledKernel]]:
    """The candidates that can still be built (records may be of an older compiler) and are not the default itself."""
    found: list[tuple[Point, CompiledKernel]] = []
    for point in points:
        try:
            made = measurer.code(task, point)
        except TilewrightError:
            continue
        if made.code != own:
            found.append((point, made))
    return [point for point, _ in found], [code for _, code in found]


def _answers(points: Sequence[Point], number: int) -> Mapping[str, Answer]:
    return {} if number == AS_COMPILED else points[number]


def _exchange(session: _Session, chosen: dict[str, int], key: str, options: Sequence[int], now: float) -> float:
    """Take the option for a kernel that makes the model quickest, if another than the present one clearly does."""
    if key not in chosen:
        return now
    present = chosen[key]
    times = {number: session.seconds({**chosen, key: number}) for number in options}
    best = min(times, key=lambda number: times[number])
    if best == present or times[best] > times[present] * _WORTH:
        return times[present]
    # The quickest of several times is partly luck: once more, in turns.
    again, other = (session.seconds({**chosen, key: number}, _CONFIRMATIONS) for number in (best, present))
    if again > other * _WORTH:
        return other
    chosen[key] = best
    return again


class _Session:
    """A model in a process of its own, which is started again when a trial brings it down."""

    def __init__(self, model: GraphModel) -> None:
        self._model = model
        self._child = Child("tilewright.tune.graph_runner")
        self._loaded = False
        self.trials = 0

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *unused: object) -> None:
        self._child.close()

    def seconds(self, chosen: Mapping[str, int], times: int = 1) -> float:
        """The model's time with these candidates; infinite where one of them fails in it."""
        return min(self._once(chosen) for _ in range(times))

    def _once(self, chosen: Mapping[str, int]) -> float:
        self.trials += 1
        try:
            if not self._loaded:
                self._child.ask(self._model, _LOADING_SECONDS)
                self._loaded = True
            samples = self._child.ask(GraphTrial(dict(chosen)), _TRIAL_SECONDS)
        except TilewrightError as error:
            if isinstance(error, DeviceLost):
                self._child.close()
            self._loaded = self._loaded and self._child.is_running
            if not any(number != AS_COMPILED for number in chosen.values()):
                raise
            return float("inf")
        assert isinstance(samples, list)
        return float(min(samples))


def _constants(lowered: LoweredModel) -> tuple[list[Array], dict[tuple[int, int], int]]:
    """The constants of a model as they are before schedules arrange them, and which step's parameters they are."""
    (segment,) = lowered.segments
    plan = segment.plan
    places = {
        (number, parameter): place.index
        for number, step in enumerate(plan.steps)
        for parameter, place in enumerate(step.arguments)
        # A view of a constant starts inside it: such a parameter is never rearranged.
        if place.kind == "constant" and place.offset == plan.constant_offsets[place.index]
    }
    return [constant.data for constant in plan.constants], places
