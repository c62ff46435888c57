"""Products of one value joined: that the meaning stays, and which are joined."""

from __future__ import annotations

import numpy as np

from tests.graph.helpers import function, op, random, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, GraphExpr, Tuple, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.joint_products import joint_products
from tilewright.graph.views import is_view
from tilewright.ir.function import IRModule
from tilewright.target import Target

GPU = Target("cuda")


def products(module: IRModule) -> list[GraphExpr]:
    return [item for item in post_order(module["main"]) if is_call_to(item, "matmul")]


def test_products_of_one_value_are_one() -> None:
    x = var("x", 2, 5, 8)
    weights = [constant(random(n, 8, width)) for n, width in enumerate((6, 3, 4))]
    parts = [op("tanh", op("matmul", x, weight)) for weight in weights]
    # Another value, and a matrix that is no constant, have products of their own.
    other = op("matmul", op("negative", x), weights[0])
    free = op("matmul", x, op("transpose", x, axes=(0, 2, 1)))
    before = infer_types(IRModule([function([x], Tuple((*parts, other, free)))]))
    after = joint_products(before, GraphOptions(target=GPU))
    assert len(products(before)) == 5 and len(products(after)) == 3
    given = random(7, 2, 5, 8)
    for got, want in zip(evaluate(after, given), evaluate(before, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert joint_products(after, GraphOptions(target=GPU))["main"] is after["main"]


def test_transposed_matrices_are_joined_too() -> None:
    x = var("x", 5, 8)
    parts = [op("matmul", x, constant(random(n, width, 8)), transpose_b=True) for n, width in enumerate((6, 3))]
    before = infer_types(IRModule([function([x], Tuple(tuple(parts)))]))
    after = joint_products(before, GraphOptions(target=GPU))
    assert len(products(after)) == 1
    given = random(7, 5, 8)
    for got, want in zip(evaluate(after, given), evaluate(before, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_equal_widths_are_views_and_rows_are_added_at_once() -> None:
    x = var("x", 2, 5, 8)
    parts = []
    for n in range(3):
        product = op("matmul", x, constant(random(n, 8, 6)))
        row = constant(random(10 + n, *((1, 6) if n == 1 else (6,))))
        parts.append(op("tanh", op("add", row, product) if n == 2 else op("add", product, row)))
    before = infer_types(IRModule([function([x], Tuple(tuple(parts)))]))
    after = joint_products(before, GraphOptions(target=GPU))
    calls = [item for item in post_order(after["main"]) if isinstance(item, Call)]
    assert sum(is_call_to(item, "add") for item in calls) == 1 and len(products(after)) == 1
    assert all(is_view(item) for item in calls if is_call_to(item, "slice") or is_call_to(item, "reshape"))
    given = random(7, 2, 5, 8)
    for got, want in zip(evaluate(after, given), evaluate(before, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_rows_stay_apart_where_one_product_has_another_reader() -> None:
    x = var("x", 5, 8)
    whole = [op("matmul", x, constant(random(n, 8, 6))) for n in range(2)]
    sums = [op("add", product, constant(random(n, 6))) for n, product in enumerate(whole)]
    before = infer_types(IRModule([function([x], Tuple((*sums, whole[1])))]))
    after = joint_products(before, GraphOptions(target=GPU))
    assert len(products(after)) == 1
    given = random(7, 5, 8)
    for got, want in zip(evaluate(after, given), evaluate(before, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_processors_keep_them_apart() -> None:
    x = var("x", 5, 8)
    parts = [op("matmul", x, constant(random(n, 8, 4))) for n in range(2)]
    before = infer_types(IRModule([function([x], Tuple(tuple(parts)))]))
    assert joint_products(before, GraphOptions(target=Target("native"))) is before
