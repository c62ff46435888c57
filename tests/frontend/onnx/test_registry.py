"""Converters of others: for operators of a domain of their own."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import tilewright as tw
from tests.frontend.onnx.helpers import data, make_model, run_tilewright
from tilewright.frontend import from_onnx
from tilewright.frontend.onnx import registry
from tilewright.frontend.onnx.registry import converter
from tilewright.support.errors import UnsupportedError, UserError

X = data(2, 3)


@pytest.fixture(autouse=True)
def table(monkeypatch):
    """What is registered here is forgotten afterwards."""
    monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))


def custom(op_type="Fancy", opset=1, **attributes):
    node = helper.make_node(op_type, ["x"], ["y"], name="mine", domain="my.domain", **attributes)
    return make_model([node], {"x": X}, ["y"], domains={"my.domain": opset})


def test_a_converter_of_ones_own():
    @converter("Fancy", domain="my.domain")
    def fancy(node):
        return node.call(
            "multiply", node.input(0), node.builder.constant_like(node.number("factor", 2.0), node.input(0))
        )

    np.testing.assert_allclose(run_tilewright(custom(), {"x": X})[0], 2 * X, rtol=1e-6)
    (result,) = tw.compile(custom(factor=3.0), threads=1).run({"x": X})
    np.testing.assert_allclose(result, 3 * X, rtol=1e-6)
    with pytest.raises(UnsupportedError, match="'colour'"):
        from_onnx(custom(colour=1))


def test_opsets_of_ones_own():
    @converter("Fancy", domain="my.domain", until=1)
    def old(node):
        return node.call("negative", node.input(0))

    @converter("Fancy", domain="my.domain", since=2)
    def new(node):
        return node.call("abs", node.input(0))

    np.testing.assert_array_equal(run_tilewright(custom(opset=1), {"x": X})[0], -X)
    np.testing.assert_array_equal(run_tilewright(custom(opset=2), {"x": X})[0], np.abs(X))


def test_defined_again_it_takes_its_own_place():
    for name in ("negative", "abs"):

        @converter("Fancy", domain="my.domain")
        def fancy(node, name=name):
            return node.call(name, node.input(0))

    np.testing.assert_array_equal(run_tilewright(custom(), {"x": X})[0], np.abs(X))


def test_two_converters_for_one_operator():
    with pytest.raises(UserError, match=r"(?s)a converter for Relu of the domain ai.onnx.*domain="):

        @converter("Relu")
        def relu(node):
            return node.input(0)


@pytest.mark.parametrize("result", [None, 3, [1], np.zeros(3)])
def test_a_converter_that_gives_something_else(result):
    @converter("Fancy", domain="my.domain")
    def fancy(node):
        return result

    with pytest.raises(UserError, match=r"(?s)the converter of Fancy gave \w+, not graph values.*mine"):
        from_onnx(custom())


def test_unknown_operators_say_how_to_convert_them():
    with pytest.raises(
        UnsupportedError, match=r"(?s)unknown operator Fancy in the domain my.domain.*registry.converter"
    ):
        from_onnx(custom())
