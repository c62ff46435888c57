"""Kernels chosen in their model on a CPU: the best candidates of each run in it, beside the default schedules.

Kernels run differently in a model than alone: inputs are where the kernel before left them, weights come from beyond
the caches, and every kernel drives out what the others would find there. So the model is compiled with the default
schedules, with the quickest candidate of each kernel, and with the next ones; all of them run in turns, kernel by
kernel, and of each kernel what is surely quickest there is proposed. The last word has the model as a whole, in plain
runs: it must be quicker with what is proposed than by default in a clear majority of pairs of runs. Where it is not,
the half of the proposals that promises most is tried, and so on; in the end the defaults stay.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.backends.llvm.deploy import executable
from tilewright.lower.database import Database
from tilewright.lower.model import LoweredModel
from tilewright.lower.records import Record, Selection
from tilewright.runtime.core.executor import Executable
from tilewright.support.fingerprint import compiler_name
from tilewright.topi.schedule.choices import Answer
from tilewright.tune.in_graph import InGraph, check_straight
from tilewright.tune.space import key_of
from tilewright.tune.task import Task
from tilewright.tune.turns import WORTH, Times, compare_in_turns, most_models, time_in_chunks

_CLEARLY = 0.99
"""What part of the default schedule's time may be left in the model, typically."""
_PROMISING = 0.99
"""The same for records that are tried at all."""
_LEAST_GAIN = (WORTH - 1) / 2
"""The part of the model's time that the kernels' own times must promise: less would hardly be worth the change."""

Answers = Mapping[str, Answer]


@dataclass(frozen=True, slots=True)
class _Proposal:
    """Another schedule for a kernel: the place of its candidate among the kernel's, and the seconds it may save."""

    key: str
    place: int
    saves: float


def choose_in_model(
    lowered: LoweredModel,
    threads: int | None,
    tasks: Sequence[Task],
    database: Database,
    *,
    keep: int = 4,
    seconds: float | None = None,
) -> InGraph:
    """Try the `keep` quickest records of each task in the whole model; the database is told what is to be used.

    `seconds` is about how long models run in one comparison. An `UnsupportedError` where a model's kernels cannot be
    tried in it.
    """
    began = time.monotonic()
    check_straight(lowered)
    options = {task.key: _promising(task, database)[:keep] for task in tasks}
    default = _compiled(lowered, threads, {})
    places = range(max(map(len, options.values()), default=0))
    others = [partial(_compiled, lowered, threads, _of_place(options, place)) for place in places]
    times = time_in_chunks(default, others, most_models(lowered), lambda row: (row.kernel.symbol,), seconds)
    proposals = _proposals(options, times)
    before = together = times.whole[0]
    trials = times.profiles
    while proposals and sum(item.saves for item in proposals) >= times.whole[0] * _LEAST_GAIN:
        form = _compiled(lowered, threads, _answers(options, proposals))
        found = compare_in_turns(default, form, seconds=seconds, until_clear=True)
        trials += len(found.ratios)
        if found.is_quicker:
            before, together = found.first, found.first / found.ratio
            break
        proposals = proposals[: len(proposals) // 2]
    else:
        proposals = []
    answers = _answers(options, proposals)
    database.select(
        Selection(task.key, str(task.target), answers.get(task.key, {}), compiler=compiler_name()) for task in tasks
    )
    alone = before * (times.whole[1] / times.whole[0] if others else 1.0)
    exchanged = sum(answers.get(key) != found[0] for key, found in options.items() if found)
    return InGraph(before, alone, together, trials, time.monotonic() - began, exchanged)


def _proposals(options: Mapping[str, Sequence[Answers]], times: Times) -> list[_Proposal]:
    """Of each kernel the candidate that is surely the quickest, where it beats the default; what saves most first."""
    proposals = []
    for key, found in options.items():
        if not found:
            continue
        default = times.parts[0][key]
        place = min(range(len(found)), key=lambda place: times.surely[place + 1][key])
        typical, surely = times.parts[place + 1][key], times.surely[place + 1][key]
        if surely < default and typical < default * _CLEARLY:
            proposals.append(_Proposal(key, place, default - typical))
    return sorted(proposals, key=lambda item: -item.saves)


def _answers(options: Mapping[str, Sequence[Answers]], proposals: Sequence[_Proposal]) -> dict[str, Answers]:
    return {item.key: options[item.key][item.place] for item in proposals}


def _promising(task: Task, database: Database) -> list[Answers]:
    """The answers of the records that beat the default schedule alone, quickest first."""
    default = key_of(task.space().default)
    good: list[tuple[float, Record]] = []
    for record in database.current(task.key, str(task.target)):
        if record.relative is not None and record.relative < _PROMISING and key_of(record.answers) != default:
            good.append((record.relative, record))
    return [record.answers for _, record in sorted(good, key=lambda item: item[0])]


def _of_place(options: Mapping[str, Sequence[Answers]], place: int) -> dict[str, Answers]:
    """The candidates of one place in the order of their kernels; none for kernels that have fewer."""
    return {key: found[place] for key, found in options.items() if place < len(found)}


def _compiled(lowered: LoweredModel, threads: int | None, answers: Mapping[str, Answers]) -> Executable:
    kernels = tuple(replace(kernel, answers=dict(answers.get(kernel.symbol, {}))) for kernel in lowered.kernels)
    tuned = replace(lowered, kernels=kernels)
    return executable(tuned.assemble(tuned.compiled(), threads), threads)
