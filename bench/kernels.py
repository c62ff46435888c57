"""Kernels against what one core can do: `python -m bench.kernels`.

    python -m bench.kernels                           # all kernels
    python -m bench.kernels --only sgemm,winograd     # those whose names contain a word
    python -m bench.kernels --rounds 20 --json out.json
    python -m bench.kernels --resume                  # again only those that neighbours disturbed the last time

Each kernel is one graph operator with constant weights, compiled as any model is (graph passes, default schedule, code
generator) for one core, checked against the graph's reference interpreter, and timed in short rounds that alternate
with the peak it is held against. A fraction is the kernel's rate over the peak's rate in the same round; the table
shows the median over rounds and the best. Rounds during which somebody else's work shared the core (`bench.neighbours`)
are repeated, and left out of the medians; the column `alone` has the share of the others. `memory` is the part of the
time that reading as many bytes as the kernel's arguments have, and writing as many as its results have, would take;
`bound` the fraction that a kernel would reach which takes no longer than that, nor than its multiplications at the
peak, by the best of all algorithms. Prints a table, writes JSON into `bench/results/`, ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench import harness
from bench.kernel_cases import CASES, Case
from bench.neighbours import CoreWatch
from bench.peak import Peak, arithmetic_peak, move_peak, read_peak, tile_peak
from tilewright.cli.measure import format_ms, max_relative_error
from tilewright.codegen.llvm import deploy
from tilewright.compiler import Compilation
from tilewright.graph.interpreter import evaluate
from tilewright.runtime.convert import address_of, aligned_empty
from tilewright.runtime.dtypes import storage_dtype
from tilewright.runtime.library import bind, check_code
from tilewright.support.errors import TilewrightError, UserError
from tilewright.support.fingerprint import source_fingerprint
from tilewright.support.text import table
from tilewright.target import Target

_SLICE_SECONDS = 0.003
"""How long a kernel runs in each round; its peak runs for half as long, in two parts."""
_PATIENCE_SECONDS = 3.0
"""How long a kernel waits for neighbours to leave the core; a round that they disturbed is followed by a pause."""
_PAUSE_SECONDS = 0.03
_BOUND_BY_MEMORY = 0.7
"""The part of its time from which on moving its bytes is what a kernel waits for."""
_AT_ITS_BOUND = 0.85
"""The part of its bound from which on a kernel has reached what can be reached."""
_LEAST_ALONE = 5
"""Rounds alone on the core that are enough for a median."""
Result = dict[str, object]


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a kernel: seconds a call, the rate over the peak's, and whether nobody shared the core."""

    seconds: float
    fraction: float
    peak_rate: float
    memory: float
    """The part of the time that moving the kernel's arguments and results once takes."""
    bound: float
    """The most that `fraction` can be by arithmetic and memory, with the best algorithm."""
    alone: bool


@dataclass(slots=True)
class Runner:
    """A compiled kernel with its buffers: `call` runs it once, with no work of Python's around it."""

    case: Case
    call: Callable[[], object]
    operators: list[str]
    error: float
    read_bytes: int = 0
    """Inputs and constants together."""
    written_bytes: int = 0
    constant_bytes: int = 0
    rounds: list[Round] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        chosen = choose_cases(options.only)
        path = options.json or harness.RESULTS_FOLDER / "kernels.json"
        compiler = source_fingerprint()[:12]
        kept, peaks = undisturbed(path, compiler) if options.resume else ({}, {})
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    target = Target("native").replace(cores=1)
    harness.say(f"{harness.machine_line()}; one core" + (f"; {len(kept)} kernels are kept" if options.resume else ""))
    with harness.pinned(1):
        measured, rates = measure_cases([case for case in chosen if case.name not in kept], target, options.rounds)
    peaks |= {name: round(value, 2) for name, value in rates.items()}
    found = {**kept, **measured}
    results = {name: found[name] for name in CASES if name in found}
    print(render(results))
    summary = {
        "kernels": results,
        "peak_gflops": peaks["float32"],
        "peaks": peaks,
        "rounds": options.rounds,
        "compiler": compiler,
        "machine": harness.machine(),
    }
    if options.json or not options.only:
        harness.write_json(path, summary)
        harness.say(f"figures written to {path}")
    print(json.dumps(summary))
    return 0 if all(is_right(result) for result in results.values()) else 1


