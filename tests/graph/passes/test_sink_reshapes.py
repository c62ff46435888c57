"""Reshapes of products move below elementwise operators; the meaning stays, and one kernel is left."""

from __future__ import annotations

import numpy as np

from tests.graph.helpers import function, op, random, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, GraphExpr, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import primitive_functions
from tilewright.graph.passes.sink_reshapes import sink_reshapes
from tilewright.graph.pipeline import optimize
from tilewright.ir.function import IRModule

X = var("x", 2, 5, 4)
R = var("r", 2, 5, 6)
SHAPES = [(2, 5, 4), (2, 5, 6)]


def product() -> GraphExpr:
    flat = op("matmul", op("reshape", X, shape=(10, 4)), constant(random(7, 4, 6)))
    return op("reshape", flat, shape=(2, 5, 6))


def module(body: GraphExpr) -> IRModule:
    return infer_types(IRModule([function([X, R], body)]))


def kernels(found: IRModule) -> list[str]:
    return [str(item.notes["name"]) for item in primitive_functions(optimize(found, GraphOptions()))]


def check(before: IRModule) -> IRModule:
    after = sink_reshapes(before)
    arrays = [random(n, *shape) for n, shape in enumerate(SHAPES)]
    np.testing.assert_allclose(evaluate(after, *arrays), evaluate(before, *arrays), rtol=1e-6, atol=1e-6)
    return after


def test_bias_residual_and_activation() -> None:
    body = op("nn.relu", op("add", op("add", product(), constant(random(3, 1, 1, 6))), R))
    after = check(module(body))
    last = after["main"].body
    assert is_call_to(last, "reshape")
    assert isinstance(last, Call)
    assert is_call_to(last.args[0], "nn.relu")
    assert kernels(module(body)) == ["fused_matmul_add_add_nn_relu"]


def test_a_value_that_is_used_twice() -> None:
    biased = op("add", product(), constant(random(3, 6)))
    body = op("multiply", biased, op("erf", op("multiply", biased, constant(np.float32(0.5)))))
    check(module(body))
    assert kernels(module(body)) == ["fused_matmul_add_multiply_erf_multiply"]


def test_what_is_read_in_its_shape_stays_readable() -> None:
    biased = op("add", product(), constant(random(3, 6)))
    body = op("concatenate", biased, op("nn.relu", biased), axis=1)
    check(module(body))


def test_other_reshapes_stay() -> None:
    rows = op("add", product(), constant(random(3, 5, 1)))
    view = op("add", op("reshape", X, shape=(2, 10, 2)), constant(random(3, 2)))
    narrow = op(
        "add", op("reshape", op("matmul", X, constant(random(7, 4, 6))), shape=(2, 10, 3)), constant(random(3, 3))
    )
    for body in (rows, view, narrow):
        before = module(body)
        assert sink_reshapes(before)["main"] is before["main"]


def test_any_reshape_sinks_below_what_has_no_rows() -> None:
    narrow = op("reshape", op("matmul", X, constant(random(7, 4, 6))), shape=(2, 10, 3))
    body = op("multiply", op("nn.relu", narrow), constant(np.float32(0.5)))
    assert is_call_to(check(module(body))["main"].body, "reshape")
    assert kernels(module(body)) == ["fused_matmul_nn_relu_multiply"]


def test_two_products_of_different_shapes_come_to_an_end() -> None:
    # The windows of a shifted image and the image itself: each could take the other's shape for ever.
    cubes = op("matmul", op("reshape", X, shape=(5, 2, 4)), constant(random(8, 5, 4, 6)))
    body = op("nn.relu", op("add", product(), op("reshape", cubes, shape=(2, 5, 6))))
    check(module(body))
    assert len(kernels(module(body))) == 2
