"""Products that are read in equal parts: that the meaning stays, and which are taken apart."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tests.graph.passes.test_joint_products import GPU, products
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import GraphExpr, Tuple, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.rewrite import static_shape
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.column_parts import column_parts
from tilewright.graph.views import is_view
from tilewright.ir.function import IRModule


def split(value: GraphExpr, bounds: list[int]) -> list[GraphExpr]:
    """Slices of the columns of a matrix of five rows."""
    return [op("slice", value, begin=(0, a), end=(5, b), strides=(1, 1)) for a, b in pairwise(bounds)]


def changed(inputs: list[GraphExpr], results: list[GraphExpr]) -> tuple[IRModule, IRModule]:
    """A module before and after the pass."""
    before = infer_types(IRModule([function(inputs, Tuple(tuple(results)))]))
    return before, column_parts(before, GraphOptions(target=GPU))


def assert_same(before: IRModule, after: IRModule, *given: np.ndarray) -> None:
    for got, want in zip(evaluate(after, *given), evaluate(before, *given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", [(2, 0, 3, 1, 4), (2, 0, 1, 3, 4), (0, 2, 3, 1, 4), None])
@pytest.mark.parametrize("by_slice", [False, True])
def test_heads_are_results_of_their_own(order: tuple[int, ...] | None, by_slice: bool) -> None:
    """However they are turned, and however each is picked."""
    x = var("x", 2, 5, 8)
    product = op("matmul", x, constant(random(0, 8, 96)))
    heads = op("reshape", op("add", constant(random(1, 96)), product), shape=(2, 5, 3, 2, 16))
    turned = heads if order is None else op("transpose", heads, axes=order)
    place = 2 if order is None else order.index(2)
    shape = [(2, 5, 3, 2, 16)[axis] for axis in (order or range(5))]
    parts: list[GraphExpr] = []
    for number in (2, 0, 1):
        begin, end = [0] * 5, list(shape)
        begin[place], end[place] = number, number + 1
        if by_slice:
            part = op("slice", turned, begin=tuple(begin), end=tuple(end), strides=(1,) * 5)
        else:
            part = op("take", turned, constant(np.array(number)), axis=place)
        parts.append(op("tanh", part))
    before, after = changed([x], parts)
    assert_same(before, after, random(7, 2, 5, 8))
    (made,) = products(after)
    assert static_shape(made) == (3, 10, 32)
    slices = [
        item for item in post_order(after["main"]) if getattr(getattr(item, "callee", None), "name", "") == "slice"
    ]
    assert len(slices) == 3 and all(is_view(item) for item in slices)
    assert column_parts(after, GraphOptions(target=GPU))["main"] is after["main"]


def test_slices_of_columns() -> None:
    x = var("x", 5, 8)
    before, after = changed(
        [x], [op("tanh", part) for part in split(op("matmul", x, constant(random(0, 8, 96))), [0, 32, 64, 96])]
    )
    assert_same(before, after, random(7, 5, 8))
    assert static_shape(products(after)[0]) == (3, 5, 32)


def test_what_stays() -> None:
    """Unequal parts, parts that leave columns out, small ones, what is read as a whole too, other matrices."""
    x, y = var("x", 5, 8), var("y", 8, 96)
    whole = op("matmul", x, constant(random(0, 8, 96)))
    cases = [
        split(whole, [0, 32, 96]),
        split(whole, [0, 32, 64]),
        split(op("matmul", x, constant(random(0, 8, 48))), [0, 24, 48]),
        [*split(whole, [0, 48, 96]), op("tanh", whole)],
        split(op("matmul", x, y), [0, 48, 96]),
    ]
    for parts in cases:
        before, after = changed([x, y], parts)
        assert after["main"] is before["main"]
