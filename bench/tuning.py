"""Searches against each other: `python -m bench.tuning`.

    python -m bench.tuning --quick                 # two tasks, two seeds, a few trials: does it all work
    python -m bench.tuning                         # tasks x searches x seeds, best so far against trials
    python -m bench.tuning --tasks 6 --trials 256 --seeds 3 --json out.json

Tasks are kernels of ResNet-18, MobileNet and BERT for one core. A candidate is measured once, whichever search asks for
it, and kept in a database: searches then differ in what they ask for alone, and a second run costs nothing but their
own time. Also: how well cost models that were trained on other tasks order a task's programs, and how many candidates a
second are sampled, scheduled, featurised and scored. Prints a table, writes JSON and a page of curves into
`bench/results/`, ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from random import Random

import numpy as np

from bench import harness, zoo
from tilewright.compiler import Compilation
from tilewright.lower.database import Database, Record
from tilewright.support.errors import TilewrightError
from tilewright.support.text import table
from tilewright.topi.schedule.choices import Choices
from tilewright.tune.cost import TreeModel, pairwise_accuracy, recall_at, scores_of
from tilewright.tune.features import Vector, extract
from tilewright.tune.measure import LocalMeasurer, Measurement
from tilewright.tune.space import Point, Space, key_of
from tilewright.tune.task import Task, extract_tasks
from tilewright.tune.tuner import TuneOptions, make_search

MODELS = ("resnet18", "mobilenet_v2", "bert_small")
RESULTS = Path(__file__).parent / "results"
SEARCHES: dict[str, TuneOptions] = {
    "random": TuneOptions(search="random"),
    "genetic": TuneOptions(search="genetic"),
    "annealing, rank": TuneOptions(search="annealing"),
    "annealing, regression": TuneOptions(search="annealing", model=lambda: TreeModel("regression")),
    "evolution, rank": TuneOptions(search="evolution"),
}
BASELINE = "random"
_BATCH = 8
_RECALL = 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.quick:
        options.tasks, options.trials, options.seeds, options.models = 2, 24, 2, "mobilenet_v2"
    harness.say(harness.machine_line())
    tasks = choose_tasks(options.models.split(","), options.tasks)
    runs: dict[str, dict[str, list[Curve]]] = {}
    with Database(options.database) as database, LocalMeasurer() as measurer:
        for task in tasks:
            asked = Measured(task, database, measurer)
            runs[task.key] = {}
            for name, base in SEARCHES.items():
                runs[task.key][name] = [
                    run_search(asked, replace(base, seed=n), options.trials) for n in range(options.seeds)
                ]
            harness.say(f"{task.label}: {asked.fresh} new measurements, {asked.known} known")
        held_out = cost_model_quality(tasks, database)
        rate = throughput(tasks)
    result = {
        "machine": harness.machine(),
        "trials": options.trials,
        "searches": {name: _summary([runs[task.key] for task in tasks], name) for name in SEARCHES},
        "cost_model": held_out,
        "candidates_per_second": rate,
        "tasks": {
            task.key: {name: [run.best for run in found] for name, found in runs[task.key].items()} for task in tasks
        },
    }
    _print(result)
    harness.write_json(Path(options.json), result)
    Path(options.json).with_suffix(".svg").write_text(_plot(runs, options.trials), encoding="utf-8")
    print(json.dumps({key: value for key, value in result.items() if key != "tasks"}))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.tuning", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a small run of everything")
    parser.add_argument("--models", default=",".join(MODELS), help="models whose kernels are the tasks")
    parser.add_argument("--tasks", type=int, default=6, help="how many tasks (default: 6)")
    parser.add_argument("--trials", type=int, default=256, help="trials of each search (default: 256)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each search (default: 3)")
    parser.add_argument(
        "--database", type=Path, default=Path(".cache/bench-tuning.db"), help="where measurements are kept"
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "tuning.json", help="the file to write")
    return parser


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


@dataclass(slots=True)
class Curve:
    """One run of a search: the best speed-up over the default schedule after each trial, and the search's own time."""

    best: list[float]
    seconds: float

    def trials_to(self, level: float) -> int | None:
        """The first trial that reaches a level."""
        return next((n + 1 for n, value in enumerate(self.best) if value >= level), None)


class Measured:
    """A task whose candidates are measured once and looked up after that."""

    def __init__(self, task: Task, database: Database, measurer: LocalMeasurer) -> None:
        self.task = task
        self.fresh = 0
        self._database = database
        self._measurer = measurer
        records = database.records(task.key, str(task.target))
        self._times = {key_of(record.answers): record for record in records}
        self.known = len(self._times)
        database.add_task(task.key, task.label, float(task.flops))

    def speed_ups(self, points: Sequence[Point]) -> list[float | None]:
        """How much quicker than the default schedule points are; None for failures."""
        missing = [point for point in points if key_of(point) not in self._times]
        for result in self._measurer.measure(self.task, missing) if missing else ():
            self._remember(result)
        found = [self._times[key_of(point)].relative for point in points]
        return [None if value is None else 1.0 / value for value in found]

    def _remember(self, result: Measurement) -> None:
        task = self.task
        record = Record(task.key, str(task.target), result.answers, result.seconds, result.error, result.reference)
        self._database.add([record])
        self._times[key_of(result.answers)] = record
        self.fresh += 1


