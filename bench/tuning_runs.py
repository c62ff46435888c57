"""The runs behind `bench.tuning`: searches that ask one table of measured candidates, many at once.

A candidate is measured once, whichever search and seed asks for it, and kept in a database: searches then differ in
what they ask for alone. Each run has a process and a processor of its own; within it, building and timing take turns,
so that nothing but other runs disturbs a timing. What a run asked for is kept too, so that a comparison that was
stopped goes on where it was.
"""

from __future__ import annotations

import atexit
import gzip
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tilewright.lower.database import Database
from tilewright.lower.records import Record
from tilewright.support.processors import usable_cpus
from tilewright.topi.schedule.choices import answers_from_json, answers_to_json
from tilewright.tune.measure import LocalMeasurer, Measurement, Measurer
from tilewright.tune.space import Key, Point, key_of
from tilewright.tune.task import Task
from tilewright.tune.tuner import TuneOptions, make_search

BATCH = 8


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one search on one task."""

    task: Task
    search: str
    options: TuneOptions
    trials: int

    @property
    def name(self) -> str:
        """What the run is kept under."""
        return f"{self.task.key}|{self.search}|{self.options.seed}|{self.trials}"


@dataclass(frozen=True, slots=True)
class Run:
    """What a run asked for, in its order, and the search's own time in seconds."""

    points: tuple[Point, ...]
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {"points": [answers_to_json(point) for point in self.points], "seconds": self.seconds}

    @staticmethod
    def from_json(data: Mapping[str, object]) -> Run:
        """The run that `to_json` stored."""
        points, seconds = data["points"], data["seconds"]
        assert isinstance(points, list) and isinstance(seconds, float)
        return Run(tuple(answers_from_json(point) for point in points), seconds)


@dataclass(frozen=True, slots=True)
class Curve:
    """The best speed-up over the default schedule after each trial of a run, and the search's own time."""

    best: list[float]
    seconds: float

    def trials_to(self, level: float) -> int | None:
        """The first trial that reaches a level."""
        return next((n + 1 for n, value in enumerate(self.best) if value >= level), None)


class Table:
    """The measured candidates of a task: looked up where they are known, measured where not."""

    def __init__(self, task: Task, database: Database, measurer: Measurer) -> None:
        self.task = task
        self.fresh = 0
        self._database = database
        self._measurer = measurer
        self._speed_ups: dict[Key, float | None] = {}
        self._refresh()

    def speed_ups(self, points: Sequence[Point]) -> list[float | None]:
        """How much quicker than the default schedule points are; None for failures."""
        if any(key_of(point) not in self._speed_ups for point in points):
            # Another run may have measured some since.
            self._refresh()
        for point in points:
            if key_of(point) not in self._speed_ups:
                self._measure(point)
        return [self._speed_ups[key_of(point)] for point in points]

    def _refresh(self) -> None:
        for record in self._database.records(self.task.key, str(self.task.target)):
            self._speed_ups.setdefault(key_of(record.answers), speed_up(record))

    def _measure(self, point: Point) -> None:
        record = self._timed(point)
        self._database.add([record])
        found = speed_up(record)
        if found is not None and found > max((value for value in self._speed_ups.values() if value), default=0.0):
            # The best of many noisy times is too good to be true: it is measured again, and the slower time counts.
            again = self._timed(point)
            self._database.correct([again])
            found = min(found, speed_up(again) or 0.0) or None
        self._speed_ups[key_of(point)] = found
        self.fresh += 1

    def _timed(self, point: Point) -> Record:
        # One at a time: the next one is not built while this one is timed.
        [result] = self._measurer.measure(self.task, [point])
        return _record(self.task, result)


def speed_up(record: Record) -> float | None:
    """The default schedule's time over the record's; None for failures."""
    return None if record.relative is None else 1.0 / record.relative


def _record(task: Task, result: Measurement) -> Record:
    return Record(task.key, str(task.target), result.answers, result.seconds, result.error, result.reference)


