"""Products of layers, and which layers are little."""

from __future__ import annotations

from tests.graph.helpers import function, op, var
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.layer_products import most_of_little, products_of
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import tensor_type

LAYOUTS = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


def typed(params: list[Var], body: GraphExpr) -> Function:
    result = infer_types(function(params, body))
    assert isinstance(result, Function)
    return result


def test_products_are_those_of_layers_with_weights() -> None:
    x, weights = var("x", 1, 16, 16, 16), var("w", 3, 3, 16, 16)
    layer = op("nn.conv2d", x, weights, strides=(2, 2), padding=(1, 1, 1, 1), **LAYOUTS)
    assert products_of(typed([x, weights], op("nn.relu", layer))) == 8 * 8 * 16 * 3 * 3 * 16
    assert products_of(typed([x], op("nn.relu", x))) == 0
    n = Var("x", tensor_type((1, Symbol("n"), 8, 16), "float32"))
    open_size = op("nn.conv2d", n, weights, strides=(1, 1), padding=(1, 1, 1, 1), **LAYOUTS)
    assert products_of(typed([n, weights], open_size)) == 0, "of open sizes nobody knows"


def test_layers_are_little_that_are_together_a_part() -> None:
    assert most_of_little([1000, 60, 40, 10], 111) == 60
    assert most_of_little([1000, 60, 60, 10], 113) == 10, "equal layers are little together or not at all"
    assert most_of_little([1, 1, 1], 0.3) == 0
    assert most_of_little([], 0) == 0
