"""Searches against each other: `python -m bench.tuning`.

    python -m bench.tuning --quick                 # two tasks, two seeds, a few trials: does it all work
    python -m bench.tuning                         # tasks x searches x seeds, best so far against trials
    python -m bench.tuning --throughput            # only how many candidates a second a search looks at
    python -m bench.tuning --seconds 80 --processes 16   # as much of it as fits; the same command goes on from there

Tasks are kernels of ResNet-18, MobileNet and BERT for one core. Also: how well cost models order programs they have not
seen (`bench/tuning_quality.py`), and how many candidates a second are sampled, scheduled, featurised and scored
(`bench/tuning_throughput.py`). Prints tables, writes JSON and curves into `bench/results/`, ends with one line of JSON.
Measurements are kept in a database (`bench/tuning_runs.py`): a second run costs nothing but the searches' own time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path

import numpy as np

from bench import harness, zoo
from bench.figures import draw_searches, pyplot
from bench.tuning_quality import Programs, other_tasks, same_task
from bench.tuning_runs import Curve, curve_of, jobs_of, run_all, speed_up
from bench.tuning_throughput import report as throughput_report
from bench.tuning_throughput import throughput
from tilewright.compiler import Compilation
from tilewright.lower.database import Database
from tilewright.support.text import table
from tilewright.tune.cost import CostModel, RandomModel, TreeModel
from tilewright.tune.features import Vector, extract, layout
from tilewright.tune.forest import shipped
from tilewright.tune.neural import NeuralModel
from tilewright.tune.space import Key, key_of
from tilewright.tune.task import Task, extract_tasks
from tilewright.tune.tuner import TuneOptions

MODELS = ("resnet18", "mobilenet_v2", "bert_small")
RESULTS = Path(__file__).parent / "results"
SEARCHES: dict[str, TuneOptions] = {
    "random": TuneOptions(search="random"),
    "genetic": TuneOptions(search="genetic"),
    "annealing, rank": TuneOptions(search="annealing", prior=None),
    "annealing, regression": TuneOptions(search="annealing", model=partial(TreeModel, "regression"), prior=None),
    "evolution, rank": TuneOptions(search="evolution", prior=None),
    "evolution, shipped": TuneOptions(search="evolution"),
}
"""The last one starts from the shipped cost model, as `tilewright tune` does."""
BASELINE = "random"
COST_MODELS: dict[str, Callable[[], CostModel]] = {
    "trees, rank": TreeModel,
    "trees, regression": partial(TreeModel, "regression"),
    "neural": NeuralModel,
    "random": RandomModel,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.quick:
        options.tasks, options.trials, options.seeds, options.models = 2, 24, 2, "mobilenet_v2"
    harness.say(harness.machine_line())
    start = time.monotonic()
    tasks = choose_tasks(options.models.split(","), options.tasks)
    if options.throughput:
        rates = throughput(tasks, options.processes)
        harness.say(throughput_report(rates))
        print(json.dumps(rates))
        return 0
    jobs = list(jobs_of(tasks, SEARCHES, options.seeds, options.trials))
    options.database.parent.mkdir(parents=True, exist_ok=True)
    runs = run_all(jobs, options.database, options.processes, options.seconds, harness.say)
    if any(job.name not in runs for job in jobs):
        harness.say("the time was up before all runs were done: the same command goes on from here")
        return 1
    with Database(options.database) as database:
        known = {task.key: measured(task, database) for task in tasks}
    curves: Curves = {task.key: {name: [] for name in SEARCHES} for task in tasks}
    for job in jobs:
        curves[job.task.key][job.search].append(curve_of(runs[job.name], known[job.task.key]))
    unbiased: dict[str, set[Key]] = {task.key: set() for task in tasks}
    for job in jobs:
        if job.search == BASELINE:
            unbiased[job.task.key].update(map(key_of, runs[job.name].points))
    result: dict[str, object] = {
        "machine": harness.machine(),
        "trials": options.trials,
        "seeds": options.seeds,
        "minutes": round((time.monotonic() - start) / 60, 1),
        "measured": sum(map(len, known.values())),
        "searches": {name: _summary(list(curves.values()), name) for name in SEARCHES},
        "cost_models": cost_model_quality(tasks, known, unbiased),
        "candidates_per_second": throughput(tasks, options.processes),
        "tasks": {
            task.key: {name: [steps_of(run.best) for run in found] for name, found in curves[task.key].items()}
            for task in tasks
        },
    }
    _print(result)
    harness.write_json(Path(options.json), result)
    figure = draw_searches(pyplot(), result)
    figure.savefig(Path(options.json).with_suffix(".png"), dpi=120, bbox_inches="tight")
    print(json.dumps({key: value for key, value in result.items() if key != "tasks"}))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.tuning", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a small run of everything")
    parser.add_argument("--throughput", action="store_true", help="only how many candidates a second are looked at")
    parser.add_argument("--models", default=",".join(MODELS), help="models whose kernels are the tasks")
    parser.add_argument("--tasks", type=int, default=6, help="how many tasks (default: 6)")
    parser.add_argument("--trials", type=int, default=256, help="trials of each search (default: 256)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each search (default: 3)")
    parser.add_argument(
        "--processes", type=int, default=harness.all_threads(), help="runs at once (default: one a processor)"
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="stop runs after so long (default: no limit)")
    parser.add_argument(
        "--database", type=Path, default=Path(".cache/bench-tuning.db"), help="where measurements are kept"
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "tuning.json", help="the file to write")
    return parser


Curves = dict[str, dict[str, list[Curve]]]
"""For each task and search, the curves of all seeds."""


def choose_tasks(models: Sequence[str], count: int) -> list[Task]:
    """Tasks of large spaces, each model in turn, those with most arithmetic first."""
    queues = [_large(extract_tasks(Compilation(zoo.path(name), threads=1).lowered)) for name in models]
    chosen: dict[str, Task] = {}
    while len(chosen) < count and any(queues):
        for queue in queues:
            if queue and len(chosen) < count:
                task = queue.pop(0)
                chosen.setdefault(task.key, task)
    return list(chosen.values())


def _large(tasks: Sequence[Task]) -> list[Task]:
    """The tasks whose spaces are worth a search."""
    return [task for task in tasks if task.space().size() >= 300]


def measured(task: Task, database: Database) -> dict[Key, float | None]:
    """The speed-ups of all candidates that a database knows of a task."""
    return {key_of(item.answers): speed_up(item) for item in database.records(task.key, str(task.target))}


def steps_of(curve: Sequence[float]) -> list[tuple[int, float]]:
    """A curve by the trials at which it rises, and its last one: (trial, best so far)."""
    rises = [n for n, value in enumerate(curve) if n == 0 or value > curve[n - 1]]
    return [(n + 1, round(curve[n], 4)) for n in dict.fromkeys((*rises, len(curve) - 1)) if curve]


def _summary(tasks: Sequence[dict[str, list[Curve]]], name: str) -> dict[str, object]:
    """Over all tasks: the final speed-up, and the trials that reach what random search has at its end."""
    finals = [statistics.median(run.best[-1] for run in found[name]) for found in tasks]
    reach = []
    for found in tasks:
        level = statistics.median_low(run.best[-1] for run in found[BASELINE])
        reach.append(statistics.median_low(run.trials_to(level) or inf for run in found[name]))
    seconds = [run.seconds / max(1, len(run.best)) for found in tasks for run in found[name]]
    median = statistics.median_low(reach)
    return {
        "speed_up": round(statistics.geometric_mean(finals), 4),
        "trials_to_random_best": None if median == inf else median,
        "trials_by_task": [None if value == inf else value for value in reach],
        "search_ms_per_trial": round(1e3 * statistics.mean(seconds), 2),
    }


def cost_model_quality(
    tasks: Sequence[Task], known: Mapping[str, Mapping[Key, float | None]], asked: Mapping[str, set[Key]]
) -> dict[str, dict[str, dict[str, float]]]:
    """For each cost model, how well it orders programs that random search asked for and it has not seen."""
    programs = [
        programs_of(task, {key: value for key, value in known[task.key].items() if key in asked[task.key]})
        for task in tasks
    ]
    makers = dict(COST_MODELS)
    prior = shipped(tasks[0].target)
    if prior is not None:
        makers |= {"shipped": lambda: prior, "trees on shipped": lambda: TreeModel(prior=prior)}
    return {
        name: {
            "other_tasks": other_tasks(make, programs, [task.key for task in tasks]),
            "same_task": same_task(make, programs),
        }
        for name, make in makers.items()
    }


def programs_of(task: Task, known: Mapping[Key, float | None]) -> Programs:
    """The programs of a task that ran, with features and times; not those that the template does not make any more."""
    space = task.space()
    rows: list[tuple[Vector, float]] = []
    for key, value in known.items():
        if value:
            program = space.program(dict(key))
            if key_of(space.canonical(dict(key))) == key:
                rows.append((extract(program, task.target), 1.0 / value))
    features = np.stack([row for row, _ in rows]) if rows else np.zeros((0, layout().width), np.float32)
    return Programs(task.key, features, tuple(seconds for _, seconds in rows))


def _print(result: Mapping[str, object]) -> None:
    searches, models = result["searches"], result["cost_models"]
    assert isinstance(searches, dict) and isinstance(models, dict)
    rows = [
        [
            name,
            f"{item['speed_up']:.3f}x",
            str(item["trials_to_random_best"] or "-"),
            f"{item['search_ms_per_trial']:.1f}",
        ]
        for name, item in searches.items()
    ]
    harness.say(table(["search", "speed-up", "trials to random's best", "search ms a trial"], rows))
    lines = [
        [name, kind.replace("_", " "), *(f"{value:.3f}" for value in item.values())]
        for name, kinds in models.items()
        for kind, item in kinds.items()
        if item
    ]
    harness.say(table(["cost model", "learned on", "pairwise accuracy", "recall@30", "programs"], lines))
    harness.say(f"candidates a second: {result['candidates_per_second']}")


if __name__ == "__main__":
    sys.exit(main())
