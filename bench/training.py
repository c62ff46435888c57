"""Times training steps against PyTorch and JAX: `python -m bench.training`.

    python -m bench.training                               # five models on one thread and on two: a quarter of an hour
    python -m bench.training --resume                      # what an earlier run did not come to
    python -m bench.training --only lstm --threads 1
    python -m bench.training --small --rounds 2            # small: does it run
    python -m bench.training --remat                       # BERT-small, batch 32, at half the memory of its activations

A step is forward, loss, backward and an update by SGD with momentum. `tw.train.Step` is measured against torch eager,
`torch.compile` (both also with channels last, for images) and `jax.jit` with donated parameters. Each runs in a process
of its own, pinned to its cores; rounds of all take turns, and a ratio is the median over rounds of the other's time
over ours. They get ready at the same time; one that takes longer than `--patience` is left out, and the row says so.
The first loss must be torch's. JAX comes from an environment of its own (`.venv-frontend-jax`, made the first time);
`--against` chooses contestants.

The file of results is written after each model, and keeps the rows that a run does not measure.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import harness
from bench.environments import variables
from bench.frontend_environments import HOMES
from bench.training_memory import rematerialisation
from bench.training_ways import WAYS
from tilewright.cli.options import positive_int
from tilewright.support.errors import UserError
from tilewright.support.text import table

MODELS = ("small cnn", "resnet18", "mobilenet-v2", "lstm", "bert-small")
_IMAGES = MODELS[:3]
_MOST_ERROR = 1e-3
_WARM_UP = 1
"""Rounds beside the step that each takes to get ready."""
_LEAST_ROUNDS = 3


class Contestant:
    """A process that takes steps when it is asked to."""

    def __init__(self, way: str, name: str, threads: int, small: bool) -> None:
        self.way = way
        python = HOMES["stablehlo"].python() if way == "jax.jit" else sys.executable
        command = [python, "-m", "bench.training_ways", way, name, str(threads), *(["small"] if small else [])]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables()
        )
        self.ready_s, self.loss = math.nan, math.nan

    def get_ready(self, seconds: float) -> bool:
        """Wait for its first step; says whether that was taken in so many seconds."""
        if not select.select([self._process.stdout], [], [], max(0.0, seconds))[0]:
            return False
        answer = self._answer()
        self.ready_s, self.loss = float(answer["ready_s"]), float(answer["loss"])
        return True

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise UserError(f"{self.way} ended with code {self._process.wait()}; what it said is above")
        return json.loads(line)

    def step(self) -> float:
        """Seconds of a step."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        if math.isnan(self.loss):
            self._process.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.training", description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"models whose names contain one of these texts, of {', '.join(MODELS)}")
    parser.add_argument("--against", default=",".join(list(WAYS)[1:]).replace(", ", " "), help="contestants")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, separated by commas")
    parser.add_argument("--rounds", type=positive_int, default=7, help="rounds that take turns, at most (default: 7)")
    parser.add_argument(
        "--seconds", type=positive_int, default=40, help="after these, 3 rounds are enough (default: 40)"
    )
    parser.add_argument("--patience", type=positive_int, default=180, help="seconds to get ready in (default: 180)")
    parser.add_argument("--resume", action="store_true", help="leave out what the file of results has already")
    parser.add_argument("--small", action="store_true", help="small batches of small inputs")
    parser.add_argument("--remat", action="store_true", help="what less memory costs, instead")
    parser.add_argument("--batch", type=positive_int, default=32, help="texts of a step, for --remat (default: 32)")
    parser.add_argument("--output", type=Path, help="where the figures go (default: bench/results/training.json)")
    options = parser.parse_args(arguments)
    if options.remat:
        return rematerialisation(options)
    words = options.only.split(",") if options.only else [""]
    chosen = [name for name in MODELS if any(word in name for word in words)]
    if not chosen:
        raise UserError(f"no model is called {options.only!r}", hint=", ".join(MODELS))
    path = options.output or (None if options.small else harness.RESULTS_FOLDER / "training.json")
    rows = _known_rows(path)
    cases = [(name, threads) for threads in map(int, options.threads.split(",")) for name in chosen]
    for number, (name, threads) in enumerate(cases, 1):
        if options.resume and (name, threads) in rows:
            continue
        harness.say(f"{number} of {len(cases)}: {name}, {threads} threads")
        rows[name, threads] = row = measured(name, threads, options)
        harness.say(f"    {row['ratios']} after {row['rounds']} rounds")
        if path is not None:
            order = [key for key in itertools.product(MODELS, range(1, 1 + max(key[1] for key in rows))) if key in rows]
            facts = {"machine": harness.machine(), "versions": _versions(), "batch": 8}
            harness.write_json(path, {**facts, "rows": [rows[key] for key in order]})
    _report([rows[case] for case in cases])
    return 0


