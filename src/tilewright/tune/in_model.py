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

from tilewright.codegen.llvm.deploy import executable
from tilewright.lower.database import Database, Record, Selection
from tilewright.lower.model import LoweredModel
from tilewright.runtime.executor import Executable
from tilewright.topi.schedule.choices import Answer
from tilewright.tune.in_graph import InGraph, check_straight
from tilewright.tune.space import key_of
from tilewright.tune.task import Task
from tilewright.tune.turns import most_models, time_in_turns

_CLEARLY = 0.99
"""What part of the default schedule's time must be left in the model."""
_PROMISING = 0.99
"""The same for records that are tried at all."""

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
    keep = min(keep, most_models(lowered))
    options = {task.key: _promising(task, database)[:keep] for task in tasks}
    models = [_compiled(lowered, threads, {})]
    for place in range(max(map(len, options.values()), default=0)):
        models.append(_compiled(lowered, threads, _of_place(options, place)))
    measured = time_in_turns(models, lambda row: (row.kernel.symbol,))
    times = measured.parts
    chosen: dict[str, int] = {}
    for key, found in options.items():
        best = min(range(len(found) + 1), key=lambda place: times[place][key])
        chosen[key] = best if times[best][key] < times[0][key] * _CLEARLY else 0
    answers = {key: options[key][place - 1] for key, place in chosen.items() if place}
    models = [models[0], *models[1:2], _compiled(lowered, threads, answers)]
    default, *others, together = time_in_turns(models).whole
    alone = others[0] if others else default
    exchanged = sum(place != 1 for key, place in chosen.items() if options[key])
    if together >= default:
        # All of it was noise.
        answers, together = {}, default
    elif alone < together:
        answers, together, exchanged = _of_place(options, 0), alone, 0
    database.select(Selection(task.key, str(task.target), answers.get(task.key, {})) for task in tasks)
    return InGraph(default, alone, together, measured.profiles, time.monotonic() - began, exchanged)


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
