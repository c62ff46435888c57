"""Matrix products: batches, broadcasting, transposition, types, empty dimensions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topi.differential import check, random_array

DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")


@given(
    st.tuples(*[st.sampled_from([0, 1, 2, 4])] * 3),
    st.lists(st.sampled_from([1, 2, 3]), max_size=2),
    st.lists(st.integers(0, 2), min_size=2, max_size=2),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.sampled_from(DTYPES),
)
def test_matmul(
    sizes: tuple[int, int, int],
    batch: list[int],
    mask: list[int],
    drop: int,
    transpose_a: bool,
    transpose_b: bool,
    dtype: str,
) -> None:
    rows, columns, depth = sizes
    batch_a = [1 if m == 1 else d for d, m in zip(batch, mask, strict=False)]
    batch_b = [1 if m == 2 else d for d, m in zip(batch, mask, strict=False)][drop:]
    rng = np.random.default_rng(sum(sizes))
    a = random_array(rng, (*batch_a, depth, rows) if transpose_a else (*batch_a, rows, depth), dtype)
    b = random_array(rng, (*batch_b, columns, depth) if transpose_b else (*batch_b, depth, columns), dtype)
    check(
        "matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b, tolerance=5e-6 if dtype == "float32" else None
    )
    if batch_a != batch_b:
        swapped = (np.ascontiguousarray(np.swapaxes(b, -1, -2)), np.ascontiguousarray(np.swapaxes(a, -1, -2)))
        check(
            "matmul",
            *swapped,
            transpose_a=transpose_b,
            transpose_b=transpose_a,
            tolerance=5e-6 if dtype == "float32" else None,
        )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_matmul_keeps_specials(dtype: str) -> None:
    a = np.array([[1, np.nan, 2], [np.inf, 1, 2], [0, 1, 2]]).astype(dtype)
    check("matmul", a, np.eye(3).astype(dtype))


def test_half_precision_accumulates_in_single() -> None:
    a = np.full((1, 4096), 1.0, np.float16)
    check("matmul", a, np.full((4096, 1), 1.0, np.float16))
