"""Operands of float32 products on GPUs: turned where kernels would copy them word by word, once, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, GraphExpr, Tuple, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import primitive_functions
from tilewright.graph.passes.operand_order import operand_order
from tilewright.graph.pipeline import optimize
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError
from tilewright.target import Target

TF32 = Target("cuda -arch=sm_90a -mattr=+tf32")
PLAIN = Target("cuda -arch=sm_90a")


def calls(module: IRModule, name: str) -> list[Call]:
    return [item for item in post_order(module["main"]) if isinstance(item, Call) and is_call_to(item, name)]


def after(target: Target, params: list[Var], body: GraphExpr) -> tuple[IRModule, IRModule]:
    before = infer_types(IRModule([function(params, body)]))
    return before, operand_order(before, GraphOptions(target=target))


def check(before: IRModule, changed: IRModule, *values: np.ndarray) -> None:
    for got, wanted in zip(evaluate(changed, *values), evaluate(before, *values), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)


def gradients() -> tuple[list[Var], GraphExpr]:
    """The products of a dense layer: forward, for its data, for its weights."""
    x, w, dy = var("x", 512, 128), var("w", 256, 128), var("dy", 512, 256)
    forward = op("matmul", x, w, transpose_b=True)
    data, weights = op("matmul", dy, w), op("matmul", dy, x, transpose_a=True)
    return [x, w, dy], Tuple((forward, data, weights))


def test_tensor_cores_get_rows_of_steps() -> None:
    before, changed = after(TF32, *gradients())
    for product in calls(changed, "matmul"):
        attributes = product.attributes
        assert (attributes.transpose_a, attributes.transpose_b) == (False, True)  # type: ignore[attr-defined]
    # w for the data's gradient, x and dy for that of the weights.
    assert len(calls(changed, "transpose")) == 3
    check(before, changed, random(1, 512, 128), random(2, 256, 128), random(3, 512, 256))


def test_threads_get_rows_of_columns() -> None:
    before, changed = after(PLAIN, *gradients())
    flags = [(item.attributes.transpose_a, item.attributes.transpose_b) for item in calls(changed, "matmul")]  # type: ignore[attr-defined]
    # The gradient of the weights has few rows, and its first operand is read as it lies.
    assert flags == [(False, False), (False, False), (True, False)]
    assert len(calls(changed, "transpose")) == 1
    check(before, changed, random(1, 512, 128), random(2, 256, 128), random(3, 512, 256))


def test_an_operand_is_turned_once_for_all_its_readers() -> None:
    x, w, v = var("x", 512, 128), var("w", 128, 256), var("v", 512, 128)
    body = Tuple((op("matmul", x, w), op("matmul", v, w)))
    _, changed = after(TF32, [x, w, v], body)
    (turned,) = calls(changed, "transpose")
    assert [item.args[1] for item in calls(changed, "matmul")] == [turned, turned]


def test_what_was_turned_before_is_made_from_where_it_lay() -> None:
    """Weights [o, i, h, w] become [h, w, i, o] and are rounded; products read [o, h, w, i], made in one step."""
    x, w = var("x", 2, 16, 16, 64), var("w", 64, 64, 3, 3)
    kernel = op("round_to_tf32", op("transpose", w, axes=(2, 3, 1, 0)))
    body = op("nn.conv2d", x, kernel, padding=(1, 1, 1, 1), data_layout="NHWC", kernel_layout="HWIO")
    before, changed = after(TF32, [x, w], Tuple((body,)))
    (found,) = calls(changed, "nn.conv2d_by_filters")
    rounding = found.args[1]
    assert isinstance(rounding, Call) and is_call_to(rounding, "round_to_tf32")
    (turned,) = calls(changed, "transpose")
    assert turned.attributes.axes == (0, 2, 3, 1) and rounding.args[0] is turned  # type: ignore[attr-defined]
    check(before, changed, random(1, 2, 16, 16, 64), random(2, 64, 64, 3, 3))


def test_what_is_turned_back_is_not_turned_at_all() -> None:
    x, w = var("x", 512, 128), var("w", 256, 128)
    _, changed = after(TF32, [x, w], op("matmul", x, op("transpose", w, axes=(1, 0))))
    assert not calls(changed, "transpose")
    (product,) = calls(changed, "matmul")
    assert product.args[1].name == "w"  # type: ignore[attr-defined]


@pytest.mark.parametrize("target", [Target("llvm"), Target("opencl"), TF32, PLAIN])
def test_constants_small_products_and_other_targets_are_left_alone(target: Target) -> None:
    x, w, narrow = var("x", 512, 256), var("w", 16, 256), var("n", 32, 32)
    half, other = var("h", 512, 256, dtype="float16"), var("o", 256, 256, dtype="float16")
    for params, body in (
        ([x], op("matmul", x, constant(random(1, 256, 256)))),
        ([x, w], op("matmul", x, w, transpose_b=True)),
        ([narrow], op("matmul", narrow, narrow, transpose_a=True)),
        ([half, other], op("matmul", half, other)),
    ):
        before, changed = after(target, params, body)
        assert changed["main"] is before["main"]
    if target not in (TF32, PLAIN):
        before, changed = after(target, *gradients())
        assert changed["main"] is before["main"]


def test_sizes_that_are_not_known_are_left_alone() -> None:
    x, w = var("x", Symbol("n"), 256), var("w", 512, 256)
    before, changed = after(PLAIN, [x, w], op("matmul", x, w, transpose_b=True))
    assert changed["main"] is before["main"]


def test_the_pipeline_does_not_turn_them_back() -> None:
    params, body = gradients()
    module = optimize(IRModule([function(params, body)]), GraphOptions(target=TF32))
    kernels = [item for kernel in primitive_functions(module) for item in post_order(kernel)]
    found = [item.attributes for item in kernels if isinstance(item, Call) and is_call_to(item, "matmul")]
    assert len(found) == 3
    assert all(isinstance(item, MatmulAttributes) and item.transpose_b and not item.transpose_a for item in found)


def test_filters_first_is_a_layout_of_its_own() -> None:
    x, w, wrong = var("x", 1, 5, 5, 4), var("w", 6, 3, 3, 4), var("w", 6, 3, 3, 5)
    other = op("nn.conv2d_by_filters", x, w, data_layout="NHWC", kernel_layout="HWIO")
    with pytest.raises(UserError, match="NHWC and OHWI"):
        infer_types(function([x, w], other))
    other = op("nn.conv2d_by_filters", x, wrong, data_layout="NHWC", kernel_layout="OHWI")
    with pytest.raises(UserError, match="input channels"):
        infer_types(function([x, wrong], other))
