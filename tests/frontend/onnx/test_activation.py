"""Activation functions against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.helpers import check, data, import_one, operators_of
from tilewright.support.errors import UserError

_X = data(3, 4, 5, low=-4, high=4)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("Relu", {}),
        ("LeakyRelu", {}),
        ("LeakyRelu", {"alpha": 0.3}),
        ("Elu", {"alpha": 1.5}),
        ("Celu", {}),
        ("Celu", {"alpha": 2.0}),
        ("Selu", {}),
        ("Selu", {"alpha": 1.1, "gamma": 2.0}),
        ("HardSigmoid", {}),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
        ("HardSwish", {}),
        ("Softplus", {}),
        ("Softsign", {}),
        ("ThresholdedRelu", {"alpha": 0.7}),
        ("Mish", {}),
        ("Gelu", {}),
        ("Gelu", {"approximate": "tanh"}),
        ("Shrink", {"bias": 0.25, "lambd": 0.75}),
        ("Softmax", {}),
        ("Softmax", {"axis": 1}),
        ("LogSoftmax", {"axis": 0}),
        ("Hardmax", {"axis": 1}),
    ],
)
def test_activation(op_type, attributes):
    check(op_type, _X, **attributes)


def test_swish():
    (result,) = [operators_of(import_one("Swish", _X, opset=24, alpha=0.5))]
    assert result == ["multiply", "multiply", "sigmoid"]


def test_prelu_broadcasts_its_slope():
    check("PRelu", _X, data(4, 1))
    for values, slope in (((3,), (1, 1, 3)), ((2, 3), (2, 1, 3)), ((1, 3), (2, 3)), ((2, 3), (1, 1, 2, 3))):
        check("PRelu", data(*values), data(*slope))
    check("PRelu", data(6, dtype="int32", low=-5, high=5), np.array([3], np.int32))


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_softmax_before_opset_13_flattens(op_type, axis):
    check(op_type, _X, opset=11, axis=axis)


def test_softmax_before_opset_13_of_a_matrix_needs_no_reshape():
    assert operators_of(import_one("Softmax", data(2, 3), opset=11)) == ["nn.softmax"]
    assert operators_of(import_one("Softmax", data(2, 3, 1, 1), opset=11)) == ["nn.softmax"]


def test_gelu_has_two_forms():
    with pytest.raises(UserError, match="none or tanh"):
        import_one("Gelu", _X, approximate="fast")


def test_axes_out_of_range_are_refused():
    with pytest.raises(UserError, match="axis 3 is out of range"):
        import_one("Softmax", _X, axis=3)


def test_hardmax_of_nothing():
    for axis in (0, 1):
        check("Hardmax", data(0, 3), axis=axis)
