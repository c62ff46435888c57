"""The tuner: measures candidates of a model's kernels until the trials or the time are spent.

    report = tune(tasks, database, TuneOptions(trials=500), on_batch=print)

Every task begins with its default schedule. Batches go to the task whose next one promises most for the whole model
(`_promise`): uses times what recent batches gained and what may still be hoped for. Records are committed batch by
batch, so stopping at any moment keeps everything, and tuning again starts from what the database knows. Times of code
that another compiler made are not trusted: the best of its candidates are measured anew, in a task's first batch.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tilewright.lower.database import Database
from tilewright.lower.records import Record, Selection
from tilewright.support.collecting import seldom_collecting
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.fingerprint import compiler_name
from tilewright.support.interrupts import Interrupt, noted_interrupts
from tilewright.target import Target
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tune.accel_measure import CycleMeasurer, device_measurer
from tilewright.tune.ahead import Ahead
from tilewright.tune.algorithms import Algorithms
from tilewright.tune.bayesian import BayesianSearch
from tilewright.tune.board_measure import BoardMeasurer
from tilewright.tune.cost import CostModel, TreeModel
from tilewright.tune.device_measure import DeviceMeasurer
from tilewright.tune.forest import shipped
from tilewright.tune.in_graph import InGraph
from tilewright.tune.measure import LocalMeasurer, Measurement, Measurer, spares_a_cpu
from tilewright.tune.neural import NeuralModel
from tilewright.tune.search import (
    AnnealingSearch,
    CoordinateDescent,
    EvolutionarySearch,
    GeneticSearch,
    GridSearch,
    RandomSearch,
    Search,
)
from tilewright.tune.space import Key, Point, Space, key_of
from tilewright.tune.task import Task

GUIDED = ("annealing", "evolution")
"""The searches that ask a cost model."""
SEARCHES = (*GUIDED, "bayesian", "genetic", "random", "grid")


def usual_search(target: Target) -> str:
    """The search that suits a target: on devices candidates are few and dear, and their templates rank them."""
    return "evolution" if target.is_cpu else "bayesian"


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What to spend and how: `trials` and `seconds` are for the whole model (0: no limit, but not both)."""

    trials: int = 500
    seconds: float = 0.0
    batch: int = 8
    search: str = "evolution"
    seed: int = 0
    early_stop: int = 64
    """Trials of a task without a gain after which it counts as done."""
    confirm: int = 3
    """How many of a task's best candidates may be measured once more at the end."""
    model: Callable[[], CostModel] = TreeModel
    prior: CostModel | Literal["shipped"] | None = "shipped"
    """What trees are grown on: a model that has learned before, by default the one for the target's family."""

    def checked(self) -> TuneOptions:
        """The options, if they make sense."""
        if self.trials < 0 or self.seconds < 0 or not (self.trials or self.seconds):
            raise UserError("say how long to tune: a number of trials, a time, or both")
        if self.batch < 1 or self.early_stop < 1 or self.confirm < 0:
            raise UserError("the size of a batch and the patience must be at least 1, confirmations at least 0")
        if self.search not in SEARCHES:
            raise UserError(f"unknown search {self.search!r}", hint=f"one of {', '.join(SEARCHES)}")
        return self


@dataclass(slots=True)
class Progress:
    """One task as it is being tuned."""

    task: Task
    space: Space
    search: Search
    best: Point
    best_seconds: float = float("inf")
    default_seconds: float = float("inf")
    trials: int = 0
    failures: int = 0
    since_gain: int = 0
    finished: bool = False
    polishing: bool = False
    history: list[float] = field(default_factory=list)
    """The best time after each trial."""
    earlier: list[Point] = field(default_factory=list)
    """The candidates that were quickest as code of another compiler, best first."""
    on_hardware: bool = False
    """Whether its best candidate was confirmed on simulated hardware."""

    @property
    def gain(self) -> float:
        """How much quicker than the default schedule."""
        return max(1.0, self.default_seconds / self.best_seconds) if self.best_seconds < float("inf") else 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """What tuning did."""

    tasks: tuple[Progress, ...]
    trials: int
    seconds: float
    measuring_seconds: float
    stopped: bool
    in_graph: InGraph | None = None
    """What choosing among the best candidates in the whole model brought (on devices)."""
    not_in_graph: str = ""
    """Why there was no such choosing, where the model does not allow it."""
    timeline: tuple[tuple[int, float], ...] = ()
    """After each batch: the trials so far, and how much quicker the kernels measured so far are in one run.

    Where tuning went on from what a database had, the first entry is what it began with.
    """
    algorithms: Algorithms | None = None
    """What measuring algorithms brought before the kernels were tuned (on CPUs, where some were open)."""

    @property
    def before(self) -> float:
        """Seconds of one run of the model in the tuned kernels with default schedules."""
        return totals(self.tasks)[0]

    @property
    def after(self) -> float:
        """The same with the best schedules."""
        return totals(self.tasks)[1]


