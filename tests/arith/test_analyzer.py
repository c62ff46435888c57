"""Binding, assuming and forgetting."""

from __future__ import annotations

import pytest

from tests.arith.helpers import rng
from tilewright.arith.analyzer import Analyzer, conjuncts
from tilewright.arith.interval import Interval
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import BOOL, INT32
from tilewright.ir.expr import TRUE, IntImm, Range, Var
from tilewright.support.errors import CompilerBug

X, J, N = Var("i"), Var("j"), Var("n")


def test_bind_replaces_what_was_known():
    analyzer = Analyzer()
    analyzer.bind(X, rng(0, N))
    assert analyzer.prove(X < N)
    analyzer.bind(X, rng(0, 4))
    assert not analyzer.prove(X < N)
    assert analyzer.bounds(X) == (0, 3)
    analyzer.bind(X, 2)
    assert analyzer.simplify(X + 1) is IntImm(3)
    analyzer.bind(X, J + 1)
    assert analyzer.simplify(X - J) is IntImm(1)
    assert analyzer.simplify(X < J) is build.const(False)
    analyzer.forget(X)
    assert analyzer.simplify(X) is X


def test_bind_intervals_and_other_types():
    analyzer = Analyzer()
    x = Var("x", INT32)
    analyzer.bind(x, Range(IntImm(2, INT32), IntImm(5, INT32)))
    assert analyzer.bounds(x) == (2, 6)
    analyzer.bind(x, Interval(0, 3))
    assert analyzer.prove(x < 4)
    analyzer.bind(x, 7)
    assert analyzer.simplify(x + 1) is IntImm(8, INT32)


def test_bind_refuses_nonsense():
    analyzer = Analyzer()
    with pytest.raises(CompilerBug, match="cannot be bound to a value of int32"):
        analyzer.bind(X, IntImm(1, INT32))
    with pytest.raises(CompilerBug, match="expression of itself"):
        analyzer.bind(X, X + 1)


def test_assumptions_end_with_the_block():
    analyzer = Analyzer()
    analyzer.bind(X, rng(0, 10))
    with analyzer.assume(X < 5, build.logical_not(X < 2)) as inner:
        assert inner is analyzer
        assert analyzer.bounds(X) == (2, 4)
        with analyzer.assume(X < 3):
            assert analyzer.simplify(X * 2) is IntImm(4)
        assert analyzer.bounds(X) == (2, 4)
    assert analyzer.bounds(X) == (0, 9)
    with pytest.raises(ValueError, match="stop"), analyzer.assume(X < 5):
        raise ValueError("stop")
    assert analyzer.bounds(X) == (0, 9)


def test_scope():
    analyzer = Analyzer()
    with analyzer.scope():
        analyzer.bind(X, rng(0, 4))
        assert analyzer.prove(X < 4)
    assert not analyzer.prove(X < 4)


def test_assumed_conditions_of_other_kinds():
    analyzer = Analyzer()
    flag = Var("flag", BOOL)
    with analyzer.assume(flag):
        assert analyzer.prove(flag)
        assert analyzer.simplify(build.select(flag, X, J)) is X
    with analyzer.assume(build.logical_not(flag)):
        assert analyzer.simplify(build.logical_or(flag, X < 3)) is (X < 3)
    with analyzer.assume(build.ne(X, J)):
        assert analyzer.prove(build.ne(J, X))
    with analyzer.assume(X >= 0, build.ne(X, 0)):
        assert analyzer.prove(X >= 1)
    with analyzer.assume(build.logical_not(build.logical_or(X < 0, X > 7))):
        assert analyzer.bounds(X) == (0, 7)
    with analyzer.assume(build.eq(X, J + 3)):
        assert analyzer.prove(J < X)


def test_assumptions_on_wrapping_types():
    analyzer = Analyzer()
    x, y = Var("x", INT32), Var("y", INT32)
    with analyzer.assume(build.eq(x, 4)):
        assert analyzer.simplify(x + 1) is IntImm(5, INT32)
    with analyzer.assume(build.le(3, x), build.logical_not(build.le(9, x))):
        assert analyzer.bounds(x) == (3, 8)
    with analyzer.assume(x < y):
        assert analyzer.prove(x < y)
    with analyzer.assume(build.logical_not(build.eq(x, 4))):
        assert not analyzer.prove(build.eq(x, 4))


def test_contradictory_assumptions_do_not_crash():
    analyzer = Analyzer()
    with analyzer.assume(X < 0, X > 5):
        analyzer.simplify((X + 3) // 4 + build.minimum(X, J) % 3)
        analyzer.bounds(J // (X + 6) + J % (X + 6) + e.Div(J, X + 6) + e.Mod(J, X + 6))


def test_conjuncts():
    a, b, c = X < 1, X < 2, J < 3
    assert conjuncts(build.all_of([a, b, c])) == [a, b, c]
    assert conjuncts(TRUE) == [TRUE]
