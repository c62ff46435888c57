"""TFLite networks: Tilewright against LiteRT with XNNPACK, on one thread and on two.

    python -m bench.tflite                                    # four networks, float32 and int8
    python -m bench.tflite --only int8 --threads 1 --rounds 20

The files are those that `bench.tflite_networks` writes, in a folder that is kept (`--models`). Both runtimes run by
turns in one process on the same image; a ratio is that of pairs of runs. On one thread times are those of the processor
(other work on it does not count), on several those of a clock. `bound` is how long the multiplications of the
convolutions and products take at the rate of the processor's best instructions, measured in the same process: no
program is quicker. Results must agree: to a step of int8, or to 1e-3 of the largest float.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from bench import harness
from bench.environments import REPOSITORY, Environment, variables
from tilewright.cli import measure, versus
from tilewright.cli.options import positive_int
from tilewright.cli.peers import litert
from tilewright.frontend import from_tflite
from tilewright.graph.ir.expr import Call, Function
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import graph_functions, post_order
from tilewright.runtime.core.executor import Executable
from tilewright.support.errors import UserError
from tilewright.support.text import table
from tilewright.target import Target
from tilewright.tune.peak import arithmetic_peak
from tilewright.tune.turns import elsewhere

HOME = Environment(
    REPOSITORY / ".venv-tflite", ("tensorflow", "ai_edge_litert"), (("tensorflow", "keras", "ai-edge-litert"),)
)
_NETWORKS = ("mobilenet_v1", "mobilenet_v2", "mobilenet_v3", "efficientnet_lite0")
NAMES = [f"{name}{kind}" for kind in ("", "_int8") for name in _NETWORKS]
RESULTS = harness.RESULTS_FOLDER / "tflite.json"
IMAGE = (1, 224, 224, 3)
_FLOAT_TOLERANCE = 1e-3
_PEAK_CALLS = 40


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.tflite", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help=f"networks with this in their names: {NAMES}")
    parser.add_argument("--threads", type=positive_int, action="append", help="threads (default: 1 and 2)")
    parser.add_argument("--rounds", type=positive_int, default=12)
    parser.add_argument("--models", type=Path, default=REPOSITORY / ".cache" / "tflite", metavar="FOLDER")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where the figures go")
    options = parser.parse_args(arguments)
    names = [name for name in NAMES if options.only in name]
    if not names:
        raise UserError(f"no network has '{options.only}' in its name", where="--only", hint=", ".join(NAMES))
    python = HOME.python()
    if python != sys.executable:
        given = list(sys.argv[1:] if arguments is None else arguments)
        command = [python, "-m", "bench.tflite", *given]
        return subprocess.run(command, cwd=REPOSITORY, env=variables(), check=False).returncode
    if not all((options.models / f"{name}.tflite").exists() for name in names):
        harness.say("writing the networks")
        writer = [python, "-m", "bench.tflite_networks", str(options.models)]
        subprocess.run(writer, cwd=REPOSITORY, env=variables(), check=True, capture_output=True)
    figures: dict[str, dict[str, Any]] = {}
    for threads in options.threads or [1, 2]:
        for name in names:
            harness.say(f"{name}, threads: {threads}")
            figures[f"{name}, {threads}"] = compared(options.models / f"{name}.tflite", threads, options.rounds)
    versions = harness.versions(["ai-edge-litert", "tensorflow"])
    harness.write_json(options.json, {"machine": harness.machine(), "versions": versions, "networks": figures})
    print(render(figures))
    print(json.dumps({name: row["ratio"] for name, row in figures.items()}))
    return 0 if all(row["agrees"] for row in figures.values()) else 1


def compared(path: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of both, their ratio, and the least time that the multiplications take."""
    name = graph_functions(from_tflite(path))["main"].params[0].name
    operations = 2 * products(graph_functions(from_tflite(path, shapes={name: IMAGE}))["main"])
    executable = tw.compile(path, threads=threads, shapes={name: IMAGE})
    dtype = "int8" if path.stem.endswith("int8") else "float32"
    image = np.random.default_rng(0).normal(size=IMAGE)
    inputs = {name: np.clip(image * 40, -128, 127).astype(dtype) if dtype == "int8" else image.astype(dtype)}
    peer = litert(path, threads, inputs)
    clock = time.process_time if threads == 1 else time.perf_counter
    error = difference(executable.run(inputs), peer(), dtype)
    with harness.pinned(threads):
        standing = versus.against(
            lambda place: measure.LocalSampler(runner(executable, inputs, place), clock),
            {"LiteRT": measure.LocalSampler(peer, clock)},
            rounds,
            threads=threads,
        )
    times, peers = standing.times("Tilewright"), standing.peers["LiteRT"]
    return {
        "ms": {key: round(median, 3) for key, (median, _) in times.items()},
        "least_ms": {key: round(least, 3) for key, (_, least) in times.items()},
        "ratio": round(peers.ratio, 3),
        "between": [round(bound, 3) for bound in peers.bounds],
        "bound_ms": round(operations / peak(dtype) / threads * 1e3, 3),
        "error": error,
        "agrees": error <= (1 if dtype == "int8" else _FLOAT_TOLERANCE),
    }


def products(function: Function) -> int:
    """The multiplications of a network's convolutions and matrix products, as the file has them."""
    count = 0
    for item in post_order(function):
        if any(is_call_to(item, name) for name in ("nn.conv2d", "matmul")) and isinstance(item, Call):
            results, weights = (part.tensor_type.static_shape for part in (item, item.args[1]))
            assert results is not None and weights is not None
            # Channels come last in TFLite, and matrices are its only other factors.
            count += prod(results) * prod(weights) // results[-1]
    return count


def runner(executable: Executable, inputs: Mapping[str, Any], place: int) -> Callable[[], object]:
    """Runs of a model that lies somewhere else in memory at each place."""
    model = elsewhere(executable) if place else executable
    return lambda: model.run(dict(inputs))


def difference(found: Sequence[Any], expected: Sequence[Any], dtype: str) -> float:
    """How far results are from LiteRT's: in steps, or relative to the largest."""
    if dtype != "int8":
        return measure.max_relative_error(found, expected)
    pairs = zip(found, expected, strict=True)
    return float(max(np.abs(ours.astype(np.int32) - theirs).max() for ours, theirs in pairs))


def peak(dtype: str) -> float:
    """Operations a second of one core, by the time that the process has it."""
    limit = arithmetic_peak(Target("native"), dtype)
    if limit is None:
        raise UserError(f"this processor has no instructions for {dtype}", hint="--only with networks of float32")
    least = min(measure.LocalSampler(limit.call, time.process_time).sample(_PEAK_CALLS))
    return limit.work / least * 1e3


def render(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """A line for each network and number of threads."""
    rows = []
    for name, row in figures.items():
        ours, theirs = (measure.format_ms(row["ms"][key]) for key in ("Tilewright", "LiteRT"))
        rows.append(
            [name, ours, theirs, measure.format_ratio(row["ratio"], row["between"]), measure.format_ms(row["bound_ms"])]
        )
    return table(["network, threads", "Tilewright ms", "LiteRT ms", "ratio", "bound ms"], rows)


if __name__ == "__main__":
    sys.exit(main())
