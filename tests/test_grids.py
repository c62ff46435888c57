"""Grids of tests: which combinations `make test` runs."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.grids import covering, leave_out_of_grids


@pytest.mark.parametrize(
    ("sizes", "most"), [((4,), 4), ((3, 4), 4), ((1, 5), 5), ((3, 1, 2), 3), ((2, 4, 3), 12), ((2, 2, 3, 2), 8)]
)
def test_every_value_of_two_axes_and_every_pair_of_more_is_met(sizes: tuple[int, ...], most: int) -> None:
    points = list(product(*map(range, sizes)))
    kept = [points[number] for number in covering(points)]
    assert len(kept) <= most
    strength = 1 if sum(size > 1 for size in sizes) <= 2 else 2
    for group in combinations(range(len(sizes)), strength):
        wanted = set(product(*(range(sizes[axis]) for axis in group)))
        assert {tuple(point[axis] for axis in group) for point in kept} == wanted


def test_values_of_a_short_axis_are_met_as_often_as_each_other() -> None:
    points = list(product(range(2), range(8)))
    assert sorted(points[number][0] for number in covering(points)) == [0] * 4 + [1] * 4


def test_a_test_without_parameters_is_kept() -> None:
    assert covering([()]) == {0}


@pytest.mark.grid
@pytest.mark.parametrize(("a", "b"), [(0, 0), (1, 1), (2, 1)])
@pytest.mark.parametrize("c", [0, 1, 2])
def test_of_a_grid(a: int, b: int, c: int) -> None:
    """Names of one `parametrize` are one axis."""
    assert b <= a and 0 <= c < 3


def test_what_is_left_out_has_the_mark_of_random_tests(request: pytest.FixtureRequest) -> None:
    module = request.node.getparent(pytest.Module)
    items = [item for item in module.collect() if isinstance(item, pytest.Function)]
    tests = [item for item in items if item.originalname == "test_of_a_grid"]
    assert len(tests) == 9 and not any(item.get_closest_marker("fuzz") for item in items)
    leave_out_of_grids(items)
    assert sum(item.get_closest_marker("fuzz") is None for item in tests) == 3
    assert all(item.get_closest_marker("fuzz") is None for item in items if item not in tests)
