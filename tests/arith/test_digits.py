"""Digits of numbers in mixed radixes: joined where they are complete, and only then."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.arith.analyzer import Analyzer, Interval
from tilewright.arith.digits import joined_digits
from tilewright.ir.build import floordiv, floormod, le, lt
from tilewright.ir.expr import IntImm, PrimExpr, Range, Var, const_value
from tilewright.ir.visit import substitute

B, H, W, OUTER, INNER, Y = (Var(name) for name in ("b", "h", "w", "outer", "inner", "y"))
X = OUTER * 256 + INNER


def analyzer() -> Analyzer:
    known = Analyzer()
    known.bind(OUTER, Interval(0, None))
    known.bind(INNER, Range(IntImm(0), IntImm(256)))
    return known


def digits(sizes: Sequence[PrimExpr | int], number: PrimExpr) -> list[PrimExpr]:
    """What fuse gives the iterators of loops of some sizes."""
    found: list[PrimExpr] = []
    step: PrimExpr | int = 1
    for place, size in reversed(list(enumerate(sizes))):
        part = number if isinstance(step, int) and step == 1 else floordiv(number, step)
        found.insert(0, floormod(part, size) if place else part)
        step = size if isinstance(step, int) and step == 1 else size * step
    return found


@pytest.mark.parametrize("sizes", [(B, H), (B, H, W), (B, 3, H, W, 8), (3, H, 8), (B, H + 2, (W + 1) // 2, 16)])
def test_complete_digits_are_their_number(sizes: Sequence[PrimExpr | int]) -> None:
    assert joined_digits([*digits(sizes, X), Y], [], analyzer()) == [X, Y]
    shuffled = [*reversed(digits(sizes, X)), Y]
    assert joined_digits(shuffled, [], analyzer()) == [X, Y]


def test_a_first_digit_with_a_radix_needs_a_bound() -> None:
    values = [floormod(floordiv(X, W), H), floormod(X, W)]
    assert joined_digits(values, [lt(X, H * W)], analyzer()) == [X]
    assert joined_digits(values, [le(X, H * W - 1)], analyzer()) == [X]
    assert joined_digits(values, [lt(X, H * W + 1)], analyzer()) == values
    assert joined_digits(values, [lt(Y, H * W)], analyzer()) == values
    assert joined_digits(values, [], analyzer()) == values
    # Two numbers, one of them negative, may have the same digits.
    assert joined_digits(values, [lt(X, H * W)], Analyzer()) == values


def test_pixels_of_tiles() -> None:
    """Rows and columns of a tile beside its place: told apart where they are within the tile."""
    known, row, column = analyzer(), Var("row"), Var("column")
    for var in (row, column):
        known.bind(var, Range(IntImm(0), IntImm(4)))
    pixels = [floordiv(X, W) * 4 + row, floormod(X, W) * 4 + column]
    assert joined_digits(pixels, [], known) == [X, row, column]
    overlapping = [floordiv(X, W) * 3 + row, floormod(X, W) * 4 + column]
    assert joined_digits(overlapping, [], known)[0] is overlapping[0]


def test_incomplete_digits_stay() -> None:
    for values in (
        [floordiv(X, W), floormod(X, H)],  # steps of w after a radix of h
        [floordiv(X, H * W), floormod(X, W)],  # the middle one is missing
        [floormod(floordiv(X, W), H), floormod(X, W), floormod(X, W)],
        [X, floormod(X, W)],
        [floordiv(X, W), floormod(X + 1, W)],
    ):
        assert joined_digits(values, [], analyzer()) == values


@given(st.permutations([2, 3, 4]), st.permutations([2, 3, 4]), st.booleans())
def test_joined_digits_tell_apart_what_their_number_does(steps: list[int], radixes: list[int], bounded: bool) -> None:
    """Digits of any steps and radixes: where they are joined, no two numbers have the same."""
    total = 24 if bounded else 96
    values = [
        floordiv(OUTER, steps[0] * steps[1]),
        floormod(floordiv(OUTER, steps[1]), radixes[0]),
        floormod(OUTER, radixes[1]),
    ]
    joined = joined_digits(values, [lt(OUTER, total)], analyzer())
    assert (joined == [OUTER]) == (radixes[1] == steps[1] and radixes[0] == steps[0])
    found = {tuple(simplified(value, number) for value in values) for number in range(total)}
    if joined == [OUTER]:
        assert len(found) == total


def simplified(value: PrimExpr, number: int) -> int | None:
    return const_value(Analyzer().simplify(substitute(value, {OUTER: IntImm(number)})))
