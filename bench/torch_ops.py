"""The operator command: torch's operator database, exported, compiled, run and compared.

    python -m bench.torch_ops                                   # every operator through tw.compile
    python -m bench.torch_ops --filter softmax --details        # some operators; the results file keeps the others
    python -m bench.torch_ops --interpreter --samples 2         # quick: through the graph interpreter

An operator passes when all its single-precision samples give what torch gives. Prints a table, the reasons of what did
not pass, and ends with one line of JSON: `{"passed_operators", "failed", "unsupported", "total"}`. Operators run in a
worker process with a time limit: a crash or a hang costs one operator. Figures go to bench/results/torch-ops.json.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import re
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from bench import harness
from bench.torch_cases import Outcome, operators, run_compiled, run_interpreted, run_operator
from tilewright.support.text import table

VERDICTS = ("passed", "failed", "unsupported")
RESULTS = harness.RESULTS_FOLDER / "torch-ops.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    pattern = re.compile(options.filter)
    names = [name for name in operators() if pattern.search(name)]
    path = options.json or (None if options.interpreter or options.samples else RESULTS)
    known: dict[str, Outcome] = {}
    if path is not None and path.exists():
        stored = json.loads(path.read_text())["operators"]
        known = {name: Outcome(name, **fields) for name, fields in stored.items()}
    if options.missing:
        names = [name for name in names if name not in known or known[name].verdict != "passed"]
    worker = _Worker(options.interpreter, options.samples)
    found: dict[str, Outcome] = {}
    for index, name in enumerate(names):
        found[name] = outcome = worker.run(name, options.timeout)
        harness.say(
            f"{index + 1} of {len(names)}: {name} {outcome.verdict} {outcome.passed}/{outcome.total} {outcome.reason}"
        )
        if path is not None:
            _write(path, {**known, **found})
    worker.stop()
    outcomes = {**known, **found} if not options.filter else found
    print(render(list(outcomes.values()), options.details))
    print(json.dumps(summarize(list(outcomes.values()))))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.torch_ops", description="Run torch's operator database.")
    parser.add_argument("--filter", default="", metavar="REGEX", help="only operators whose name has this")
    parser.add_argument("--missing", action="store_true", help="only operators that the results file has not as passed")
    parser.add_argument("--samples", type=int, metavar="N", help="only the first samples of each operator")
    parser.add_argument("--interpreter", action="store_true", help="run the graph interpreter instead of compiled code")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="time limit of one operator")
    parser.add_argument("--details", action="store_true", help="list every operator, not only those that did not pass")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go (default: bench/results)")
    return parser


def summarize(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """The counts of operators."""
    counts = collections.Counter(item.verdict for item in outcomes)
    return {
        "passed_operators": counts["passed"],
        "failed": counts["failed"],
        "unsupported": counts["unsupported"],
        "total": len(outcomes),
        "passed_samples": sum(item.passed for item in outcomes),
        "samples": sum(item.total for item in outcomes),
    }


def render(outcomes: Sequence[Outcome], details: bool) -> str:
    """A table by operator."""
    shown = [item for item in outcomes if details or item.verdict != "passed"]
    rows = [[item.name, item.verdict, f"{item.passed}/{item.total}", item.reason[:160]] for item in shown]
    return table(["operator", "verdict", "samples", "reason"], rows)


def _write(path: Path, outcomes: dict[str, Outcome]) -> None:
    listed = {
        name: {"verdict": item.verdict, "passed": item.passed, "total": item.total, "reason": item.reason}
        for name, item in sorted(outcomes.items())
    }
    figures = {**summarize(list(outcomes.values())), "operators": listed, "machine": harness.machine()}
    harness.write_json(path, figures)


class _Worker:
    """A process that runs operators one by one; it is started again when it ended."""

    def __init__(self, interpreter: bool, samples: int | None) -> None:
        self.interpreter, self.samples = interpreter, samples
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, self.interpreter, self.samples)
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def run(self, name: str, timeout: float) -> Outcome:
        """One operator under a time limit."""
        if not self.process.is_alive():
            self._start()
        self.pipe.send(name)
        start = time.monotonic()
        while time.monotonic() - start < timeout:
            try:
                if self.pipe.poll(1.0):
                    outcome: Outcome = self.pipe.recv()
                    return outcome
            except EOFError:
                self.stop()
                return Outcome(name, "failed", 0, 0, f"the process ended ({self.process.exitcode})")
        self.stop()
        return Outcome(name, "failed", 0, 0, f"not done after {timeout:.0f} s")

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _work(pipe: Connection, interpreter: bool, samples: int | None) -> None:
    import torch

    torch.set_num_threads(1)
    run = run_interpreted if interpreter else run_compiled
    while True:
        try:
            name = pipe.recv()
        except EOFError:
            return
        try:
            outcome = run_operator(name, run, samples)
        except Exception as error:  # whatever goes wrong with an operator is its failure
            outcome = Outcome(name, "failed", 0, 0, f"{type(error).__name__}: {str(error)[:300]}")
        pipe.send(outcome)


if __name__ == "__main__":
    sys.exit(main())
