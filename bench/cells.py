"""Recurrent cells written as loops: `python -m bench.cells`.

An LSTM's cell as the body of a `Scan` and of a `Loop` over a sequence of open length, against onnxruntime, interleaved,
one thread. The least CPU time of the calling thread of many repeats. Prints a table, writes JSON into
`bench/results/`, ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import tilewright as tw
from bench import harness
from tilewright.support.text import table

_STEPS = 200
_WIDTHS = (64, 256)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    harness.say(harness.machine_line())
    rows = [measure(operator, width, options.repeat) for operator in ("Scan", "Loop") for width in options.widths]
    shown = [[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    print(table(list(rows[0]), shown))
    summary = {"cells": rows, "machine": harness.machine()}
    harness.write_json(options.json or harness.RESULTS_FOLDER / "cells.json", summary)
    print(json.dumps(summary))
    return 0


def measure(operator: str, width: int, repeat: int) -> dict[str, object]:
    """The milliseconds of both for one cell, whose results must be the same."""
    data = cell_model(operator, width).SerializeToString()
    exe = tw.compile(data, threads=1)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])
    feed = {
        "x": np.random.default_rng(0).standard_normal((_STEPS, 1, width)).astype(np.float32),
        "h0": np.zeros((1, width), np.float32),
        "c0": np.zeros((1, width), np.float32),
    }
    for ours, theirs in zip(exe.run(feed), session.run(None, feed), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
    least = [float("inf"), float("inf")]
    for _ in range(repeat):
        for number, run in enumerate((lambda: session.run(None, feed), lambda: exe.run(feed))):
            start = time.thread_time()
            run()
            least[number] = min(least[number], time.thread_time() - start)
    return {
        "operator": operator,
        "width": width,
        "steps": _STEPS,
        "onnxruntime_ms": least[0] * 1e3,
        "ours_ms": least[1] * 1e3,
        "ratio": least[0] / least[1],
    }


def cell_model(operator: str, width: int) -> ModelProto:
    """An LSTM of one layer as a `Scan` or a `Loop` over its cell, for sequences of any length."""
    value, floats = helper.make_tensor_value_info, TensorProto.FLOAT
    states = [value(name, floats, [1, width]) for name in ("h", "c")]
    results = [value(name, floats, [1, width]) for name in ("h2", "c2", "y")]
    if operator == "Scan":
        body = helper.make_graph(_cell(), "body", [*states, value("xt", floats, [1, width])], results)
        loop = [helper.make_node("Scan", ["h0", "c0", "x"], ["h", "c", "ys"], body=body, num_scan_inputs=1)]
    else:
        counters = [value("turn", TensorProto.INT64, []), value("on", TensorProto.BOOL, [])]
        nodes = [
            helper.make_node("Gather", ["x", "turn"], ["xt"]),
            *_cell(),
            helper.make_node("Identity", ["on"], ["on2"]),
        ]
        body = helper.make_graph(nodes, "body", [*counters, *states], [value("on2", TensorProto.BOOL, []), *results])
        loop = [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Gather", ["shape", "first"], ["turns"]),
            helper.make_node("Loop", ["turns", "", "h0", "c0"], ["h", "c", "ys"], body=body),
        ]
    rng = np.random.default_rng(0)
    weights = {name: (rng.standard_normal((width, 4 * width)) / width**0.5).astype(np.float32) for name in "WR"}
    constants = {**weights, "B": np.zeros(4 * width, np.float32)}
    if operator == "Loop":
        constants["first"] = np.array(0)
    graph = helper.make_graph(
        loop,
        "cell",
        [value("x", floats, ["steps", 1, width]), *(value(name, floats, [1, width]) for name in ("h0", "c0"))],
        [*(value(name, floats, [1, width]) for name in ("h", "c")), value("ys", floats, ["steps", 1, width])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _cell() -> list[NodeProto]:
    """One step of an LSTM, operator by operator: from `xt`, `h` and `c` to `h2`, `c2` and `y`."""
    steps = [
        ("MatMul", "xt W", "xw"),
        ("MatMul", "h R", "hr"),
        ("Add", "xw hr", "sum"),
        ("Add", "sum B", "gates"),
        ("Split", "gates", "i f g o"),
        ("Sigmoid", "i", "si"),
        ("Sigmoid", "f", "sf"),
        ("Tanh", "g", "tg"),
        ("Sigmoid", "o", "so"),
        ("Mul", "sf c", "kept"),
        ("Mul", "si tg", "added"),
        ("Add", "kept added", "c2"),
        ("Tanh", "c2", "tc"),
        ("Mul", "so tc", "h2"),
        ("Identity", "h2", "y"),
    ]
    return [
        helper.make_node(
            name, inputs.split(), outputs.split(), **({"axis": 1, "num_outputs": 4} if name == "Split" else {})
        )
        for name, inputs, outputs in steps
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.cells", description=__doc__)
    parser.add_argument("--repeat", type=int, default=20, metavar="N", help="repeats of each figure (default: 20)")
    parser.add_argument("--widths", type=int, nargs="+", default=_WIDTHS, metavar="N", help="sizes of the state")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
