"""Kernels of backward passes against torch's: `python -m bench.backward`.

    python -m bench.backward                        # one thread and two, batch 8
    python -m bench.backward --threads 1 --only "resnet18 weight,attention"
    python -m bench.backward --batch 1 --rounds 3   # small: does it run
    python -m bench.backward --target cuda --threads 1 --rounds 3   # on a device: is it right (copies count in times)

Gradients of convolutions (ResNet-18, MobileNet-v2) for data and weights are single operators, and so are the products
of linear layers (BERT-small; the forward ones too); of other layers the forward and the backward pass together are
measured, as torch's autograd runs them. Programs are compiled as any model is, and checked against torch; rounds
alternate between the two, and a ratio is torch's median time over ours. Torch takes the quicker of its two orders of
dimensions. `of peak` is the rate against what one core's vector instructions can do times the threads; Winograd's
algorithm may be above it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from bench import harness
from bench.backward_cases import Case, cases
from tilewright.cli.measure import max_relative_error
from tilewright.cli.options import positive_int
from tilewright.support.errors import UserError
from tilewright.support.text import table
from tilewright.target import Target
from tilewright.tune.peak import arithmetic_peak

_MOST_ERROR = 2e-3
"""Relative to the largest value: sums of a hundred thousand products in another order, and Winograd's rounding."""
_WARM_UP = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.backward", description=__doc__.splitlines()[0])
    parser.add_argument("--threads", default="1,2", help="numbers of threads, separated by commas")
    parser.add_argument("--only", help="cases whose names contain one of these texts, separated by commas")
    parser.add_argument("--batch", type=positive_int, default=8)
    parser.add_argument("--rounds", type=positive_int, default=15)
    parser.add_argument("--target", default="native", help="what to compile for; torch stays on the CPU")
    parser.add_argument("--json", type=Path, default=harness.RESULTS_FOLDER / "backward.json")
    options = parser.parse_args(arguments)
    words = [] if options.only is None else options.only.split(",")
    chosen = [case for case in cases(options.batch) if not words or any(word in case.name for word in words)]
    if not chosen:
        raise UserError(f"no case is called {options.only!r}")
    rows: list[dict[str, object]] = []
    for threads in map(int, options.threads.split(",")):
        with harness.pinned(threads):
            peak = _peak(threads)
            for case in chosen:
                rows.append(_measured(case, threads, options.target, options.rounds, peak))
                harness.say(f"{threads} threads, {case.name}: {rows[-1]['ratio']:.2f}")
    _report(rows)
    facts = {"machine": harness.machine(), "versions": harness.versions(["torch", "numpy"]), "rows": rows}
    harness.write_json(options.json, facts)
    print(json.dumps({"geometric_mean": _mean(rows), "cases": len(rows)}))


def _peak(threads: int) -> float:
    """Operations a second of so many cores."""
    peak = arithmetic_peak(Target("native"), "float32")
    if peak is None:
        return float("nan")
    peak.call()
    begin = time.perf_counter()
    for _ in range(20):
        peak.call()
    return threads * peak.work * 20 / (time.perf_counter() - begin)


def _measured(case: Case, threads: int, target: str, rounds: int, peak: float) -> dict[str, object]:
    import torch

    torch.set_num_threads(threads)
    inputs = case.inputs()
    executable = tw.compile(case.module(), target, threads=threads)
    ways = case.peer(torch, [torch.from_numpy(item) for item in inputs])

    def ours() -> object:
        return executable(*inputs)

    _check(case, ours(), ways[0]())
    times: list[list[float]] = [[] for _ in range(1 + len(ways))]
    for number in range(rounds + _WARM_UP):
        for column, function in zip(times, [ours, *ways], strict=True):
            seconds = _seconds(function)
            if number >= _WARM_UP:
                column.append(seconds)
    own, *others = (statistics.median(column) for column in times)
    theirs = min(others)
    rate = case.operations / own
    return {
        "name": case.name,
        "threads": threads,
        "ours_ms": own * 1e3,
        "torch_ms": theirs * 1e3,
        "ratio": theirs / own,
        "gflops": rate / 1e9 if case.operations else None,
        "of_peak": rate / peak if case.operations else None,
    }


def _seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def _check(case: Case, got: Any, wanted: Any) -> None:
    given, expected = (item if isinstance(item, (list, tuple)) else [item] for item in (got, wanted))
    arrays = [np.asarray(item) for item in given]
    error = max_relative_error(arrays, [np.asarray(item.detach().numpy()) for item in expected])
    if not error <= _MOST_ERROR:
        raise SystemExit(f"{case.name}: the result differs from torch's by {error:.1e}")


def _mean(rows: Sequence[dict[str, object]]) -> float:
    return float(np.exp(np.mean([np.log(float(str(row["ratio"]))) for row in rows])))


def _report(rows: Sequence[dict[str, object]]) -> None:
    def text(value: object, form: str) -> str:
        return "" if value is None else format(value, form)

    lines = [
        [
            str(row["name"]),
            str(row["threads"]),
            text(row["ours_ms"], ".2f"),
            text(row["torch_ms"], ".2f"),
            text(row["ratio"], ".2f"),
            text(row["gflops"], ".1f"),
            text(row["of_peak"], ".0%"),
        ]
        for row in rows
    ]
    print(table(["case", "threads", "ours ms", "torch ms", "ratio", "GFLOP/s", "of peak"], lines))
    print(f"\n{harness.machine_line()}; geometric mean of the ratios {_mean(rows):.2f}\n")


if __name__ == "__main__":
    main()
