"""Tuning a whole model: from its file to records in a database that `compile` asks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Unpack

from tilewright.compiler import Compilation
from tilewright.lower.database import Database, default_database
from tilewright.options import SHIPPED, CompileOptions, OptionFields, make_options
from tilewright.request import ModelLike, TargetLike
from tilewright.runtime.device.devices import find_device
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.support.processors import usable_cpus
from tilewright.topi.schedule.choices import Answer
from tilewright.tune.accel_measure import device_measurer
from tilewright.tune.algorithms import Algorithms, OnStep, choose_algorithms
from tilewright.tune.cost import CostModel, TreeModel
from tilewright.tune.device_measure import DeviceMeasurer
from tilewright.tune.device_runner import DeviceBudget
from tilewright.tune.in_graph import InGraph, OnExchange, choose_in_graph
from tilewright.tune.in_model import choose_in_model
from tilewright.tune.measure import LocalMeasurer, Measurer
from tilewright.tune.neural import NeuralModel
from tilewright.tune.task import Task, extract_tasks
from tilewright.tune.tuner import GUIDED, OnBatch, Report, TuneOptions, tune, usual_search
from tilewright.tune.turns import SECONDS

_DEVICE_BATCHES = (4, 8)
"""The least and the most candidates of a batch on a device."""
_DEVICE_PATIENCE = 32
_MOST_COLD = 64 << 20
"""Bytes of copies of a kernel's weights: no cache of a device holds more."""
_COMPARISON_SHARE = 0.05
"""The part of the time for tuning that one comparison of whole models may take, up to what is usual."""
_NO_TIME = 1e-3
"""Seconds that are as good as none (0 is no limit)."""
COST_MODELS: dict[str, Callable[[], CostModel]] = {"trees": TreeModel, "neural": NeuralModel}


def tune_model(
    model: ModelLike,
    target: TargetLike = "native",
    threads: int | None = None,
    *,
    options: CompileOptions | None = None,
    trials: int = 500,
    seconds: float = 0.0,
    search: str | None = None,
    cost_model: str = "trees",
    seed: int = 0,
    in_graph: bool = True,
    measurer: Measurer | None = None,
    on_algorithms: OnStep = lambda text: None,
    on_tasks: Callable[[Sequence[Task]], None] = lambda tasks: None,
    on_batch: OnBatch = lambda tasks, task, trials: None,
    on_exchange: OnExchange = lambda task, before, now: None,
    **changes: Unpack[OptionFields],
) -> Report:
    """Measure schedules of a model's kernels for at most `trials` candidates and `seconds` (0: no limit).

    The model is compiled as `tw.compile` does it with the same `options`, or keywords by the names of their fields.
    Records go to the `database` among them (None: the user's own), from which `tw.compile` takes the best ones; tuning
    again goes on where it stopped. `search` is one of `tuner.SEARCHES` (None: what suits the target); those that ask a
    cost model ask `trees` (extra `tune`) or a `neural` one, which needs no extra. Where measuring takes place here, on
    a CPU or on a device (`target="cuda"`), the best candidates of each kernel are in the end tried in the whole model
    (`in_graph`), and what is quickest there is what compilation takes; on a CPU algorithms are chosen in it likewise
    before their kernels are tuned. `on_algorithms` is told what is being done there, `on_tasks` what will be tuned,
    `on_batch(tasks, task, trials)` what each batch brought, `on_exchange(task, before, now)` what the model takes after
    each kernel that was tried in it (on a device).
    """
    chosen = make_options(options, threads, changes)
    database = chosen.database
    if isinstance(database, (str, os.PathLike)) and os.fspath(database) == SHIPPED:
        raise UserError("the shipped records are read only", hint="tune into a database of your own")
    if cost_model not in COST_MODELS:
        raise UserError(f"unknown cost model {cost_model!r}", hint=f"one of {', '.join(COST_MODELS)}")
    compilation = Compilation(model, target, options=replace(chosen, database=None))
    search = usual_search(compilation.target) if search is None else search
    if cost_model == "trees" and search in GUIDED:
        TreeModel.check_installed()
    spending = TuneOptions(
        trials=trials, seconds=seconds, search=search, seed=seed, model=COST_MODELS[cost_model]
    ).checked()
    if measurer is None:
        _check_here(compilation)
    held = nullcontext(database) if isinstance(database, Database) else Database(database or default_database())
    with held as opened:
        if database is not None:
            # The kernels to be tuned are those of the algorithms that this database asks for, and no other.
            compilation = _with_answers(compilation, opened.answers(str(compilation.target)))
        heard = _Heard(on_algorithms, on_tasks, on_batch, on_exchange)
        return _tune_compilation(compilation, opened, spending, measurer, heard, in_graph=in_graph)


@dataclass(frozen=True, slots=True)
class _Heard:
    """Who is told what tuning does."""

    on_algorithms: OnStep
    on_tasks: Callable[[Sequence[Task]], None]
    on_batch: OnBatch
    on_exchange: OnExchange


