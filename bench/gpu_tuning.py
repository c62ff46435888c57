"""The ten models tuned on a GPU, and what it brought: `python3 -m bench.gpu_tuning`.

    python3 -m bench.gpu_tuning --models resnet18,resnet50 --precisions fp32,fp16 --time 3m --database tuned.db
    python -m bench.gpu_records tuned.db                   # write what is best as shipped records

Each model is tuned for so long in each precision (`tilewright tune --target cuda` with the same database does the
same, one model at a time), its kernels are chosen in the whole model, and then it is timed with what was found against
the default schedules and the shipped records: from the start of a run until the GPU is done, inputs and results there.
Writes `bench/results/gpu-tuned.json` after each model and ends with a table.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import tilewright as tw
from bench import batches, harness
from bench.models import geometric_mean, parse_models
from tilewright.cli.measure import max_relative_error
from tilewright.cli.tune import duration
from tilewright.lower.database import Database
from tilewright.support.errors import TilewrightError, UserError
from tilewright.support.text import table
from tilewright.tune.device_measure import DeviceMeasurer
from tilewright.tune.model import tune_model
from tilewright.tune.tuner import Report

PRECISIONS = {"fp32": "float32", "tf32": "tf32", "fp16": "float16"}
_RUNS = 200
_FEWEST_SECONDS = 2.0
Result = dict[str, object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        names = parse_models(options.models)
        precisions = [name.strip() for name in options.precisions.split(",")]
        unknown = [name for name in precisions if name not in PRECISIONS]
        if unknown:
            raise UserError(f"unknown precision '{unknown[0]}'", hint=f"one of {', '.join(PRECISIONS)}")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    results: list[Result] = []
    jobs = [(name, precision) for precision in precisions for name in names]
    begun = time.monotonic()
    with DeviceMeasurer() as measurer:
        for number, (name, precision) in enumerate(jobs):
            # What one model leaves of its share goes to those after it.
            share = (options.total - (time.monotonic() - begun)) / (len(jobs) - number) if options.total else 1e9
            seconds = min(options.time, share - options.reserve)
            if seconds < _FEWEST_SECONDS:
                harness.say(f"{name} {precision}: no time")
                continue
            results.append(tune_one(name, precision, options, seconds, measurer))
            harness.write_json(options.json or harness.RESULTS_FOLDER / "gpu-tuned.json", summary(results))
    print(render(results))
    print(_failures(options.database))
    return 0 if results and all("error" not in item for item in results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_tuning", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default="all", help="comma-separated, or 'all'")
    parser.add_argument(
        "--precisions", default="fp32", help=f"comma-separated: {', '.join(PRECISIONS)} (default: fp32)"
    )
    parser.add_argument("--batch", type=int, default=1, help="batch of the models (default: 1)")
    parser.add_argument("--time", type=duration, default=180.0, help="time for each model and precision (default: 3m)")
    parser.add_argument("--total", type=duration, default=0.0, help="time for all of it, divided evenly")
    parser.add_argument("--reserve", type=float, default=0.0, help="seconds of each share for all but the search")
    parser.add_argument("--database", type=Path, required=True, help="where records are kept")
    parser.add_argument("--target", default="cuda", help="the device (default: cuda)")
    parser.add_argument("--json", type=Path, help="the file of figures")
    return parser


def tune_one(
    name: str, precision: str, options: argparse.Namespace, seconds: float, measurer: DeviceMeasurer
) -> Result:
    """Tune one model in one precision and compare. A failure is a result, not the end."""
    result: Result = {"model": name, "precision": precision, "batch": options.batch}
    model = batches.model(name, options.batch, False).SerializeToString()
    began = time.monotonic()
    try:
        report = tune_model(
            model,
            options.target,
            trials=0,
            seconds=seconds,
            database=options.database,
            precision=PRECISIONS[precision],
            measurer=measurer,
        )
        result |= {**spent(report), "all_seconds": round(time.monotonic() - began, 1)}
        result |= compare(name, model, precision, options)
    except TilewrightError as error:
        result["error"] = f"{type(error).__name__}: {error}"[:400]
    harness.say(str(result))
    return result


def spent(report: Report) -> Result:
    """What tuning took, and what the whole model took by the GPU's clock on the way."""
    found: Result = {
        "trials": report.trials,
        "tasks": len(report.tasks),
        "failed": sum(item.failures for item in report.tasks),
        "search_seconds": round(report.seconds, 1),
    }
    chosen = report.in_graph
    if chosen is None:
        return {**found, "not_in_graph": report.not_in_graph}
    times = {"default_us": chosen.default, "alone_us": chosen.alone, "together_us": chosen.together}
    return {
        **found,
        **{key: round(value * 1e6, 2) for key, value in times.items()},
        "exchanged": chosen.exchanged,
        "model_trials": chosen.trials,
        "model_seconds": round(chosen.seconds, 1),
    }


def compare(name: str, model: bytes, precision: str, options: argparse.Namespace) -> Result:
    """Wall times with shipped records and with what was found, and how far apart results are."""
    inputs = batches.inputs(name, options.batch, False)
    found: Result = {}
    outputs = []
    for label, database in (("shipped", "shipped"), ("tuned", options.database)):
        exe = tw.compile(model, target=options.target, precision=PRECISIONS[precision], database=database)
        outputs.append([np.asarray(array, np.float64) for array in exe.run(inputs)])
        times = exe.time_evaluator(number=1, repeat=_RUNS)(*inputs.values())
        found[f"{label}_wall_us"] = round(times.median * 1e6, 2)
    found["max_rel_err"] = max_relative_error(outputs[1], outputs[0])
    return found


def summary(results: Sequence[Result]) -> dict[str, object]:
    """Everything as it is written."""
    ratios = [
        float(str(item["shipped_wall_us"])) / float(str(item["tuned_wall_us"]))
        for item in results
        if "tuned_wall_us" in item
    ]
    return {
        "results": list(results),
        "geomean_ratio": geometric_mean(ratios) if ratios else None,
        "ratio_means": "wall time with shipped records / with what was found: above 1, tuning has gained",
        "machine": harness.machine(),
    }


def render(results: Sequence[Result]) -> str:
    """The table for people."""
    columns = ("trials", "all_seconds", "default_us", "alone_us", "together_us", "shipped_wall_us", "tuned_wall_us")
    rows = [
        [str(item["model"]), str(item["precision"]), *(str(item.get(column, "-")) for column in columns)]
        for item in results
    ]
    return table(["model", "precision", *(column.replace("_", " ") for column in columns)], rows)


def _failures(path: Path) -> str:
    """What went wrong with candidates, the most frequent first."""
    with Database(path, read_only=True) as database:
        errors = Counter((record.error or "")[:120] for record in database.records() if record.error)
        return f"{database.count()} records; failures: {errors.most_common(6)}"


if __name__ == "__main__":
    sys.exit(main())
