"""Operators of several inputs: values, integer rules, wrong types."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.graph.ops.running import apply, data, infer
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError


@pytest.mark.parametrize(
    ("name", "function"),
    [("add", np.add), ("subtract", np.subtract), ("multiply", np.multiply), ("divide", np.divide),
     ("minimum", np.minimum), ("maximum", np.maximum), ("fmod", np.fmod), ("floor_mod", np.mod)],
)  # fmt: skip
def test_floats(name, function):
    a, b = data(4, 1, 3), data(2, 1, low=0.5)
    np.testing.assert_allclose(apply(name, a, b), function(a, b), rtol=1e-6)


@given(st.integers(-100, 100), st.integers(-100, 100).filter(bool))
def test_integer_divisions(a, b):
    x, y = np.array([a], np.int32), np.array([b], np.int32)
    assert apply("divide", x, y)[0] == int(a / b)
    assert apply("fmod", x, y)[0] == a - b * int(a / b)
    assert apply("floor_divide", x, y)[0] == a // b
    assert apply("floor_mod", x, y)[0] == a % b


@given(st.integers(-4, 4), st.integers(-3, 6))
def test_integer_powers(a, b):
    expected = a**b if b >= 0 else (0 if a == 0 else int(float(a) ** b))
    assert apply("power", np.array([a], np.int64), np.array([b], np.int64))[0] == expected


def test_division_by_zero_does_not_raise():
    apply("divide", np.array([1], np.int32), np.array([0], np.int32))
    assert apply("divide", np.array([1.0, -1.0, 0.0]), np.zeros(3))[:2].tolist() == [np.inf, -np.inf]


def test_comparisons_and_logic():
    a, b = np.array([1, 2, np.nan], np.float32), np.array([1, 1, np.nan], np.float32)
    assert apply("equal", a, b).tolist() == [True, False, False]
    assert apply("not_equal", a, b).tolist() == [False, True, True]
    assert apply("less_equal", a, b).tolist() == [True, False, False]
    assert apply("greater", a, b).tolist() == [False, True, False]
    x, y = np.array([True, True, False]), np.array([True, False, False])
    assert apply("logical_and", x, y).tolist() == [True, False, False]
    assert apply("logical_xor", x, y).tolist() == [False, True, False]


def test_bits():
    a, b = np.array([-8, 12], np.int8), np.array([1, 2], np.int8)
    assert apply("right_shift", a, b).tolist() == [-4, 3]
    assert apply("left_shift", a, b).tolist() == [-16, 48]
    assert apply("right_shift", a, np.array([9, -6], np.int8)).tolist() == [-4, 3]
    assert apply("bitwise_or", a, b).tolist() == [-7, 14]
    assert apply("bitwise_xor", np.array([True]), np.array([True])).tolist() == [False]


def test_where():
    result = apply("where", np.array([[True], [False]]), data(3), np.float32(7) * np.ones(1, np.float32))
    assert result.shape == (2, 3)
    assert result[1].tolist() == [7, 7, 7]


def test_prelu():
    np.testing.assert_allclose(apply("nn.prelu", np.array([-2.0, 3.0]), np.array([0.5])), [-1, 3])


def test_minimum_of_nan_is_nan():
    assert np.isnan(apply("minimum", np.array([np.nan]), np.array([1.0]))).all()


@pytest.mark.parametrize(
    ("name", "kinds", "message"),
    [
        ("add", [((3,), "float32"), ((3,), "int32")], "a is float32, b is int32"),
        ("add", [((3,), "bool"), ((3,), "bool")], "must be a number"),
        ("add", [((3, 2), "float32"), ((3,), "float32")], r"\(3, 2\) and \(3,\) do not broadcast: dimensions 2 and 3"),
        ("logical_and", [((3,), "int8"), ((3,), "int8")], "must be bool"),
        ("left_shift", [((3,), "float32"), ((3,), "float32")], "must be of an integer type"),
        ("bitwise_and", [((3,), "float32"), ((3,), "float32")], "must be of an integer type"),
        ("where", [((3,), "int8"), ((3,), "int8"), ((3,), "int8")], "the condition must be bool"),
        ("nn.prelu", [((3,), "float32"), ((2, 3), "float32")], "the slope has more dimensions"),
    ],
)
def test_wrong_inputs(name, kinds, message):
    with pytest.raises(UserError, match=message):
        infer(name, *(tensor_type(shape, dtype) for shape, dtype in kinds))
