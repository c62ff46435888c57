"""Solutions of conditions are certain: the condition holds (fails) at every point of the interval found."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arith.helpers import conditions, function_of, rng, value_at
from tilewright.arith.analyzer import Analyzer
from tilewright.arith.interval_set import SymbolicInterval
from tilewright.arith.solve import bounds_where
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import BOOL, INT32
from tilewright.ir.expr import IntImm, Var

X, Y, N = Var("x"), Var("y"), Var("n")


def linear_conditions():
    number = st.integers(-6, 6)
    side = st.builds(lambda a, b, c, d: X * a + Y * b + N * c + d, number, number, st.integers(-1, 1), number)
    kind = st.sampled_from([build.lt, build.le, build.eq, build.ne])
    leaf = st.builds(lambda compare, a, b: compare(a, b), kind, side, side)
    return st.recursive(
        leaf,
        lambda inner: (
            st.builds(build.logical_and, inner, inner)
            | st.builds(build.logical_or, inner, inner)
            | st.builds(build.logical_not, inner)
        ),
        max_leaves=4,
    )


@settings(max_examples=100)
@given(linear_conditions() | conditions([X, Y, N], 2))
def test_solutions_are_certain(condition):
    analyzer = Analyzer()
    found = bounds_where(condition, X, analyzer, {Y: rng(0, 4)})
    if found is None:
        return
    function = function_of(condition, [X, Y, N])
    for interval, expected in ((found.holds, True), (found.fails, False)):
        if interval is None:
            continue
        low = None if interval.lower is None else function_of(interval.lower, [N])
        high = None if interval.upper is None else function_of(interval.upper, [N])
        for n in range(-3, 8):
            # Where a limit divides by zero, so does the condition: it says nothing there.
            least = None if low is None else value_at(low, (n,))
            most = None if high is None else value_at(high, (n,))
            if (low is not None and least is None) or (high is not None and most is None):
                continue
            for x in range(-12, 16):
                if (least is None or least <= x) and (most is None or x <= most):
                    assert all(value_at(function, (x, y, n)) in (None, expected) for y in range(4))


def test_a_guard_of_a_split_loop():
    found = bounds_where(X * 32 + Y < 100, X, Analyzer(), {Y: rng(0, 32)})
    assert found is not None
    assert found.holds == SymbolicInterval(None, IntImm(2))
    assert found.fails == SymbolicInterval(IntImm(4), None)


def test_a_padded_window():
    condition = build.logical_and(X + Y >= 1, X + Y < 57)
    found = bounds_where(condition, X, Analyzer(), {Y: rng(0, 3)})
    assert found is not None
    assert found.holds == SymbolicInterval(IntImm(1), IntImm(54))


def test_symbolic_limits():
    found = bounds_where(X * 4 + Y < N, X, Analyzer(), {Y: rng(0, 4)})
    assert found is not None and found.holds is not None
    assert found.holds.upper is N // 4 - 1
    assert bounds_where(build.eq(X * 2, N * 2), X, Analyzer()) == (SymbolicInterval(N, N), None)
    assert bounds_where(build.ne(X * 2, N * 2), X, Analyzer()) == (None, SymbolicInterval(N, N))


def test_what_cannot_be_solved():
    analyzer = Analyzer()
    assert bounds_where(Y < 4, X, analyzer) is None
    assert bounds_where(X * X < 4, X, analyzer) is None
    assert bounds_where(build.eq(X, Y), X, analyzer, {Y: rng(0, 4)}) is None
    assert bounds_where(build.eq(X * 2, N), X, analyzer) is None
    assert bounds_where(Var("flag", BOOL), X, analyzer) is None
    assert bounds_where(e.LT(Var("a", INT32), Var("b", INT32)), X, analyzer) is None