def _tune_compilation(
    compilation: Compilation,
    database: Database,
    spending: TuneOptions,
    measurer: Measurer | None,
    heard: _Heard,
    *,
    in_graph: bool,
) -> Report:
    """Algorithms in the whole model, then kernels by themselves, then the best of these in the whole model."""
    target, seconds = compilation.target, spending.seconds
    if not target.is_cpu:
        spending = replace(spending, batch=_device_batch(), early_stop=_DEVICE_PATIENCE)
    is_here = measurer is None or isinstance(measurer, LocalMeasurer if target.is_cpu else DeviceMeasurer)
    # Boards run kernels, not models.
    is_here = is_here and not target.capabilities.little_memory
    began = time.monotonic()
    algorithms = None
    if in_graph and target.is_cpu and is_here:
        try:
            algorithms = _algorithms(compilation, database, seconds, heard.on_algorithms)
        except KeyboardInterrupt:
            return Report((), 0, time.monotonic() - began, 0.0, True)
    if algorithms is not None:
        known = compilation.request.answers
        compilation = _with_answers(compilation, {**known, **database.answers(str(target))})
    spent = time.monotonic() - began
    if seconds:
        spending = replace(spending, seconds=max(seconds - spent, _NO_TIME))
    tasks = extract_tasks(compilation.lowered)
    heard.on_tasks(tasks)
    with _measuring(measurer, compilation) as measuring:
        report = tune(tasks, database, spending, measurer=measuring, on_batch=heard.on_batch)
        total, measuring_seconds = report.seconds + spent, report.measuring_seconds + spent
        report = replace(report, algorithms=algorithms, seconds=total, measuring_seconds=measuring_seconds)
        if not in_graph or report.stopped or not is_here or target.capabilities.counted_cycles:
            # Programs whose cycles are counted take as many in a model as they do alone.
            return report
        return _with_choice(report, _in_model(compilation, database, measuring, seconds, heard.on_exchange))


def _with_answers(compilation: Compilation, answers: Mapping[str, Mapping[str, Answer]]) -> Compilation:
    return Compilation.of(replace(compilation.request, answers=answers))


def _algorithms(compilation: Compilation, database: Database, seconds: float, on_step: OnStep) -> Algorithms | None:
    """Algorithms chosen in the model, where it allows that; a comparison takes a small part of the time there is."""
    try:
        return choose_algorithms(compilation, database, seconds=_share(seconds), on_step=on_step)
    except UnsupportedError:
        # Kernels cannot be tried in such a model either, and the report says why.
        return None


def _share(seconds: float) -> float | None:
    """About how long whole models may run in one comparison; None is as long as is usual."""
    return min(seconds * _COMPARISON_SHARE, SECONDS) if seconds else None


def _measuring(
    measurer: Measurer | None, compilation: Compilation
) -> AbstractContextManager[DeviceMeasurer | Measurer | None]:
    """What measures: on a CPU that is this machine's the tuner makes it."""
    if measurer is None and not compilation.target.is_cpu:
        return device_measurer(compilation.target, _device_budget(compilation))
    return nullcontext(measurer)


def _in_model(
    compilation: Compilation, database: Database, measuring: Measurer | None, seconds: float, on_exchange: OnExchange
) -> Callable[[Sequence[Task]], InGraph]:
    """How the best candidates of tasks are tried in the whole model."""
    lowered = compilation.lowered
    if isinstance(measuring, DeviceMeasurer):
        return lambda tasks: choose_in_graph(lowered, tasks, database, measuring, on_exchange=on_exchange)
    return lambda tasks: choose_in_model(lowered, compilation.threads, tasks, database, seconds=_share(seconds))


def _with_choice(report: Report, choose: Callable[[Sequence[Task]], InGraph]) -> Report:
    """The report after the best candidates were tried in the whole model, those of long kernels first."""
    ordered = [item.task for item in sorted(report.tasks, key=lambda item: -item.best_seconds * item.task.uses)]
    try:
        chosen = choose(ordered)
    except KeyboardInterrupt:
        return replace(report, stopped=True)
    except UnsupportedError as error:
        return replace(report, not_in_graph=error.message)
    return replace(report, in_graph=chosen)


def _check_here(compilation: Compilation) -> None:
    """An error where this machine cannot measure candidates of a target."""
    target = compilation.target
    if not target.is_cpu:
        find_device(target.kind)
    elif not target.is_host and not target.capabilities.little_memory:
        # Microcontrollers are emulated, or behind a debugger.
        raise UserError(
            f"the target {target} is not this machine, so nothing can be measured here",
            hint="measure on devices: tw.tune.RemoteMeasurer, or `tilewright tune --tracker HOST:PORT --key KEY`",
        )


def _device_batch() -> int:
    """About half as many candidates as are compiled at a time: those of the next task are under way, too."""
    least, most = _DEVICE_BATCHES
    return max(least, min(most, len(usable_cpus())))


def _device_budget(compilation: Compilation) -> DeviceBudget:
    """Weights come from as far away as they do in the model: all of it lies between two uses of one."""
    weights = sum(constant.data.nbytes for part in compilation.lowered.segments for constant in part.plan.constants)
    return DeviceBudget(cold_bytes=min(weights, _MOST_COLD))