def totals(tasks: Sequence[Progress]) -> tuple[float, float]:
    """Seconds of one run of the model in the kernels measured so far: with default schedules, with the best ones."""
    known = [item for item in tasks if item.default_seconds < float("inf")]
    before = sum(item.default_seconds * item.task.uses for item in known)
    after = sum(min(item.default_seconds, item.best_seconds) * item.task.uses for item in known)
    return before, after


OnBatch = Callable[[Sequence[Progress], Progress, int], None]
"""Called after each batch: all tasks, the one that was measured, all trials so far."""


def tune(
    tasks: Sequence[Task],
    database: Database,
    options: TuneOptions,
    *,
    measurer: Measurer | None = None,
    on_batch: OnBatch = lambda tasks, task, trials: None,
) -> Report:
    """Tune tasks; the database gets every measurement.

    An interrupt from the keyboard ends it after the candidate at hand, a second one at once; either keeps all records.
    """
    options = options.checked()
    session = _Session(tasks, database, options, measurer or local_measurer(tasks))
    stopped = False
    try:
        with noted_interrupts() as interrupt, seldom_collecting(), Ahead(session.find) as ahead:
            while not interrupt.has_come():
                item = session.next_task()
                if item is None:
                    break
                if session.measure_batch(item, ahead, interrupt):
                    on_batch(session.progress, item, session.spent)
            stopped = interrupt.has_come()
        if not stopped:
            session.confirm()
            session.select_counted()
    except KeyboardInterrupt:
        stopped = True
    finally:
        if measurer is None:
            session.measuring.close()
    return session.report(stopped)


class _Session:
    """Tasks being tuned: how far each is, and what that took so far."""

    def __init__(
        self, tasks: Sequence[Task], database: Database, options: TuneOptions, measuring: Measurer | DeviceMeasurer
    ) -> None:
        self.database = database
        self.options = options
        self.measuring = measuring
        self.start = time.monotonic()
        self.run = uuid.uuid4().hex[:12]
        self.spent = 0
        self.measuring_seconds = 0.0
        self.progress = [_begin(task, database, options) for task in tasks]
        self.earlier = sum(item.trials for item in self.progress)
        self.timeline = [(self.earlier, _gain_so_far(self.progress))] if self.earlier else []

    @property
    def left(self) -> int:
        """Candidates that may still be measured."""
        return self.options.trials - self.spent if self.options.trials else 1 << 30

    def find(self, item: Progress, count: int) -> list[Point]:
        """The next candidates of a task."""
        points = _next_points(item, count)
        if isinstance(self.measuring, DeviceMeasurer):
            # Compiling for a device takes much longer than measuring there.
            self.measuring.prepare(item.task, points)
        return points

    def next_task(self) -> Progress | None:
        """The task to go on with; None when there is none, or no time or trials for it."""
        out_of_time = self.options.seconds and time.monotonic() - self.start >= self.options.seconds
        return None if self.left <= 0 or out_of_time else _most_promising(self.progress)

    def measure_batch(self, item: Progress, ahead: Ahead[Progress], interrupt: Interrupt) -> bool:
        """Measure a task's next candidates and learn from them; False where it has none."""
        points = ahead.points(item, min(self.options.batch, self.left))
        if not points:
            item.finished = True
            return False
        following = _most_promising([other for other in self.progress if other is not item])
        if following is not None and self.left > len(points) and _may_think(self.measuring, item.task):
            ahead.begin(following, self.options.batch)
        began = time.monotonic()
        results: list[Measurement] = []
        try:
            # One by one: an interrupt in the middle of a batch loses nothing that was measured.
            for result in self.measuring.measure(item.task, points):
                results.append(result)
                if interrupt.has_come():
                    break
        finally:
            self.measuring_seconds += time.monotonic() - began
            self.database.add(_records(item, results, self.run, self.spent))
            self.spent += len(results)
        _learn(item, results, self.options)
        self.timeline.append((self.earlier + self.spent, _gain_so_far(self.progress)))
        return True

    def confirm(self) -> None:
        """Measure the best candidates once more."""
        for item in self.progress:
            self.measuring_seconds += _confirm(item, self.database, self.measuring, self.options.confirm, self.run)

    def select_counted(self) -> None:
        """Let compilation take what has fewer cycles, however few: of times that are measured a clear gain is asked."""
        if isinstance(self.measuring, (CycleMeasurer, BoardMeasurer)):
            quicker = [item for item in self.progress if item.gain > 1.0]
            self.database.select(
                Selection(item.task.key, str(item.task.target), item.best, compiler=compiler_name()) for item in quicker
            )

    def report(self, stopped: bool) -> Report:
        """What was done."""
        taken = time.monotonic() - self.start
        return Report(
            tuple(self.progress), self.spent, taken, self.measuring_seconds, stopped, timeline=tuple(self.timeline)
        )


