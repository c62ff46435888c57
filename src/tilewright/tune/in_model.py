"""Kernels chosen in their model on a CPU: the best candidates of each run in it, beside the default schedules.

Kernels run differently in a model than alone: inputs are where the kernel before left them, weights come from beyond
the caches, and every kernel drives out what the others would find there. So the model is compiled with the default
schedules, with the quickest candidate of each kernel, and with the next ones; all of them run in turns, kernel by
kernel, and of each kernel what is clearly quickest there is what compilation takes. At the end the model as chosen
runs against the default one: it is never slower than without tuning.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.codegen.llvm.deploy import executable
from tilewright.lower.database import Database, Record, Selection
from tilewright.lower.model import LoweredModel
from tilewright.runtime.artifact import TensorInfo
from tilewright.runtime.convert import Array
from tilewright.runtime.dtypes import storage_dtype
from tilewright.runtime.executor import Executable
from tilewright.runtime.profiler import Profile
from tilewright.support.errors import UnsupportedError
from tilewright.topi.schedule.choices import Answer
from tilewright.tune.in_graph import InGraph, check_straight
from tilewright.tune.space import key_of
from tilewright.tune.task import Task

_CLEARLY = 0.99
"""What part of the default schedule's time must be left in the model."""
_PROMISING = 0.99
"""The same for records that are tried at all."""
_TURNS, _MOST_TURNS, _SECONDS = 6, 40, 4.0
"""Turns of each comparison: at least, at most, and for about so long."""
_REPEAT = 3
_MEMORY = 2 << 30
"""Bytes for the constants of all models that are tried."""

Answers = Mapping[str, Answer]


def choose_in_model(
    lowered: LoweredModel, threads: int | None, tasks: Sequence[Task], database: Database, *, keep: int = 4
) -> InGraph:
    """Try the `keep` quickest records of each task in the whole model; the database is told what is to be used.

    Fewer where the model's constants are so large that as many models do not fit the memory for them.
    An `UnsupportedError` where a model's kernels cannot be tried in it.
    """
    began = time.monotonic()
    check_straight(lowered)
    constants = sum(constant.data.nbytes for part in lowered.segments for constant in part.plan.constants)
    keep = max(1, min(keep, _MEMORY // max(1, constants)))
    options = {task.key: _promising(task, database)[:keep] for task in tasks}
    models = [_compiled(lowered, threads, {})]
    for place in range(max(map(len, options.values()), default=0)):
        models.append(_compiled(lowered, threads, _of_place(options, place)))
    inputs = [_input(info) for info in models[0].input_info]
    times, trials = _kernel_times(models, inputs)
    chosen: dict[str, int] = {}
    for key, found in options.items():
        best = min(range(len(found) + 1), key=lambda place: times[place][key])
        chosen[key] = best if times[best][key] < times[0][key] * _CLEARLY else 0
    answers = {key: options[key][place - 1] for key, place in chosen.items() if place}
    models = [models[0], *models[1:2], _compiled(lowered, threads, answers)]
    default, *others, together = _whole_times(models, inputs)
    alone = others[0] if others else default
    exchanged = sum(place != 1 for key, place in chosen.items() if options[key])
    if together >= default:
        # All of it was noise.
        answers, together = {}, default
    elif alone < together:
        answers, together, exchanged = _of_place(options, 0), alone, 0
    database.select(Selection(task.key, str(task.target), answers.get(task.key, {})) for task in tasks)
    return InGraph(default, alone, together, trials, time.monotonic() - began, exchanged)


def _promising(task: Task, database: Database) -> list[Answers]:
    """The answers of the records that beat the default schedule alone, quickest first."""
    default = key_of(task.space().default)
    good: list[tuple[float, Record]] = []
    for record in database.records(task.key, str(task.target)):
        if record.relative is not None and record.relative < _PROMISING and key_of(record.answers) != default:
            good.append((record.relative, record))
    return [record.answers for _, record in sorted(good, key=lambda item: item[0])]


def _of_place(options: Mapping[str, Sequence[Answers]], place: int) -> dict[str, Answers]:
    """The candidates of one place in the order of their kernels; none for kernels that have fewer."""
    return {key: found[place] for key, found in options.items() if place < len(found)}


def _compiled(lowered: LoweredModel, threads: int | None, answers: Mapping[str, Answers]) -> Executable:
    kernels = tuple(replace(kernel, answers=dict(answers.get(kernel.symbol, {}))) for kernel in lowered.kernels)
    return executable(replace(lowered, kernels=kernels).compile(threads), threads)


def _input(info: TensorInfo) -> Array:
    """A plausible input: floats around zero; integers of zeros, which are valid places of any table."""
    shape = tuple(extent for extent in info.shape if isinstance(extent, int))
    if len(shape) != len(info.shape):
        raise UnsupportedError(f"the size of the input {info.name} is not known")
    kind = storage_dtype(info.dtype)
    if not np.issubdtype(kind, np.floating):
        return np.zeros(shape, kind)
    return np.random.default_rng(0).standard_normal(shape).astype(kind)


def _kernel_times(models: Sequence[Executable], inputs: Sequence[Array]) -> tuple[list[dict[str, float]], int]:
    """For each model the seconds of all calls of each kernel, by its symbol; and how many profiles that took."""
    samples: list[dict[str, list[float]]] = [{} for _ in models]
    turns, began = 0, time.monotonic()
    while turns < _TURNS or (turns < _MOST_TURNS and time.monotonic() - began < _SECONDS):
        turns += 1
        for model, known in zip(models, samples, strict=True):
            seen: dict[str, float] = {}
            for row in _profile(model, inputs).rows:
                seen[row.kernel.symbol] = seen.get(row.kernel.symbol, 0.0) + row.min_seconds
            for symbol, seconds in seen.items():
                known.setdefault(symbol, []).append(seconds)
    return [{symbol: _typical(found) for symbol, found in known.items()} for known in samples], turns * len(models)


def _whole_times(models: Sequence[Executable], inputs: Sequence[Array]) -> list[float]:
    """The seconds of one run of each model."""
    samples: list[list[float]] = [[] for _ in models]
    turns, began = 0, time.monotonic()
    while turns < _TURNS or (turns < _MOST_TURNS and time.monotonic() - began < _SECONDS):
        turns += 1
        for model, found in zip(models, samples, strict=True):
            found.append(_profile(model, inputs).whole_seconds)
    return [_typical(found) for found in samples]


def _profile(model: Executable, inputs: Sequence[Array]) -> Profile:
    """A short profile; of a model on one thread by the time that it has the processor, as candidates are timed."""
    clock = time.thread_time if model.threads == 1 else time.perf_counter
    return model.profile_by(clock, inputs, _REPEAT)


def _typical(samples: Sequence[float]) -> float:
    """The lower quartile: other load makes some samples longer, luck makes the very shortest."""
    return float(np.quantile(samples, 0.25))
