"""How many candidates a second a search looks at, and where the time goes: part of `python -m bench.tuning`.

    python -m bench.tuning --throughput

A candidate is new: its point is drawn, its program scheduled, its features taken and scored. `random` has points drawn
evenly, which have little in common; `search` counts the new programs of an evolutionary search, which have more. Rates
are candidates for each second of processor time, so that other load on the machine counts little, times processors.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from random import Random
from zlib import crc32

import numpy as np

from tilewright.support.collecting import seldom_collecting
from tilewright.support.errors import TilewrightError
from tilewright.support.text import table
from tilewright.tir.function import PrimFunc
from tilewright.topi.schedule.choices import Choices
from tilewright.tune.cost import TreeModel
from tilewright.tune.features import Vector, extract
from tilewright.tune.search import EvolutionarySearch
from tilewright.tune.space import Key, Point, Space, key_of
from tilewright.tune.task import Task

STAGES = ("sample", "schedule", "features", "score")
_BATCH = 8
_TRIES = 4
"""Points drawn for each that is wanted: of a small space, some were drawn before."""


@dataclass(frozen=True, slots=True)
class Rate:
    """One task: candidates for each second of processor time, and the milliseconds of each stage of one."""

    task: str
    random: float
    search: float
    known: float
    stages: Mapping[str, float]


def throughput(tasks: Sequence[Task], processes: int, count: int = 256) -> dict[str, object]:
    """The rates of all processors together, over tasks; each processor works on a task of its own at a time."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        rates = list(pool.map(measure, tasks, [count] * len(tasks)))
    return {
        "processors": processes,
        "random": round(processes * statistics.geometric_mean(rate.random for rate in rates), 1),
        "search": round(processes * statistics.geometric_mean(rate.search for rate in rates), 1),
        "known": round(processes * statistics.geometric_mean(rate.known for rate in rates), 1),
        "milliseconds": {name: round(statistics.mean(rate.stages[name] for rate in rates), 3) for name in STAGES},
        "tasks": {rate.task: [round(rate.random, 1), round(rate.search, 1)] for rate in rates},
    }


def measure(task: Task, count: int) -> Rate:
    """The rates of one task on one processor, in a process as a tuner has it."""
    with seldom_collecting():
        return _measure(task, count)


def _measure(task: Task, count: int) -> Rate:
    spent = dict.fromkeys(STAGES, 0.0)
    space, random = task.space(), Random(0)
    clock = time.thread_time()

    def lap(stage: str) -> None:
        nonlocal clock
        now = time.thread_time()
        spent[stage] += now - clock
        clock = now

    rows: list[Vector] = []
    seen: set[Key] = set()
    for _ in range(_TRIES * count):
        point = space.random(random)
        lap("sample")
        if len(rows) == count:
            break
        if key_of(point) in seen:
            continue
        seen.add(key_of(point))
        program = _program(space, point)
        lap("schedule")
        if program is not None:
            rows.append(extract(program, task.target))
            lap("features")
    matrix = np.stack(rows)
    model = TreeModel()
    model.fit(matrix, np.linspace(0, 1, len(matrix), dtype=np.float32), [task.key] * len(matrix))
    clock = time.thread_time()
    for start in range(0, len(matrix), _BATCH):
        model.predict(matrix[start : start + _BATCH])
        lap("score")
    stages = {name: 1e3 * seconds / len(rows) for name, seconds in spent.items()}
    return Rate(task.key, len(rows) / sum(spent.values()), _searched(task, count), len(rows) / spent["score"], stages)


def _searched(task: Task, count: int) -> float:
    """New programs that an evolutionary search makes and scores, for each second of its whole processor time."""
    search = EvolutionarySearch(task.space(), TreeModel(), 0, task=task.key)
    start, learning = time.thread_time(), 0.0
    while search.programs < count:
        points = search.propose(_BATCH)
        if not points:
            break
        began = time.thread_time()
        # Any times will do.
        search.observe([(point, 1.0 + crc32(repr(key_of(point)).encode()) / 2**32) for point in points])
        learning += time.thread_time() - began
    return search.programs / (time.thread_time() - start - learning)


def _program(space: Space, point: Point) -> PrimFunc | None:
    """The program of a point, or None if the template cannot make it."""
    try:
        return space.schedule(Choices(point))
    except TilewrightError:
        return None


def report(found: Mapping[str, object]) -> str:
    """A table for people."""
    stages, tasks = found["milliseconds"], found["tasks"]
    assert isinstance(stages, dict) and isinstance(tasks, dict)
    rows = [[key, *(f"{rate:.0f}" for rate in rates)] for key, rates in tasks.items()]
    lines = table(["task (candidates a second of one processor)", "random", "search"], rows)
    where = ", ".join(f"{name} {value:.2f}" for name, value in stages.items())
    return (
        f"{lines}\n{found['processors']} processors: {found['random']} random candidates a second, "
        f"{found['search']} of a search, {found['known']} known ones\nmilliseconds of a random candidate: {where}"
    )
