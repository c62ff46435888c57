"""Convolutions against the defining sums."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.graph.ops.running import apply, data, infer
from tilewright.ir.expr import Var
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError

N = Var("n")


def naive_conv2d(x, w, strides, padding, dilation, groups):
    """The sum over channels and taps, element by element."""
    top, left, bottom, right = padding
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    outputs, depth, kh, kw = w.shape
    rows = (x.shape[2] - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    columns = (x.shape[3] - (kw - 1) * dilation[1] - 1) // strides[1] + 1
    y = np.zeros((x.shape[0], outputs, rows, columns))
    for n, o, r, c in np.ndindex(*y.shape):
        first = o // (outputs // groups) * depth
        for i, j in itertools.product(range(kh), range(kw)):
            at = x[n, first : first + depth, r * strides[0] + i * dilation[0], c * strides[1] + j * dilation[1]]
            y[n, o, r, c] += at @ w[o, :, i, j]
    return y


_CASES = [
    {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1},
    {"strides": (2, 1), "padding": (1, 0, 2, 1), "dilation": (1, 2), "groups": 1},
    {"strides": (1, 2), "padding": (1, 1, 1, 1), "dilation": (2, 1), "groups": 2},
    {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 4},
]


@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize("outputs", [4, 8])
def test_conv2d(case, outputs):
    x, w = data(2, 4, 6, 7), data(outputs, 4 // case["groups"], 3, 2)
    expected = naive_conv2d(x, w, **case)
    np.testing.assert_allclose(apply("nn.conv2d", x, w, **case), expected, rtol=1e-4, atol=1e-5)
    nhwc = apply(
        "nn.conv2d",
        np.ascontiguousarray(x.transpose(0, 2, 3, 1)),
        np.ascontiguousarray(w.transpose(2, 3, 1, 0)),
        data_layout="NHWC",
        kernel_layout="HWIO",
        **case,
    )
    np.testing.assert_allclose(nhwc.transpose(0, 3, 1, 2), expected, rtol=1e-4, atol=1e-5)


def naive_transpose(x, w, strides, padding, output_padding, dilation, groups):
    """Every input element spreads the kernel over the result."""
    n, channels, height, width = x.shape
    _, per_group, kh, kw = w.shape
    top, left, bottom, right = padding
    full = np.zeros(
        (
            n,
            per_group * groups,
            (height - 1) * strides[0] + (kh - 1) * dilation[0] + 1 + output_padding[0],
            (width - 1) * strides[1] + (kw - 1) * dilation[1] + 1 + output_padding[1],
        )
    )
    for b, c, i, j, o, p, q in np.ndindex(n, channels, height, width, per_group, kh, kw):
        group = c // (channels // groups)
        row, column = i * strides[0] + p * dilation[0], j * strides[1] + q * dilation[1]
        full[b, group * per_group + o, row, column] += float(x[b, c, i, j]) * float(w[c, o, p, q])
    return full[:, :, top : full.shape[2] - bottom, left : full.shape[3] - right]


@pytest.mark.parametrize(
    "case",
    [
        {"strides": (1, 1), "padding": (0, 0, 0, 0), "output_padding": (0, 0), "dilation": (1, 1), "groups": 1},
        {"strides": (2, 2), "padding": (1, 1, 1, 1), "output_padding": (1, 0), "dilation": (1, 1), "groups": 1},
        {"strides": (2, 1), "padding": (0, 1, 1, 0), "output_padding": (0, 0), "dilation": (2, 1), "groups": 2},
    ],
)
def test_conv2d_transpose(case):
    x, w = data(1, 4, 3, 4), data(4, 2, 3, 2)
    result = apply("nn.conv2d_transpose", x, w, **case)
    np.testing.assert_allclose(result, naive_transpose(x, w, **case), rtol=1e-4, atol=1e-5)


def test_integers_are_exact():
    x, w = data(1, 2, 4, 4, dtype="int32", low=-99, high=99), data(3, 2, 2, 2, dtype="int32", low=-99, high=99)
    expected = naive_conv2d(x, w, (1, 1), (0, 0, 0, 0), (1, 1), 1)
    np.testing.assert_array_equal(apply("nn.conv2d", x, w), expected.astype(np.int32))


def test_symbolic_batch():
    kind = infer("nn.conv2d", tensor_type((N, 3, 8, 8), "float32"), tensor_type((4, 3, 3, 3), "float32"))
    assert kind.shape[0] is N
    assert [dim.value for dim in kind.shape[1:]] == [4, 6, 6]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"groups": 2}, "input channels \\(3\\) do not divide into 2 groups"),
        ({"groups": 3}, "output channels"),
        ({"strides": (0, 1)}, "strides must be positive"),
        ({"padding": (1, 1)}, "padding must have 4 entries"),
        ({"padding": (-1, 0, 0, 0)}, "padding must not be negative"),
        ({"data_layout": "NHWC"}, "no convolution for data in NHWC with a kernel in OIHW"),
        ({"dilation": (9, 1)}, "does not fit along the height: it covers 19, the padded input is 8"),
    ],
)
def test_conv2d_refuses(attributes, message):
    with pytest.raises(UserError, match=message):
        infer("nn.conv2d", tensor_type((1, 3, 8, 8), "float32"), tensor_type((4, 3, 3, 3), "float32"), **attributes)


def test_wrong_shapes():
    data_type = tensor_type((1, 3, 8, 8), "float32")
    with pytest.raises(UserError, match="weight must have 4 dimensions"):
        infer("nn.conv2d", data_type, tensor_type((4, 3, 3), "float32"))
    with pytest.raises(UserError, match="input channels of a group, and of the weight: 3 and 2 must be equal"):
        infer("nn.conv2d", data_type, tensor_type((4, 2, 3, 3), "float32"))
    with pytest.raises(UserError, match="channels of the data, and inputs of the weight: 3 and 2"):
        infer("nn.conv2d_transpose", data_type, tensor_type((2, 4, 3, 3), "float32"))
    with pytest.raises(UserError, match="leaves nothing of the height"):
        infer("nn.conv2d_transpose", data_type, tensor_type((3, 4, 3, 3), "float32"), padding=(9, 0, 9, 0))
    with pytest.raises(UserError, match="no transposed convolution for NHWC"):
        infer("nn.conv2d_transpose", data_type, tensor_type((3, 4, 3, 3), "float32"), data_layout="NHWC")
