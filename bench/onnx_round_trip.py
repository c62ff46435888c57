"""Models written as ONNX: each test case of the onnx package is imported, written again and run by onnxruntime.

    python -m bench.onnx_round_trip                       # the node suite
    python -m bench.onnx_round_trip --filter lstm --details
    python -m bench.onnx_round_trip --kinds node,simple,light --every 4

A case passes if onnx's checker (with shape inference) takes what was written and onnxruntime gives the expected
outputs for it. Where onnxruntime does not run the case as the onnx package has it (it lacks kernels for some types),
ONNX's reference evaluator takes its place. What cannot be written is `unsupported`, with the reason. The exit code is
1 when a case failed; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from bench.onnx_cases import KINDS, Case, Outcome, compare, given_inputs, load_cases
from bench.onnx_suite import render, summarize
from tilewright.graph.ir.expr import Call
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import post_order
from tilewright.ir.function import IRModule
from tilewright.onnx_writer import to_onnx
from tilewright.support.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.onnx_round_trip", description=__doc__)
    parser.add_argument("--kinds", default="node", help=f"some of {', '.join(KINDS)} (default: node)")
    parser.add_argument("--filter", default="", metavar="TEXT", help="only cases whose name contains this")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th case")
    parser.add_argument("--details", action="store_true", help="list every case that did not pass")
    options = parser.parse_args(arguments)
    cases = [case for case in load_cases(tuple(options.kinds.split(","))) if options.filter in case.name]
    start = time.monotonic()
    outcomes = [round_trip(case) for case in cases[:: options.every]]
    print(render(outcomes, options.details))
    judges = Counter(item.reason for item in outcomes if item.verdict == "passed")
    print(", ".join(f"{count} passed by {judge}" for judge, count in judges.items()))
    summary = summarize(outcomes, time.monotonic() - start)
    print(json.dumps(summary))
    return 1 if summary["failed"] else 0


def round_trip(case: Case) -> Outcome:
    """Import, write, check, run and compare one case; the reason of one that passed is who ran it."""
    judge = ""
    try:
        for inputs, outputs in case.data_sets():
            module = tw.frontend.from_onnx(case.model)
            written = to_onnx(module)
            onnx.checker.check_model(onnx.load_from_string(written), full_check=True)
            judge, results = _run(case, written, given_inputs(case, inputs))
            assert len(results) == len(outputs), f"{len(results)} outputs instead of {len(outputs)}"
            for result, expected in zip(results, outputs, strict=True):
                _compare(case, module, result, expected)
        return Outcome(case.name, case.operator, "passed", judge)
    except UserError as error:
        return Outcome(case.name, case.operator, "unsupported", error.message)
    except Exception as error:  # whatever goes wrong in a case is that case's failure
        return Outcome(case.name, case.operator, "failed", f"{type(error).__name__}: {str(error)[:300]}")


def _compare(case: Case, module: IRModule, result: Any, expected: Any) -> None:
    if not _is_random(module):
        compare(result, expected, case)
        return
    # Numbers that are drawn are the runtime's own.
    assert result.dtype == expected.dtype, f"type {result.dtype} instead of {expected.dtype}"
    assert result.shape == expected.shape, f"shape {result.shape} instead of {expected.shape}"


def _is_random(module: IRModule) -> bool:
    return any(
        isinstance(item, Call) and isinstance(item.callee, Operator) and item.callee.name.startswith("random.")
        for function in module.functions.values()
        for item in post_order(function)
    )


def _run(case: Case, written: bytes, inputs: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The outputs of what was written, and who computed them."""
    try:
        return "onnxruntime", _session(written, inputs)
    except Exception:
        try:
            _session(case.model.SerializeToString(), inputs)
        except Exception:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                results = ReferenceEvaluator(onnx.load_from_string(written)).run(None, dict(inputs))
            return "ONNX's reference", [_texts(item) for item in results]
        raise


def _texts(value: Any) -> Any:
    """Texts as onnxruntime gives them: the reference has them in numpy's own type."""
    return value.astype(object) if isinstance(value, np.ndarray) and value.dtype.kind in "US" else value


def _session(model: bytes, inputs: Mapping[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    results: list[Any] = session.run(None, {item.name: inputs[item.name] for item in session.get_inputs()})
    return results


if __name__ == "__main__":
    sys.exit(main())
