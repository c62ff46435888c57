"""Attention: the loop program against the numpy reference, masks that add and that hide, queries that see nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.topi.differential import run_compiled, run_reference


def arrays(rows: int, columns: int, dtype: str) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shapes = ((2, rows, 3, 4), (2, columns, 3, 4), (2, columns, 3, 5))
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def check(inputs: list[np.ndarray], tolerance: float, **attributes: object) -> np.ndarray:
    (actual,) = run_compiled("nn.attention", inputs, **attributes)
    (expected,) = run_reference("nn.attention", inputs, **attributes)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
    return np.asarray(actual)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-13), ("float16", 4e-3)])
@pytest.mark.parametrize("kind", ["none", "added", "hiding"])
def test_attention(dtype: str, tolerance: float, kind: str) -> None:
    inputs = arrays(5, 6, dtype)
    if kind == "added":
        inputs.append(np.random.default_rng(1).standard_normal((2, 1, 1, 6)).astype(dtype))
    if kind == "hiding":
        inputs.append(np.arange(5)[:, None] >= np.arange(6))
    check(inputs, tolerance, scale=0.5)


def test_hidden_scores_count_for_nothing_whatever_they_are() -> None:
    query, key, value = arrays(2, 3, "float32")
    seen = np.array([True, False, True])
    expected = check([query, key, value, seen], 2e-6)
    key[:, 1] = np.nan
    assert np.array_equal(check([query, key, value, seen], 2e-6), expected)


@pytest.mark.parametrize("hiding", [False, True])
def test_queries_that_see_nothing(hiding: bool) -> None:
    inputs = arrays(2, 3, "float32")
    seen = np.array([[True, False, True], [False, False, False]])
    mask = seen if hiding else np.where(seen, 0, -np.inf).astype(np.float32)
    assert np.isnan(check([*inputs, mask], 2e-6)[:, 1]).all()
    assert not check([*inputs, mask], 2e-6, blind_is_zero=True)[:, 1].any()


def test_no_keys_give_zero() -> None:
    assert not check(arrays(2, 0, "float32"), 0.0).any()
