"""The conformance command: every test case of the onnx package, compiled, run and compared.

    python -m bench.onnx_suite                                  # all cases through tw.compile
    python -m bench.onnx_suite --interpreter                    # through the graph interpreter: quick
    python -m bench.onnx_suite --target cuda                    # on a device
    python -m bench.onnx_suite --target wasm                    # as packages for JavaScript, in Node
    python -m bench.onnx_suite --filter resize --kinds node --details
    python -m bench.onnx_suite --every 4 --start 1              # a quarter of them: four runs together are all

Every case runs as it is: all its inputs are inputs of the compiled model, axes, shapes and modes among them.
Prints a table by operator (passed, failed, unsupported), the reasons of what did not pass, and ends with one line of
JSON: `{"passed", "failed", "unsupported", "total", ...}`. The exit code is 1 when a case failed. Cases run in worker
processes with a time limit: a crash or a hang costs one case.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from bench import harness
from bench.onnx_cases import (
    KINDS,
    Case,
    Outcome,
    load_cases,
    run_case,
    run_compiled,
    run_interpreted,
)
from bench.web_runner import run_packaged
from tilewright.support.text import table

VERDICTS = ("passed", "failed", "unsupported")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    kinds = tuple(item.strip() for item in options.kinds.split(",") if item.strip())
    unknown = set(kinds) - set(KINDS)
    if unknown:
        print(f"error: unknown kind {min(unknown)!r}\n  hint: some of {', '.join(KINDS)}", file=sys.stderr)
        return 2
    harness.say("generating the cases")
    cases = [case for case in load_cases(kinds) if options.filter in case.name][options.start :: options.every]
    start = time.monotonic()
    outcomes = run_cases(cases, options.jobs, options.timeout, options.interpreter, options.target)
    seconds = time.monotonic() - start
    summary = summarize(outcomes, seconds)
    print(render(outcomes, options.details))
    kept = "onnx-suite.json" if options.target == "native" else f"onnx-suite-{options.target.split()[0]}.json"
    some = options.filter or options.every > 1 or options.start
    path = options.json or (None if some else harness.RESULTS_FOLDER / kept)
    if path is not None:
        details = [vars(item) for item in outcomes if item.verdict != "passed"]
        harness.write_json(path, {**summary, "not_passed": details, "machine": harness.machine()})
        harness.say(f"figures written to {path}")
    print(json.dumps(summary))
    return 1 if summary["failed"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.onnx_suite", description="Run the onnx package's test cases."
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"some of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--filter", default="", metavar="TEXT", help="only cases whose name contains this")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th case")
    parser.add_argument("--start", type=int, default=0, metavar="N", help="the first N cases are left out")
    parser.add_argument("--interpreter", action="store_true", help="run the graph interpreter instead of compiled code")
    parser.add_argument("--target", default="native", help="what to compile for: native, cuda, opencl, wasm")
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0))), help="worker processes")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="time limit of one case")
    parser.add_argument("--details", action="store_true", help="list every case that did not pass")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go (default: bench/results)")
    return parser


def summarize(outcomes: Sequence[Outcome], seconds: float) -> dict[str, int | float]:
    """The counts."""
    counts = collections.Counter(item.verdict for item in outcomes)
    return {
        **{verdict: counts[verdict] for verdict in VERDICTS},
        "total": len(outcomes),
        "seconds": round(seconds, 1),
    }


def render(outcomes: Sequence[Outcome], details: bool) -> str:
    """The table by operator, then the reasons."""
    rows: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    reasons: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for item in outcomes:
        rows[item.operator][item.verdict] += 1
        if item.verdict != "passed":
            reasons[item.operator][f"{item.verdict}: {item.reason}"] += 1
    lines = [
        [name, *(str(counts[verdict]) for verdict in VERDICTS), str(counts.total())]
        for name, counts in sorted(rows.items())
    ]
    totals = collections.Counter(item.verdict for item in outcomes)
    lines.append(["all", *(str(totals[verdict]) for verdict in VERDICTS), str(len(outcomes))])
    parts = [table(["operator", *VERDICTS, "total"], lines)]
    if details:
        rest = [item for item in outcomes if item.verdict != "passed"]
        parts += [f"{item.verdict:11} {item.name}: {item.reason}" for item in rest]
    else:
        for name, found in sorted(reasons.items()):
            parts += [f"{name}: {count} x {reason}" for reason, count in found.most_common()]
    return "\n".join(parts)


def run_cases(
    cases: Sequence[Case], jobs: int, timeout: float, interpreter: bool = False, target: str = "native"
) -> list[Outcome]:
    """Run cases in forked workers (they inherit the generated cases), each under a time limit."""
    todo = collections.deque(range(len(cases)))
    done: dict[int, Outcome] = {}
    workers: list[_Worker] = []
    shown = time.monotonic()
    while len(done) < len(cases):
        while todo and len(workers) < jobs:
            workers.append(_Worker(cases, interpreter, target))
        for worker in workers:
            if worker.current is None and todo:
                worker.give(todo.popleft())
        busy = [worker for worker in workers if worker.current is not None]
        wait([worker.pipe for worker in busy], timeout=1.0)
        for worker in busy:
            outcome = worker.poll(timeout)
            if outcome is not None:
                done[outcome[0]] = outcome[1]
                if outcome[1].verdict == "failed":
                    harness.say(f"failed: {outcome[1].name}: {outcome[1].reason}")
        workers = [worker for worker in workers if worker.alive]
        if time.monotonic() - shown > 20:
            shown = time.monotonic()
            harness.say(f"{len(done)} of {len(cases)}")
    for worker in workers:
        worker.stop()
    return [done[index] for index in range(len(cases))]


class _Worker:
    """A process that runs cases one by one."""

    made = 0
    """Processes there have been."""

    def __init__(self, cases: Sequence[Case], interpreter: bool, target: str) -> None:
        context = multiprocessing.get_context("fork")
        self.cases = cases
        self.pipe, theirs = context.Pipe()
        # A core each: the compiler's own processes would only be in each other's way.
        cores = sorted(os.sched_getaffinity(0))
        core = cores[_Worker.made % len(cores)]
        _Worker.made += 1
        self.process = context.Process(target=_work, args=(theirs, cases, interpreter, target, core), daemon=True)
        self.process.start()
        theirs.close()
        self.current: int | None = None
        self.started = 0.0
        self.alive = True

    def give(self, index: int) -> None:
        """Start a case."""
        self.current, self.started = index, time.monotonic()
        self.pipe.send(index)

    def poll(self, timeout: float) -> tuple[int, Outcome] | None:
        """The finished case, if it is; a dead or late worker makes its case a failure."""
        assert self.current is not None
        index, case = self.current, self.cases[self.current]
        try:
            if self.pipe.poll():
                outcome: Outcome = self.pipe.recv()
                self.current = None
                return index, outcome
        except EOFError:
            self.stop()
            return index, Outcome(case.name, case.operator, "failed", f"the process ended ({self.process.exitcode})")
        if time.monotonic() - self.started > timeout:
            self.stop()
            return index, Outcome(case.name, case.operator, "failed", f"not done after {timeout:.0f} s")
        return None

    def stop(self) -> None:
        """End the process."""
        self.alive = False
        self.process.kill()
        self.process.join()
        self.pipe.close()


_RUNNERS = {"wasm": run_packaged}
"""How models of targets that are not run in this process are run."""


def _work(pipe: Connection, cases: Sequence[Case], interpreter: bool, target: str, core: int) -> None:
    os.sched_setaffinity(0, [core])
    run = run_interpreted if interpreter else _RUNNERS.get(target, functools.partial(run_compiled, target=target))
    while True:
        index = pipe.recv()
        try:
            outcome = run_case(cases[index], run)
        except Exception as error:  # whatever goes wrong in a case is that case's failure
            case = cases[index]
            outcome = Outcome(case.name, case.operator, "failed", f"{type(error).__name__}: {str(error)[:300]}")
        pipe.send(outcome)


if __name__ == "__main__":
    sys.exit(main())
