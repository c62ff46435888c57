"""Symbolic intervals."""

from __future__ import annotations

from tests.arith.helpers import bound, rng
from tilewright.arith.interval_set import UNKNOWN, IntervalEvaluator, SymbolicInterval, of_range
from tilewright.ir import build
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import TRUE, Call, IntImm, Var

X, Y, Z = Var("x"), Var("y"), Var("z")


def evaluator(predicate=TRUE):
    analyzer = bound({X: range(8), Y: range(3)})
    return IntervalEvaluator({X: rng(0, 8), Y: rng(0, 3)}, analyzer, predicate)


def test_ends():
    assert evaluator().evaluate(Z + X * 2 - Y) == SymbolicInterval(Z - 2, Z + 14)
    assert evaluator().evaluate(Z) == SymbolicInterval(Z, Z)
    assert evaluator().evaluate(build.maximum(X, Z)) == (build.maximum(Z, 0), build.maximum(Z, 7))
    assert evaluator().evaluate((X + Z * 8) % 8) == (IntImm(0), IntImm(7))
    assert evaluator().evaluate((Y + Z * 8) % 8) == (IntImm(0), IntImm(2))
    assert evaluator().evaluate(X * Y) == (IntImm(0), IntImm(14))


def test_unknown_ends():
    load = Call("read", (X,), INDEX)
    assert evaluator().evaluate(load) == UNKNOWN
    assert evaluator().evaluate(build.minimum(load, X)) == (None, IntImm(7))
    assert evaluator().evaluate(X // Z) == UNKNOWN
    assert evaluator().evaluate(X % Z) == UNKNOWN


def test_predicates_shorten():
    assert evaluator(X * 3 + Y < Z).evaluate(X * 3 + Y) == (IntImm(0), build.minimum(Z - 1, 23))
    low, _ = evaluator(build.le(Z, X)).evaluate(X)
    assert low is build.maximum(Z, 0)
    assert evaluator(build.eq(X, Z)).evaluate(X + 1).lower is build.maximum(Z, 0) + 1


def test_of_range():
    assert of_range(rng(2, 5)) == (IntImm(2), IntImm(6))
