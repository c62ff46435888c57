"""The ten models tuned, and what it brought: `python -m bench.tune_models`.

    python -m bench.tune_models --threads 1 --time 20m              # ten models, 20 minutes each
    python -m bench.tune_models --threads 1 --models dqn,dcgan --trials 200
    python -m bench.tune_models --models more --time 90s            # the second set
    python -m bench.tune_models --threads 1 --choose                # no search: choose anew among the records there are
    python -m bench.tune_models --threads 1 --ship                  # only write what is known as shipped records

Each model is tuned for so long (`tilewright tune` with the same database does the same), then timed with and without
what was found: pinned, in pairs of runs, at several places in memory (`tune/turns.py`). The speed-up is the middle of
all pairs, and stands beside the bounds between which it lies; two compiled models of the same code differ by 0.5 %. The
room is how many times as quick the untuned model would be with every kernel at its bound (`bench/room.py`): no schedule
of the same algorithms gains more. What is done is written to `bench/results/tuned-<threads>t.json` each time (models of
the second set: `tuned-more-<threads>t.json`): the same command goes on with the models that are missing there, and one
that was stopped goes on from its records.
Afterwards, `TILEWRIGHT_DATABASE=... python -m bench.models` compares tuned models with the peers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tilewright as tw
from bench import harness, zoo
from bench.models import geometric_mean, parse_models, parse_threads
from bench.room import Limits, room
from tilewright.cli import measure
from tilewright.cli.tune import duration
from tilewright.compiler import Compilation
from tilewright.graph.choices import is_graph_key
from tilewright.lower.database import Database
from tilewright.lower.shipped import add_shipped
from tilewright.support.errors import UserError
from tilewright.support.text import table
from tilewright.target import Target
from tilewright.tune.algorithms import choose_algorithms, measured_answers
from tilewright.tune.in_model import choose_in_model
from tilewright.tune.model import tune_model
from tilewright.tune.report import write_report
from tilewright.tune.task import extract_tasks
from tilewright.tune.tuner import Progress, Report, totals
from tilewright.tune.turns import compare_in_turns

Result = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        threads, names = parse_threads(options.threads), parse_models(options.models)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    database = options.database or Path(f".cache/tuned-{threads}t.db")
    target = Target("native").replace(cores=threads)
    if options.ship:
        return ship(database, target)
    harness.say(f"{harness.machine_line()}; records in {database}")
    kind = "tuned-more" if set(names) <= set(zoo.more_names()) else "tuned"
    path = options.json or harness.RESULTS_FOLDER / f"{kind}-{threads}t.json"
    results = {} if options.again else known_results(path)
    limits = Limits(target, threads)
    for name in names:
        if (options.compare or options.choose) and name in results:
            if options.choose:
                choose(name, threads, database)
            results[name] |= compare(name, threads, database, options.compare_time, limits)
            harness.write_json(path, summary(results, threads))
            continue
        if name in results:
            harness.say(f"{name}: is done")
            continue
        report = tune(name, threads, database, options.trials, options.time)
        if report.stopped:
            harness.say("stopped: the same command goes on from here")
            return 1
        if options.reports is not None:
            options.reports.mkdir(parents=True, exist_ok=True)
            write_report(options.reports / f"{name}-{threads}t.html", zoo.spec(name).title, report)
        results[name] = {**spent(report), **compare(name, threads, database, options.compare_time, limits)}
        harness.write_json(path, summary(results, threads))
    print(render(results))
    print(json.dumps(summary(results, threads)))
    return 0 if all(is_good(result) for result in results.values()) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.tune_models", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--threads", default="1", help="threads that the models are tuned for, or 'all' (default: 1)")
    parser.add_argument("--models", default="all", help="comma-separated, or 'all'")
    parser.add_argument("--time", type=duration, default=1200.0, help="time for each model (default: 20m)")
    parser.add_argument("--trials", type=int, default=0, help="trials for each model (default: no limit)")
    parser.add_argument(
        "--compare-time", type=duration, default=20.0, help="time of tuned against untuned runs (default: 20s)"
    )
    parser.add_argument("--database", type=Path, help="where records are kept (default: .cache/tuned-<threads>t.db)")
    parser.add_argument("--json", type=Path, help="the file of figures")
    parser.add_argument("--reports", type=Path, help="a folder for the HTML report of each model")
    parser.add_argument("--again", action="store_true", help="tune on also what is done")
    parser.add_argument("--compare", action="store_true", help="of what is done, only time tuned against untuned anew")
    parser.add_argument(
        "--choose", action="store_true", help="of what is done, choose anew among the records, and time"
    )
    parser.add_argument(
        "--ship", action="store_true", help="write the best records into the package and do nothing else"
    )
    return parser


def known_results(path: Path) -> dict[str, Result]:
    """What was done before."""
    if not path.exists():
        return {}
    found: dict[str, Result] = json.loads(path.read_text(encoding="utf-8"))["models"]
    return found


def tune(name: str, threads: int, database: Path, trials: int, seconds: float) -> Report:
    """Tune one model; says now and then how it goes."""
    said = 0

    def on_batch(tasks: Sequence[Progress], item: Progress, done: int) -> None:
        nonlocal said
        if done >= said + 100:
            said = done
            before, after = totals(tasks)
            harness.say(f"{name}: {done} trials, {before / after:.3f}x")

    harness.say(f"{name}: tuning")
    return tune_model(
        zoo.path(name), threads=threads, trials=trials, seconds=seconds, database=database, on_batch=on_batch
    )


def spent(report: Report) -> Result:
    """What tuning took, and what it says it gained."""
    return {
        "trials": report.trials,
        "minutes": round(report.seconds / 60, 2),
        "searching": round(1 - report.measuring_seconds / max(report.seconds, 1e-9), 3),
        "kernels": round(report.before / report.after, 4) if report.after else 1.0,
    }


def choose(name: str, threads: int, database: Path) -> None:
    """Choose algorithms and kernels of a model among those that the database knows: after the compiler has changed."""
    harness.say(f"{name}: choosing")
    with Database(database) as opened:
        choose_algorithms(_compilation(name, threads, opened), opened)
        lowered = _compilation(name, threads, opened).lowered
        found = choose_in_model(lowered, threads, extract_tasks(lowered), opened)
    harness.say(f"{name}: {1e3 * found.default:.3f} ms -> {1e3 * found.together:.3f} ms in the model")


def _compilation(name: str, threads: int, database: Database) -> Compilation:
    return Compilation(str(zoo.path(name)), threads=threads, database=database)


def compare(name: str, threads: int, database: Path, seconds: float, limits: Limits) -> Result:
    """The model with and without the records: times in turns, how far apart the results are, and what room there is."""
    inputs = zoo.inputs(name)
    plain = tw.compile(str(zoo.path(name)), threads=threads, database=_empty(database))
    tuned = tw.compile(str(zoo.path(name)), threads=threads, database=database)
    arrays = [inputs[info.name] for info in plain.input_info]
    with harness.pinned(threads):
        error = measure.max_relative_error(tuned.run(inputs), plain.run(inputs))
        found = compare_in_turns(plain, tuned, seconds=seconds, inputs=arrays)
        # Of kernels that the virtual machine calls nobody knows which weights they read.
        left = None if plain.model.program else round(room(plain, arrays, limits).ratio, 3)
    low, high = found.bounds
    # By the ratio of pairs: the typical times of each by itself depend on when they were taken.
    before, after = 1e3 * found.first, 1e3 * found.first / found.ratio
    harness.say(f"{name}: {before:.3f} ms -> {after:.3f} ms, {found.ratio:.3f}x ({low:.3f} to {high:.3f})")
    return {
        "untuned_ms": round(before, 5),
        "tuned_ms": round(after, 5),
        "ratio": round(found.ratio, 4),
        "between": [round(low, 4), round(high, 4)],
        "pairs": len(found.ratios),
        "room": left,
        "same_code": plain.artifact.objects == tuned.artifact.objects,
        "max_rel_err": error,
    }


def _empty(database: Path) -> Path:
    """A database without records: neither the user's own nor shipped ones count as untuned."""
    path = database.with_name(f"{database.stem}-none.db")
    Database(path).close()
    return path