def undisturbed(path: Path, compiler: str) -> tuple[dict[str, Result], dict[str, float]]:
    """What a file has of this compiler's kernels that were alone on the core for long enough; and the peaks in it."""
    if not path.exists():
        return {}, {}
    try:
        found = json.loads(path.read_text())
        kernels: dict[str, Result] = found["kernels"]
        peaks: dict[str, float] = found["peaks"]
    except (ValueError, KeyError, TypeError) as error:
        hint = "name another file by --json, or leave out --resume"
        raise UserError(f"{path} does not hold figures of this benchmark", hint=hint) from error
    if found.get("compiler") != compiler:
        return {}, {}
    return {
        name: result for name, result in kernels.items() if int(str(result.get("rounds_alone", 0))) >= _LEAST_ALONE
    }, peaks


def choose_cases(text: str) -> list[Case]:
    """The kernels whose names contain one of the comma-separated words; all for an empty text."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    chosen = [case for name, case in CASES.items() if not words or any(word in name for word in words)]
    if not chosen:
        raise UserError(f"no kernel has a name with '{text}' in it: {', '.join(CASES)}", where="--only")
    return chosen


def measure_cases(cases: Sequence[Case], target: Target, rounds: int) -> tuple[dict[str, Result], dict[str, float]]:
    """Figures of each kernel, and the peaks seen (billions a second)."""
    peaks = {name: peak for name in ("float32", "float16", "int8") if (peak := arithmetic_peak(target, name))}
    peaks |= {f"{name} tiles": peak for name in ("int8", "bfloat16") if (peak := tile_peak(target, name))}
    watch = CoreWatch(target)
    rates: dict[str, list[float]] = {}
    results: dict[str, Result] = {}
    for case in cases:
        if case.unit != "read" and case.unit not in peaks:
            results[case.name] = {"skipped": f"this processor has no {case.unit} arithmetic"}
            continue
        try:
            runner = build(case, target)
        except TilewrightError as error:
            results[case.name] = {"error": str(error)}
            harness.say(f"{case.name}: failed: {error}")
            continue
        peak = read_peak(target, int(case.work)) if case.unit == "read" else peaks[case.unit]
        name = case.name if case.unit == "read" else case.unit
        _measure(runner, peak, move_peak(target, runner.read_bytes, runner.written_bytes), watch, rounds)
        rates.setdefault(_peak_label(case, name), []).extend(item.peak_rate for item in believed(runner.rounds))
        results[case.name] = figures(runner)
        harness.say(f"{case.name}: {100 * float(str(results[case.name]['fraction'])):.0f}%")
    if "float32" not in rates:
        rates["float32"] = [_rate(peaks["float32"]) for _ in range(rounds)]
    return results, {name: statistics.median(values) / 1e9 for name, values in rates.items()}


def _peak_label(case: Case, name: str) -> str:
    return f"read, {case.work / 1e6:.1f} MB" if case.unit == "read" else name


def build(case: Case, target: Target, seed: int = 0) -> Runner:
    """Compile a kernel as a model of its own, run it once and compare with the reference interpreter."""
    module = case.module(seed)
    compilation = Compilation(module, target.without(*case.without), threads=1, winograd=case.winograd)
    artifact = compilation.artifact()
    executable = deploy.executable(artifact, 1)
    random = np.random.default_rng(seed + 1)
    inputs = {info.name: _random(random, info.static_shape, info.dtype) for info in executable.input_info}
    error = max_relative_error(executable.run(inputs), [_expected(case, seed, inputs)])
    operators = [item.op for item in executable.model.kernels]
    results = [
        math.prod(map(int, info.static_shape)) * storage_dtype(info.dtype).itemsize for info in executable.output_info
    ]
    constants = artifact.constants.nbytes
    read = sum(array.nbytes for array in inputs.values()) + constants
    return Runner(case, _bare_call(executable, inputs), operators, error, read, sum(results), constants)


def _expected(case: Case, seed: int, inputs: dict[str, np.ndarray]) -> np.ndarray:
    result = evaluate(case.module(seed), *inputs.values())
    assert isinstance(result, np.ndarray)
    return result


def _random(random: np.random.Generator, shape: tuple[int | str, ...], dtype: str) -> np.ndarray:
    sizes = [int(size) for size in shape]
    array = aligned_empty(tuple(sizes), storage_dtype(dtype))
    if dtype in ("int8", "uint8"):
        low = -127 if dtype == "int8" else 0
        array[...] = random.integers(low, low + 255, sizes)
    else:
        array[...] = random.standard_normal(sizes)
    return array


def _bare_call(executable: deploy.Executable, inputs: dict[str, np.ndarray]) -> Callable[[], object]:
    """The model's entry with all its arguments ready: one call through ctypes, less than a microsecond."""
    model = executable.model
    outputs = [
        aligned_empty(tuple(int(size) for size in info.static_shape), storage_dtype(info.dtype))
        for info in executable.output_info
    ]
    workspace = aligned_empty((max(model.workspace_bytes, 64),), np.dtype(np.uint8))
    constants = aligned_empty(executable.artifact.constants.shape, np.dtype(np.uint8))
    constants[...] = executable.artifact.constants
    pointer = ctypes.c_void_p
    given = (pointer * len(inputs))(*(address_of(array) for array in inputs.values()))
    made = (pointer * len(outputs))(*(address_of(array) for array in outputs))
    entry = bind(executable.library, model.entry, ctypes.c_int32, pointer, pointer, pointer, pointer)
    places = (given, made, address_of(workspace), address_of(constants) if constants.size else 0)

    def call(keep: object = (inputs, outputs, workspace, constants)) -> None:
        check_code(entry(*places), model.name)

    return call


