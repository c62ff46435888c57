"""Pooling against onnxruntime."""

from __future__ import annotations

import pytest

from tests.frontend.onnx.helpers import check, data, import_one, operators_of
from tilewright.support.errors import UnsupportedError, UserError


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [2, 2]},
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
        {"kernel_shape": [3, 3], "dilations": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
    ],
)
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_pool(op_type, attributes):
    check(op_type, data(2, 3, 8, 7), **attributes)


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool_divisors(ceil_mode, include):
    check(
        "AveragePool",
        data(1, 2, 8, 8),
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        ceil_mode=ceil_mode,
        count_include_pad=include,
    )


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_pool_in_one_and_three_dimensions(op_type):
    check(op_type, data(2, 3, 9), kernel_shape=[3], strides=[2], pads=[1, 1])
    check(op_type, data(1, 2, 6, 7, 8), kernel_shape=[2, 3, 2], strides=[2, 1, 2], pads=[0, 1, 1, 1, 1, 0])


def test_pool_of_integers():
    check("MaxPool", data(1, 2, 6, 6, dtype="int8", low=-90, high=90), kernel_shape=[2, 2], pads=[1, 1, 0, 0])


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(p):
    check("LpPool", data(1, 2, 6, 6), kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 0, 1], p=p, tolerance=1e-4)
    check("GlobalLpPool", data(1, 2, 6, 6), p=p, tolerance=1e-4)


@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pools(op_type):
    check(op_type, data(2, 3, 5, 6))
    check(op_type, data(2, 3, 5))
    assert operators_of(import_one("GlobalAveragePool", data(1, 3, 4, 4))) == ["mean"]


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization(p):
    check("LpNormalization", data(3, 4), p=p, axis=1, tolerance=1e-4)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_local_response_normalization(size):
    check("LRN", data(2, 6, 3, 4), size=size, alpha=0.3, beta=0.6, bias=2.0, tolerance=1e-4)


def test_pool_refuses():
    with pytest.raises(UserError, match="does not fit data of shape"):
        import_one("MaxPool", data(1, 2, 6, 6), kernel_shape=[2])
    with pytest.raises(UserError, match="needs the attribute 'kernel_shape'"):
        import_one("MaxPool", data(1, 2, 6, 6))
    with pytest.raises(UnsupportedError, match="4 dimensions"):
        import_one("MaxPool", data(1, 2, 3, 3, 3, 3), kernel_shape=[2, 2, 2, 2])
    with pytest.raises(UserError, match="at least 3 dimensions"):
        import_one("GlobalMaxPool", data(1, 2))
    with pytest.raises(UserError, match="LRN over 0 channels"):
        import_one("LRN", data(1, 2, 3), size=0)
