"""Pooling against the defining loops."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.ops.running import apply, data, infer
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError

_CASES = [
    {"kernel": (2, 2)},
    {"kernel": (3, 2), "strides": (2, 1), "padding": (1, 0, 2, 1)},
    {"kernel": (2, 3), "dilation": (2, 2), "padding": (1, 1, 1, 1)},
]


def naive(x, reduce, kernel, strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1)):
    """Apply `reduce` to the elements within the data of each window."""
    top, left, bottom, right = padding
    n, c, height, width = x.shape
    rows = (height + top + bottom - (kernel[0] - 1) * dilation[0] - 1) // strides[0] + 1
    columns = (width + left + right - (kernel[1] - 1) * dilation[1] - 1) // strides[1] + 1
    y = np.zeros((n, c, rows, columns))
    for b, ch, r, s in np.ndindex(*y.shape):
        at = [
            (r * strides[0] + i * dilation[0] - top, s * strides[1] + j * dilation[1] - left)
            for i in range(kernel[0])
            for j in range(kernel[1])
        ]
        y[b, ch, r, s] = reduce([float(x[b, ch, i, j]) for i, j in at if 0 <= i < height and 0 <= j < width])
    return y


@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kind", ["max", "average", "include"])
def test_pools(case, layout, kind):
    x = data(2, 3, 6, 5)
    whole = case["kernel"][0] * case["kernel"][1]
    reduce = {"max": max, "average": lambda v: sum(v) / len(v), "include": lambda v: sum(v) / whole}[kind]
    expected = naive(x, reduce, **case)
    given = x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    name = "nn.max_pool2d" if kind == "max" else "nn.avg_pool2d"
    result = apply(name, given, layout=layout, count_include_pad=kind == "include", **case)
    result = result if layout == "NCHW" else result.transpose(0, 3, 1, 2)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_pools_of_integers():
    x = np.array([[[[-7, 4], [3, -1]]]], np.int8)
    assert apply("nn.max_pool2d", x, kernel=(2, 2), padding=(1, 1, 0, 0)).tolist() == [[[[-7, 4], [3, 4]]]]
    assert apply("nn.avg_pool2d", -x, kernel=(1, 2)).tolist() == [[[[1], [-1]]]]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"kernel": (11, 1)}, "does not fit along the height"),
        ({"kernel": (2,)}, "kernel must have 2 entries"),
        ({"kernel": (0, 1)}, "must be positive"),
        ({"kernel": (1, 1), "padding": (-1, 0, 0, 0)}, "must not be negative"),
        ({"kernel": (1, 1), "layout": "CHWN"}, "unknown layout"),
    ],
)
def test_wrong(attributes, message):
    with pytest.raises(UserError, match=message):
        infer("nn.max_pool2d", tensor_type((1, 3, 8, 8), "float32"), **attributes)


def test_wrong_rank():
    with pytest.raises(UserError, match="the input must have 4 dimensions"):
        infer("nn.avg_pool2d", tensor_type((3, 8, 8), "float32"), kernel=(2, 2))