def _measure(runner: Runner, peak: Peak, moving: Peak, watch: CoreWatch, rounds: int) -> None:
    """Rounds of a kernel, until there are enough that nobody disturbed, or patience ends."""
    start = time.monotonic()
    alone = 0
    while alone < rounds and (len(runner.rounds) < rounds or time.monotonic() - start < _PATIENCE_SECONDS):
        item = _round(runner, peak, moving, watch)
        runner.rounds.append(item)
        alone += item.alone
        if not item.alone:
            time.sleep(_PAUSE_SECONDS)


def _round(runner: Runner, peak: Peak, moving: Peak, watch: CoreWatch) -> Round:
    """One round: the kernel between two halves of its peak, and after that its bytes moved by something else."""
    looks = [watch.look()]
    before = _rate(peak)
    seconds = _seconds(runner.call)
    after = _rate(peak)
    looks.append(watch.look())
    rate = (before + after) / 2
    speed = _rate(moving)
    memory = (runner.read_bytes + runner.written_bytes) / speed / seconds
    bound = highest_fraction(runner, rate, speed)
    return Round(seconds, runner.case.work / seconds / rate, rate, memory, bound, watch.was_alone(*looks))


def highest_fraction(runner: Runner, rate: float, speed: float) -> float:
    """The fraction of the peak that no kernel for a case can pass.

    `rate` is the peak, in units of work a second; `speed` is in bytes a second. Multiplying and moving at the same time
    take as long as the longer of them; the algorithm is the one for which that is shortest.
    """
    case = runner.case
    others = runner.read_bytes + runner.written_bytes - runner.constant_bytes
    forms = case.forms or ((0.0 if case.unit == "read" else 1.0, runner.constant_bytes),)
    direct = case.work / rate
    return max(direct / max(share * direct, (others + weights) / speed) for share, weights in forms)


def believed(rounds: Sequence[Round]) -> list[Round]:
    """The rounds to take figures from: those without neighbours, or all where there are hardly any."""
    alone = [item for item in rounds if item.alone]
    return alone if len(alone) >= _LEAST_ALONE else list(rounds)


