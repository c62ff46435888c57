"""The operator command: models of one operator each, Tilewright and onnxruntime in turns.

    python -m bench.operators                                   # the whole table on one thread, against onnxruntime
    python -m bench.operators --only pool,softmax               # cases whose name or family contains a word
    python -m bench.operators --threads 2 --against torch       # another peer (`bench.peers`), in a process of its own
    python -m bench.operators --against unchecked               # what the checks of indices and divisors cost

Each case is compiled like any model and checked against onnxruntime. Then short runs of both take turns, and what
counts is the middle of the ratios of neighbouring runs: a machine that gets slower for a second is slower for both.
Times include the call from Python, and fresh outputs, on both sides. Prints a table, the worst first, writes the
figures as JSON into `bench/results/`, and ends with one line of JSON. The exit code is 1 when a case failed or its
outputs are wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np

import tilewright as tw
from bench import harness
from bench.models import geometric_mean, parse_threads
from bench.operator_cases import Case
from bench.operator_table import CASES, FAMILIES
from bench.peers import ITSELF, PEERS, REFERENCE, onnxruntime_peer, process
from tilewright.cli import measure
from tilewright.cli.options import add_algorithms, algorithm_options
from tilewright.support.errors import TilewrightError, UserError
from tilewright.support.text import table

BEHIND = 0.95
"""Ratios below this are named below the table."""
_SAMPLE_SECONDS = 0.002
"""About how long the runs of one side take in one turn."""
_LEAST_TURNS = 8

Result = dict[str, object]
Loader = Callable[[Path, int, dict[str, np.ndarray], Path], Callable[[], list[np.ndarray]]]
"""What a peer's module has: from a model to a call of it."""
_HERE: dict[str, Loader] = {
    REFERENCE: onnxruntime_peer.load,
    **{name: import_module(PEERS[name].module).load for name in ITSELF},
}
"""Peers that share this process: their calls cost the same as ours."""


