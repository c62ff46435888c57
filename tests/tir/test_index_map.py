"""Index maps: arithmetic on indices and on data agree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.expr import ExprLike, IntImm, const_value
from tilewright.support.errors import UserError
from tilewright.tir.index_map import IndexMap


def value(expr: object) -> int:
    found = const_value(Analyzer().simplify(expr))  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize("columns", [32, 20, 5])
def test_panels(columns: int) -> None:
    packing = IndexMap.of(lambda k, n: (n // 16, k, n % 16), 2)
    data = np.arange(3 * columns).reshape(3, columns) + 1
    packed = packing.rearrange(data)
    assert packed.shape == packing.new_shape(data.shape) == (-(-columns // 16), 3, 16)
    for k in range(3):
        for n in range(columns):
            new = tuple(value(item) for item in packing.apply([IntImm(k), IntImm(n)]))
            assert packed[new] == data[k, n]
    assert packed.sum() == data.sum()


def test_permutation_and_split_of_four_axes() -> None:
    packing = IndexMap.of(lambda h, w, i, o: (o // 4, h, w, i, o % 4), 4)
    data = np.random.default_rng(0).integers(0, 100, (2, 3, 4, 8))
    np.testing.assert_array_equal(packing.rearrange(data), data.reshape(2, 3, 4, 2, 4).transpose(3, 0, 1, 2, 4))


@pytest.mark.parametrize("columns", [64, 50, 5])
def test_an_axis_in_many_parts_is_rearranged_whatever_its_size(columns: int) -> None:
    packing = IndexMap.of(lambda k, n: (n // 32, k, n % 8 // 2, n % 32 // 8, n % 2), 2)
    assert packing.is_rearrangement() and packing.divides_again()
    data = np.arange(2 * columns).reshape(2, columns) + 1
    packed = packing.rearrange(data)
    for k in range(2):
        for n in range(columns):
            assert packed[n // 32, k, n % 8 // 2, n % 32 // 8, n % 2] == data[k, n]
    assert packed.sum() == data.sum()


@pytest.mark.parametrize(
    "parts",
    [
        lambda n: (n // 32, n % 8 // 2, n % 2),
        lambda n: (n // 32, n % 32 // 8, n % 8, n % 2),
        lambda n: (n // 8, n % 12 // 2, n % 2),
        lambda n: (n % 32, n % 8),
    ],
)
def test_parts_that_are_missing_or_overlap_are_no_rearrangement(parts: Callable[..., tuple[ExprLike, ...]]) -> None:
    assert not IndexMap.of(parts, 1).is_rearrangement()


def test_maps_that_data_cannot_follow() -> None:
    with pytest.raises(UserError, match="cannot be applied to data"):
        IndexMap.of(lambda i: (i * 2,), 1).rearrange(np.zeros(3))
    with pytest.raises(UserError, match="keep every old index"):
        IndexMap.of(lambda i, j: (i,), 2).rearrange(np.zeros((2, 2)))
    with pytest.raises(UserError, match="two different numbers"):
        IndexMap.of(lambda i: (i // 2, i % 4), 1).rearrange(np.zeros(8))


def test_joined_parts_rearrange_encode_and_come_back() -> None:
    index_map = IndexMap.of(lambda k, n: (n // 8, k // 4, n % 8 * 4 + k % 4), 2)
    assert index_map.is_rearrangement()
    data = np.arange(12 * 16).reshape(12, 16)
    packed = index_map.rearrange(data)
    assert packed.shape == (2, 3, 32)
    for k in range(12):
        for n in range(16):
            assert packed[n // 8, k // 4, n % 8 * 4 + k % 4] == data[k, n]
    again = IndexMap.decode(2, index_map.encode())
    np.testing.assert_array_equal(again.rearrange(data), packed)


def test_inner_parts_may_be_divided_again() -> None:
    index_map = IndexMap.of(lambda n, k: (k // 8, n // 16, n % 4 // 2, k % 8 // 4, n % 16 // 4, n % 2, k % 4), 2)
    data = np.arange(32 * 24).reshape(32, 24)
    packed = index_map.rearrange(data)
    assert packed.shape == index_map.new_shape(data.shape) == (3, 2, 2, 2, 4, 2, 4)
    for n in range(32):
        for k in range(24):
            new = tuple(value(item) for item in index_map.apply([IntImm(n), IntImm(k)]))
            assert packed[new] == data[n, k]
    again = IndexMap.decode(2, index_map.encode())
    np.testing.assert_array_equal(again.rearrange(data), packed)
    with pytest.raises(UserError, match="two different numbers"):
        IndexMap.of(lambda i: (i // 6, i % 6 // 4, i % 4), 1).rearrange(np.zeros(24))