def _rate(peak: Peak) -> float:
    return peak.work / _seconds(peak.call, _SLICE_SECONDS / 4)


def _seconds(call: Callable[[], object], slice_seconds: float = _SLICE_SECONDS) -> float:
    """Seconds of processor time a call; those of other processes on a busy machine do not count."""
    start = time.thread_time()
    call()
    once = max(time.thread_time() - start, 1e-7)
    count = max(1, int(slice_seconds / once))
    start = time.thread_time()
    for _ in range(count):
        call()
    return (time.thread_time() - start) / count


def figures(runner: Runner) -> Result:
    """What is reported of one kernel."""
    case, rounds = runner.case, believed(runner.rounds)
    seconds = statistics.median(item.seconds for item in rounds)
    fraction = statistics.median(item.fraction for item in rounds)
    result: Result = {
        "ms": round(seconds * 1e3, 5),
        "min_ms": round(min(item.seconds for item in runner.rounds) * 1e3, 5),
        "fraction": round(fraction, 4),
        "best_fraction": round(max(item.fraction for item in rounds), 4),
        "fraction_of_all_rounds": round(statistics.median(item.fraction for item in runner.rounds), 4),
        "memory": round(statistics.median(item.memory for item in rounds), 4),
        "bound": round(statistics.median(item.bound for item in rounds), 4),
        "alone": round(sum(item.alone for item in runner.rounds) / len(runner.rounds), 3),
        "rounds_alone": sum(item.alone for item in runner.rounds),
        "unit": case.unit,
        "max_rel_err": runner.error,
        "right": runner.error <= case.tolerance,
        "kernels": runner.operators,
    }
    result["gb_per_s" if case.unit == "read" else "gflops"] = round(case.work / seconds / 1e9, 2)
    if case.goal is not None:
        result["goal"] = case.goal
        result["reached"] = fraction >= case.goal
        result["bound_by_memory"] = float(str(result["memory"])) >= _BOUND_BY_MEMORY
        result["at_its_bound"] = fraction >= _AT_ITS_BOUND * float(str(result["bound"]))
    return result


def is_right(result: Result) -> bool:
    """Whether a kernel compiled and gave the right answer, or was skipped."""
    return "skipped" in result or bool(result.get("right", False))


def render(results: dict[str, Result]) -> str:
    """The table of figures."""
    rows = []
    for name, result in results.items():
        if "ms" not in result:
            rows.append([name, str(result.get("skipped", "failed")), *[""] * 9])
            continue
        rate = result.get("gflops", result.get("gb_per_s"))
        goal = f"{result['goal']:.2f}" if "goal" in result else "-"
        rows.append(
            [
                name,
                _ms(result["ms"]),
                _ms(result["min_ms"]),
                f"{rate} {'GB/s' if result['unit'] == 'read' else 'GOP/s'}",
                f"{result['fraction']:.2f}",
                f"{result['best_fraction']:.2f}",
                f"{result['memory']:.2f}",
                f"{result['bound']:.2f}",
                f"{100 * float(str(result['alone'])):.0f}%",
                goal,
                _state(result),
            ]
        )
    return table(
        ["kernel", "median ms", "min", "rate", "of peak", "best", "memory", "bound", "alone", "goal", ""], rows
    )


def _state(result: Result) -> str:
    """What is said of a kernel at the end of its row."""
    if not result["right"]:
        return "WRONG"
    if "goal" not in result or result["reached"]:
        return "ok" if "goal" in result else ""
    if result["at_its_bound"]:
        return "at its bound"
    return "bound by memory" if result["bound_by_memory"] else "below"


def _ms(value: object) -> str:
    assert isinstance(value, float)
    return format_ms(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="only kernels whose names contain one of these words"
    )
    parser.add_argument(
        "--rounds", type=int, default=20, help="rounds alone on the core, with the peak beside (default: 20)"
    )
    parser.add_argument("--resume", action="store_true", help="keep what the file has of kernels that nobody disturbed")
    parser.add_argument("--json", type=Path, help="where to write the figures (default: bench/results/kernels.json)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
