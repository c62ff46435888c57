"""The benchmark command: the ten models, Tilewright and its peers, checked and timed in pairs of runs.

    python -m bench.models --threads 1 --against onnxruntime
    python -m bench.models --models more                     # the second set, which nobody looked at while tuning
    python -m bench.models --threads all --against all --models resnet18,dqn --rounds 20 --json out.json
    python -m bench.models --against tilewright              # against itself: 1.00x, or the measurement is off
    python -m bench.models --no-winograd --unchecked         # any option of a compilation
    python -m bench.models --batch 8                         # eight images, sequences or sentences at once
    python -m bench.models --precision int8 --against onnxruntime,openvino --models resnet18,mobilenet_v2

Each peer runs in a process of its own, pinned to the same cores as this one, which runs Tilewright; all but the one
whose turn it is are stopped. A ratio is the middle of many pairs of runs, one right after the other (`cli/versus.py`),
and stands beside the bounds between which it lies. On one thread, pairs during which somebody else's work shared the
core (`bench.neighbours`) do not count, where there are enough others. A peer that cannot run a model, or gives other
outputs, is n/a in the table, with the reason below it, and does not count.

In `--precision int8` the peers run the model as onnxruntime's own tool quantises it (`bench.peer_quantization`), ours
is quantised on the same examples, and outputs are compared with those of the float model: a model is right where it is
about as close to them as the peers' file is in onnxruntime, or closer than `LEAST_DECIBELS`.

Prints a table, writes the figures as JSON into `bench/results/`, and ends with one line of JSON. The exit code is 1
when a model failed or its outputs are off by more than 1e-4 relative to the largest expected value.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import tilewright as tw
from bench import batches, harness, peer_quantization, zoo
from bench.neighbours import CoreWatch
from bench.peers import ITSELF, PEERS, REFERENCE, clock_for, process
from tilewright.cli import measure, versus
from tilewright.cli.options import add_algorithms, algorithm_options, positive_int
from tilewright.options import key_parts
from tilewright.runtime.core.executor import Executable
from tilewright.support.errors import TilewrightError, UserError
from tilewright.support.text import plural, table
from tilewright.target import Target
from tilewright.tune.turns import Comparison, elsewhere

TOLERANCE = 1e-4
PEER_TOLERANCE = 1e-2
"""Peers may approximate more than we do (MNN's exp does), but not compute something else."""

LEAST_DECIBELS = 20.0
"""Signal to noise of a quantised model's outputs, relative to the float model's, that counts as right."""
SMALLER_DECIBELS = 1.0
"""How much less than the peers' quantised model has is right too: an output more or less at a rounding's edge."""

_MODELS_HELP = f"comma-separated: {', '.join(zoo.names())}; 'all' of these (default), or 'more' for the second set"

_LONGEST_PAUSE = 60_000
"""Milliseconds between calls: longer ones would outlast the time that a peer has for its answer."""

_USUAL = tw.CompileOptions()

Result = dict[str, object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        threads = parse_threads(options.threads)
        chosen = replace(algorithm_options(options), threads=threads)
        names = parse_models(options.models)
        if chosen.precision == "int8" and options.batch != 1:
            raise UserError("models are quantised for batch 1", where="--batch", hint="leave --precision int8 out")
        rivals = process.parse_peers(options.against)
        process.parse_peers(REFERENCE)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    harness.say(f"{harness.machine_line()}; {plural(threads, 'thread')}")
    pause = options.pause / 1e3
    processes = process.start(list(dict.fromkeys([REFERENCE, *rivals])), threads, pause)
    results: dict[str, Result] = {}
    try:
        for name in names:
            measured = (
                measure_quantized
                if chosen.precision == "int8"
                else functools.partial(measure_model, batch=options.batch)
            )
            results[name] = measured(name, chosen, processes, rivals, options.rounds, options.seed, pause)
    finally:
        for worker in processes.values():
            worker.close()
    summary = {
        "models": results,
        "threads": threads,
        "options": {name: value for name, value in key_parts(chosen).items() if value != getattr(_USUAL, name)},
        "rounds": options.rounds,
        "batch": options.batch,
        "pause_ms": options.pause,
        "ratio_means": "time of the quickest peer / time of tilewright: above 1, tilewright is quicker",
        "between_means": "where the ratio lies, as far as chance and places in memory go",
        "method": "pairs of runs",
        "geomean_ratio": geometric_mean([result["ratio"] for result in results.values() if "ratio" in result]),
        "machine": harness.machine(),
        "versions": {
            **harness.versions(["tilewright", "numpy", "llvmlite", "onnx"]),
            **{rival: process.installed()[rival][1] for rival in rivals},
        },
    }
    print(render(results, rivals))
    kind = "more-models" if options.models == "more" else "models"
    kind += "" if chosen.precision == "float32" else f"-{chosen.precision}"
    kind += f"-b{options.batch}" if options.batch != 1 else ""
    kind += f"-pause{options.pause:g}" if pause else ""
    path = options.json or harness.RESULTS_FOLDER / f"{kind}-{threads}t.json"
    harness.write_json(path, summary)
    harness.say(f"figures written to {path}")
    print(json.dumps(summary))
    return 0 if all(is_good(result) for result in results.values()) else 1


def measure_quantized(
    name: str,
    options: tw.CompileOptions,
    processes: Mapping[str, process.PeerProcess],
    rivals: Sequence[str],
    rounds: int,
    seed: int,
    pause: float,
) -> Result:
    """Quantise one model by us and by the peers' tool, check both against the float model, and time them."""
    threads = options.threads or harness.all_threads()
    path, inputs = zoo.path(name, seed), zoo.inputs(name, seed)
    expected = processes[REFERENCE].load(path, inputs)
    harness.say(f"{name}: quantising by onnxruntime's tool")
    rounded = peer_quantization.path(name, seed)
    theirs = decibels(processes[REFERENCE].load(rounded, inputs), expected)
    harness.say(f"{name}: quantising and compiling")
    start = time.perf_counter()
    chosen = replace(options, calibration=peer_quantization.calibration(name, seed))
    try:
        executable = tw.compile(str(path), options=chosen)
        compile_seconds = time.perf_counter() - start
        with harness.pinned(threads):
            ours = decibels(executable.run(inputs), expected)
    except TilewrightError as error:
        harness.say(f"{name}: failed: {error}")
        return {"error": str(error), "ours_ms": None, "peers_ms": {}, "max_rel_err": None}
    harness.say(f"{name}: compiled in {compile_seconds:.1f} s, {ours:.1f} dB (onnxruntime's {theirs:.1f}); timing")
    failures: dict[str, str] = {}
    able = _able(rivals, processes, rounded, inputs, expected, theirs, failures)
    with harness.pinned(threads):
        watch = CoreWatch(Target("native")) if threads == 1 else None
        places = functools.partial(placed, executable, inputs, clock_for(threads), pause=pause)
        standing = versus.against(places, able, rounds, threads=threads, watch=watch)
    return {
        **figures(standing, zoo.spec(name).gflop),
        "peers_failed": failures,
        "decibels": round(ours, 2),
        "peers_decibels": round(theirs, 2),
        "max_rel_err": None,
        "compile_s": round(compile_seconds, 2),
    }


def _able(
    rivals: Sequence[str],
    processes: Mapping[str, process.PeerProcess],
    path: Path,
    inputs: zoo.Arrays,
    expected: list[np.ndarray],
    level: float,
    failures: dict[str, str],
) -> dict[str, process.PeerProcess]:
    """The peers that run a quantised model about as well as `level` says; of others `failures` says why."""
    able: dict[str, process.PeerProcess] = {}
    for rival in rivals:
        try:
            reached = decibels(processes[rival].load(path, inputs), expected)
        except process.PeerError as problem:
            failures[rival] = str(problem)
            continue
        if _is_close(reached, level):
            able[rival] = processes[rival]
        else:
            failures[rival] = f"its outputs are wrong: {reached:.1f} dB"
    return able


def _is_close(decibels_reached: float, peers_decibels: float) -> bool:
    return decibels_reached >= min(LEAST_DECIBELS, peers_decibels - SMALLER_DECIBELS)


def decibels(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The least signal-to-noise ratio among a model's outputs."""
    levels = []
    for got, right in zip(actual, expected, strict=True):
        noise = float(np.square(got.astype(np.float64) - right).mean())
        levels.append(10 * math.log10(float(np.square(right, dtype=np.float64).mean()) / noise) if noise else math.inf)
    return min(levels)


def measure_model(
    name: str,
    options: tw.CompileOptions,
    processes: Mapping[str, process.PeerProcess],
    rivals: Sequence[str],
    rounds: int,
    seed: int,
    pause: float,
    batch: int = 1,
) -> Result:
    """Build, compile, check and time one model. A failure to compile or run is a result, not the end."""
    threads = options.threads or harness.all_threads()
    harness.say(f"{name}: building")
    path = batches.path(name, batch, seed)
    inputs = batches.inputs(name, batch, seed=seed)
    expected = processes[REFERENCE].load(path, inputs)
    harness.say(f"{name}: compiling")
    start = time.perf_counter()
    try:
        executable = tw.compile(tw.frontend.from_onnx(str(path)), target="native", options=options)
        compile_seconds = time.perf_counter() - start
        # Pinned from the first call on: the pool's threads inherit it when they start.
        with harness.pinned(threads):
            actual = executable.run(inputs)
    except TilewrightError as error:
        harness.say(f"{name}: failed: {error}")
        return {"error": str(error), "ours_ms": None, "peers_ms": {}, "max_rel_err": None}
    error_size = measure.max_relative_error(actual, expected)
    harness.say(f"{name}: compiled in {compile_seconds:.1f} s, max relative error {error_size:.1e}; timing")
    failures: dict[str, str] = {}
    able = {rival: processes[rival] for rival in rivals if can_run(processes[rival], path, inputs, expected, failures)}
    with harness.pinned(threads):
        # Several cores are watched by nobody: a neighbour on one of them is too short to be told.
        watch = CoreWatch(Target("native")) if threads == 1 else None
        places = functools.partial(placed, executable, inputs, clock_for(threads), pause=pause)
        standing = versus.against(places, able, rounds, threads=threads, watch=watch)
    return {
        **figures(standing, batch * zoo.spec(name).gflop),
        "peers_failed": failures,
        "max_rel_err": error_size,
        "compile_s": round(compile_seconds, 2),
    }


def placed(
    executable: Executable, inputs: zoo.Arrays, clock: Callable[[], float], place: int, pause: float = 0.0
) -> measure.LocalSampler:
    """Runs of a model that lies somewhere else in memory at each place."""
    model = executable if place == 0 else elsewhere(executable)
    return measure.LocalSampler(lambda: model.run(inputs), clock, pause)


def figures(standing: versus.Standing, gflop: float) -> Result:
    """The figures of one model."""
    ours = standing.median_ms
    result: Result = {
        "ours_ms": round(ours, 5),
        "ours_min_ms": round(min(standing.ours), 5),
        "peers_ms": {peer: round(standing.peer_ms(peer), 5) for peer in standing.peers},
        "peers_min_ms": {peer: round(least, 5) for peer, least in standing.least.items()},
        "peers_between": {peer: _between(found) for peer, found in standing.peers.items()},
        "pairs": {peer: len(found.ratios) for peer, found in standing.peers.items()},
        "gflops": round(gflop / ours * 1e3, 2),
        "alone": round(standing.alone, 3),
    }
    if standing.peers:
        best = min(standing.peers, key=lambda peer: (peer in ITSELF, standing.peers[peer].ratio))
        result["best_peer"] = best
        result["ratio"] = round(standing.peers[best].ratio, 4)
        result["between"] = _between(standing.peers[best])
    return result


def _between(found: Comparison) -> list[float]:
    return [round(bound, 4) for bound in found.bounds]


def can_run(
    worker: process.PeerProcess,
    path: Path,
    inputs: zoo.Arrays,
    expected: list[np.ndarray],
    failures: dict[str, str],
) -> bool:
    """Whether a peer loads a model and gives the expected outputs; if not, `failures` says why."""
    if worker.name == REFERENCE:
        return True
    harness.say(f"  {worker.name}: loading")
    try:
        error = measure.max_relative_error(worker.load(path, inputs), expected)
    except process.PeerError as problem:
        failures[worker.name] = str(problem)
        return False
    if not error <= PEER_TOLERANCE:
        failures[worker.name] = f"its outputs are wrong: max relative error {error:.1e}"
        return False
    return True


def geometric_mean(values: Sequence[object]) -> float | None:
    """The geometric mean of positive numbers; None of nothing."""
    numbers = [value for value in values if isinstance(value, float)]
    return round(math.exp(sum(map(math.log, numbers)) / len(numbers)), 4) if numbers else None


def is_good(result: Result) -> bool:
    """Whether a model ran and its outputs are right."""
    ours, theirs = result.get("decibels"), result.get("peers_decibels")
    if isinstance(ours, float) and isinstance(theirs, float):
        return _is_close(ours, theirs)
    error = result["max_rel_err"]
    return isinstance(error, float) and error <= TOLERANCE


def render(results: dict[str, Result], rivals: Sequence[str]) -> str:
    """The table of figures; times are medians in milliseconds with the minimum beside."""
    header = ["model", "tilewright ms", "min", *(f"{rival} ms" for rival in rivals), "ratio", "GFLOP/s", "error"]
    rows = []
    for name, result in results.items():
        if "error" in result:
            rows.append([zoo.spec(name).title, "failed", *["-"] * (len(header) - 2)])
            continue
        times = result["peers_ms"]
        assert isinstance(times, dict)
        rows.append(
            [
                zoo.spec(name).title,
                _milliseconds(result["ours_ms"]),
                _milliseconds(result["ours_min_ms"]),
                *(_milliseconds(times[rival]) if rival in times else "n/a" for rival in rivals),
                _ratio(result),
                f"{result['gflops']:.1f}",
                _error(result) + ("" if is_good(result) else " WRONG"),
            ]
        )
    return "\n".join([table(header, rows), *notes(results)])


def _error(result: Result) -> str:
    """How far outputs are from the right ones: the largest relative error, or what quantising costs."""
    if "decibels" in result:
        return f"{result['decibels']:.1f} dB, peers {result['peers_decibels']:.1f}"
    return f"{result['max_rel_err']:.1e}"


def notes(results: dict[str, Result]) -> list[str]:
    """Lines below the table: why a cell is n/a, where a peer is quicker, and the mean of the ratios."""
    lines = []
    for name, result in results.items():
        failures = result.get("peers_failed", {})
        assert isinstance(failures, dict)
        lines += [f"n/a: {rival} on {name}: {reason}" for rival, reason in failures.items()]
    lines += [line for name, result in results.items() if (line := _behind(name, result))]
    mean = geometric_mean([result["ratio"] for result in results.values() if "ratio" in result])
    if mean is not None:
        lines.append(f"geometric mean of the ratios to the quickest peer: {mean:.2f}x")
    return lines


def _behind(name: str, result: Result) -> str:
    """What to say of a model on which a peer is quicker, or may be."""
    ratio, between = result.get("ratio"), result.get("between")
    if not isinstance(ratio, float) or ratio >= 1 or result["best_peer"] in ITSELF:
        return ""
    if isinstance(between, list) and between[1] >= 1:
        return f"level: {result['best_peer']} is as quick on {name}: {_ratio(result)}"
    return f"behind: {result['best_peer']} is quicker on {name}: {_ratio(result)}"


def _ratio(result: Result) -> str:
    """The ratio with its bounds, which older figures do not have."""
    match result.get("ratio"), result.get("between"):
        case float(ratio), [float(low), float(high)]:
            return measure.format_ratio(ratio, (low, high))
        case float(ratio), _:
            return f"{ratio:.2f}x"
        case _:
            return "-"


def _milliseconds(value: object) -> str:
    return measure.format_ms(value) if isinstance(value, float) else "-"


def parse_threads(text: str) -> int:
    """A number of threads, or `all`."""
    if text == "all":
        return harness.all_threads()
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"'{text}' is not a number of threads", where="--threads", hint="a whole number, or 'all'")
    return int(text)


def parse_models(text: str) -> list[str]:
    """The models in a comma-separated list; `all` are the ten, `more` the second set, `servers` the third."""
    if text == "all":
        return zoo.names()
    if text == "more":
        return zoo.more_names()
    if text == "servers":
        return zoo.server_names()
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in zoo.known():
            raise UserError(f"unknown model '{name}': the models are {', '.join(zoo.known())}", where="--models")
    return chosen


def _milliseconds_of_pause(text: str) -> float:
    """Milliseconds from 0 to a minute, as an argument."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _LONGEST_PAUSE:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of milliseconds from 0 to {_LONGEST_PAUSE}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.models", description=__doc__.split("\n")[0])
    parser.add_argument("--threads", default="1", help="threads to run on: a number, or 'all' (default: 1)")
    parser.add_argument(
        "--against",
        default=REFERENCE,
        help=f"peers, comma-separated: {', '.join(PEERS)}; 'all' others that are installed; '' for none",
    )
    parser.add_argument("--models", default="all", help=_MODELS_HELP)
    add_algorithms(parser)
    parser.add_argument("--rounds", type=positive_int, default=10, help="rounds of pairs of runs (default: 10)")
    parser.add_argument(
        "--pause",
        type=_milliseconds_of_pause,
        default=0.0,
        metavar="MS",
        help="milliseconds before each call, as between a server's calls",
    )
    parser.add_argument("--batch", type=positive_int, default=1, help="elements of a batch (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and inputs (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write the figures (default: bench/results/)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
