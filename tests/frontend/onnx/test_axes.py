"""Axes that are inputs of the model."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.helpers import check, data, import_one
from tilewright.support.errors import UserError

REDUCTIONS = ["ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"]


@pytest.mark.parametrize("op_type", REDUCTIONS)
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [[1], [0, -1]])
def test_reductions(op_type, keep, axes):
    check(op_type, data(2, 3, 4, low=0.1), np.array(axes), keepdims=keep)


def test_no_axes_are_all_axes():
    check("ReduceSum", data(2, 3), np.array([], np.int64), keepdims=0)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_running_sums(axis):
    check("CumSum", data(2, 3, 4), np.array(axis), exclusive=1)
    check("CumSum", data(2, 3, 4), np.array([axis]), reverse=1)


def test_dimensions_of_one():
    check("Unsqueeze", data(2, 3), np.array([0, -1]))
    check("Squeeze", data(1, 3, 1), np.array([0, -1]))


def test_what_is_refused():
    with pytest.raises(UserError, match="2 axes of data of 1 dimensions"):
        import_one("ReduceSum", data(3), np.array([0, 1]))
    with pytest.raises(UserError, match="axes of ReduceSum must be a list"):
        import_one("ReduceSum", data(3), np.array([[0]]))
    with pytest.raises(UserError, match="the axis must be one number"):
        import_one("CumSum", data(3), np.array([0, 0]))
