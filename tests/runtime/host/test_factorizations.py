"""Factorisations that the host does: put together again they are the matrices, and what has none is NaN alone."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.runtime.host import host_function
from tilewright.support.errors import UserError


def _matrices(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def _run(name, *values, **attributes):
    return host_function(name)(list(values), attributes)


@pytest.mark.parametrize(("rows", "columns", "steps"), [(5, 5, 5), (70, 70, 70), (40, 66, 40), (66, 40, 33)])
def test_rows_in_their_new_order_are_the_product_of_both_factors(rows, columns, steps):
    a = _matrices(2, rows, columns)
    packed, pivots = _run("host.lu", a, steps=steps, pivot=True)
    lower = np.tril(packed, -1)[:, :, :steps] + np.eye(rows, steps)
    upper = np.triu(packed)[:, :steps]
    untouched = (np.arange(rows) >= steps)[:, None] & (np.arange(columns) >= steps)
    rest = np.where(untouched, packed, 0)
    (order,) = _run("host.exchanged", pivots, rows=rows)
    np.testing.assert_allclose(lower @ upper + rest, np.take_along_axis(a, order[..., None], 1), atol=2e-5)
    assert (np.abs(np.tril(packed, -1)[:, :, :steps]) <= 1).all()


def test_elimination_without_exchanges_keeps_the_rows():
    a = _matrices(40, 40) + 30 * np.eye(40, dtype=np.float32)
    packed, pivots = _run("host.lu", a, steps=40, pivot=False)
    assert pivots.tolist() == list(range(40))
    np.testing.assert_allclose((np.tril(packed, -1) + np.eye(40)) @ np.triu(packed), a, atol=1e-4)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular_systems_of_one_matrix_and_many_right_sides(upper, unit):
    a = (np.triu if upper else np.tril)(_matrices(9, 9) * 0.2 + 2 * np.eye(9, dtype=np.float32))
    right = _matrices(3, 9, 2)
    (x,) = _run("host.solve_triangular", a, right, upper=upper, unit=unit)
    matrix = a - np.diag(np.diag(a)) + np.eye(9) if unit else a
    np.testing.assert_allclose(matrix @ x, right, atol=1e-4)


def test_a_zero_on_the_diagonal_gives_infinities_and_no_error():
    (x,) = _run("host.solve_triangular", np.diag([1.0, 0.0]), np.ones((2, 1)), upper=True, unit=False)
    assert np.isinf(x[1]).all()


def test_reflections_of_the_unit_matrix_are_orthogonal_and_give_the_matrix():
    a = _matrices(2, 40, 36)
    packed, factors = _run("host.reflections", a)
    (q,) = _run("host.reflect", packed, factors, np.eye(40, dtype=np.float32), first=False)
    np.testing.assert_allclose(np.swapaxes(q, -1, -2) @ q, np.broadcast_to(np.eye(40), q.shape), atol=1e-5)
    np.testing.assert_allclose(q @ np.triu(packed), a, atol=1e-5)
    (back,) = _run("host.reflect", packed, factors, a, first=True)
    np.testing.assert_allclose(back, np.triu(packed), atol=1e-5)


@pytest.mark.parametrize("name", ["host.cholesky", "host.eigh", "host.svd", "host.eig"])
def test_one_bad_matrix_of_a_batch_is_nan_and_the_others_stay(name):
    options = {"host.eigh": {"upper": False}, "host.svd": {"full_matrices": False}, "host.eig": {"left": True}}
    base = _matrices(4, 4)
    good = base @ base.T + 3 * np.eye(4, dtype=np.float32)
    bad = np.full_like(good, np.nan) if name != "host.cholesky" else -good
    alone = _run(name, good, **options.get(name, {}))
    for part, wanted in zip(_run(name, np.stack([bad, good]), **options.get(name, {})), alone, strict=True):
        assert part.dtype == np.float32
        assert np.isnan(part[0]).all()
        np.testing.assert_array_equal(part[1], wanted)


def test_left_eigenvectors_belong_to_the_eigenvalues():
    a = _matrices(3, 7, 7)
    real, imaginary, *vectors = _run("host.eig", a, left=True)
    sizes = (real + 1j * imaginary)[..., None, :]
    right, left = vectors[0] + 1j * vectors[1], vectors[2] + 1j * vectors[3]
    np.testing.assert_allclose(a @ right, right * sizes, atol=1e-4)
    np.testing.assert_allclose(np.swapaxes(a, -1, -2) @ left, left * np.conj(sizes), atol=1e-4)


@pytest.mark.parametrize("place", [-1, 3])
def test_a_row_that_is_not_there_cannot_be_exchanged(place):
    with pytest.raises(UserError, match=f"rows are exchanged with row {place}, there are 3"):
        _run("host.exchanged", np.array([0, place, 2]), rows=3)
