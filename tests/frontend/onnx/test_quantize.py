"""Quantisation against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.frontend.onnx.helpers import check, compare, data, import_one, make_model, run_tilewright
from tilewright.support.errors import UnsupportedError, UserError


def scalar(value, dtype="float32"):
    return np.array(value, dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_quantize_and_back(dtype):
    zero = scalar(3, dtype)
    check("QuantizeLinear", data(4, 5, low=-9, high=9), scalar(0.05), zero)
    check("DequantizeLinear", data(4, 5, dtype=dtype, low=0, high=99), scalar(0.05), zero)
    check("QuantizeLinear", data(4, 5), scalar(0.05))


def test_by_axis():
    factors, zeros = np.array([0.1, 0.2, 0.3], np.float32), np.array([1, 2, 3], np.int8)
    check("QuantizeLinear", data(2, 3, 4), factors, zeros)
    check("DequantizeLinear", data(2, 4, 3, dtype="int8", low=-9, high=9), factors, zeros, axis=2)


def test_by_block():
    x = data(2, 6, low=-5, high=5)
    factors = data(2, 3, low=0.1, high=0.3)
    check("QuantizeLinear", x, factors, np.zeros((2, 3), np.int8), axis=1, block_size=2)


def test_dynamic_quantisation_is_expanded_from_its_definition():
    check("DynamicQuantizeLinear", data(4, 5), outputs=3)


def test_integer_products():
    a, b = data(3, 4, dtype="uint8", low=0, high=9), data(4, 2, dtype="int8", low=-9, high=9)
    check("MatMulInteger", a, b, scalar(2, "uint8"), scalar(1, "int8"))
    check("MatMulInteger", a, b)
    x, w = data(1, 2, 5, 5, dtype="uint8", low=0, high=9), data(3, 2, 3, 3, dtype="uint8", low=0, high=9)
    check("ConvInteger", x, w, scalar(2, "uint8"), pads=[1, 1, 1, 1])


def test_quantised_products():
    a, b = data(3, 4, dtype="uint8", low=0, high=99), data(4, 2, dtype="uint8", low=0, high=99)
    one = (scalar(0.1), scalar(3, "uint8"))
    check("QLinearMatMul", a, *one, b, *one, scalar(4.0), scalar(5, "uint8"), opset=10)
    x, w = data(1, 2, 5, 5, dtype="uint8", low=0, high=99), data(3, 2, 3, 3, dtype="uint8", low=0, high=99)
    bias = data(3, dtype="int32", low=-99, high=99)
    check("QLinearConv", x, *one, w, *one, scalar(4.0), scalar(5, "uint8"), bias, opset=10)


def _four_bit_model(op_type):
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.INT4, [2, 2], [-8, 7, 3, -1])
    inputs = ["w", "s"] if op_type == "DequantizeLinear" else ["w"]
    node = onnx.helper.make_node(op_type, inputs, ["y"], name="n")
    model = make_model([node], {"s": scalar(0.5)} if len(inputs) == 2 else {}, ["y"])
    model.graph.initializer.append(weight)
    return model


def test_four_bit_weights_are_moved_and_dequantised():
    model = _four_bit_model("DequantizeLinear")
    (result,) = run_tilewright(model, {"s": scalar(0.5)})
    assert result.tolist() == [[-4.0, 3.5], [1.5, -0.5]]
    (positive,) = run_tilewright(_four_bit_model("Relu"), {})
    assert positive.tolist() == [[0, 7], [3, 0]]
    (kept,) = run_tilewright(_four_bit_model("Identity"), {})
    assert kept.tolist() == [[-8, 7], [3, -1]]


def test_refusals():
    with pytest.raises(UserError, match="2 scales do not fit dimension 1"):
        import_one("QuantizeLinear", data(2, 3), data(2, low=1))
    with pytest.raises(UserError, match="in blocks of"):
        import_one("QuantizeLinear", data(2, 6), data(2, 4, low=1), axis=1, block_size=2)
    with pytest.raises(UnsupportedError, match="quantisation to float32"):
        import_one("QuantizeLinear", data(2, 3), scalar(1.0), scalar(0.0))


def test_a_quantised_chain():
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        onnx.helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    x = data(3, 4)
    stored = {"s": scalar(0.02), "z": scalar(0, "int8")}
    compare(make_model(nodes, {"x": x}, ["y"], stored), {"x": x})
