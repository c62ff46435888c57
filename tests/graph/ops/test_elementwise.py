"""Elementwise operators: references against Python's math, special values, types."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.graph.ops.running import apply, data, infer
from tilewright.graph.ops import special
from tilewright.ir.dtype import BFLOAT16, BOOL, DataType
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError

_FUNCTIONS = {
    "exp": math.exp,
    "sin": math.sin,
    "tanh": math.tanh,
    "erf": math.erf,
    "atan": math.atan,
    "asinh": math.asinh,
    "expm1": math.expm1,
    "floor": math.floor,
    "trunc": math.trunc,
    "round": round,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "nn.softplus": lambda x: math.log1p(math.exp(x)),
}


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_against_python(name):
    x = data(3, 7, dtype="float64", low=-4, high=4)
    expected = np.vectorize(_FUNCTIONS[name])(x)
    np.testing.assert_allclose(apply(name, x), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["log", "sqrt", "rsqrt", "reciprocal", "log1p", "acosh"])
def test_of_positives(name):
    x = data(9, dtype="float64", low=1.1, high=9)
    functions = {"rsqrt": lambda v: v**-0.5, "reciprocal": lambda v: 1 / v}
    expected = [functions.get(name, getattr(math, name, None))(v) for v in x]
    np.testing.assert_allclose(apply(name, x), expected, rtol=1e-12)


@given(st.floats(-1e3, 1e3))
def test_erf_is_accurate(x):
    assert special.erf(np.array([x]))[0] == pytest.approx(math.erf(x), rel=1e-14, abs=1e-300)


def test_erf_of_special_values():
    result = special.erf(np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-300]))
    assert result[:2].tolist() == [1, -1]
    assert np.isnan(result[2])
    assert result[5] == pytest.approx(2 / math.sqrt(math.pi) * 1e-300, rel=1e-12)


def test_sigmoid_of_large_arguments():
    result = apply("sigmoid", np.array([-1e4, -50, 0, 50, 1e4], np.float64))
    assert result[0] == 0
    assert result[1] == pytest.approx(math.exp(-50), rel=1e-12)
    assert result[2:].tolist() == [0.5, 1, 1]


def test_nan_stays_nan():
    x = np.array([np.nan], np.float32)
    for name in ("nn.relu", "abs", "sign", "sigmoid", "nn.gelu", "nn.leaky_relu", "nn.elu", "exp"):
        assert np.isnan(apply(name, x)).all(), name
    assert np.isnan(apply("clip", x, minimum=0.0, maximum=1.0)).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "uint8"])
def test_types_are_kept(dtype):
    for name in ("nn.relu", "abs", "negative", "sign"):
        apply(name, data(5, dtype=dtype, low=0))
    if dtype.startswith("float"):
        for name in ("exp", "erf", "nn.gelu", "nn.selu", "nn.hard_sigmoid", "sigmoid", "nn.softplus"):
            apply(name, data(5, dtype=dtype))


def test_activations():
    x = np.array([-2.0, -0.5, 0.0, 3.0])
    np.testing.assert_allclose(apply("nn.leaky_relu", x, alpha=0.1), [-0.2, -0.05, 0, 3])
    np.testing.assert_allclose(apply("nn.elu", x, alpha=2.0), [2 * math.expm1(-2), 2 * math.expm1(-0.5), 0, 3])
    np.testing.assert_allclose(apply("nn.selu", x, alpha=2.0, gamma=3.0)[[0, 3]], [6 * math.expm1(-2), 9])
    np.testing.assert_allclose(apply("nn.hard_sigmoid", x, alpha=0.2, beta=0.5), [0.1, 0.4, 0.5, 1])
    np.testing.assert_allclose(apply("nn.gelu", x), x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))
    np.testing.assert_allclose(apply("nn.gelu", x, approximate=True), apply("nn.gelu", x), atol=1e-3)


def test_clip():
    x = np.array([-3, 0, 3], np.int8)
    assert apply("clip", x, minimum=-1000.0, maximum=1.5).tolist() == [-3, 0, 1]
    assert apply("clip", x, minimum=-0.5).tolist() == [0, 0, 3]
    assert apply("clip", x.astype(np.float32), minimum=2.0, maximum=1.0).tolist() == [1, 1, 1]


def test_cast():
    x = np.array([-1.7, 0.0, 2.9], np.float32)
    assert apply("cast", x, dtype=DataType.of("int32")).tolist() == [-1, 0, 2]
    assert apply("cast", x, dtype=BOOL).tolist() == [True, False, True]


def test_cast_of_floats_to_integers_saturates():
    x = np.array([np.nan, np.inf, -np.inf, 300.7, -300.7, 1e30], np.float32)
    assert apply("cast", x, dtype=DataType.of("int8")).tolist() == [0, 127, -128, 127, -128, 127]
    assert apply("cast", x, dtype=DataType.of("uint8")).tolist() == [0, 255, 0, 255, 0, 255]
    biggest = 2**63 - 1
    assert apply("cast", x, dtype=DataType.of("int64")).tolist() == [0, biggest, -(2**63), 300, -300, biggest]
    exact = np.array([2.0**53 + 2, -(2.0**62)])
    assert apply("cast", exact, dtype=DataType.of("int64")).tolist() == [2**53 + 2, -(2**62)]


def test_cast_to_bfloat16_rounds_to_even():
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, np.nan, np.inf, -0.0], np.float32)
    rounded = special.round_to_bfloat16(values)
    assert rounded[:3].tolist() == [1.0, 1.0, 1 + 2**-6]
    assert np.isnan(rounded[3])
    assert rounded[4] == np.inf
    assert np.signbit(rounded[5])
    assert infer("cast", tensor_type((3,), "float32"), dtype=BFLOAT16).dtype is BFLOAT16


def test_cast_to_few_bits_saturates():
    x = np.array([-9.5, -1.5, 3.9, 100, np.nan], np.float32)
    assert apply("cast", x, dtype=DataType.of("int4")).tolist() == [-8, -1, 3, 7, 0]
    assert apply("cast", x, dtype=DataType.of("uint2")).tolist() == [0, 0, 3, 3, 0]


def test_truth_and_bits():
    assert apply("logical_not", np.array([True, False])).tolist() == [False, True]
    assert apply("bitwise_not", np.array([0, 5], np.int8)).tolist() == [-1, -6]
    x = np.array([1, np.nan, np.inf, -np.inf], np.float32)
    assert apply("isnan", x).tolist() == [False, True, False, False]
    assert apply("isinf", x).tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("exp", "int32", "must be of a floating-point type, not int32"),
        ("abs", "bool", "must be a number, not bool"),
        ("logical_not", "int32", "must be bool, not int32"),
        ("bitwise_not", "float32", "must be of an integer type, not float32"),
        ("nn.gelu", "int8", "floating-point"),
        ("clip", "bool", "must be a number"),
    ],
)
def test_wrong_types(name, dtype, message):
    with pytest.raises(UserError, match=message):
        infer(name, tensor_type((3,), dtype))


def test_reinterpret_reads_the_same_bits():
    x = data(2, 3)
    result = apply("reinterpret", x, dtype=DataType.of("uint32"))
    np.testing.assert_array_equal(result, x.view(np.uint32))
    with pytest.raises(UserError, match="differ in width"):
        infer("reinterpret", tensor_type((3,), "float32"), dtype=DataType.of("int64"))
    with pytest.raises(UserError, match="cannot be read as"):
        infer("reinterpret", tensor_type((3,), "bool"), dtype=DataType.of("int8"))
