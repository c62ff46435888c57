"""Touched boxes hold every point, and are exact for sums of independent variables."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arith.helpers import conditions, function_of, index_expressions, rng, value_at
from tilewright.arith import region
from tilewright.arith.analyzer import Analyzer
from tilewright.arith.interval import Interval
from tilewright.ir import build
from tilewright.ir.dtype import INDEX, INT32
from tilewright.ir.expr import ONE, TRUE, Call, IntImm, Var
from tilewright.support.errors import CompilerBug

X, Y, Z, N = Var("x"), Var("y"), Var("z"), Var("n")
MOVING = {X: rng(0, 5), Y: rng(-1, 4)}


def check_touched(expr, predicate=TRUE):
    """Compare the touched range with enumeration at several values of the fixed variables; count exact hits."""
    (found,) = region.touched([expr], MOVING, Analyzer(), predicate)
    if found is None:
        return None
    order = [X, Y, Z]
    function, holds = function_of(expr, order), function_of(predicate, order)
    low, extent = function_of(found.min, [Z]), function_of(found.extent, [Z])
    exact = True
    for z in (-3, 0, 2, 9):
        points = [(x, y, z) for x in range(5) for y in range(-1, 3)]
        values = [value_at(function, p) for p in points if value_at(holds, p)]
        values = [value for value in values if value is not None]
        if values:
            assert low(z) <= min(values) and max(values) < low(z) + extent(z)
            exact = exact and low(z) == min(values) and low(z) + extent(z) == max(values) + 1
    return exact


@settings(max_examples=100)
@given(index_expressions([X, Y, Z]))
def test_touched_holds_every_point(expr):
    check_touched(expr)


@settings(max_examples=60)
@given(index_expressions([X, Y, Z], 3), conditions([X, Y, Z], 2))
def test_touched_under_a_predicate_holds_every_point(expr, predicate):
    check_touched(expr, predicate)


@given(st.tuples(*[st.integers(-5, 5)] * 4))
def test_touched_is_exact_for_sums(factors):
    a, b, c, d = factors
    assert check_touched(X * a + Y * b + Z * c + d)


@pytest.mark.parametrize(
    ("expr", "low", "extent"),
    [
        (Z * 32 + X, Z * 32, IntImm(5)),
        (X // 2, IntImm(0), IntImm(3)),
        (X % 8 + Z, Z, IntImm(5)),
        (build.minimum(X, 3), IntImm(0), IntImm(4)),
        (build.select(Z < 0, X, X + 1), build.select(Z < 0, IntImm(0), IntImm(1)), IntImm(5)),
        (build.cast(build.cast(X, INT32), INDEX) + Z, Z, IntImm(5)),
        (Z, Z, ONE),
    ],
)
def test_touched_shapes(expr, low, extent):
    (found,) = region.touched([expr], MOVING, Analyzer())
    assert found is not None
    assert found.min is low
    assert found.extent is extent


def test_touched_of_data_dependent_indices():
    load = Call("read", (X,), INDEX)
    narrow = build.cast(Call("read", (X,), build.DataType.of("uint8")), INDEX)
    unknown, bounded = region.touched([load + 1, narrow], MOVING, Analyzer())
    assert unknown is None
    assert bounded is not None and bounded.min is IntImm(0) and bounded.extent is IntImm(256)


def test_touched_with_a_predicate_on_the_last_tile():
    analyzer = Analyzer()
    fused = Z * 32 + X
    (found,) = region.touched([fused], {X: rng(0, 32)}, analyzer, fused < N)
    assert found is not None
    assert found.min is Z * 32
    assert found.extent is build.minimum(N - Z * 32, 32)


def test_touched_with_symbolic_products():
    analyzer = Analyzer()
    analyzer.bind(N, Interval(1, None))
    (found,) = region.touched([Z * N + X], {X: rng(0, N)}, analyzer)
    assert found is not None
    assert analyzer.prove_equal(found.min, Z * N)
    assert found.extent is N
    (found,) = region.touched([X * N], {X: rng(0, 4)}, analyzer)
    assert found is not None and analyzer.prove_equal(found.extent, N * 3 + 1)
    (found,) = region.touched([X * Z], {X: rng(0, 4)}, analyzer)
    assert found is None


def test_the_ends_do_not_evaluate_what_a_selection_guarded():
    """Where z is 0 the quotient is not evaluated, so it must not be in the range either."""
    guarded = build.select(X < Z, X, IntImm(1) // Z)
    (found,) = region.touched([guarded], {X: rng(0, 4)}, Analyzer())
    assert found is None


def test_domains_may_depend_on_each_other():
    (found,) = region.touched([Y], {X: rng(0, 4), Y: rng(X * 2, 3)}, Analyzer())
    assert found is not None
    assert (found.min, found.extent) == (IntImm(0), IntImm(9))


def ranges():
    return st.builds(rng, st.integers(-3, 4), st.integers(1, 5))


def members(item):
    return set(range(item.min.value, item.min.value + item.extent.value))


@given(ranges(), ranges())
def test_the_union_is_the_least_range(a, b):
    both = members(a) | members(b)
    assert members(region.union_range([a, b], Analyzer())) == set(range(min(both), max(both) + 1))


def test_unions_of_symbolic_ranges():
    joined = region.union_range([rng(Z, 4), rng(Z + 2, 4)], Analyzer())
    assert joined.min is Z and joined.extent is IntImm(6)
    with pytest.raises(CompilerBug, match="union of no ranges"):
        region.union_range([], Analyzer())