def ship(database: Path, target: Target) -> int:
    """Write the best answers that a database knows for a target as shipped records: those that differ from defaults."""
    with Database(database, read_only=True) as opened:
        known = opened.answers(str(target))
    kernels = {key: found for key, found in known.items() if found and not is_graph_key(key)}
    algorithms = measured_answers(known)
    path = add_shipped(target, {**kernels, **algorithms})
    harness.say(f"{len(kernels)} kernels, {len(algorithms)} algorithms: {path}")
    return 0


def summary(results: dict[str, Result], threads: int) -> dict[str, object]:
    """Everything as it is written."""
    return {
        "models": results,
        "threads": threads,
        "ratio_means": "untuned time / tuned time, the middle of pairs of runs: above 1, tuning has gained",
        "between_means": "where the ratio lies, as far as chance and places in memory go",
        "room_means": "untuned time / time of its kernels at their bounds: no schedule of these algorithms gains more",
        "geomean_ratio": geometric_mean([result["ratio"] for result in results.values()]),
        "machine": harness.machine(),
    }


def is_good(result: Result) -> bool:
    """Whether a tuned model is right, and not clearly slower."""
    return bool(result["max_rel_err"] <= 1e-4 and _between(result)[1] >= 1.0)


def _between(result: Result) -> list[float]:
    """Bounds of the speed-up; in older files there are none."""
    found: list[float] = result.get("between", [result["ratio"]] * 2)
    return found


def render(results: dict[str, Result]) -> str:
    """The table for people."""
    header = ["model", "trials", "minutes", "untuned ms", "tuned ms", "speed-up", "between", "room", "by the tuner"]
    rows = []
    for name, result in results.items():
        low, high = _between(result)
        known = [str(result[column]) for column in ("trials", "minutes", "untuned_ms", "tuned_ms", "ratio")]
        left = "-" if result.get("room") is None else str(result["room"])
        rows.append([name, *known, f"{low:.3f}-{high:.3f}", left, str(result["kernels"])])
    return table(header, rows)


if __name__ == "__main__":
    sys.exit(main())
