"""Models of opsets 1 to 6: broadcasting by attributes, inference marked by `is_test`."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.frontend.onnx.helpers import data, make_model, run_tilewright
from tilewright.frontend import from_onnx
from tilewright.support.errors import UnsupportedError, UserError


def _model(node: onnx.NodeProto, inputs: dict[str, np.ndarray], opset: int = 6) -> onnx.ModelProto:
    return make_model([node], inputs, [node.output[0]], opset=opset)


def test_broadcasting_from_an_axis_on():
    inputs = {"a": data(2, 3, 4, 5), "b": data(3, 4)}
    node = helper.make_node("Add", ["a", "b"], ["y"], broadcast=1, axis=1)
    (result,) = run_tilewright(_model(node, inputs), inputs)
    np.testing.assert_allclose(result, inputs["a"] + inputs["b"][:, :, None])


def test_broadcasting_at_the_end():
    inputs = {"a": data(2, 3, 4), "b": data(3, 4)}
    node = helper.make_node("Mul", ["a", "b"], ["y"], broadcast=1)
    (result,) = run_tilewright(_model(node, inputs), inputs)
    np.testing.assert_allclose(result, inputs["a"] * inputs["b"])


def test_broadcasting_must_be_asked_for():
    inputs = {"a": data(2, 3), "b": data(3)}
    with pytest.raises(UserError, match="does not ask for broadcasting"):
        from_onnx(_model(helper.make_node("Sub", ["a", "b"], ["y"]), inputs))


def test_broadcasting_that_does_not_fit():
    inputs = {"a": data(2, 3), "b": data(3, 2)}
    with pytest.raises(UserError, match="does not fit"):
        from_onnx(_model(helper.make_node("Sub", ["a", "b"], ["y"], broadcast=1, axis=1), inputs))


def test_prelu_has_a_slope_a_channel():
    inputs = {"x": data(2, 3, 4, 4), "s": data(3)}
    (result,) = run_tilewright(_model(helper.make_node("PRelu", ["x", "s"], ["y"]), inputs), inputs)
    x = inputs["x"]
    np.testing.assert_allclose(result, np.where(x < 0, x * inputs["s"][:, None, None], x), rtol=1e-6)


def test_gemm_adds_a_row_if_asked():
    inputs = {"a": data(2, 3), "b": data(3, 4), "c": data(4)}
    node = helper.make_node("Gemm", ["a", "b", "c"], ["y"], broadcast=1)
    (result,) = run_tilewright(_model(node, inputs), inputs)
    np.testing.assert_allclose(result, inputs["a"] @ inputs["b"] + inputs["c"], rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match="does not ask for broadcasting"):
        from_onnx(_model(helper.make_node("Gemm", ["a", "b", "c"], ["y"]), inputs))


def test_hints_are_dropped():
    inputs = {"x": data(2, 3)}
    node = helper.make_node("Relu", ["x"], ["y"], consumed_inputs=[0])
    (result,) = run_tilewright(_model(node, inputs, opset=5), inputs)
    np.testing.assert_array_equal(result, np.maximum(inputs["x"], 0))


def test_training_forms_are_refused():
    inputs = {"x": data(2, 3)}
    with pytest.raises(UnsupportedError, match="Dropout in training form"):
        from_onnx(_model(helper.make_node("Dropout", ["x"], ["y"]), inputs))


def test_forms_that_changed_are_refused():
    inputs = {"x": data(2, 3)}
    with pytest.raises(UnsupportedError, match="Reshape in the form of opset 4"):
        from_onnx(_model(helper.make_node("Reshape", ["x"], ["y"], shape=[6]), inputs, opset=4))
