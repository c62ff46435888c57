"""Kernels against what one core can do: `python -m bench.kernels`.

    python -m bench.kernels                           # all kernels
    python -m bench.kernels --only sgemm,winograd     # those whose names contain a word
    python -m bench.kernels --rounds 20 --json out.json
    python -m bench.kernels --patience 30             # minutes to wait for neighbours to leave the core

Each kernel is one graph operator with constant weights, compiled as any model is (graph passes, default schedule, code
generator) for one core, checked against the graph's reference interpreter, and timed in short rounds that alternate
with the peak it is held against. A fraction is the kernel's rate over the peak's rate in the same round; the table
shows the median over rounds and the best. Rounds during which somebody else's work shared the core (`bench.neighbours`)
are left out of the medians and repeated, kernel after kernel in turn, as long as patience lasts; the column `alone` has
how many the others are. `memory` is the part of the time that reading as many bytes as the kernel's arguments have, and
writing as many as its results have, would take; `bound` the fraction that a kernel would reach which takes no longer
than that, nor than its multiplications at the peak, by the best of all algorithms, with what else must be done where
they are made: rounding sums to bytes. Prints a table, writes JSON into `bench/results/`, ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
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
from tilewright.backends.llvm import deploy
from tilewright.cli.measure import format_ms, max_relative_error
from tilewright.cli.options import positive_int
from tilewright.compiler import Compilation
from tilewright.graph.interpreter import evaluate
from tilewright.runtime.core.convert import Array, address_of, lasting_empty, together_empty
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.core.library import bind, check_code
from tilewright.support.errors import TilewrightError, UserError
from tilewright.support.fingerprint import source_fingerprint
from tilewright.support.text import table
from tilewright.target import Target
from tilewright.tune.peak import Peak, arithmetic_peak, move_peak, read_peak, tile_peak

_SLICE_SECONDS = 0.003
"""How long a kernel runs in each round; its peak runs for half as long, in two parts."""
_TURN_SECONDS = 2.0
"""How long a kernel waits for neighbours to leave the core before it is the next one's turn."""
_PAUSE_SECONDS = 0.001
"""Between two looks at the core while it is shared."""
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

    @property
    def rounds_alone(self) -> int:
        """How many of the rounds nobody disturbed."""
        return sum(item.alone for item in self.rounds)


@dataclass(frozen=True, slots=True)
class Contest:
    """A kernel, the peak that it is held against, and the moving of as many bytes."""

    runner: Runner
    peak: Peak
    moving: Peak


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        chosen = choose_cases(options.only)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    target = Target("native").replace(cores=1)
    harness.say(f"{harness.machine_line()}; one core")
    started = time.monotonic()
    with harness.pinned(1):
        results, rates = measure_cases(chosen, target, options.rounds, 60 * options.patience)
    peaks = {name: round(value, 2) for name, value in rates.items()}
    print(render(results))
    summary = {
        "kernels": results,
        "peak_gflops": peaks["float32"],
        "peaks": peaks,
        "rounds": options.rounds,
        "minutes": round((time.monotonic() - started) / 60, 1),
        "compiler": source_fingerprint()[:12],
        "machine": harness.machine(),
    }
    if options.json or not options.only:
        path = options.json or harness.RESULTS_FOLDER / "kernels.json"
        harness.write_json(path, summary)
        harness.say(f"figures written to {path}")
    print(json.dumps(summary))
    return 0 if all(is_right(result) for result in results.values()) else 1


