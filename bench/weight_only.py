"""Products with weights of 4 and 8 bits: `python -m bench.weight_only`.

    python -m bench.weight_only --threads 1,2 --json bench/results/weight-only.json
    python -m bench.weight_only --sizes 2048x2048 --megabytes 128        # less of everything

Models are MatMulNBits of ONNX. One row passes through a chain of such layers whose packed weights are `--megabytes`
in all, more than caches hold, as the layers of a language model do for each word: the rate at which weights are read
is held against that of only reading as many bytes with as many threads (`tune/peak.py`), in turns with it. Rows
in a batch of 128 meet one layer, against the same layer of float32. Both are timed with onnxruntime too, and compared
with it: models that ask for float32 (`accuracy_level` 0, which onnxruntime also gets as 1), and models that let the
row be rounded to bytes (4, as those of language models mostly do). Times are the best of all runs, of the thread's
processor time where there is one thread. Prints a table, writes JSON, ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from bench import harness
from tilewright.support.text import table
from tilewright.target import Target
from tilewright.tune.peak import read_peak

BATCH = 128
_RUNS, _REST = 2, 0.03
LEVELS = {0: (0, 1), 4: (4,)}
"""The `accuracy_level` of a model, and those that onnxruntime is asked for: unset is its own choice, 1 float32."""
Model = onnx.ModelProto
Row = dict[str, object]


def quantized_chain(shapes: list[tuple[int, int]], rows: int, bits: int, group: int, level: int) -> Model:
    """A chain of MatMulNBits, each of `inputs x outputs`."""
    random = np.random.default_rng(bits)
    nodes, weights = [], []
    for number, (depth, columns) in enumerate(shapes):
        blocks = depth // group
        packed = random.integers(0, 256, (columns, blocks, group * bits // 8)).astype(np.uint8)
        # Scales that are the same would be those of one group.
        scale = random.uniform(0.7, 1.3, columns * blocks).astype(np.float32) * 3.4 / (2**bits * depth**0.5)
        weights += [numpy_helper.from_array(packed, f"w{number}"), numpy_helper.from_array(scale, f"s{number}")]
        attributes = {"K": depth, "N": columns, "bits": bits, "block_size": group, "accuracy_level": level}
        names = [f"x{number}", f"w{number}", f"s{number}"]
        nodes.append(helper.make_node("MatMulNBits", names, [f"x{number + 1}"], domain="com.microsoft", **attributes))
    return _model(nodes, weights, rows, shapes)


def float_chain(shapes: list[tuple[int, int]], rows: int) -> Model:
    """The same chain with weights of float32."""
    random = np.random.default_rng(0)
    nodes, weights = [], []
    for number, (depth, columns) in enumerate(shapes):
        weight = random.standard_normal((depth, columns), np.float32) / np.float32(depth**0.5)
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        nodes.append(helper.make_node("MatMul", [f"x{number}", f"w{number}"], [f"x{number + 1}"]))
    return _model(nodes, weights, rows, shapes)


def _model(
    nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], rows: int, shapes: list[tuple[int, int]]
) -> Model:
    first = helper.make_tensor_value_info("x0", TensorProto.FLOAT, [rows, shapes[0][0]])
    last = helper.make_tensor_value_info(f"x{len(shapes)}", TensorProto.FLOAT, [rows, shapes[-1][1]])
    graph = helper.make_graph(nodes, "chain", [first], [last], weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def packed_bytes(shapes: list[tuple[int, int]], bits: int, group: int) -> int:
    """What a pass through a chain reads: packed weights and scales."""
    return sum(depth * columns * bits // 8 + depth // group * columns * 4 for depth, columns in shapes)


def chain_of(size: tuple[int, int], bits: int, group: int, megabytes: int) -> list[tuple[int, int]]:
    """Layers there and back whose weights are so many megabytes."""
    pair = [size, size[::-1]]
    count = max(1, round(megabytes * 1e6 / packed_bytes(pair, bits, group)))
    return pair * count


def bandwidth_reader(threads: int, size: int) -> tuple[Callable[[], object], int]:
    """A call that reads so many bytes with so many threads, and how many these are (whole pages)."""
    peaks = [read_peak(Target("llvm"), size // threads // 4096 * 4096) for _ in range(threads)]

    def call() -> None:
        others = [threading.Thread(target=peak.call) for peak in peaks[1:]]
        for other in others:
            other.start()
        peaks[0].call()
        for other in others:
            other.join()

    return call, int(sum(peak.work for peak in peaks))


def in_turns(calls: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """The best time of each of some calls in seconds, by turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            # Threads of the call before wait for more work by spinning, for some milliseconds.
            time.sleep(_REST)
            call()
            for _ in range(_RUNS):
                start = clock()
                call()
                times[name].append(clock() - start)
    return {name: min(item) for name, item in times.items()}


def runner(model: Model, threads: int, data: np.ndarray) -> Callable[[], Any]:
    """A call of a model, compiled by us."""
    exe = tw.compile(model, threads=threads)
    return lambda: exe(data)


