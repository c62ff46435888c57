"""How well the memory plan does: `python -m bench.memory`.

For each of the ten models: the planned workspace (values between kernels and the scratch memory of kernels), the least
any plan could take with these kernels in this order (the most bytes alive at one step), what all of it would take
without sharing, the most scratch memory of one kernel, and how many results are written over an argument. Prints a
table, writes JSON into `bench/results/`, ends with one line of JSON. The exit code is 1 when a plan is more than 1.1
times its lower bound.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import harness, models, zoo
from tilewright.compiler import Compilation
from tilewright.support.errors import UserError
from tilewright.support.text import human_bytes, table

LIMIT = 1.1

Result = dict[str, int | float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        names = models.parse_models(options.models)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    results = {name: plan_of(name) for name in names}
    print(render(results))
    summary = {"memory": results, "limit": LIMIT, "machine": harness.machine()}
    path = options.json or harness.RESULTS_FOLDER / "memory.json"
    if options.json or options.models == "all":
        harness.write_json(path, summary)
        harness.say(f"figures written to {path}")
    print(json.dumps(summary))
    return 0 if all(result["ratio"] <= LIMIT for result in results.values()) else 1


def plan_of(name: str) -> Result:
    """The memory plan of a model compiled for one thread."""
    harness.say(f"{name}: planning")
    [plan] = Compilation(str(zoo.path(name)), "native", 1).lowered.plans
    return {
        "workspace_bytes": plan.workspace_bytes,
        "lower_bound_bytes": plan.lower_bound,
        "unshared_bytes": plan.unshared_bytes,
        "constant_bytes": plan.constant_bytes,
        "scratch_bytes": max(sum(place.size for place in step.scratch) for step in plan.steps),
        "in_place": sum(place in step.arguments for step in plan.steps for place in step.results),
        "ratio": round(plan.workspace_bytes / plan.lower_bound, 4) if plan.lower_bound else 1.0,
    }


def render(results: dict[str, Result]) -> str:
    """The table."""
    rows = [
        [
            zoo.SPECS[name].title,
            *(human_bytes(int(result[key])) for key in ("workspace_bytes", "lower_bound_bytes")),
            f"{result['ratio']:.3f}",
            *(human_bytes(int(result[key])) for key in ("unshared_bytes", "scratch_bytes", "constant_bytes")),
            str(result["in_place"]),
            "" if result["ratio"] <= LIMIT else "above",
        ]
        for name, result in results.items()
    ]
    return table(
        ["model", "workspace", "lower bound", "ratio", "without sharing", "scratch", "constants", "in place", ""], rows
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__.split("\n")[0])
    parser.add_argument("--models", default="all", help=f"comma-separated: {', '.join(zoo.names())} (default: all)")
    parser.add_argument("--json", type=Path, help="where to write the figures (default: bench/results/memory.json)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
