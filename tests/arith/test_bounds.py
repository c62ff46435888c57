"""Bounds hold at every point, and are sharp where they should be."""

from __future__ import annotations

from hypothesis import given, settings

from tests.arith.helpers import bound, conditions, function_of, index_expressions, points, rng, value_at
from tilewright.arith.analyzer import Analyzer
from tilewright.arith.interval import Interval
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX, INT8, INT32, UINT8
from tilewright.ir.expr import Broadcast, Call, IntImm, Ramp, Var

X, J, K, N = Var("i"), Var("j"), Var("k"), Var("n")
DOMAINS = {X: range(7), J: range(-3, 4), K: range(2, 6)}


@settings(max_examples=100)
@given(index_expressions(list(DOMAINS)))
def test_bounds_hold(expr):
    low, high = bound(DOMAINS).bounds(expr)
    function = function_of(expr, list(DOMAINS))
    for point in points(DOMAINS):
        value = value_at(function, point)
        if value is not None:
            assert (low is None or low <= value) and (high is None or value <= high)


@settings(max_examples=60)
@given(conditions(list(DOMAINS), 2), index_expressions(list(DOMAINS), 3))
def test_bounds_hold_under_assumptions(condition, expr):
    analyzer = bound(DOMAINS)
    holds, function = function_of(condition, list(DOMAINS)), function_of(expr, list(DOMAINS))
    with analyzer.assume(condition):
        low, high = analyzer.bounds(expr)
        simple = function_of(analyzer.simplify(expr), list(DOMAINS))
    for point in points(DOMAINS):
        value = value_at(function, point)
        if value is not None and value_at(holds, point):
            assert (low is None or low <= value) and (high is None or value <= high)
            assert value_at(simple, point) == value


def test_bounds_of_symbolic_ranges():
    analyzer = Analyzer()
    analyzer.bind(N, Interval(1, None))
    analyzer.bind(X, rng(0, N))
    assert analyzer.bounds(X) == (0, None)
    assert analyzer.bounds(X - N) == (None, -1)
    assert analyzer.bounds(X * 4 + 3 - N * 4) == (None, -1)
    assert str(analyzer.bounds(X)) == "[0, +inf]"
    assert str(analyzer.bounds(X - N)) == "[-inf, -1]"


def test_bounds_of_wrapping_types():
    analyzer = Analyzer()
    x, u = Var("x", INT8), Var("u", UINT8)
    assert analyzer.bounds(x) == (-128, 127)
    assert analyzer.bounds(x + 1) == (-128, 127)
    with analyzer.assume(x < 5, x >= 0):
        assert analyzer.bounds(x + 1) == (1, 5)
    assert analyzer.bounds(u) == (0, 255)
    assert analyzer.bounds(build.cast(u, INDEX) + 1) == (1, 256)
    assert analyzer.bounds(build.cast(build.cast(u, INT32) * 2, INDEX)) == (0, 510)
    assert analyzer.bounds(build.cast(X, UINT8)) == (0, 255)
    wide = Var("w", build.DataType.of("uint64"))
    assert analyzer.bounds(build.cast(wide, INDEX)) == (None, None)


def test_bounds_of_other_nodes():
    analyzer = bound({X: range(10)})
    assert analyzer.bounds(X < 5) == (0, 1)
    assert analyzer.bounds(Ramp(X, IntImm(2, INDEX), 4)) == (0, 15)
    assert analyzer.bounds(e.Add(Ramp(X, IntImm(2, INDEX), 4), Broadcast(J, 4))) == (None, None)
    assert analyzer.bounds(build.bitwise_and(J, 7)) == (0, 7)
    assert analyzer.bounds(build.shift_right(X, 1)) == (0, 4)
    assert analyzer.bounds(Call("read", (X,), INDEX)) == (None, None)
    assert analyzer.bounds(e.Select(J < 0, X, X + 5)) == (0, 14)