class ProcessorSampler:
    """A call in this process; on one thread its time is the processor's, which leaves out what else a machine does.

    Calls that are shorter than the clock is fine are timed several at a time.
    """

    def __init__(self, call: Callable[[], object], threads: int) -> None:
        self._call = call
        self._clock = time.thread_time if threads == 1 else time.perf_counter

    def sample(self, count: int) -> list[float]:
        """Milliseconds a call, of some calls in a row, after one that is not counted."""
        self._call()
        together = max(1, count // 8)
        found = []
        for _ in range(max(1, count // together)):
            start = self._clock()
            for _ in range(together):
                self._call()
            found.append((self._clock() - start) * 1e3 / together)
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        threads = parse_threads(options.threads)
        chosen = replace(algorithm_options(options), threads=threads)
        cases = choose_cases(options.only)
        (rival,) = process.parse_peers(options.against)
    except (UserError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    harness.say(f"{harness.machine_line()}; {len(cases)} cases")
    worker = None if rival in _HERE else process.start([rival], threads)[rival]
    results: dict[str, Result] = {}
    try:
        with tempfile.TemporaryDirectory() as folder, harness.pinned(threads):
            for case in cases:
                peer = worker or _HERE[rival]
                results[case.name] = measure_case(case, Path(folder), chosen, peer, options.seconds)
                harness.say(f"{case.name}: {_line(results[case.name])}")
    finally:
        if worker is not None:
            worker.close()
    ratios = [result["ratio"] for result in results.values() if "ratio" in result]
    summary = {
        "operators": results,
        "threads": threads,
        "against": rival,
        "ratio_means": f"time of {rival} / time of tilewright: above 1, tilewright is quicker",
        "geomean_ratio": geometric_mean(ratios),
        "machine": harness.machine(),
        "versions": {**harness.versions(["tilewright", "numpy", "llvmlite"]), rival: process.installed()[rival][1]},
    }
    print(render(results, rival))
    path = options.json or harness.RESULTS_FOLDER / f"operators-{threads}t.json"
    harness.write_json(path, summary)
    harness.say(f"figures written to {path}")
    print(json.dumps(summary))
    return 0 if all(is_good(result) for result in results.values()) else 1


def choose_cases(only: str) -> list[Case]:
    """The cases whose name or family contains one of some words."""
    words = [word.strip() for word in only.split(",") if word.strip()]
    chosen = [
        case for case in CASES.values() if not words or any(word in f"{case.name} {case.family}" for word in words)
    ]
    if not chosen:
        raise UserError(f"no case's name or family contains '{only}'", where="--only", hint=", ".join(FAMILIES))
    return chosen


def measure_case(
    case: Case, folder: Path, options: tw.CompileOptions, peer: process.PeerProcess | Loader, seconds: float
) -> Result:
    """Compile, check and time one case against a peer. What cannot be compiled is a result, not the end."""
    threads = options.threads or harness.all_threads()
    path = folder / f"{case.name}.onnx"
    path.write_bytes(case.model().SerializeToString())
    inputs = case.arrays()
    reference = onnxruntime_peer.load(path, threads, inputs, folder)
    expected = reference()
    result: Result = {"family": case.family}
    try:
        executable = tw.compile(tw.frontend.from_onnx(str(path)), target="native", options=options)
        actual = executable.run(inputs)
    except TilewrightError as error:
        return {**result, "error": str(error).splitlines()[0]}
    result["max_rel_err"] = measure.max_relative_error(actual, expected)
    theirs: measure.Sampler
    if isinstance(peer, process.PeerProcess):
        try:
            peer.load(path, inputs)
        except process.PeerError as problem:
            return {**result, "peer_failed": str(problem)}
        theirs = peer
    else:
        theirs = ProcessorSampler(peer(path, threads, inputs, folder), threads)
    ours = ProcessorSampler(lambda: executable.run(inputs), threads)
    pairs = take_turns(ours, theirs, seconds)
    result["ours_us"] = round(float(np.quantile([own for own, _ in pairs], 0.25)) * 1e3, 2)
    result["peer_us"] = round(float(np.quantile([other for _, other in pairs], 0.25)) * 1e3, 2)
    result["ratio"] = float(f"{np.median([other / own for own, other in pairs]):.3g}")
    return {**result, "right": is_right(case, result)}


def take_turns(ours: measure.Sampler, theirs: measure.Sampler, seconds: float) -> list[tuple[float, float]]:
    """Milliseconds of both in neighbouring stretches of a few calls, in alternating order."""
    samplers = (ours, theirs)
    lengths = [min(sampler.sample(1)[0] for _ in range(3)) for sampler in samplers]
    counts = [max(1, min(1000, int(_SAMPLE_SECONDS * 1e3 / max(length, 1e-6)))) for length in lengths]
    pairs: list[tuple[float, float]] = []
    began = time.monotonic()
    while len(pairs) < _LEAST_TURNS or time.monotonic() - began < seconds:
        found = [0.0, 0.0]
        for number in (0, 1) if len(pairs) % 2 else (1, 0):
            found[number] = float(np.median(samplers[number].sample(counts[number])))
        pairs.append((found[0], found[1]))
    return pairs


def is_right(case: Case, result: Result) -> bool:
    """Whether the outputs of a case are as exact as it asks for."""
    error = result["max_rel_err"]
    return isinstance(error, float) and error <= case.tolerance


def is_good(result: Result) -> bool:
    """Whether a case ran with the right outputs; that a peer cannot run it is not our fault."""
    return "peer_failed" in result or result.get("right") is True


def render(results: dict[str, Result], rival: str) -> str:
    """The table, the worst ratio first, and what is behind by family."""
    header = ["operator", "family", "tilewright us", f"{rival} us", "ratio", "max rel err"]
    measured = {name: result for name, result in results.items() if "ratio" in result}
    ordered = sorted(measured.items(), key=lambda item: float(str(item[1]["ratio"])))
    rows = [
        [
            name,
            str(result["family"]),
            f"{result['ours_us']:.1f}",
            f"{result['peer_us']:.1f}",
            f"{result['ratio']:.2f}x",
            f"{result['max_rel_err']:.1e}" + ("" if result["right"] else " WRONG"),
        ]
        for name, result in ordered
    ]
    lines = [table(header, rows)]
    for name, result in results.items():
        if "error" in result:
            lines.append(f"failed: {name}: {result['error']}")
        if "peer_failed" in result:
            lines.append(f"n/a: {rival} on {name}: {result['peer_failed']}")
    behind = [name for name, result in ordered if float(str(result["ratio"])) < BEHIND]
    lines.append(f"behind {rival} (below {BEHIND}x): {len(behind)} of {len(ordered)}: {', '.join(behind) or 'none'}")
    mean = geometric_mean([result["ratio"] for result in measured.values()])
    if mean is not None:
        lines.append(f"geometric mean of the ratios: {mean:.2f}x")
    return "\n".join(lines)


def _line(result: Result) -> str:
    if "ratio" in result:
        return f"{result['ours_us']} us, {result['ratio']}x" + ("" if result["right"] else " WRONG")
    return str(result.get("error") or result.get("peer_failed"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.operators", description=__doc__.split("\n")[0])
    parser.add_argument("--threads", default="1", help="threads to run on: a number, or 'all' (default: 1)")
    add_algorithms(parser)
    parser.add_argument("--against", default=REFERENCE, help=f"one peer of `bench.peers` (default: {REFERENCE})")
    parser.add_argument("--only", default="", help="words, comma-separated: cases whose name or family has one")
    parser.add_argument("--seconds", type=float, default=0.3, help="seconds of turns for each case (default: 0.3)")
    parser.add_argument("--json", type=Path, help="where to write the figures (default: bench/results/)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
