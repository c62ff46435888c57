"""Functions of JAX through export, import and `tw.compile`, compared with JAX itself.

    python -m bench.frontends_stablehlo                           # every function through tw.compile
    python -m bench.frontends_stablehlo --filter 'scan|cond'      # some of them
    python -m bench.frontends_stablehlo --interpreter             # quick: through the graph interpreter

Needs jax. A function passes when all its samples do (`bench/stablehlo_cases.py`); what JAX cannot export with any
of the templates is not counted. Prints what did not pass, with the reason, and ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import harness
from bench.stablehlo_cases import Outcome, functions, run_compiled, run_function, run_interpreted
from tilewright.support.text import table

RESULTS = harness.RESULTS_FOLDER / "frontend-stablehlo.json"


def rows(pattern: str = "", interpreter: bool = False) -> Iterator[Outcome]:
    """The outcome of each function whose name has a pattern."""
    run = run_interpreted if interpreter else run_compiled
    for name in functions():
        if re.search(pattern, name):
            outcome = run_function(name, run)
            if outcome.total:
                yield outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.frontends_stablehlo", description=__doc__.split("\n")[0])
    parser.add_argument("--filter", default="", metavar="REGEX", help="only functions whose name has this")
    parser.add_argument("--interpreter", action="store_true", help="run the graph interpreter instead of compiled code")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go (default: bench/results)")
    options = parser.parse_args(arguments)
    outcomes: list[Outcome] = []
    for outcome in rows(options.filter, options.interpreter):
        outcomes.append(outcome)
        harness.say(f"{outcome.name} {outcome.verdict} {outcome.passed}/{outcome.total} {outcome.reason[:200]}")
    shown = [item for item in outcomes if item.verdict != "passed"]
    listed = [[item.name, item.verdict, f"{item.passed}/{item.total}", item.reason[:160]] for item in shown]
    print(table(["function", "verdict", "samples", "reason"], listed))
    print(json.dumps(summary(outcomes)))
    path = options.json or (None if options.filter or options.interpreter else RESULTS)
    if path is not None:
        reasons = {item.name: f"{item.verdict}: {item.reason}" for item in shown}
        harness.write_json(path, {**summary(outcomes), "reasons": reasons, "machine": harness.machine()})
    return 1 if any(item.verdict == "failed" for item in outcomes) else 0


def summary(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """The counts of functions and samples."""
    counts = collections.Counter(item.verdict for item in outcomes)
    return {
        "passed": counts["passed"],
        "refused": counts["refused"],
        "failed": counts["failed"],
        "functions": len(outcomes),
        "passed_samples": sum(item.passed for item in outcomes),
        "samples": sum(item.total for item in outcomes),
    }


if __name__ == "__main__":
    sys.exit(main())
