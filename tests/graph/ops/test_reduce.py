"""Reductions and indexing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.ops.running import apply, data, infer
from tilewright.ir.expr import Var
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError

N = Var("n")


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("axes", [(), (0,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(name, axes, keepdims):
    x = data(2, 3, 4)
    expected = getattr(np, name)(x.astype(np.float64), axis=axes, keepdims=keepdims)
    np.testing.assert_allclose(apply(name, x, axes=axes, keepdims=keepdims), expected, rtol=1e-5)


def test_reductions_of_integers():
    x = np.array([[7, -2], [100, 100]], np.int8)
    assert apply("mean", x, axes=(0, 1)).tolist() == 51
    assert apply("mean", np.array([-3, -4], np.int8), axes=(0,)).tolist() == -3
    assert apply("sum", x, axes=(1,)).tolist() == [5, -56]
    assert apply("max", x, axes=(0,)).tolist() == [100, 100]


def test_reductions_of_nothing():
    x = np.zeros((0, 2), np.float32)
    assert apply("max", x, axes=(0,)).tolist() == [-np.inf] * 2
    assert apply("min", x, axes=(0,)).tolist() == [np.inf] * 2
    assert apply("sum", x, axes=(0,)).tolist() == [0, 0]
    assert apply("prod", x, axes=(0,)).tolist() == [1, 1]


def test_float_sums_are_accurate():
    x = np.full(1 << 20, 0.1, np.float32)
    assert apply("sum", x, axes=(0,)) == pytest.approx((1 << 20) * float(np.float32(0.1)), rel=1e-7)


def test_truth():
    x = np.array([[True, False], [True, True]])
    assert apply("all", x, axes=(1,)).tolist() == [False, True]
    assert apply("any", x, axes=(0, 1), keepdims=True).tolist() == [[True]]


def test_positions():
    x = np.array([[1, 3, 3], [2, 2, 0]], np.float32)
    assert apply("argmax", x, axis=1).tolist() == [1, 0]
    assert apply("argmax", x, axis=1, select_last=True).tolist() == [2, 1]
    assert apply("argmin", x, axis=0, keepdims=True).tolist() == [[0, 1, 1]]


def test_running_sums():
    x = np.array([[1, 2, 3]], np.float32)
    assert apply("cumsum", x, axis=1).tolist() == [[1, 3, 6]]
    assert apply("cumsum", x, axis=1, exclusive=True).tolist() == [[0, 1, 3]]
    assert apply("cumsum", x, axis=1, reverse=True).tolist() == [[6, 5, 3]]
    assert apply("cumsum", x, axis=1, exclusive=True, reverse=True).tolist() == [[5, 3, 0]]


def test_symbolic_shapes():
    assert infer("sum", tensor_type((N, 3), "float32"), axes=(1,)).shape == (N,)
    assert infer("argmax", tensor_type((N, 3), "float32"), axis=0).static_shape == (3,)


@pytest.mark.parametrize(
    ("name", "dtype", "attributes", "message"),
    [
        ("sum", "float32", {"axes": (2,)}, "axis 2 is out of range"),
        ("sum", "float32", {"axes": (0, 0)}, "repeat"),
        ("sum", "bool", {"axes": (0,)}, "must be a number"),
        ("all", "int8", {"axes": (0,)}, "must be bool"),
        ("argmax", "float32", {"axis": -1}, "axis -1 is out of range"),
        ("argmax", "float32", {"axis": 1}, "is empty: it has no extreme"),
        ("cumsum", "float32", {"axis": 5}, "axis 5 is out of range"),
    ],
)
def test_wrong(name, dtype, attributes, message):
    with pytest.raises(UserError, match=message):
        infer(name, tensor_type((2, 0), dtype), **attributes)


def test_running_products():
    x = np.array([2, 3, 4])
    assert apply("cumprod", x, axis=0).tolist() == [2, 6, 24]
    assert apply("cumprod", x, axis=0, exclusive=True).tolist() == [1, 2, 6]
    assert apply("cumprod", x, axis=0, reverse=True).tolist() == [24, 12, 4]
