"""Reductions against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.helpers import check, data, import_one, operators_of
from tilewright.support.errors import UserError

_ALL = [
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSum", "ReduceLogSumExp",
]  # fmt: skip
_X = data(2, 3, 4, low=0.2)


@pytest.mark.parametrize("op_type", _ALL)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes_as_attribute(op_type, keepdims):
    check(op_type, _X, opset=11, axes=[0, -1], keepdims=keepdims, tolerance=1e-4)
    check(op_type, _X, opset=11, keepdims=keepdims, tolerance=1e-4)


@pytest.mark.parametrize("op_type", _ALL)
def test_axes_as_input(op_type):
    check(op_type, _X, np.array([1], np.int64), constants=[1], opset=18, tolerance=1e-4)
    check(op_type, _X, opset=18, keepdims=0, tolerance=1e-4)
    if op_type in ("ReduceSum", "ReduceMax"):
        check(op_type, _X, np.array([], np.int64), constants=[1], opset=18, noop_with_empty_axes=1)


def test_integers():
    x = data(3, 4, dtype="int32", low=-9, high=9)
    for op_type in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceMean", "ReduceSumSquare"):
        check(op_type, x, opset=13) if op_type == "ReduceSum" else check(op_type, x, opset=13, axes=[1])


def test_truth_values_reduce_to_any_and_all():
    axes = np.array([1], np.int64)
    x = data(4, 2, dtype="bool")
    assert operators_of(import_one("ReduceMax", x, axes, constants=[1], opset=20)) == ["any"]
    assert operators_of(import_one("ReduceMin", x, axes, constants=[1], opset=20)) == ["all"]


def test_log_sum_exp_of_large_numbers():
    check("ReduceLogSumExp", np.array([[900.0, 901.0], [-900.0, -901.0]], np.float32), opset=13, axes=[1])


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("select_last", [0, 1])
def test_positions(op_type, select_last):
    x = data(3, 5, dtype="int32", low=0, high=2)
    check(op_type, x, axis=1, select_last_index=select_last, keepdims=0)
    check(op_type, x, select_last_index=select_last)


def test_refusals():
    with pytest.raises(UserError, match="axis 3 is out of range"):
        import_one("ReduceSum", _X, np.array([3], np.int64), constants=[1])
    with pytest.raises(UserError, match="repeat"):
        import_one("ReduceSum", _X, np.array([1, -2], np.int64), constants=[1])
