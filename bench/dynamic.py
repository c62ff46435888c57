"""One compilation for all sizes: `python -m bench.dynamic`.

    python -m bench.dynamic                           # BERT-base, lengths 32, 128 and 512 timed, many more checked
    python -m bench.dynamic --layers 2 --lengths 32   # a smaller one

A BERT with symbolic batch and length is compiled once and run at many sizes against onnxruntime; at the timed lengths
the same model is also compiled for that size alone, and both run in turns on one thread. The ratio is the time of the
symbolic one over the static one's: medians over rounds of CPU time. Prints a table, writes JSON into
`bench/results/`, ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

import tilewright as tw
from bench import harness
from bench.zoo import bert
from tilewright.cli.measure import max_relative_error
from tilewright.cli.options import positive_int
from tilewright.runtime.core.executor import Executable
from tilewright.support.text import table

CHECKED = ((1, 1), (1, 2), (1, 7), (1, 31), (1, 32), (3, 17), (2, 64), (1, 100), (1, 128), (4, 33), (1, 255), (1, 512))
"""Batches and lengths that are compared with onnxruntime."""
LIMIT = 1.15
_VOCABULARY = 30522
_TOLERANCE = 1e-4

Feeds = dict[str, np.ndarray]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 if all outputs are right and the ratios within the limit."""
    parser = argparse.ArgumentParser(prog="python -m bench.dynamic", description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=12, help="layers of the encoder (default: 12)")
    parser.add_argument("--lengths", default="32,128,512", help="lengths to time (default: 32,128,512)")
    parser.add_argument("--rounds", type=positive_int, default=7, help="rounds of timing (default: 7)")
    parser.add_argument("--json", type=Path, default=harness.RESULTS_FOLDER / "dynamic.json", help="where figures go")
    options = parser.parse_args(arguments)
    shape = bert.BertShape(options.layers, 768, 12, 3072, has_layer_norm_op=True)
    model = bert.dynamic_bert("bert_dynamic", 0, shape).SerializeToString()
    harness.say("compiling with symbolic batch and length")
    symbolic = tw.compile(model, threads=1)
    errors = check(model, symbolic)
    rows: list[list[str]] = []
    figures: dict[str, dict[str, float]] = {}
    for length in map(int, options.lengths.split(",")):
        harness.say(f"length {length}")
        found = compare(model, symbolic, length, options.rounds)
        figures[str(length)] = found
        rows.append([str(length), f"{found['symbolic_ms']:.2f}", f"{found['static_ms']:.2f}", f"{found['ratio']:.3f}"])
    print(table(["length", "symbolic ms", "static ms", "ratio"], rows))
    worst = max(errors.values())
    print(f"{len(errors)} sizes checked against onnxruntime, largest relative error {worst:.1e}")
    result = {
        "layers": options.layers,
        "lengths": figures,
        "errors": errors,
        "within": all(item["ratio"] <= LIMIT for item in figures.values()),
        "machine": harness.machine(),
    }
    harness.write_json(options.json, result)
    print(json.dumps(result))
    return 0 if worst <= _TOLERANCE and result["within"] else 4


def feeds(batch: int, length: int) -> Feeds:
    """Tokens of some batch and length; the last quarter of each sentence is padding."""
    random = np.random.default_rng(batch * 1000 + length)
    mask = np.ones((batch, length), np.int64)
    mask[:, length - length // 4 :] = 0
    return {
        "input_ids": random.integers(0, _VOCABULARY, (batch, length), dtype=np.int64),
        "attention_mask": mask,
        "token_type_ids": random.integers(0, 2, (batch, length), dtype=np.int64),
    }


def check(model: bytes, executable: Executable) -> dict[str, float]:
    """The relative error against onnxruntime at each size."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    errors: dict[str, float] = {}
    for batch, length in CHECKED:
        inputs = feeds(batch, length)
        expected = session.run(None, inputs)
        errors[f"{batch}x{length}"] = max_relative_error(executable.run(inputs), expected)
    return errors


def compare(model: bytes, symbolic: Executable, length: int, rounds: int) -> dict[str, float]:
    """Times of both at one length, in turns."""
    inputs = feeds(1, length)
    shapes = {name: array.shape for name, array in inputs.items()}
    static = tw.compile(model, threads=1, shapes=shapes)
    times: dict[str, list[float]] = {"symbolic": [], "static": []}
    for turn in range(rounds + 1):
        for name, executable in (("symbolic", symbolic), ("static", static)):
            start = time.thread_time()
            executable.run(inputs)
            if turn:
                times[name].append(time.thread_time() - start)
    ratio = statistics.median(a / b for a, b in zip(times["symbolic"], times["static"], strict=True))
    return {
        "symbolic_ms": statistics.median(times["symbolic"]) * 1e3,
        "static_ms": statistics.median(times["static"]) * 1e3,
        "ratio": ratio,
    }


if __name__ == "__main__":
    sys.exit(main())