def run_search(asked: Measured, options: TuneOptions, trials: int) -> Curve:
    """One search from nothing, for so many trials or until it has no more points."""
    best: list[float] = []
    spent = 0.0
    start = time.thread_time()
    search = make_search(asked.task.space(), asked.task, options)
    spent += time.thread_time() - start
    while len(best) < trials:
        start = time.thread_time()
        points = search.propose(min(_BATCH, trials - len(best)))
        spent += time.thread_time() - start
        if not points:
            break
        found = asked.speed_ups(points)
        for value in found:
            best.append(max(value or 0.0, best[-1] if best else 0.0))
        start = time.thread_time()
        search.observe([(point, 1.0 / value if value else None) for point, value in zip(points, found, strict=True)])
        spent += time.thread_time() - start
    return Curve(best, spent)


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
        "search_ms_per_trial": round(1e3 * statistics.mean(seconds), 2),
    }


def cost_model_quality(tasks: Sequence[Task], database: Database) -> dict[str, float]:
    """How well trees that learned on all other tasks order the programs of each task."""
    rows = {task.key: list(_rows(task, database)) for task in tasks}
    accuracy, recall = [], []
    for task in tasks:
        others = [(item, key) for key, items in rows.items() if key != task.key for item in items]
        own = rows[task.key]
        if len(others) < 16 or len(own) < 16:
            continue
        names = [key for _, key in others]
        model = TreeModel()
        model.fit(np.stack([item[0] for item, _ in others]), scores_of([item[1] for item, _ in others], names), names)
        right = scores_of([seconds for _, seconds in own], [task.key] * len(own))
        said = model.predict(np.stack([features for features, _ in own]))
        accuracy.append(pairwise_accuracy(said, right))
        recall.append(recall_at(said, right, _RECALL))
    if not accuracy:
        return {}
    return {"pairwise_accuracy": statistics.mean(accuracy), f"recall_at_{_RECALL}": statistics.mean(recall)}


def _rows(task: Task, database: Database) -> Iterator[tuple[Vector, float]]:
    space = task.space()
    for record in database.records(task.key, str(task.target)):
        if record.relative is not None:
            yield extract(space.schedule(Choices(record.answers)), task.target), record.relative


def throughput(tasks: Sequence[Task], count: int = 40) -> dict[str, float]:
    """Candidates a second on one core: new ones (sampled, scheduled, featurised, scored), and known ones (scored)."""
    fresh, known = [], []
    for task in tasks:
        space, random = task.space(), Random(0)
        model = TreeModel()
        start = time.thread_time()
        tried = [_features(space, space.random(random)) for _ in range(count)]
        features = [found for found in tried if found is not None]
        matrix = np.stack(features)
        taken = time.thread_time() - start
        model.fit(matrix, np.linspace(0, 1, len(matrix), dtype=np.float32), [task.key] * len(matrix))
        start = time.thread_time()
        model.predict(matrix)
        scoring = time.thread_time() - start
        fresh.append(len(matrix) / (taken + scoring))
        known.append(len(matrix) / max(scoring, 1e-6))
    return {"new": statistics.geometric_mean(fresh), "known": statistics.geometric_mean(known)}


def _features(space: Space, point: Point) -> Vector | None:
    """The features of a point, or None if the template cannot make its program."""
    try:
        return extract(space.schedule(Choices(point)), space.target)
    except TilewrightError:
        return None


def _print(result: dict[str, object]) -> None:
    searches = result["searches"]
    assert isinstance(searches, dict)
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
    harness.say(
        f"cost model on other tasks: {result['cost_model']}; candidates a second: {result['candidates_per_second']}"
    )


def _plot(runs: dict[str, dict[str, list[Curve]]], trials: int) -> str:
    """Best so far, relative to the best that any search found, against trials: the mean over tasks and seeds."""
    width, height = 640, 320
    colours = ("#999", "#c70", "#27b", "#2a5", "#a2b")
    lines = []
    for place, (name, colour) in enumerate(zip(SEARCHES, colours, strict=True)):
        mean = np.mean([curve for found in runs.values() for curve in _relative(found, name, trials)], axis=0)
        points = " ".join(
            f"{40 + n * (width - 60) / max(1, trials - 1):.1f},{height - 30 - (value - 0.5) * 2 * (height - 50):.1f}"
            for n, value in enumerate(mean)
        )
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>')
        lines.append(f'<text x="{width - 190}" y="{height - 120 + 16 * place}" fill="{colour}">{name}</text>')
    axes = f'<path d="M40 10 V{height - 30} H{width - 10}" fill="none" stroke="#666"/><text x="2" y="20">1.0</text>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-size="12">'
    return head + axes + "".join(lines) + "</svg>\n"


def _relative(found: dict[str, list[Curve]], name: str, trials: int) -> list[list[float]]:
    """The curves of one search, as long as there are trials, in parts of the best that any search found."""
    top = max(run.best[-1] for items in found.values() for run in items)
    padded = [[*run.best, *[run.best[-1]] * (trials - len(run.best))] for run in found[name]]
    return [[value / top for value in curve] for curve in padded]


if __name__ == "__main__":
    sys.exit(main())
