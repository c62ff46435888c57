"""Tuning a whole model: from its file to records in a database that `compile` asks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

from tilewright.compiler import Compilation
from tilewright.lower.database import Database
from tilewright.request import SHIPPED, ModelLike
from tilewright.support import settings
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tune.cost import CostModel, TreeModel
from tilewright.tune.measure import Measurer
from tilewright.tune.neural import NeuralModel
from tilewright.tune.task import Task, extract_tasks
from tilewright.tune.tuner import GUIDED, OnBatch, Report, TuneOptions, tune

COST_MODELS: dict[str, Callable[[], CostModel]] = {"trees": TreeModel, "neural": NeuralModel}


def tune_model(
    model: ModelLike,
    target: Target | str = "native",
    threads: int | None = None,
    *,
    trials: int = 500,
    seconds: float = 0.0,
    database: Database | str | os.PathLike[str] | None = None,
    search: str = "evolution",
    cost_model: str = "trees",
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    specialize: Sequence[Mapping[str, int]] = (),
    measurer: Measurer | None = None,
    on_tasks: Callable[[Sequence[Task]], None] = lambda tasks: None,
    on_batch: OnBatch = lambda tasks, task, trials: None,
) -> Report:
    """Measure schedules of a model's kernels for at most `trials` candidates and `seconds` (0: no limit).

    Records go to `database` (None: the user's own), from which `tw.compile` takes the best ones; tuning again goes on
    where it stopped. `search` is one of `tuner.SEARCHES`; those that ask a cost model ask `trees` (extra `tune`) or a
    `neural` one, which needs no extra. `on_tasks` is told what will be tuned, `on_batch(tasks, task, trials)` what each
    batch brought.
    """
    if isinstance(database, (str, os.PathLike)) and os.fspath(database) == SHIPPED:
        raise UserError("the shipped records are read only", hint="tune into a database of your own")
    if cost_model not in COST_MODELS:
        raise UserError(f"unknown cost model {cost_model!r}", hint=f"one of {', '.join(COST_MODELS)}")
    if cost_model == "trees" and search in GUIDED:
        TreeModel.check_installed()
    made = COST_MODELS[cost_model]
    options = TuneOptions(trials=trials, seconds=seconds, search=search, seed=seed, model=made).checked()
    compilation = Compilation(model, target, threads, shapes=shapes, specialize=specialize)
    if measurer is None and not compilation.target.is_host:
        raise UserError(
            f"the target {compilation.target} is not this machine, so nothing can be measured here",
            hint="measure on devices: tw.tune.RemoteMeasurer, or `tilewright tune --tracker HOST:PORT --key KEY`",
        )
    tasks = extract_tasks(compilation.lowered)
    on_tasks(tasks)
    held = nullcontext(database) if isinstance(database, Database) else Database(database or default_database())
    with held as opened:
        return tune(tasks, opened, options, measurer=measurer, on_batch=on_batch)


def default_database() -> os.PathLike[str]:
    """The path of the user's own database."""
    path = settings.DATABASE.get()
    if path is None:
        raise UserError(
            "there is no database to keep records in: the setting TILEWRIGHT_DATABASE says none",
            hint="name a file: --database FILE, or database= in Python",
        )
    return path
