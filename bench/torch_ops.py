"""The operator command: torch's operator database, exported, compiled, run and compared.

    python -m bench.torch_ops                                   # every operator through tw.compile
    python -m bench.torch_ops --filter softmax --details        # some operators; the results file keeps the others
    python -m bench.torch_ops --interpreter --samples 2         # quick: through the graph interpreter

An operator passes when all its single-precision samples give what torch gives. Prints a table, the reasons of what did
not pass, and ends with one line of JSON: `{"passed_operators", "failed", "unsupported", "total"}`. Operators run in
worker processes with a time limit: a crash or a hang costs one operator. Figures go to bench/results/torch-ops.json.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import re
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
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
    found: dict[str, Outcome] = {}

    def keep(outcome: Outcome) -> None:
        found[outcome.name] = outcome
        harness.say(
            f"{len(found)} of {len(names)}: {outcome.name} {outcome.verdict} "
            f"{outcome.passed}/{outcome.total} {outcome.reason}"
        )
        if path is not None:
            _write(path, {**known, **found})

    run_all(names, options, keep)
    outcomes = {**known, **found} if not options.filter else found
    print(render(list(outcomes.values()), options.details))
    print(json.dumps(summarize(list(outcomes.values()))))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.torch_ops", description="Run torch's operator database.")
    parser.add_argument(
        "--filter",
        default="",
        type=harness.regular_expression,
        metavar="REGEX",
        help="only operators whose name has this",
    )
    parser.add_argument("--missing", action="store_true", help="only operators that the results file has not as passed")
    parser.add_argument("--samples", type=int, metavar="N", help="only the first samples of each operator")
    parser.add_argument("--interpreter", action="store_true", help="run the graph interpreter instead of compiled code")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
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


def run_all(names: Sequence[str], options: argparse.Namespace, keep: Callable[[Outcome], None]) -> None:
    """Run operators in worker processes; a worker that crashed or hung is replaced."""
    todo = collections.deque(names)
    workers: list[_Worker] = []
    while todo or workers:
        while todo and len(workers) < options.jobs:
            workers.append(_Worker(options.interpreter, options.samples, todo.popleft()))
        wait([worker.pipe for worker in workers], timeout=1.0)
        for worker in workers:
            outcome = worker.poll(options.timeout)
            if outcome is not None:
                keep(outcome)
                if worker.alive and todo:
                    worker.give(todo.popleft())
                else:
                    worker.stop()
        workers = [worker for worker in workers if worker.alive]


class _Worker:
    """A process that runs operators one by one."""

    def __init__(self, interpreter: bool, samples: int | None, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, interpreter, samples), daemon=True)
        self.process.start()
        theirs.close()
        self.alive = True
        self.give(name)

    def give(self, name: str) -> None:
        """Start an operator."""
        self.name, self.started = name, time.monotonic()
        self.pipe.send(name)

    def poll(self, timeout: float) -> Outcome | None:
        """The outcome, if it is there; a dead or late worker makes its operator a failure."""
        try:
            if self.pipe.poll():
                outcome: Outcome = self.pipe.recv()
                return outcome
        except EOFError:
            self.stop()
            return Outcome(self.name, "failed", 0, 0, f"the process ended ({self.process.exitcode})")
        if time.monotonic() - self.started > timeout:
            self.stop()
            return Outcome(self.name, "failed", 0, 0, f"not done after {timeout:.0f} s")
        return None

    def stop(self) -> None:
        """End the process."""
        if self.alive:
            self.alive = False
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
