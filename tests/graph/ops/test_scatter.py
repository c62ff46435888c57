"""The type rules and the references of scatter and scatter_elements."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.ops.running import apply, infer
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError


def test_the_last_update_stays():
    result = apply("scatter", np.zeros(4), np.array([1, 1, 9]), np.array([5.0, 6.0, 7.0]))
    assert result.tolist() == [0, 6, 0, 0]


def test_updates_combine():
    places, updates = np.array([1, 1]), np.array([5, 6])
    assert apply("scatter", np.ones(3, int), places, updates, reduction="add").tolist() == [1, 12, 1]
    assert apply("scatter", np.ones(3, int), places, updates, reduction="mul").tolist() == [1, 30, 1]
    assert apply("scatter", np.ones(3, int), places, updates, reduction="max").tolist() == [1, 6, 1]
    assert apply("scatter", np.ones(3, int), places, updates, reduction="min").tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("shapes", "reduction", "message"),
    [
        (((3,), (2,), (2, 1)), "none", "do not fit data"),
        (((3,), (2,), (4,)), "none", "the number of places"),
        (((3, 2), (2,), (2, 3)), "none", "the rows of the data"),
        (((3,), (2,), (2,)), "mean", "unknown reduction"),
    ],
)
def test_refusals(shapes, reduction, message):
    kinds = [tensor_type(shape, dtype) for shape, dtype in zip(shapes, ("int8", "int64", "int8"), strict=True)]
    with pytest.raises(UserError, match=message):
        infer("scatter", *kinds, reduction=reduction)


@pytest.mark.parametrize(
    ("shapes", "count", "message"),
    [
        (((2, 3), (2, 1)), 4, "segments are a vector"),
        (((3,), (2,)), 4, "the number of segments"),
        (((2,), (2,)), -1, "count is 0 or more"),
    ],
)
def test_refusals_of_sums(shapes, count, message):
    kinds = [tensor_type(shape, dtype) for shape, dtype in zip(shapes, ("float32", "int64"), strict=True)]
    with pytest.raises(UserError, match=message):
        infer("segment_sum", *kinds, count=count)


def test_elements_along_an_axis():
    indices, updates = np.array([[0, -1], [2, 2]]), np.array([[5, 6], [7, 8]])
    expected = np.zeros((2, 3), int)
    expected[0, 0], expected[0, 2], expected[1, 2] = 5, 6, 8
    assert apply("scatter_elements", np.zeros((2, 3), int), indices, updates, axis=1).tolist() == expected.tolist()
    along_rows = apply("scatter_elements", np.ones((3, 3), int), indices, updates, axis=0, reduction="add")
    assert along_rows.tolist() == [[6, 1, 1], [1, 1, 1], [8, 15, 1]]


@pytest.mark.parametrize(
    ("shapes", "axis", "reduction", "message"),
    [
        (((3, 2), (2,), (2,)), 0, "none", "along axis 0 do not fit data"),
        (((3, 2), (2, 2), (2, 2)), 2, "none", "along axis 2 do not fit data"),
        (((3, 2), (3, 2), (2, 2)), 0, "none", "the sizes of indices and updates along axis 0"),
        (((3, 2), (3, 4), (3, 4)), 0, "none", "reach beyond data"),
        (((3, 2), (3, 2), (3, 2)), 0, "mean", "unknown reduction"),
    ],
)
def test_refusals_of_elements(shapes, axis, reduction, message):
    kinds = [tensor_type(shape, dtype) for shape, dtype in zip(shapes, ("int8", "int64", "int8"), strict=True)]
    with pytest.raises(UserError, match=message):
        infer("scatter_elements", *kinds, axis=axis, reduction=reduction)
