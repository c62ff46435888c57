"""Training steps through `torch.compile(backend="tilewright")` against eager mode and inductor.

    python -m bench.torch_training                          # one thread and two, batch 8
    python -m bench.torch_training --only lstm --threads 1
    python -m bench.torch_training --small --rounds 2       # small: does it run
    python -m bench.torch_training --curve 50               # ResNet-18's loss of 50 steps beside eager mode's

A step is forward, loss, backward and an update by SGD with momentum, which torch itself does in all three. Nothing may
be left to torch (that is an error), and the first losses must be those of eager mode, but where the model draws. Rounds
alternate between the three; a ratio is the other's median time over ours. Beside the times: how many kernels a step
has, and how many bytes the forward pass saves for the backward pass.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench import harness
from bench.torch_training_models import CASES, Case, torch_step
from tilewright import front, torch_backend
from tilewright.cli.options import positive_int
from tilewright.support.errors import UserError
from tilewright.support.text import table
from tilewright.torch_backend import FallbackWarning, tilewright_backend

_MOST_ERROR = 1e-3
_WARM_UP = 2
_RATE = 0.01


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.torch_training", description=__doc__.splitlines()[0])
    parser.add_argument("--threads", default="1,2", help="numbers of threads, separated by commas")
    parser.add_argument("--only", help="models whose names contain one of these texts, separated by commas")
    parser.add_argument("--against", default="eager,inductor", help="eager, inductor or both")
    parser.add_argument("--small", action="store_true", help="small batches of small inputs")
    parser.add_argument("--curve", type=positive_int, help="steps of ResNet-18's loss, instead of times")
    parser.add_argument("--rounds", type=positive_int, default=10)
    parser.add_argument("--json", type=Path, default=harness.RESULTS_FOLDER / "torch-training.json")
    options = parser.parse_args(arguments)
    words = [] if options.only is None else options.only.split(",")
    chosen = [name for name in CASES if not words or any(word in name for word in words)]
    if not chosen:
        raise UserError(f"no model is called {options.only!r}", hint=", ".join(CASES))
    torch._dynamo.config.allow_rnn = True
    if options.curve is not None:
        _curve(options.curve, options.small)
        return
    rows: list[dict[str, Any]] = []
    for threads in map(int, options.threads.split(",")):
        with harness.pinned(threads):
            torch.set_num_threads(threads)
            for name in chosen:
                rows.append(_measured(name, threads, options))
                harness.say(f"{threads} threads, {name}: {rows[-1]['ratios']}")
    _report(rows)
    harness.write_json(
        options.json,
        {"machine": harness.machine(), "versions": harness.versions(["torch"]), "batch": 8, "rows": rows},
    )


@dataclass
class Noted:
    """What was compiled for a step: forward graph first, then the backward graph."""

    executables: list[Any] = field(default_factory=list)

    def compile(self, *arguments: Any, **keywords: Any) -> Any:
        """`tilewright.compile`, remembered."""
        self.executables.append(front.compile(*arguments, **keywords))
        return self.executables[-1]

    def kernels(self) -> list[int]:
        """Kernels of each graph."""
        return [len(item.model.steps) for item in self.executables]

    def saved_bytes(self) -> int:
        """What the forward pass gives beside the loss (nothing if it has no backward pass)."""
        if len(self.executables) < 2:
            return 0
        outputs = self.executables[0].output_info
        return sum(item.nbytes for item in outputs[1:])


def stepper(case: Case, how: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], float]:
    """A function that takes a step of training, and gives the loss."""
    return torch_step(case, torch.optim.SGD(case[0].parameters(), lr=_RATE, momentum=0.9), how)


def _ways(name: str, threads: int, options: Any) -> tuple[dict[str, Callable[[], float]], Noted, bool]:
    """A step by each way, what ours compiles, and whether the model draws random numbers."""
    torch.manual_seed(0)
    case = CASES[name](options.small)
    noted = Noted()
    torch_backend.compile = noted.compile  # type: ignore[assignment]
    wanted = options.against.split(",")
    how: dict[str, Callable[[Any], Any]] = {
        "tilewright": lambda f: torch.compile(f, backend=tilewright_backend, options={"threads": threads}),
        "eager": lambda f: f,
        "inductor": torch.compile,
    }
    steps = {
        way: stepper(copy.deepcopy(case), make) for way, make in how.items() if way == "tilewright" or way in wanted
    }
    draws = any(isinstance(part, nn.Dropout) and part.p for part in case[0].modules())
    return steps, noted, draws


def _measured(name: str, threads: int, options: Any) -> dict[str, Any]:
    torch._dynamo.reset()
    steps, noted, draws = _ways(name, threads, options)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        first = {way: step() for way, step in steps.items()}
    compiled_in = time.perf_counter() - begin
    for way, loss in first.items():
        if not draws and abs(loss - first["tilewright"]) > _MOST_ERROR * abs(loss):
            raise SystemExit(f"{name}: the first loss is {first['tilewright']}, {way}'s {loss}")
    times: dict[str, list[float]] = {way: [] for way in steps}
    for number in range(options.rounds + _WARM_UP):
        for way, step in steps.items():
            begin = time.perf_counter()
            step()
            if number >= _WARM_UP:
                times[way].append(time.perf_counter() - begin)
    medians = {way: statistics.median(column) * 1e3 for way, column in times.items()}
    own = medians["tilewright"]
    return {
        "name": name,
        "threads": threads,
        "ms": medians,
        "ratios": {way: round(value / own, 3) for way, value in medians.items() if way != "tilewright"},
        "kernels": noted.kernels(),
        "saved_bytes": noted.saved_bytes(),
        "first_step_s": compiled_in,
    }


def _curve(steps: int, small: bool) -> None:
    """Print ResNet-18's losses beside eager mode's, and the largest difference."""
    options = argparse.Namespace(small=small, against="eager")
    ways, _, _ = _ways("resnet18", 1, options)
    torch.set_num_threads(1)
    worst = 0.0
    for number in range(steps):
        ours, theirs = ways["tilewright"](), ways["eager"]()
        worst = max(worst, abs(ours - theirs))
        print(f"{number:4d}  {ours:.6f}  {theirs:.6f}")
    print(f"largest difference {worst:.2e}")


def _report(rows: Sequence[dict[str, Any]]) -> None:
    others = list(rows[0]["ratios"])
    lines = [
        [
            row["name"],
            str(row["threads"]),
            *(f"{row['ms'][way]:.1f}" for way in ("tilewright", *others)),
            *(f"{row['ratios'][way]:.2f}" for way in others),
            " + ".join(map(str, row["kernels"])),
            f"{row['saved_bytes'] / 2**20:.1f}",
        ]
        for row in rows
    ]
    heads = ["model", "threads", "ours ms", *(f"{way} ms" for way in others), *(f"{way} / ours" for way in others)]
    print(table([*heads, "kernels", "saved MiB"], lines))
    for way in others:
        mean = math.exp(statistics.mean(math.log(row["ratios"][way]) for row in rows))
        print(f"geometric mean against {way}: {mean:.2f}")
    print(harness.machine_line())


if __name__ == "__main__":
    main()