def peer(model: Model, threads: int, data: np.ndarray) -> Callable[[], Any] | None:
    """A call of a model in onnxruntime; None where its build has no such kernel."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        session.run(None, {"x0": data})
    except Exception as error:  # onnxruntime's errors have no class of their own
        harness.say(f"onnxruntime: {str(error).splitlines()[0]}")
        return None
    return lambda: session.run(None, {"x0": data})[0]


@dataclass(frozen=True)
class Weights:
    """How weights are packed, and how exact products with them are to be."""

    bits: int
    group: int
    level: int


def _timed(chain: list[tuple[int, int]], rows: int, weights: Weights, threads: int, rounds: int, more: Any) -> Row:
    data = np.random.default_rng(1).standard_normal((rows, chain[0][0]), np.float32)
    bits, group, level = weights.bits, weights.group, weights.level
    model = quantized_chain(chain, rows, bits, group, level)
    calls: dict[str, Callable[[], Any]] = {"ours": runner(model, threads, data)}
    calls |= more(data)
    for asked in LEVELS[level]:
        other = peer(quantized_chain(chain, rows, bits, group, asked), threads, data)
        if other is not None:
            calls[f"onnxruntime_{asked}"] = other
    result: Row = {}
    if f"onnxruntime_{level}" in calls:
        ours, theirs = calls["ours"](), calls[f"onnxruntime_{level}"]()
        result["error"] = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    clock = time.thread_time if threads == 1 else time.perf_counter
    return result | {f"{name}_ms": seconds * 1e3 for name, seconds in in_turns(calls, rounds, clock).items()}


def one_row(size: tuple[int, int], weights: Weights, threads: int, megabytes: int, rounds: int) -> Row:
    """One row through a chain, against reading memory."""
    chain = chain_of(size, weights.bits, weights.group, megabytes)
    total = packed_bytes(chain, weights.bits, weights.group)
    read, count = bandwidth_reader(threads, total)
    result = _timed(chain, 1, weights, threads, rounds, lambda data: {"read": read})
    rate, limit = total / float(str(result["ours_ms"])) / 1e6, count / float(str(result["read_ms"])) / 1e6
    result |= {
        "gigabytes_per_second": rate,
        "read_bandwidth": limit,
        "of_bandwidth": rate / limit,
        "layers": len(chain),
    }
    return result | _ahead(result)


def many_rows(size: tuple[int, int], weights: Weights, threads: int, rounds: int) -> Row:
    """128 rows with one layer, against the same in float32."""

    def floats(data: np.ndarray) -> dict[str, Callable[[], Any]]:
        return {"float32": runner(float_chain([size], BATCH), threads, data)}

    result = _timed([size], BATCH, weights, threads, rounds, floats)
    result["of_float32"] = float(str(result["float32_ms"])) / float(str(result["ours_ms"]))
    return result | _ahead(result)


def _ahead(result: Row) -> Row:
    """How many times as fast as the quicker of the other runtime's."""
    others = [float(str(value)) for name, value in result.items() if name.startswith("onnxruntime")]
    return {"times_onnxruntime": min(others) / float(str(result["ours_ms"]))} if others else {}


def _sizes(text: str) -> list[tuple[int, int]]:
    pairs = [item.split("x") for item in text.split(",")]
    return [(int(depth), int(columns)) for depth, columns in pairs]


def _numbers(text: str) -> list[int]:
    return [int(item) for item in text.split(",")]


def _levels(text: str) -> list[int]:
    levels = _numbers(text)
    if not set(levels) <= set(LEVELS):
        raise argparse.ArgumentTypeError(f"levels are {', '.join(map(str, LEVELS))}, not {text}")
    return levels


def main() -> None:
    """Time everything, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--sizes", type=_sizes, default="4096x4096,4096x11008")
    parser.add_argument("--bits", type=_numbers, default="4,8")
    parser.add_argument("--groups", type=_numbers, default="32,128")
    parser.add_argument("--levels", type=_levels, default="0,4", help="accuracy_level of the models")
    parser.add_argument("--threads", type=_numbers, default="1,2")
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    results: list[Row] = []
    for threads, size, bits, group, level in itertools.product(
        given.threads, given.sizes, given.bits, given.groups, given.levels
    ):
        weights = Weights(bits, group, level)
        case: Row = {"size": f"{size[0]}x{size[1]}", **asdict(weights), "threads": threads}
        with harness.pinned(threads):
            results.append(case | {"rows": 1} | one_row(size, weights, threads, given.megabytes, given.rounds))
            if level == 0:
                results.append(case | {"rows": BATCH} | many_rows(size, weights, threads, given.rounds))
        for item in results[-2:] if level == 0 else results[-1:]:
            harness.say(json.dumps(item))
    _report(results, given.json)


def _report(results: list[Row], path: Path | None) -> None:
    columns = [
        "size",
        "bits",
        "group",
        "level",
        "threads",
        "rows",
        "ours_ms",
        "of_bandwidth",
        "of_float32",
        "times_onnxruntime",
    ]
    cells = [[_cell(item.get(name)) for name in columns] for item in results]
    harness.say(table(columns, cells))
    summary: Row = {"benchmark": "weight_only", "machine": harness.machine_line()}
    for name in ("of_bandwidth", "of_float32", "times_onnxruntime"):
        values = [float(str(item[name])) for item in results if name in item]
        if values:
            summary[name] = {"least": min(values), "mean": statistics.geometric_mean(values)}
    if path is not None:
        harness.write_json(path, {"machine": harness.machine(), "results": results, "summary": summary})
    print(json.dumps(summary))


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
