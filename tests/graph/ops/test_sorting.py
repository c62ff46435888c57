"""The type rule and the reference of topk."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.ops.running import apply, data, infer
from tilewright.ir.types import TensorType, TupleType, tensor_type
from tilewright.support.errors import UserError


def test_greatest_and_least_in_order():
    values, places = apply("topk", np.array([3, 1, 3, 2]), axis=0, k=3)
    assert values.tolist() == [3, 3, 2]
    assert places.tolist() == [0, 2, 3]
    values, places = apply("topk", np.array([[3, 1], [1, 2]]), axis=1, k=1, largest=False)
    assert values.tolist() == [[1], [1]]
    assert places.tolist() == [[1], [0]]


def test_nan_is_the_greatest():
    assert apply("topk", np.array([1.0, np.nan, np.inf]), axis=0, k=2)[1].tolist() == [1, 2]
    assert apply("topk", np.array([np.nan, 1.0, np.inf]), axis=0, k=2, largest=False)[1].tolist() == [1, 2]


def test_refusals():
    assert data(2).shape == (2,)
    with pytest.raises(UserError, match="k is 4, dimension 0 has 3"):
        infer("topk", tensor_type((3,), "float32"), axis=0, k=4)
    with pytest.raises(UserError, match="axis 1 is out of range"):
        infer("topk", tensor_type((3,), "float32"), axis=1, k=1)
    assert isinstance(infer("topk", TensorType(None, tensor_type((), "int8").dtype)), TupleType)
