"""Taking by indices."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.ops.running import apply, data, infer
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_take(axis):
    x, places = data(3, 4, 5), np.array([[0, -1], [2, 1]])
    np.testing.assert_array_equal(apply("take", x, places, axis=axis), np.take(x, places, axis=axis))


def test_take_of_one_index():
    x = data(3, 4)
    np.testing.assert_array_equal(apply("take", x, np.array(2), axis=0), x[2])


def test_indices_never_leave_the_data():
    x = np.array([10, 20, 30])
    assert apply("take", x, np.array([9, -9, -1])).tolist() == [30, 10, 30]
    assert apply("take", x, np.array([9, -9, -1]), mode="clip").tolist() == [30, 10, 10]


def test_wrong():
    x, places = tensor_type((3, 0), "float32"), tensor_type((2,), "int64")
    with pytest.raises(UserError, match="the indices must be of an integer type"):
        infer("take", x, x)
    with pytest.raises(UserError, match="unknown mode 'wrap'"):
        infer("take", x, places, mode="wrap")
    with pytest.raises(UserError, match="axis 2 is out of range"):
        infer("take", x, places, axis=2)
    with pytest.raises(UserError, match="dimension 1 is empty"):
        infer("take", x, places, axis=1)
