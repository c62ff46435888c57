"""Rows of several axes as rows of one: which products they are joined in, and that results are right."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op
from tilewright.compiler import Compilation
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import IntImm, PrimExpr
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, tensor_type
from tilewright.lower.joined_rows import join_rows

N, LENGTH = Symbol("n"), Symbol("length")


def var(name: str, *shape: PrimExpr | int, dtype: str = "float32") -> Var:
    return Var(name, tensor_type(shape, dtype))


def typed(params: list[Var], body: GraphExpr) -> Function:
    result = infer_types(function(params, body))
    assert isinstance(result, Function)
    return result


def shapes(func: Function) -> list[tuple[object, ...]]:
    kinds = [item.type for item in (*func.params, func.body)]
    return [tuple(const(dim) for dim in kind.shape or ()) for kind in kinds if isinstance(kind, TensorType)]


def const(dim: PrimExpr | None) -> object:
    return dim.value if isinstance(dim, IntImm) else dim


X, W, B, R = var("x", 5, 8, 12), var("w", 12, 20), var("b", 20), var("r", 5, 8, 20)


def test_rows_of_two_axes_become_one() -> None:
    after, sizes = join_rows(typed([X, W, B, R], op("add", op("nn.relu", op("add", op("matmul", X, W), B)), R)))
    assert not sizes
    assert shapes(after) == [(1, 40, 12), (12, 20), (20,), (1, 40, 20), (1, 40, 20)]


def test_open_rows_are_one_symbol() -> None:
    x = var("x", N, LENGTH, 12)
    after, sizes = join_rows(typed([x, W], op("matmul", x, W)))
    ((rows, count),) = sizes.items()
    assert count is N * LENGTH and shapes(after) == [(1, rows, 12), (12, 20), (1, rows, 20)]


def test_rows_of_bytes_with_their_scales() -> None:
    x, w, s = var("x", 3, 4, 5, 12, dtype="int8"), var("w", 12, 20, dtype="int8"), var("s", 3, 4, 5, 1)
    product = op("cast", op("qnn.matmul", x, w), dtype=FLOAT32)
    after, _ = join_rows(typed([x, w, s], op("multiply", product, s)))
    assert shapes(after) == [(1, 1, 60, 12), (12, 20), (1, 1, 60, 1), (1, 1, 60, 20)]


@pytest.mark.parametrize(
    ("params", "body"),
    [
        ([flat := var("x", 1, 8, 12), W], op("matmul", flat, W)),
        ([X, many := var("w", 5, 12, 20)], op("matmul", X, many)),
        ([turned := var("x", 5, 12, 8), W], op("matmul", turned, W, transpose_a=True)),
        ([X, W, line := var("r", 8, 20)], op("add", op("matmul", X, W), line)),
        ([X, W, each := var("r", 5, 1, 20)], op("add", op("matmul", X, W), each)),
        ([X, W], op("transpose", op("matmul", X, W), axes=(1, 0, 2))),
        ([X, W], op("nn.softmax", op("matmul", X, W), axis=1)),
        ([X], op("nn.relu", X)),
    ],
    ids=["one axis", "a matrix each", "turned", "lines", "by element", "rows moved", "over rows", "no product"],
)
def test_others_stay(params: list[Var], body: GraphExpr) -> None:
    before = typed(params, body)
    assert join_rows(before) == (before, {})


@pytest.mark.parametrize("rows", [(1, 1), (2, 3), (35, 8), (3, 1, 7), (0, 4)])
def test_results_are_right(rows: tuple[int, ...]) -> None:
    """Of sizes that are known and open, with a residual, tiles that end inside an element of the batch."""
    random_numbers = np.random.default_rng(0)
    weights, bias = (constant(random_numbers.standard_normal(shape).astype(np.float32)) for shape in ((12, 70), (70,)))
    given = [random_numbers.standard_normal((*rows, width)).astype(np.float32) for width in (12, 70)]
    symbols = [Symbol(f"n{number}") for number in range(len(rows))]
    wanted = None
    for sizes in (rows, symbols):
        x, r = var("x", *sizes, 12), var("r", *sizes, 70)
        body = op("add", op("nn.relu", op("add", op("matmul", x, weights), bias)), r)
        module = infer_types(IRModule([function([x, r], body)]))
        wanted = evaluate(module, *given) if wanted is None else wanted
        got = tw.compile(module, target="native", threads=1)(*given)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_model_has_joined_rows_on_cpus_alone() -> None:
    x = var("x", 35, 8, 12)
    module = infer_types(IRModule([function([x], op("matmul", x, constant(np.ones((12, 20), np.float32))))]))
    (kernel,) = Compilation(module, target="native", threads=1).kernels
    assert [const(dim) for dim in kernel.func.buffers[0].shape] == [1, 280, 12]
    (kernel,) = Compilation(module, target="cuda").kernels
    assert [const(dim) for dim in kernel.func.buffers[0].shape] == [35, 8, 12]
