"""Times training steps against PyTorch and JAX: `python -m bench.training`.

    python -m bench.training                               # five models on one thread and on two: a quarter of an hour
    python -m bench.training --only lstm --threads 1
    python -m bench.training --small --rounds 2            # small: does it run
    python -m bench.training --remat                       # BERT-small, batch 32, at half the memory of its activations

A step is forward, loss, backward and an update by SGD with momentum. `tw.train.Step` is measured against torch eager,
`torch.compile` (both also with channels last, for images) and `jax.jit` with donated parameters. Each runs in a process
of its own, pinned to its cores; rounds of all take turns, and a ratio is the median over rounds of the other's time
over ours. The first loss must be torch's. JAX comes from an environment of its own (`.venv-frontend-jax`, made the
first time); `--against` chooses contestants.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
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
_WARM_UP = 2


class Contestant:
    """A process that takes steps when it is asked to."""

    def __init__(self, way: str, name: str, threads: int, small: bool) -> None:
        self.way = way
        python = HOMES["stablehlo"].python() if way == "jax.jit" else sys.executable
        command = [python, "-m", "bench.training_ways", way, name, str(threads), *(["small"] if small else [])]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables()
        )
        answer = self._answer()
        self.first_step_s, self.loss = float(answer["first_step_s"]), float(answer["loss"])

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
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.training", description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"models whose names contain one of these texts, of {', '.join(MODELS)}")
    parser.add_argument("--against", default=",".join(list(WAYS)[1:]).replace(", ", " "), help="contestants")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, separated by commas")
    parser.add_argument("--rounds", type=positive_int, default=7, help="rounds that take turns (default: 7)")
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
    rows: list[dict[str, Any]] = []
    for threads in map(int, options.threads.split(",")):
        for name in chosen:
            rows.append(measured(name, threads, options))
            harness.say(f"{threads} threads, {name}: {rows[-1]['ratios']}")
    _report(rows)
    path = options.output or (None if options.small else harness.RESULTS_FOLDER / "training.json")
    if path is not None:
        versions = harness.versions(["torch"])
        harness.write_json(path, {"machine": harness.machine(), "versions": versions, "batch": 8, "rows": rows})
    return 0


def measured(name: str, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """The times of a model by all contestants."""
    wanted = options.against.split(",")
    ways = [way for way in WAYS if way == "tilewright" or way.replace(", ", " ") in wanted]
    ways = [way for way in ways if name in _IMAGES or not way.endswith("channels last")]
    contestants: list[Contestant] = []
    try:
        for way in ways:
            contestants.append(Contestant(way, name, threads, options.small))
            _check(name, contestants)
        times: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(options.rounds + _WARM_UP):
            for contestant in contestants:
                seconds = contestant.step()
                if turn >= _WARM_UP:
                    times[contestant.way].append(seconds)
    finally:
        for contestant in contestants:
            contestant.close()
    own = times.pop("tilewright")
    return {
        "name": name,
        "threads": threads,
        "ms": {way: statistics.median(column) * 1e3 for way, column in {"tilewright": own, **times}.items()},
        "ratios": {
            way: round(statistics.median(b / a for a, b in zip(own, column, strict=True)), 3)
            for way, column in times.items()
        },
        "first_step_s": {item.way: round(item.first_step_s, 1) for item in contestants},
    }


def _check(name: str, contestants: Sequence[Contestant]) -> None:
    """The weights of JAX are others; those of torch are ours, and so is the first loss."""
    first, last = contestants[0], contestants[-1]
    if last.way != "jax.jit" and abs(first.loss - last.loss) > _MOST_ERROR * abs(last.loss):
        raise UserError(f"{name}: the first loss is {first.loss}, that of {last.way} is {last.loss}")


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
