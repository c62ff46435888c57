"""Positions of maxima, unpooling and patches added up, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.helpers import check, data, import_one
from tilewright.support.errors import UnsupportedError, UserError


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [3, 2]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]},
        {"kernel_shape": [2, 2], "dilations": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [2, 2], "storage_order": 1},
    ],
)
def test_positions_of_maxima(attributes):
    check("MaxPool", data(2, 3, 6, 7), outputs=2, **attributes)


def test_positions_of_maxima_in_one_and_three_dimensions():
    check("MaxPool", data(2, 3, 9), outputs=2, kernel_shape=[3], pads=[1, 1], strides=[2])
    check("MaxPool", data(1, 2, 4, 5, 6), outputs=2, kernel_shape=[2, 2, 3])
    check("MaxPool", data(1, 2, 5, 6, dtype="int8", low=-9, high=9), outputs=2, kernel_shape=[2, 2])


def test_large_tables_are_refused():
    with pytest.raises(UnsupportedError, match="the positions of maxima in"):
        import_one("MaxPool", data(1, 1, 900, 900), outputs=2, kernel_shape=[9, 9])


def test_max_unpool():
    x = data(1, 2, 2, 3)
    places = np.array([[[[1, 2, 5], [12, 15, 17]], [[24, 26, 29], [36, 39, 41]]]], np.int64)
    check("MaxUnpool", x, places, kernel_shape=[2, 2], strides=[2, 2], opset=11)
    shape = np.array([1, 2, 5, 7], np.int64)
    module = import_one("MaxUnpool", x, places, shape, constants=[2], kernel_shape=[2, 2], strides=[2, 2], opset=11)
    assert module["main"].body.type.static_shape == (1, 2, 5, 7)


def test_max_unpool_refuses():
    x = data(1, 2, 2, 3)
    with pytest.raises(UserError, match="with a kernel of"):
        import_one("MaxUnpool", x, np.zeros((1, 2), np.int64), kernel_shape=[2, 2], opset=11)
    with pytest.raises(UserError, match="does not hold a result"):
        import_one("MaxUnpool", x, np.zeros((1, 2, 2, 3), np.int64), np.array([1, 2, 2, 2], np.int64), constants=[2],
                   kernel_shape=[2, 2], strides=[2, 2], opset=11)  # fmt: skip
    with pytest.raises(UnsupportedError, match="MaxUnpool of data"):
        import_one("MaxUnpool", data(1, 1, 300, 300), np.zeros((1, 1, 300, 300), np.int64), kernel_shape=[2, 2],
                   strides=[2, 2], opset=11)  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "attributes"),
    [(12, {}), (2, {"strides": [2, 2]}), (30, {"pads": [1, 1, 1, 1]}), (8, {"dilations": [2, 1]})],
)
def test_columns_to_image(columns, attributes):
    image, block = np.array([5, 5], np.int64), np.array([2, 3], np.int64)
    counts = {12: 12, 2: 4, 30: 30, 8: 9}
    check("Col2Im", data(2, 12, counts[columns]), image, block, constants=[1, 2], opset=18, **attributes)


def test_columns_to_image_refuses():
    image, block = np.array([5, 5], np.int64), np.array([2, 3], np.int64)
    with pytest.raises(UserError, match=r"does not fit .* blocks"):
        import_one("Col2Im", data(2, 12, 7), image, block, constants=[1, 2], opset=18)
    with pytest.raises(UserError, match="Col2Im of an image"):
        import_one("Col2Im", data(12, 7), image, block, constants=[1, 2], opset=18)