def _gain_so_far(progress: Sequence[Progress]) -> float:
    before, after = totals(progress)
    return before / after if after else 1.0


def local_measurer(tasks: Sequence[Task]) -> LocalMeasurer | DeviceMeasurer | BoardMeasurer:
    """What measures tasks on this machine: on its processors, on the device that they are for, or on a board."""
    board = next((task.target for task in tasks if task.target.capabilities.little_memory), None)
    if board is not None:
        return BoardMeasurer(board)
    device = next((task.target for task in tasks if not task.target.is_cpu), None)
    return LocalMeasurer() if device is None else device_measurer(device)


def _may_think(measuring: Measurer, task: Task) -> bool:
    """Whether looking for points of another task does not disturb what is measured of this one."""
    return not isinstance(measuring, LocalMeasurer) or spares_a_cpu(task.target)


def _begin(task: Task, database: Database, options: TuneOptions) -> Progress:
    """A task with everything that the database knows of it as this compiler's code."""
    space = task.space()
    database.add_task(task.key, task.label, float(task.flops))
    item = Progress(task, space, make_search(space, task, options), space.default)
    counted = database.current(task.key, str(task.target))
    known = [record for record in counted if record.compiler == compiler_name()]
    if known:
        item.search.observe([(record.answers, _note(item, record)) for record in known])
        item.since_gain = 0
    else:
        item.earlier = [record.answers for record in sorted(counted, key=lambda record: record.worth) if record.ok]
    return item


def make_search(space: Space, task: Task, options: TuneOptions) -> Search:
    """The search that the options name."""
    seed = options.seed
    if options.search == "random":
        return RandomSearch(space, seed)
    if options.search == "grid":
        return GridSearch(space, seed)
    if options.search == "bayesian":
        return BayesianSearch(space, seed)
    if options.search == "genetic":
        return GeneticSearch(space, seed)
    model = options.model()
    if isinstance(model, (TreeModel, NeuralModel)) and model.prior is None:
        model.prior = shipped(task.target) if options.prior == "shipped" else options.prior
    kind = AnnealingSearch if options.search == "annealing" else EvolutionarySearch
    return kind(space, model, seed, task=task.key)


def _next_points(item: Progress, count: int) -> list[Point]:
    if not item.trials:
        # The default schedule is the first candidate: tuning never ends with less.
        first: dict[Key, Point] = {}
        wanted: tuple[Point, ...] = ({}, *item.earlier[: count - 1])
        for point in wanted:
            try:
                canonical = item.space.canonical(point)
            except (ScheduleError, CompilerBug):
                # A record of another version, whose answers the template no longer takes.
                continue
            first[key_of(canonical)] = canonical
        proposed = item.search.propose(count - len(first)) if count > len(first) else []
        return [*first.values(), *(point for point in proposed if key_of(point) not in first)]
    return item.search.propose(count)


