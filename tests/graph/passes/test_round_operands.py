"""Operands of products in tf32: rounded where they are made, once, and only where instructions would cut bits off."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Constant, GraphExpr, Tuple, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.ops.special import round_to_tf32
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import primitive_functions
from tilewright.graph.passes.round_operands import round_operands
from tilewright.graph.pipeline import optimize
from tilewright.ir.function import IRModule
from tilewright.target import Target

TF32 = Target("cuda -arch=sm_90a -mattr=+tf32")


def calls(module: IRModule, name: str) -> list[Call]:
    return [item for item in post_order(module["main"]) if isinstance(item, Call) and is_call_to(item, name)]


def residual(rows: int = 512, columns: int = 256) -> IRModule:
    """relu(x) goes through a product and around it."""
    x = var("x", rows, columns)
    start = op("nn.relu", x)
    product = op("matmul", start, constant(random(1, columns, columns)))
    return infer_types(IRModule([function([x], op("add", product, start))]))


def test_operands_and_weights_are_rounded_for_all_who_read_them() -> None:
    after = round_operands(residual(), GraphOptions(target=TF32))
    (product,) = calls(after, "matmul")
    (rounding,) = calls(after, "round_to_tf32")
    (total,) = calls(after, "add")
    data, weight = product.args
    assert data is rounding and total.args[1] is rounding
    assert isinstance(weight, Constant)
    np.testing.assert_array_equal(weight.data, round_to_tf32(random(1, 256, 256)))
    x = random(2, 512, 256)
    start = round_to_tf32(np.maximum(x, 0))
    np.testing.assert_allclose(evaluate(after, x), start @ weight.data + start, rtol=1e-4, atol=1e-4)


def test_the_rounding_is_part_of_the_kernel_that_makes_the_value() -> None:
    x = var("x", 512, 256)
    first = op("nn.relu", op("matmul", x, constant(random(1, 256, 256))))
    module = IRModule([function([x], op("matmul", first, constant(random(2, 256, 256))))])
    kernels = list(primitive_functions(optimize(module, GraphOptions(target=TF32))))
    # One for the input, which nobody makes, and one for each product.
    assert len(kernels) == 3


def test_what_is_made_of_rounded_values_is_not_rounded_again() -> None:
    x = var("x", 512, 256)
    weights = constant(random(1, 256, 256))
    pieces: list[GraphExpr] = [x]
    for _ in range(3):
        pieces.append(op("reshape", op("nn.relu", pieces[-1]), shape=(512, 256)))
    products = [op("matmul", piece, weights) for piece in pieces]
    total = products[0]
    for product in products[1:]:
        total = op("add", total, product)
    after = round_operands(infer_types(IRModule([function([x], total)])), GraphOptions(target=TF32))
    assert len(calls(after, "round_to_tf32")) == 1


def test_what_updates_a_weight_sees_all_its_bits() -> None:
    x, weight = var("x", 512, 256), var("weight", 256, 256)
    product = op("matmul", x, op("transpose", weight, axes=(1, 0)))
    # What the second product reads is made of the weight as it is, and rounded afterwards.
    least = op("minimum", op("nn.relu", weight), op("exp", weight))
    results = Tuple((product, op("subtract", weight, constant(np.float32(0.5))), op("matmul", x, least)))
    after = round_operands(infer_types(IRModule([function([x, weight], results)])), GraphOptions(target=TF32))
    given, old = random(2, 512, 256), random(3, 256, 256)
    found, new, third = evaluate(after, given, old)
    np.testing.assert_array_equal(new, old - np.float32(0.5))
    np.testing.assert_allclose(found, round_to_tf32(given) @ round_to_tf32(old).T, rtol=1e-4, atol=1e-4)
    lowest = round_to_tf32(np.minimum(np.maximum(old, 0), np.exp(old)))
    np.testing.assert_allclose(third, round_to_tf32(given) @ lowest, rtol=1e-4, atol=1e-4)


def test_results_of_the_model_are_not_rounded() -> None:
    x = var("x", 512, 256)
    value = op("nn.relu", x)
    product = op("matmul", value, constant(random(1, 256, 256)))
    after = round_operands(infer_types(IRModule([function([x], Tuple((value, product)))])), GraphOptions(target=TF32))
    given = random(2, 512, 256)
    first, _ = evaluate(after, given)
    np.testing.assert_array_equal(first, np.maximum(given, 0))


@pytest.mark.parametrize(
    "target", [Target("cuda -arch=sm_90a"), Target("cuda -arch=sm_80 -mattr=+tf32"), Target("llvm"), Target("opencl")]
)
def test_targets_that_do_not_cut_bits_off_are_left_alone(target: Target) -> None:
    before = residual()
    assert round_operands(before, GraphOptions(target=target))["main"] is before["main"]


def test_small_products_and_other_types_are_left_alone() -> None:
    before = residual(16, 64)
    assert round_operands(before, GraphOptions(target=TF32))["main"] is before["main"]
    x = var("x", 512, 256, dtype="float16")
    product = op("matmul", x, constant(random(1, 256, 256).astype("float16")))
    half = infer_types(IRModule([function([x], product)]))
    assert round_operands(half, GraphOptions(target=TF32))["main"] is half["main"]


def test_rounding_is_to_nearest_and_keeps_what_is_no_number() -> None:
    values = np.array([1 + 2**-11, 1 + 2**-12, -1 - 2**-11, 0.0, -0.0, np.inf, -np.inf, 3.0], np.float32)
    expected = np.array([1 + 2**-10, 1, -1 - 2**-10, 0.0, -0.0, np.inf, -np.inf, 3.0], np.float32)
    np.testing.assert_array_equal(round_to_tf32(values), expected)
    odd = np.array([0x7FFFFFFF, 0x7FC00000, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(round_to_tf32(odd)).all()
    random_values = random(3, 1000) * 100
    error = np.abs(round_to_tf32(random_values) - random_values) / np.abs(random_values)
    assert error.max() <= 2**-11