def run_search(table: Table, options: TuneOptions, trials: int, stop: Callable[[], bool] = lambda: False) -> Run | None:
    """One search from nothing, for so many trials or until it has no more points; None if it is stopped first."""
    asked: list[Point] = []
    start = time.thread_time()
    search = make_search(table.task.space(), table.task, options)
    spent = time.thread_time() - start
    while len(asked) < trials:
        start = time.thread_time()
        points = search.propose(min(BATCH, trials - len(asked)))
        spent += time.thread_time() - start
        if not points:
            break
        asked += points
        if stop():
            return None
        found = table.speed_ups(points)
        start = time.thread_time()
        search.observe([(point, 1.0 / value if value else None) for point, value in zip(points, found, strict=True)])
        spent += time.thread_time() - start
    return Run(tuple(asked), spent)


def curve_of(run: Run, speed_ups: Mapping[Key, float | None]) -> Curve:
    """The curve of a run by a table of speed-ups."""
    best: list[float] = []
    for point in run.points:
        best.append(max(speed_ups.get(key_of(point)) or 0.0, best[-1] if best else 0.0))
    return Curve(best, run.seconds)


def run_all(
    jobs: Sequence[Job], database: Path, processes: int, seconds: float, say: Callable[[str], None]
) -> dict[str, Run]:
    """The runs of all jobs by their names: known ones from beside the database, others made now.

    After `seconds` no more are begun, and those under way stop: what they measured is kept, they are not.
    """
    kept = database.with_suffix(".runs.gz")
    runs = load_runs(kept)
    missing = [job for job in jobs if job.name not in runs]
    until = time.time() + seconds if seconds else float("inf")
    if not missing:
        return runs
    context = multiprocessing.get_context("spawn")
    cpus = context.Queue()
    for cpu in (sorted(usable_cpus()) * processes)[:processes]:
        cpus.put(cpu)
    with ProcessPoolExecutor(processes, context, _start, (cpus,)) as pool:
        waiting = {pool.submit(_work, job, database, until): job for job in missing}
        done = 0
        for future in as_completed(waiting):
            run = future.result()
            done += 1
            if run is None:
                continue
            job = waiting[future]
            runs[job.name] = run
            say(f"{done}/{len(missing)} {job.task.label}, {job.search}, seed {job.options.seed}: {run.seconds:.1f} s")
            save_runs(kept, runs)
    return runs


def load_runs(path: Path) -> dict[str, Run]:
    """The runs that were kept in a file; none if there is none."""
    if not path.exists():
        return {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return {name: Run.from_json(data) for name, data in json.load(file).items()}


def save_runs(path: Path, runs: Mapping[str, Run]) -> None:
    """Keep runs in a file, whole or not at all."""
    aside = path.with_suffix(".tmp")
    with gzip.open(aside, "wt", encoding="utf-8") as file:
        json.dump({name: run.to_json() for name, run in runs.items()}, file)
    os.replace(aside, path)


def _start(cpus: multiprocessing.Queue[int]) -> None:
    """A process takes a processor of its own, which its children inherit."""
    os.sched_setaffinity(0, {cpus.get()})


def _work(job: Job, database: Path, until: float) -> Run | None:
    def stop() -> bool:
        parent = multiprocessing.parent_process()
        return time.time() > until or (parent is not None and not parent.is_alive())

    if stop():
        return None
    with Database(database) as opened:
        return run_search(Table(job.task, opened, _measurer()), job.options, job.trials, stop)


@cache
def _measurer() -> LocalMeasurer:
    """The measurer of this process, for all of its runs."""
    measurer = LocalMeasurer(builders=1)
    atexit.register(measurer.close)
    return measurer


def jobs_of(tasks: Sequence[Task], searches: Mapping[str, TuneOptions], seeds: int, trials: int) -> Iterator[Job]:
    """Every search on every task with every seed; runs of one task lie apart, so that they seldom ask at once."""
    for seed in range(seeds):
        for name, options in searches.items():
            for task in tasks:
                yield Job(task, name, replace(options, seed=seed), trials)
