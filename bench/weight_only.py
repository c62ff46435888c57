"""Products with weights of 4 and 8 bits: `python -m bench.weight_only`.

    python -m bench.weight_only --threads 1,2 --json bench/results/weight-only.json
    python -m bench.weight_only --sizes 2048x2048 --megabytes 128        # less of everything

Models are MatMulNBits of ONNX. One row passes through a chain of such layers whose packed weights are `--megabytes`
in all, more than caches hold, as the layers of a language model do for each word: the rate at which weights are read
is held against that of only reading as many bytes with as many threads (`tune/peak.py`), in turns with it. Rows
in a batch of 128 meet one layer, against the same layer of float32. Both are timed with onnxruntime too
(`accuracy_level` 0 and 1, where its build has them), and compared with it. Prints a table, writes JSON, ends with one
line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
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
LEVELS = (0, 1)
"""Of exactness that onnxruntime is asked for: its own choice, and float32."""
Model = onnx.ModelProto
Row = dict[str, object]


def quantized_chain(shapes: list[tuple[int, int]], rows: int, bits: int, group: int, level: int) -> Model:
    """A chain of MatMulNBits, each of `inputs x outputs`."""
    random = np.random.default_rng(bits)
    nodes, weights = [], []
    for number, (depth, columns) in enumerate(shapes):
        blocks = depth // group
        packed = random.integers(0, 256, (columns, blocks, group * bits // 8)).astype(np.uint8)
        scale = np.full(columns * blocks, 3.4 / (2**bits * depth**0.5), np.float32)
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


def in_turns(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The best time of each of some calls in seconds, by turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            # Threads of the call before wait for more work by spinning, for some milliseconds.
            time.sleep(_REST)
            call()
            for _ in range(_RUNS):
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
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


def _timed(chain: list[tuple[int, int]], rows: int, bits: int, group: int, threads: int, rounds: int, more: Any) -> Row:
    data = np.random.default_rng(1).standard_normal((rows, chain[0][0]), np.float32)
    calls: dict[str, Callable[[], Any]] = {"ours": runner(quantized_chain(chain, rows, bits, group, 0), threads, data)}
    calls |= more(data)
    for level in LEVELS:
        other = peer(quantized_chain(chain, rows, bits, group, level), threads, data)
        if other is not None:
            calls[f"onnxruntime_{level}"] = other
    result: Row = {}
    if "onnxruntime_0" in calls:
        ours, theirs = calls["ours"](), calls["onnxruntime_0"]()
        result["error"] = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    return result | {f"{name}_ms": seconds * 1e3 for name, seconds in in_turns(calls, rounds).items()}


def one_row(size: tuple[int, int], bits: int, group: int, threads: int, megabytes: int, rounds: int) -> Row:
    """One row through a chain, against reading memory."""
    chain = chain_of(size, bits, group, megabytes)
    total = packed_bytes(chain, bits, group)
    read, count = bandwidth_reader(threads, total)
    result = _timed(chain, 1, bits, group, threads, rounds, lambda data: {"read": read})
    rate, limit = total / float(str(result["ours_ms"])) / 1e6, count / float(str(result["read_ms"])) / 1e6
    result |= {
        "gigabytes_per_second": rate,
        "read_bandwidth": limit,
        "of_bandwidth": rate / limit,
        "layers": len(chain),
    }
    return result | _ahead(result)


def many_rows(size: tuple[int, int], bits: int, group: int, threads: int, rounds: int) -> Row:
    """128 rows with one layer, against the same in float32."""

    def floats(data: np.ndarray) -> dict[str, Callable[[], Any]]:
        return {"float32": runner(float_chain([size], BATCH), threads, data)}

    result = _timed([size], BATCH, bits, group, threads, rounds, floats)
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


def main() -> None:
    """Time everything, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--sizes", type=_sizes, default="4096x4096,4096x11008")
    parser.add_argument("--bits", type=_numbers, default="4,8")
    parser.add_argument("--groups", type=_numbers, default="32,128")
    parser.add_argument("--threads", type=_numbers, default="1,2")
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    results: list[Row] = []
    for threads in given.threads:
        with harness.pinned(threads):
            for size in given.sizes:
                for bits in given.bits:
                    for group in given.groups:
                        case: Row = {"size": f"{size[0]}x{size[1]}", "bits": bits, "group": group, "threads": threads}
                        row = one_row(size, bits, group, threads, given.megabytes, given.rounds)
                        results.append(case | {"rows": 1} | row)
                        batch = many_rows(size, bits, group, threads, given.rounds)
                        results.append(case | {"rows": BATCH} | batch)
                        for item in results[-2:]:
                            harness.say(json.dumps(item))
    _report(results, given.json)


def _report(results: list[Row], path: Path | None) -> None:
    columns = ["size", "bits", "group", "threads", "rows", "ours_ms", "of_bandwidth", "of_float32", "times_onnxruntime"]
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
