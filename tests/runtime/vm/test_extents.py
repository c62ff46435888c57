"""Extents of programs: numbers, symbols and arithmetic; the shapes of views, computed once for each set of symbols."""

from __future__ import annotations

import pytest

from tilewright.runtime.vm import extents
from tilewright.runtime.vm.extents import ViewShape, extent_in


@pytest.mark.parametrize(("extent", "expected"), [(7, 7), ("s1", 5), ("(s0 + 1) // 2 + s1", 7), ("s1 // (s0 - 3)", 0)])
def test_extents(extent: int | str, expected: int) -> None:
    assert extent_in(extent, [3, 5]) == expected


def test_shapes_of_views() -> None:
    assert ViewShape(2, (3, 4)).fixed == (2, (3, 4), 12)
    assert ViewShape(0, ()).fixed == (0, (), 1)
    shape = ViewShape("s0", ("s1", 2, "s0 * s1"))
    assert shape.fixed is None
    assert shape.at([3, 5]) == (3, (5, 2, 15), 150)
    assert shape.at([1, 5]) == (1, (5, 2, 5), 50)
    assert shape.at([3, 5]) is shape.at([3, 5])


@pytest.mark.parametrize("dims", [(-1, 4), (0, -2), (-2, -3)])
def test_dimensions_below_zero_have_no_elements_to_count(dims: tuple[int, ...]) -> None:
    assert ViewShape(0, dims).fixed == (0, dims, -1)
    assert ViewShape(0, ("s0", *dims)).at([0])[2] == -1


def test_only_so_many_shapes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extents, "_MOST_KNOWN", 4)
    shape = ViewShape(0, ("s0",))
    assert [shape.at([size])[2] for size in range(20)] == list(range(20))
    assert len(shape._known) <= 4
