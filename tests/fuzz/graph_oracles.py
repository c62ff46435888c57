"""What random graphs are compared with: onnxruntime, and ONNX's own reference where that refuses or differs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

TOLERANCES = {"float64": 1e-6, "float32": 1e-3, "float16": 2e-2}
"""The largest difference that is rounding, of the largest expected value."""


class Refused(Exception):
    """An oracle does not run a model."""


def run_onnxruntime(model: onnx.ModelProto, inputs: dict[str, Any], optimized: bool = True) -> list[Any]:
    """The outputs by onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(session.run(None, dict(inputs)))
    except Exception as error:  # onnxruntime's own errors have no common class that is public
        raise Refused(str(error).replace("\n", " ")[-200:]) from error


def run_reference(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    """The outputs by the reference of the onnx package."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return [
                np.asarray(item) if isinstance(item, np.generic) else item
                for item in ReferenceEvaluator(model).run(None, dict(inputs))
            ]
    except Exception as error:  # the reference raises whatever numpy does
        raise Refused(str(error).replace("\n", " ")[-200:]) from error


def run_referred(nodes: Sequence[onnx.ModelProto], inputs: dict[str, Any], outputs: Sequence[str]) -> list[Any]:
    """The outputs by models of one node each: by the reference, or else by onnxruntime."""
    values = dict(inputs)
    for model in nodes:
        given = {info.name: values[info.name] for info in model.graph.input}
        try:
            results = run_reference(model, given)
        except Refused:
            results = run_onnxruntime(model, given)
        values |= dict(zip((info.name for info in model.graph.output), results, strict=True))
    return [values[name] for name in outputs]


def run_any(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    """The outputs by onnxruntime, or else by the reference."""
    try:
        return run_onnxruntime(model, inputs)
    except Refused:
        return run_reference(model, inputs)


def difference(mine: Any, other: Any, tolerance: float = 0.0) -> str | None:
    """What is different about two results; None if nothing is but rounding, of their type or a given one."""
    if isinstance(other, list):
        if not isinstance(mine, list) or len(mine) != len(other):
            return "another sequence"
        return next((found for found in map(difference, mine, other, repeat(tolerance)) if found), None)
    if mine is None or other is None:
        return None if mine is other else "nothing, or something"
    mine, other = np.asarray(mine), np.asarray(other)
    if mine.dtype != other.dtype:
        return f"type {mine.dtype} instead of {other.dtype}"
    if mine.shape != other.shape:
        return f"shape {mine.shape} instead of {other.shape}"
    if other.dtype.kind != "f":
        wrong = int((mine != other).sum())
        return f"{wrong} of {other.size} elements" if wrong else None
    a, b = mine.astype(np.float64), other.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)) or not np.array_equal(np.isinf(a), np.isinf(b)):
        return "other elements are finite"
    finite = np.isfinite(b)
    room = max(tolerance, TOLERANCES[other.dtype.name]) * max(1.0, float(np.abs(b[finite]).max(initial=0)))
    worst = float(np.abs(a[finite] - b[finite]).max(initial=0))
    return f"values by {worst:.3g}" if worst > room else None
