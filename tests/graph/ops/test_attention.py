"""The type rule of attention and its messages; its meaning by plain products and softmax."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph.ir.op import get_operator
from tilewright.ir.types import TensorType, tensor_type
from tilewright.support.errors import UserError

SHAPES = ((2, 5, 3, 4), (2, 7, 3, 4), (2, 7, 3, 6))


def infer(*shapes: tuple[int, ...], mask: str = "float32", dtype: str = "float32") -> TensorType:
    found = get_operator("nn.attention")
    types = [tensor_type(shape, mask if n == 3 else dtype) for n, shape in enumerate(shapes)]
    result = found.infer(types, found.attributes_class())
    assert isinstance(result, TensorType)
    return result


def test_the_result_has_the_queries_places_and_the_values_size() -> None:
    assert infer(*SHAPES).static_shape == (2, 5, 3, 6)
    assert infer(*SHAPES, (2, 1, 1, 7)).static_shape == (2, 5, 3, 6)
    assert infer(*SHAPES, (5, 7), mask="bool").static_shape == (2, 5, 3, 6)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 5, 3, 4), (2, 7, 3, 5), (2, 7, 3, 6)), "sizes of a query, and of a key"),
        (((2, 5, 3, 4), (2, 7, 3, 4), (2, 8, 3, 6)), "numbers of keys, and of values"),
        (((2, 5, 3, 4), (2, 7, 1, 4), (2, 7, 3, 6)), "heads of the key, and of the value"),
        (((2, 5, 3, 4), (2, 7, 2, 4), (2, 7, 2, 6)), "3 heads of queries cannot share 2 heads of keys"),
        (((2, 5, 3, 4), (2, 7, 3, 4), (1, 7, 3, 6)), "the batch of the query, and of the value"),
        ((*SHAPES, (4, 2, 3, 5, 7)), "does not fit the scores"),
    ],
)
def test_what_does_not_fit(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        infer(*shapes)


@pytest.mark.parametrize("diagonals", [{}, {"last": 1}, {"first": -1, "last": 2}])
def test_meaning(diagonals: dict[str, int]) -> None:
    random = np.random.default_rng(0)
    query, key, value = (random.standard_normal(shape).astype(np.float32) for shape in SHAPES)
    found = get_operator("nn.attention")
    actual = found.reference([query, key, value], found.attributes_class(scale=0.5, **diagonals))
    distance = np.arange(7) - np.arange(5)[:, None]
    seen = (diagonals.get("first", -9) <= distance) & (distance <= diagonals.get("last", 9))
    for batch, head in np.ndindex(2, 3):
        scores = np.exp(0.5 * query[batch, :, head] @ key[batch, :, head].T) * seen
        expected = scores / scores.sum(axis=1, keepdims=True) @ value[batch, :, head]
        np.testing.assert_allclose(actual[batch, :, head], expected, rtol=1e-4, atol=1e-5)
