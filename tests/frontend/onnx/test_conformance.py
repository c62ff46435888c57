"""ONNX's own node tests: what is supported gives the expected values, the rest is refused with a clear error."""

from __future__ import annotations

import collections
import warnings

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tilewright.frontend import from_onnx
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError

KNOWN_DIFFERENCES = {
    # The expected values stretch by the scale; runtimes (and Tilewright) stretch by the rounded size.
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
}
PARTLY_SUPPORTED = {
    "BatchNormalization": "training form",
    "Cast": "types of 8 bits and less, strings",
    "CastLike": "types of 8 bits and less, strings",
    "ConvTranspose": "three dimensions",
    "DequantizeLinear": "8-bit and 4-bit floats, other small types",
    "Dropout": "training form",
    "Equal": "strings",
    "FlexAttention": "modifiers given as graphs",
    "Identity": "sequences and optionals",
    "If": "sequences",
    "MaxPool": "positions of the maxima",
    "QuantizeLinear": "8-bit and 4-bit floats, other small types",
    "Scan": "the old form of opset 8",
}
"""Operators of which some forms are supported, and which forms are not."""
LEAST_PASSED = 1450


def _load_cases() -> list:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return collect_testcases(None)


def _plain(value: object) -> object:
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    return value


def _with_constants(model: onnx.ModelProto, names: list[str], values: list) -> onnx.ModelProto:
    """All inputs but the first as constants: many operators need their shapes, axes and sizes known."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    by_name = {info.name: info for info in model.graph.input}
    for name, value in list(zip(names, values, strict=True))[1 if len(names) > 1 else 0 :]:
        tensor = numpy_helper.from_array(value, name)
        tensor.data_type = by_name[name].type.tensor_type.elem_type
        copy.graph.initializer.append(tensor)
    return copy


def _run(case: object) -> str:
    model = case.model
    inputs, outputs = case.data_sets[0]
    names = [info.name for info in model.graph.input]
    values = [_plain(value) for value in inputs]
    expected = [_plain(value) for value in outputs]
    try:
        module = from_onnx(model)
    except UserError:
        if not all(isinstance(value, np.ndarray) and value.dtype.kind in "biuf" for value in values):
            return "refused"
        try:
            module = from_onnx(_with_constants(model, names, values))
        except UnsupportedError:
            return "refused"
    given = dict(zip(names, values, strict=True))
    result = evaluate(module, *(given[param.name] for param in module["main"].params))
    results = list(result) if isinstance(result, tuple) else [result]
    for mine, wanted in zip(results, expected, strict=True):
        if mine.dtype != wanted.dtype or mine.shape != wanted.shape:
            return f"{mine.dtype}{mine.shape} instead of {wanted.dtype}{wanted.shape}"
        loose = 1e-2 if wanted.dtype.itemsize == 2 else 1e-4
        if not np.allclose(
            mine.astype(np.float64), wanted.astype(np.float64), max(case.rtol, loose), max(case.atol, loose / 10), True
        ):
            return f"{mine.ravel()[:4]} instead of {wanted.ravel()[:4]}"
    return "passed"


@pytest.mark.slow
def test_node_cases():
    table: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    wrong: dict[str, str] = {}
    for case in _load_cases():
        verdict = _run(case)
        if verdict not in ("passed", "refused"):
            wrong[case.name] = verdict
            verdict = "wrong"
        # The "expanded" cases are bodies of other operators: their own operators do not tell what is supported.
        if len(case.model.graph.node) == 1:
            table[case.model.graph.node[0].op_type][verdict] += 1
        table["all"][verdict] += 1
    assert set(wrong) == KNOWN_DIFFERENCES, wrong
    assert table["all"]["passed"] >= LEAST_PASSED, table["all"]
    mixed = {name for name, counts in table.items() if counts["passed"] and counts["refused"]} - {"all"}
    assert mixed == set(PARTLY_SUPPORTED), mixed ^ set(PARTLY_SUPPORTED)
