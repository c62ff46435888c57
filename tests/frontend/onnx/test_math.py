"""Arithmetic, comparison, logic and conversion against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.frontend.onnx.helpers import check, data, import_one, make_model, operators_of, run_tilewright
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError


@pytest.mark.parametrize(
    "op_type", ["Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Neg", "Round", "Sigmoid", "Sign", "Sin", "Tan", "Tanh"]
)
def test_unary_of_floats(op_type):
    check(op_type, data(3, 4))


@pytest.mark.parametrize("op_type", ["Acos", "Asin", "Atanh", "Atan", "Asinh", "Sinh", "Cosh"])
def test_unary_within_one(op_type):
    check(op_type, data(3, 4, low=-0.9, high=0.9))


@pytest.mark.parametrize("op_type", ["Log", "Sqrt", "Reciprocal", "Acosh"])
def test_unary_of_positives(op_type):
    check(op_type, data(3, 4, low=1.1, high=4))


@pytest.mark.parametrize("op_type", ["Abs", "Neg", "Sign"])
def test_unary_of_integers(op_type):
    check(op_type, data(3, 4, dtype="int32", low=-9, high=9))


def test_unary_of_truth_values_and_bits():
    check("Not", data(5, dtype="bool"))
    check("BitwiseNot", data(5, dtype="int16", low=-9, high=9))
    check("IsNaN", np.array([1, np.nan, np.inf], np.float32))


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1, 3), (4, 1)), ((), (2, 2))])
def test_binary_broadcasts(op_type, shapes):
    check(op_type, data(*shapes[0]), data(*shapes[1], low=0.5, high=2))


def test_integer_division_is_toward_zero():
    check("Div", np.array([7, -7, 7, -7, 6], np.int32), np.array([2, 2, -2, -2, 3], np.int32))


@pytest.mark.parametrize("op_type", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_comparisons(op_type, dtype):
    check(op_type, data(4, 5, dtype=dtype), data(5, dtype=dtype))


@pytest.mark.parametrize("op_type", ["And", "Or", "Xor"])
def test_logic(op_type):
    check(op_type, data(4, 5, dtype="bool"), data(5, dtype="bool"))


@pytest.mark.parametrize("op_type", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bits(op_type):
    check(op_type, data(9, dtype="int32", low=-99, high=99), data(9, dtype="int32", low=-99, high=99))


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(direction):
    check(
        "BitShift", data(9, dtype="uint8", low=0, high=200), data(9, dtype="uint8", low=0, high=7), direction=direction
    )


def test_bit_shift_by_all_bits_and_more():
    x, count = np.array([-9, 9, -9, 9], np.int32), np.array([32, 40, -1, 2], np.int32)
    inputs = {"x": x, "n": count}
    for direction, expected in (("LEFT", [0, 0, 0, 36]), ("RIGHT", [-1, 0, -1, 2])):
        node = onnx.helper.make_node("BitShift", ["x", "n"], ["y"], direction=direction)
        (result,) = run_tilewright(make_model([node], inputs, ["y"], opset=28), inputs)
        assert result.tolist() == expected


def test_bit_shift_refuses_other_directions():
    with pytest.raises(UserError, match="LEFT or RIGHT"):
        import_one("BitShift", data(2, dtype="uint8", low=0), data(2, dtype="uint8", low=0), direction="UP")


def test_power_of_a_tensor():
    check("Pow", data(3, 4, low=0.1), data(4))


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0, -1.0])
def test_power_of_a_constant(exponent):
    check("Pow", data(3, 4, low=0.1), np.array(exponent, np.float32), constants=[1])


def test_power_of_mixed_types():
    check("Pow", data(3, 4), np.array([2], np.int64))
    check("Pow", data(6, dtype="int32", low=1, high=5), np.array([2.5], np.float32))


def test_squares_become_products():
    assert operators_of(import_one("Pow", data(3), np.array(2.0, np.float32), constants=[1])) == ["multiply"]


def test_modulo():
    a, b = np.array([7, -7, 7, -7], np.int64), np.array([3, 3, -3, -3], np.int64)
    check("Mod", a, b)
    check("Mod", a, b, fmod=1)
    check("Mod", a.astype(np.float32), b.astype(np.float32), fmod=1)


@pytest.mark.parametrize("op_type", ["Max", "Min", "Sum", "Mean"])
def test_variadic(op_type):
    check(op_type, data(3, 4), data(4), data(3, 1))
    check(op_type, data(3, 4))


def test_clip_by_attributes():
    check("Clip", data(20), opset=10, min=-0.5, max=1.0)
    check("Clip", data(20), opset=10, max=1.0)


def test_clip_by_inputs():
    low, high = np.array(-0.5, np.float32), np.array(0.75, np.float32)
    check("Clip", data(20), low, high)
    check("Clip", data(20), low, high, constants=[1, 2])
    check("Clip", data(20), None, high, constants=[2])
    check("Clip", data(20), low)
    check("Clip", data(20), None, None)
    assert operators_of(import_one("Clip", data(4), low, high, constants=[1, 2])) == ["clip"]


def test_clip_of_integers_beyond_the_exact_floats():
    values = np.array([2**62, -(2**62), 5], np.int64)
    check("Clip", values, np.array(-(2**60) - 1, np.int64), np.array(2**60 + 1, np.int64), constants=[1, 2])
    check("Clip", values, np.array(np.iinfo(np.int64).min), np.array(3, np.int64), constants=[1, 2])


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float32", "int32"),
        ("float32", "float64"),
        ("int64", "float32"),
        ("float32", "bool"),
        ("bool", "float32"),
        ("float32", "float16"),
        ("int32", "int8"),
    ],
)
def test_cast(source, target):
    number = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(target))
    check("Cast", data(3, 4, dtype=source, low=-3, high=3), to=number)


def test_cast_like():
    check("CastLike", data(3), data(1, dtype="int64"))


def test_cast_refuses_types_without_numbers():
    with pytest.raises(UnsupportedError, match="complex64"):
        import_one("Cast", data(3), to=onnx.TensorProto.COMPLEX64)


def test_bit_cast_of_constants_and_integers():
    module = import_one("BitCast", np.array([1.0], np.float32), constants=[0], opset=26, to=onnx.TensorProto.INT32)
    assert module["main"].body.data.tolist() == [0x3F800000]
    assert operators_of(import_one("BitCast", data(3, dtype="int32"), opset=26, to=onnx.TensorProto.UINT32)) == ["cast"]
    module = import_one("BitCast", data(3), opset=26, to=onnx.TensorProto.INT32)
    assert operators_of(module) == ["reinterpret"]
    assert evaluate(module, np.ones(3, np.float32)).tolist() == [0x3F800000] * 3
    module = import_one("BitCast", data(3, dtype="bool"), opset=26, to=onnx.TensorProto.INT8)
    assert evaluate(module, np.array([True, False, True])).tolist() == [1, 0, 1]
    with pytest.raises(UnsupportedError, match="BitCast from float16"):
        import_one("BitCast", data(3, dtype="float16"), opset=26, to=onnx.TensorProto.BFLOAT16)


def test_where():
    check("Where", data(3, 1, dtype="bool"), data(4), data(3, 4))


def test_infinities():
    values = np.array([1, np.inf, -np.inf, np.nan], np.float32)
    check("IsInf", values)
    check("IsInf", values, detect_negative=0)
    check("IsInf", values, detect_positive=0)
    check("IsInf", values, detect_positive=0, detect_negative=0)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums(exclusive, reverse):
    axis = np.array(-1, np.int64)
    check("CumSum", data(3, 4), axis, constants=[1], exclusive=exclusive, reverse=reverse)
