"""Kernels that differ in numbers alone are one, as far as the numbers do not decide how they compute."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, var
from tilewright.compiler import Compilation
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import GraphExpr, Tuple, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import fuse, primitive_functions
from tilewright.graph.passes.shared_numbers import shared_numbers
from tilewright.ir.dtype import DataType
from tilewright.ir.function import IRModule


def layer(x: GraphExpr, scale: float, zero: float) -> GraphExpr:
    rounded = op("round", op("divide", x, constant(np.float32(scale))))
    return op(
        "cast",
        op("clip", op("add", rounded, constant(np.float32(zero))), minimum=0.0, maximum=255.0),
        dtype=DataType.of("uint8"),
    )


def test_layers_with_scales_of_their_own_are_one_kernel() -> None:
    x = var("x", 4, 8)
    module = infer_types(IRModule([function([x], Tuple((layer(x, 0.5, 3.0), layer(x, 0.25, 7.0))))]))
    compilation = Compilation(module, options=tw.CompileOptions(threads=1))
    assert len(compilation.kernels) == 1
    data = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    for ours, expected in zip(compilation.executable()(data), evaluate(module, data), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_zero_points_are_parameters_too() -> None:
    x = var("x", 4, 8, dtype="int32")
    made = [op("abs", op("subtract", x, constant(np.int32(zero)))) for zero in (3, 7)]
    fused = fuse(infer_types(IRModule([function([x], Tuple(tuple(made)))])), GraphOptions())
    assert [len(item.params) for item in primitive_functions(shared_numbers(fused))] == [2, 2]


@pytest.mark.parametrize(
    ("name", "numbers", "dtype"),
    [
        ("power", (2.0, 3.0), "float32"),
        ("maximum", (1.0, 2.0), "float32"),
        ("divide", (2, 3), "int32"),
        ("multiply", (2, 3), "int32"),
        ("add", (2, 3), "int64"),
    ],
)
def test_numbers_that_decide_how_a_kernel_computes_stay_inside(
    name: str, numbers: tuple[float, float], dtype: str
) -> None:
    x = var("x", 4, dtype=dtype)
    made = [op("abs", op(name, x, constant(np.asarray(number, dtype)))) for number in numbers]
    fused = fuse(infer_types(IRModule([function([x], Tuple(tuple(made)))])), GraphOptions())
    assert shared_numbers(fused) is fused


def test_a_number_that_two_operators_read_is_one_parameter() -> None:
    x = var("x", 4)

    def twice(number: float) -> GraphExpr:
        shared = constant(np.float32(number))
        return op("abs", op("multiply", op("add", x, shared), shared))

    module = infer_types(IRModule([function([x], Tuple((twice(2.0), twice(3.0))))]))
    made = shared_numbers(fuse(module, GraphOptions()))
    assert [len(item.params) for item in primitive_functions(made)] == [2, 2]
    data = np.linspace(-2, 2, 4, dtype=np.float32)
    for ours, expected in zip(evaluate(made, data), evaluate(module, data), strict=True):
        np.testing.assert_array_equal(ours, expected)
