"""Matrix products."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.ops.running import apply, data, infer
from tilewright.ir.expr import Var
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError

N, K = Var("n"), Var("k")


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_matmul(transpose_a, transpose_b, dtype):
    a, b = data(2, 1, 3, 4, dtype=dtype), data(5, 4, 6, dtype=dtype)
    given_a = a.swapaxes(-1, -2) if transpose_a else a
    given_b = b.swapaxes(-1, -2) if transpose_b else b
    result = apply("matmul", given_a, given_b, transpose_a=transpose_a, transpose_b=transpose_b)
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(result, expected, rtol=5e-3 if dtype == "float16" else 1e-5, atol=1e-2)


def test_half_precision_accumulates_in_single():
    ones = np.ones((1, 4096), np.float16)
    assert apply("matmul", ones, ones, transpose_b=True).tolist() == [[4096]]


def test_symbolic_shapes():
    kind = infer("matmul", tensor_type((N, K), "float32"), tensor_type((K, 5), "float32"))
    assert kind.shape[0] is N
    assert infer("matmul", tensor_type((N, 4), "float32"), tensor_type((K, 5), "float32")).shape[0] is N


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((2, 3), (4, 5), r"the inner dimensions of \(2, 3\) and \(4, 5\): 3 and 4 must be equal"),
        ((3,), (3, 5), "a must have at least 2 dimensions"),
        ((2, 2, 3), (3, 3, 5), "do not broadcast"),
    ],
)
def test_wrong_shapes(a, b, message):
    with pytest.raises(UserError, match=message):
        infer("matmul", tensor_type(a, "float32"), tensor_type(b, "float32"))


def test_wrong_types():
    with pytest.raises(UserError, match="a is float32, b is float64"):
        infer("matmul", tensor_type((2, 2), "float32"), tensor_type((2, 2), "float64"))
