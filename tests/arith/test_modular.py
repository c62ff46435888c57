"""Residue classes hold at every point."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arith.helpers import bound, function_of, index_expressions, points, value_at
from tilewright.arith.analyzer import Analyzer
from tilewright.arith.knowledge import ModularSet
from tilewright.arith.modular import intersect, normal, union
from tilewright.ir import build
from tilewright.ir.dtype import INT32
from tilewright.ir.expr import IntImm, Var

X, J, N = Var("i"), Var("j"), Var("n")
DOMAINS = {X: range(-2, 8), J: range(-3, 5)}


@settings(max_examples=100)
@given(index_expressions(list(DOMAINS)))
def test_residues_hold(expr):
    coefficient, base = bound(DOMAINS).modular(expr)
    function = function_of(expr, list(DOMAINS))
    for point in points(DOMAINS):
        value = value_at(function, point)
        if value is not None:
            assert value == base if coefficient == 0 else (value - base) % coefficient == 0


def test_residues_of_sums():
    analyzer = Analyzer()
    assert analyzer.modular(X * 8 + J * 12 + 3) == (4, 3)
    assert analyzer.modular(X * 6 // 2) == (3, 0)
    assert analyzer.modular(IntImm(7)) == (0, 7)
    assert analyzer.modular(build.minimum(X * 4, J * 6)) == (2, 0)
    assert analyzer.modular((X * 4 + 1) * (J * 4 + 1)) == (4, 1)
    assert analyzer.modular(IntImm(3, INT32)) == (0, 3)
    assert analyzer.modular(Var("x", INT32)) == (1, 0)
    assert str(ModularSet(4, 3)) == "3 (mod 4)"
    assert str(ModularSet(0, 3)) == "3"


def test_assumed_residues():
    analyzer = Analyzer()
    with analyzer.assume(build.eq(N % 8, 3)):
        assert analyzer.modular(N * 2) == (16, 6)
        assert analyzer.simplify(N % 4) is IntImm(3)
        assert analyzer.simplify(N // 8 * 8) is N - 3
        assert analyzer.prove(build.ne(N, 8))
    assert analyzer.modular(N) == (1, 0)


SETS = st.tuples(st.integers(0, 9), st.integers(-9, 9)).map(lambda pair: normal(*pair))


def members(modular: ModularSet) -> set[int]:
    coefficient, base = modular
    return {v for v in range(-60, 61) if (v == base if coefficient == 0 else (v - base) % coefficient == 0)}


@given(SETS, SETS)
def test_union_and_intersection(a, b):
    assert members(a) | members(b) <= members(union(a, b))
    assert members(a) & members(b) <= members(intersect(a, b))