def choose_cases(text: str) -> list[Case]:
    """The kernels whose names contain one of the comma-separated words; all for an empty text."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    chosen = [case for name, case in CASES.items() if not words or any(word in name for word in words)]
    if not chosen:
        raise UserError(f"no kernel has a name with '{text}' in it: {', '.join(CASES)}", where="--only")
    return chosen


def measure_cases(
    cases: Sequence[Case], target: Target, rounds: int, patience: float
) -> tuple[dict[str, Result], dict[str, float]]:
    """Figures of each kernel, and the peaks seen (billions a second); `patience` is in seconds."""
    peaks = {name: peak for name in ("float32", "float16", "int8") if (peak := arithmetic_peak(target, name))}
    peaks |= {f"{name} tiles": peak for name in ("int8", "bfloat16") if (peak := tile_peak(target, name))}
    contests: list[Contest] = []
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
        contests.append(Contest(runner, peak, move_peak(target, runner.read_bytes, runner.written_bytes)))
    take_turns(contests, CoreWatch(target), rounds, patience)
    rates: dict[str, list[float]] = {}
    for contest in contests:
        case, done = contest.runner.case, contest.runner.rounds
        rates.setdefault(_peak_label(case), []).extend(item.peak_rate for item in believed(done))
        results[case.name] = figures(contest.runner)
    if "float32" not in rates:
        rates["float32"] = [_rate(peaks["float32"]) for _ in range(rounds)]
    ordered = {case.name: results[case.name] for case in cases}
    return ordered, {name: statistics.median(values) / 1e9 for name, values in rates.items()}


def _peak_label(case: Case) -> str:
    return f"read, {case.work / 1e6:.1f} MB" if case.unit == "read" else case.unit


def build(case: Case, target: Target, seed: int = 0) -> Runner:
    """Compile a kernel as a model of its own, run it once and compare with the reference interpreter."""
    module = case.module(seed)
    compilation = Compilation(module, target.without(*case.without), threads=1, winograd=case.winograd)
    artifact = compilation.artifact()
    executable = deploy.executable(artifact, 1)
    random = np.random.default_rng(seed + 1)
    given, made, workspace = arrays_of(executable)
    inputs = {
        info.name: _filled(array, random, info.dtype) for info, array in zip(executable.input_info, given, strict=True)
    }
    error = max_relative_error(executable.run(inputs), [_expected(case, seed, inputs)])
    operators = [item.op for item in executable.model.kernels]
    constants = artifact.constants.nbytes
    read = sum(array.nbytes for array in given) + constants
    written = sum(array.nbytes for array in made)
    return Runner(case, bare_call(executable, given, made, workspace), operators, error, read, written, constants)


def arrays_of(executable: deploy.Executable) -> tuple[list[Array], list[Array], Array]:
    """Inputs, results and a workspace, placed as in a model."""
    infos = (*executable.input_info, *executable.output_info)
    kinds = [(tuple(map(int, info.static_shape)), storage_dtype(info.dtype)) for info in infos]
    *arrays, workspace = together_empty([*kinds, ((executable.model.workspace_bytes,), np.dtype(np.uint8))])
    count = len(executable.input_info)
    return arrays[:count], arrays[count:], workspace


def _expected(case: Case, seed: int, inputs: dict[str, np.ndarray]) -> np.ndarray:
    result = evaluate(case.module(seed), *inputs.values())
    assert isinstance(result, np.ndarray)
    return result


def _filled(array: Array, random: np.random.Generator, dtype: str) -> Array:
    if dtype in ("int8", "uint8"):
        low = -127 if dtype == "int8" else 0
        array[...] = random.integers(low, low + 255, array.shape)
    else:
        array[...] = random.standard_normal(array.shape)
    return array


def bare_call(
    executable: deploy.Executable, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array
) -> Callable[[], object]:
    """The model's entry with all its arguments ready: one call through ctypes, less than a microsecond."""
    model = executable.model
    constants = lasting_empty(executable.artifact.constants.nbytes)
    constants[...] = executable.artifact.constants
    pointer = ctypes.c_void_p
    given = (pointer * len(inputs))(*(address_of(array) for array in inputs))
    made = (pointer * len(outputs))(*(address_of(array) for array in outputs))
    entry = bind(executable.library, model.entry, ctypes.c_int32, pointer, pointer, pointer, pointer)
    places = (given, made, address_of(workspace), address_of(constants) if constants.size else 0)

    def call(keep: object = (inputs, outputs, workspace, constants)) -> None:
        check_code(entry(*places), model.name)

    return call


def take_turns(contests: Sequence[Contest], watch: CoreWatch, rounds: int, patience: float) -> None:
    """Rounds of each kernel; then more of those that neighbours disturbed, until patience (in seconds) ends."""
    start = time.monotonic()
    for contest in contests:
        for _ in range(rounds):
            contest.runner.rounds.append(_round(contest, watch))
        _report(contest.runner)
    while time.monotonic() - start < patience:
        disturbed = [contest for contest in contests if contest.runner.rounds_alone < rounds]
        if not disturbed:
            return
        minutes = (time.monotonic() - start) / 60
        harness.say(f"{len(disturbed)} of {len(contests)} kernels wait for the core after {minutes:.1f} minutes")
        for contest in disturbed:
            if time.monotonic() - start < patience and _turn(contest, watch, rounds):
                _report(contest.runner)


def _turn(contest: Contest, watch: CoreWatch, rounds: int) -> bool:
    """Wait for the core to be ours and measure while it is; whether the kernel has got a round by that."""
    runner, start = contest.runner, time.monotonic()
    before = runner.rounds_alone
    while runner.rounds_alone < rounds and time.monotonic() - start < _TURN_SECONDS:
        if watch.was_alone(watch.look()):
            runner.rounds.append(_round(contest, watch))
        else:
            time.sleep(_PAUSE_SECONDS)
    return runner.rounds_alone > before


def _report(runner: Runner) -> None:
    fraction = statistics.median(item.fraction for item in believed(runner.rounds))
    harness.say(f"{runner.case.name}: {100 * fraction:.0f}%, {runner.rounds_alone} rounds alone")


def _round(contest: Contest, watch: CoreWatch) -> Round:
    """One round: the kernel between two halves of its peak, and after that its bytes moved by something else."""
    runner, peak = contest.runner, contest.peak
    looks = [watch.look()]
    before = _rate(peak)
    seconds = _seconds(runner.call)
    after = _rate(peak)
    looks.append(watch.look())
    rate = (before + after) / 2
    speed = _rate(contest.moving)
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
    forms = case.forms or ((0.0 if case.unit == "read" else case.least, runner.constant_bytes),)
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
        "rounds_alone": runner.rounds_alone,
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
                str(result["rounds_alone"]),
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
        "--rounds", type=positive_int, default=20, help="rounds alone on the core, with the peak beside (default: 20)"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=2.0,
        metavar="MINUTES",
        help="how long to wait, in all, for neighbours to leave the core (default: 2)",
    )
    parser.add_argument("--json", type=Path, help="where to write the figures (default: bench/results/kernels.json)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