def _versions() -> dict[str, str]:
    return harness.versions(["torch", "numpy", "llvmlite"])


def _known_rows(path: Path | None) -> dict[tuple[str, int], dict[str, Any]]:
    """The rows of a file of results, by model and threads, if they were measured on such a machine."""
    if path is None or not path.exists():
        return {}
    facts = json.loads(path.read_text(encoding="utf-8"))
    here = harness.machine()
    same = facts["versions"] == _versions() and all(facts["machine"][key] == here[key] for key in ("cpu", "cores"))
    return {(row["name"], row["threads"]): row for row in facts["rows"]} if same else {}


def measured(name: str, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """The times of a model by all contestants."""
    wanted = options.against.split(",")
    ways = [way for way in WAYS if way == "tilewright" or way.replace(", ", " ") in wanted]
    ways = [way for way in ways if name in _IMAGES or not way.endswith("channels last")]
    contestants = [Contestant(way, name, threads, options.small) for way in ways]
    try:
        begin = time.monotonic()
        racing = [item for item in contestants if item.get_ready(begin + options.patience - time.monotonic())]
        if not racing or racing[0].way != "tilewright":
            raise UserError(f"{name}: no first step after {options.patience} seconds", hint="--patience 600")
        for contestant in racing[1:]:
            _check(name, racing[0], contestant)
        times = _times(racing, options)
    finally:
        for contestant in contestants:
            contestant.close()
    own = times.pop("tilewright")
    return {
        "name": name,
        "threads": threads,
        "date": harness.machine()["date"],
        "rounds": len(own),
        "ms": {way: statistics.median(column) * 1e3 for way, column in {"tilewright": own, **times}.items()},
        "ratios": {
            way: round(statistics.median(b / a for a, b in zip(own, column, strict=True)), 3)
            for way, column in times.items()
        },
        "ready_s": {item.way: round(item.ready_s, 1) for item in racing},
        "not_ready": [item.way for item in contestants if item not in racing],
    }


def _times(contestants: Sequence[Contestant], options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of the steps of each, who take turns."""
    times: dict[str, list[float]] = {contestant.way: [] for contestant in contestants}
    begin = time.monotonic()
    for turn in range(options.rounds + _WARM_UP):
        if turn >= _LEAST_ROUNDS + _WARM_UP and time.monotonic() - begin > options.seconds:
            break
        for contestant in contestants:
            seconds = contestant.step()
            if turn >= _WARM_UP:
                times[contestant.way].append(seconds)
    return times


def _check(name: str, own: Contestant, other: Contestant) -> None:
    """The weights of JAX are others; those of torch are ours, and so is the first loss."""
    if other.way != "jax.jit" and abs(own.loss - other.loss) > _MOST_ERROR * abs(other.loss):
        raise UserError(f"{name}: the first loss is {own.loss}, that of {other.way} is {other.loss}")


def _report(rows: Sequence[dict[str, Any]]) -> None:
    ways = list(dict.fromkeys(way for row in rows for way in row["ratios"]))
    lines = []
    for row in rows:
        quickest = min(row["ratios"], key=row["ratios"].get, default="")
        cells = (f"{row['ms'][way]:.1f} ({row['ratios'][way]:.2f}x)" if way in row["ratios"] else "" for way in ways)
        best = f"{row['ratios'].get(quickest, 1.0):.2f}x {quickest}"
        lines.append([row["name"], str(row["threads"]), f"{row['ms']['tilewright']:.1f}", *cells, best])
    print(table(["model", "threads", "ours ms", *(f"{way} ms" for way in ways), "against the quickest"], lines))
    for threads in dict.fromkeys(row["threads"] for row in rows):
        best = [min(row["ratios"].values()) for row in rows if row["threads"] == threads and row["ratios"]]
        if best:
            mean = math.exp(statistics.mean(map(math.log, best)))
            print(f"{threads} threads: geometric mean against the quickest of each {mean:.2f}")
    print(harness.machine_line())


if __name__ == "__main__":
    sys.exit(main())
