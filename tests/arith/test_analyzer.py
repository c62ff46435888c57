"""Binding, assuming and forgetting."""

from __future__ import annotations

import pytest

from tests.arith.helpers import rng
from tilewright.arith.analyzer import Analyzer, conjuncts
from tilewright.arith.interval import Interval
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import BOOL, INT32
from tilewright.ir.expr import TRUE, ZERO, IntImm, Range, Var
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


def test_a_scope_that_comes_again_finds_what_was_found_out(monkeypatch):
    """Passes enter the same loops and conditions for every buffer: the answers of the first time are kept."""
    analyzer, i, n = Analyzer(), Var("i"), Var("n")
    asked = []
    proof = Analyzer._prove
    monkeypatch.setattr(Analyzer, "_prove", lambda self, condition: asked.append(condition) or proof(self, condition))
    for _ in range(3):
        with analyzer.scope():
            analyzer.bind(i, Range(ZERO, n))
            with analyzer.assume(n <= 8):
                assert analyzer.prove(i < 8)
    assert asked == [i < 8]


def test_other_facts_are_another_state():
    """What was found out under some facts is no answer under others, in whichever order they come."""
    analyzer, i, n = Analyzer(), Var("i"), Var("n")
    for extent, quotient in ((8, ZERO), (16, i // 8), (8, ZERO), (4, ZERO)):
        with analyzer.scope():
            analyzer.bind(i, Range(ZERO, IntImm(extent)))
            assert analyzer.simplify(i // 8) is quotient
            assert analyzer.prove(i < 4) == (extent == 4)
        assert analyzer.simplify(i // 8) is i // 8
        assert analyzer.bounds(i) == Interval(None, None)
    with analyzer.assume(i < n):
        assert analyzer.prove(i <= n)
        analyzer.forget(i)
        assert not analyzer.prove(i <= n)
    with analyzer.assume(i < n):
        assert analyzer.prove(i <= n)


def test_a_new_variable_keeps_what_is_known_of_others():
    analyzer, i, j, n = Analyzer(), Var("i"), Var("j"), Var("n")
    analyzer.assume_always(n >= 5)
    assert analyzer.prove(n > 4)
    with analyzer.scope():
        analyzer.bind(i, Range(ZERO, IntImm(4)))
        assert analyzer.prove(i < n)
        # One that something is known of is not new: what followed from that goes.
        with analyzer.assume(j > n):
            assert analyzer.prove(j > i)
            analyzer.bind(j, Range(ZERO, IntImm(4)))
            assert not analyzer.prove(j > i) and analyzer.prove(j < n)
    assert not analyzer.prove(i < n)


def test_learning_that_fails_leaves_nothing_behind():
    analyzer, i = Analyzer(), Var("i")
    analyzer.bind(i, Range(ZERO, IntImm(4)))
    with pytest.raises(CompilerBug, match="an expression of itself"):
        analyzer.bind(i, i + 1)
    assert analyzer.prove(i < 4)
