"""Batch normalisation by the statistics of the batch: one gradient through data, mean and variance."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.gradient.checks import check_forward, check_reverse
from tests.graph.helpers import op
from tests.requirements import need_module
from tilewright.graph.gradient import vjp
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Tuple, TupleGet, Var
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import graph_functions, post_order
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type

SHAPE = (4, 3, 2)


def normalised(x: GraphExpr, scale: GraphExpr, bias: GraphExpr, both: GraphExpr) -> GraphExpr:
    return op("nn.batch_norm", x, scale, bias, *items(both), epsilon=0.1)


def items(both: GraphExpr) -> list[GraphExpr]:
    return [TupleGet(both, place) for place in range(2)]


def program(build: Callable[..., GraphExpr]) -> Function:
    x, *vectors = (Var(name, tensor_type(shape, "float64")) for name, shape in (("x", SHAPE), ("s", (3,)), ("b", (3,))))
    return Function("main", (x, *vectors), build(x, *vectors, op("moments", x, axes=(0, 2))))


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(SHAPE) * 2 + 5, *(rng.standard_normal(3) for _ in range(2))]


def calls(module: IRModule) -> list[str]:
    """The operators of the gradient."""
    nodes = [item for function in graph_functions(module).values() for item in post_order(function)]
    return [item.callee.name for item in nodes if isinstance(item, Call) and isinstance(item.callee, Operator)]


CASES: dict[str, Callable[..., GraphExpr]] = {
    "alone": normalised,
    "statistics are results": lambda x, s, b, both: Tuple((normalised(x, s, b, both), *items(both))),
    "used twice": lambda x, s, b, both: op("multiply", normalised(x, s, b, both), normalised(x, b, s, both)),
    "of other data": lambda x, s, b, both: normalised(op("multiply", x, x), s, b, both),
    "in turn": lambda x, s, b, both: op("add", normalised(x, s, TupleGet(both, 0), both), x),
}


@pytest.mark.parametrize("case", list(CASES))
def test_against_central_differences(case: str) -> None:
    built = program(CASES[case])
    backward = check_reverse(built, arrays(), tolerance=1e-4)
    check_forward(built, arrays())
    if case == "alone":
        # The gradient of the gradient, and two reads of the data: one for sums, one for what comes of them.
        inputs = [*arrays(), np.random.default_rng(1).standard_normal(SHAPE)]
        check_reverse(backward, inputs, tolerance=1e-3)
        names = calls(backward)
        assert names.count("nn.batch_norm_sums") == 1 and "mean" not in names and "sum" not in names


def test_against_torch() -> None:
    torch = need_module("torch")
    x, scale, bias = (torch.tensor(value, requires_grad=True) for value in arrays())
    torch.nn.functional.batch_norm(x, None, None, scale, bias, training=True, eps=0.1).pow(2).sum().backward()
    squared = program(lambda *args: op("multiply", normalised(*args), normalised(*args)))
    results = evaluate(vjp(squared), *arrays(), np.ones(SHAPE))
    assert isinstance(results, tuple)
    for mine, theirs in zip(results[1:], (x, scale, bias), strict=True):
        np.testing.assert_allclose(mine, theirs.grad.numpy(), rtol=1e-9, atol=1e-9)