def _most_promising(progress: Sequence[Progress]) -> Progress | None:
    """The task whose next batch promises most: untried ones first, then by the gradient of the model's time."""
    open_tasks = [item for item in progress if not item.finished]
    if not open_tasks:
        return None
    return max(open_tasks, key=_promise)


def _promise(item: Progress) -> float:
    weight = item.task.uses
    if not item.trials:
        return float("inf") if item.task.flops else 1e-9
    current = min(item.best_seconds, item.default_seconds)
    if current == float("inf"):
        return 0.0
    window = item.history[-32:]
    gained = max(0.0, window[0] - window[-1]) / max(1, len(window)) if window[0] < float("inf") else current
    # What more trials may bring at best shrinks with their number.
    hope = current / (item.trials + 8)
    return weight * (0.5 * gained + 0.5 * hope)


def _learn(item: Progress, results: Sequence[Measurement], options: TuneOptions) -> None:
    item.search.observe([(result.answers, _note(item, result)) for result in results])
    if results and item.failures == item.trials:
        # Not even the default schedule runs (a kernel that its device refuses): others need not be tried.
        item.finished = True
        return
    if item.since_gain >= options.early_stop:
        if item.polishing or isinstance(item.search, (BayesianSearch, RandomSearch, GridSearch)):
            item.finished = True
            return
        # The neighbours of the best point, to finish.
        item.polishing, item.since_gain = True, 0
        descent = CoordinateDescent(item.space, options.seed)
        descent.seen = item.search.seen if isinstance(item.search, CoordinateDescent) else set()
        descent.observe(_observations(item))
        item.search = descent


def _observations(item: Progress) -> list[tuple[Point, float | None]]:
    observed: list[tuple[Point, float | None]] = getattr(item.search, "observed", [])
    return list(observed)


def _note(item: Progress, result: Measurement | Record) -> float | None:
    """Add a result to a task; gives its time on the scale of the task's first one.

    A machine gets quicker and slower; what the default schedule took beside each candidate says by how much.
    """
    item.trials += 1
    item.since_gain += 1
    seconds, reference = result.seconds, result.reference
    if reference is not None:
        if item.default_seconds == float("inf"):
            item.default_seconds = reference
        seconds = None if seconds is None else seconds / reference * item.default_seconds
        if seconds is not None and key_of(result.answers) == key_of(item.space.default):
            # Beside itself it is as quick as itself: what is left is noise.
            seconds = item.default_seconds
    if seconds is None:
        item.failures += 1
    elif seconds < item.best_seconds:
        if seconds < item.best_seconds * 0.995:
            item.since_gain = 0
        item.best_seconds, item.best = seconds, dict(result.answers)
    item.history.append(item.best_seconds)
    return seconds


def _confirm(item: Progress, database: Database, measuring: Measurer, most: int, run: str) -> float:
    """Measure the best candidate of a task once more, and what is best then, until one stands by its time.

    Gives the seconds that it took.
    """
    if item.gain == 1.0 or not most:
        return 0.0
    measure = measuring.measure
    if isinstance(measuring, CycleMeasurer):
        if not measuring.can_confirm:
            # Counted once more by the model they would be the same.
            return 0.0
        measure = measuring.confirm
    began = time.monotonic()
    target, confirmed = str(item.task.target), {key_of(item.space.default)}
    for _ in range(most):
        best = database.best(item.task.key, target)
        if best is None or key_of(best.answers) in confirmed:
            break
        confirmed.add(key_of(best.answers))
        results = list(measure(item.task, [best.answers]))
        database.correct(_records(item, results, run, best.number))
        item.on_hardware = isinstance(measuring, CycleMeasurer)
    best = database.best(item.task.key, target)
    if best is not None and best.relative is not None:
        item.best, item.best_seconds = dict(best.answers), best.relative * item.default_seconds
    return time.monotonic() - began


def _records(item: Progress, results: Sequence[Measurement], run: str, first: int) -> list[Record]:
    return [
        Record(
            item.task.key,
            str(item.task.target),
            result.answers,
            result.seconds,
            result.error,
            result.reference,
            run=run,
            number=first + place,
            compiler=compiler_name(),
        )
        for place, result in enumerate(results)
    ]
