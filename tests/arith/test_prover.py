"""The prover is never wrong, and finds what the compiler needs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.arith.helpers import bound, conditions, function_of, points, rng, value_at
from tilewright.arith.analyzer import Analyzer
from tilewright.arith.interval import Interval
from tilewright.ir import build
from tilewright.ir.dtype import INDEX, INT32
from tilewright.ir.expr import Broadcast, Call, IntImm, Ramp, Var

X, J, K, M, N = Var("i"), Var("j"), Var("k"), Var("m"), Var("n")
DOMAINS = {X: range(7), J: range(-3, 4), K: range(2, 6)}


@settings(max_examples=100)
@given(conditions(list(DOMAINS)))
def test_proofs_are_right(condition):
    if bound(DOMAINS).prove(condition):
        function = function_of(condition, list(DOMAINS))
        assert all(value_at(function, point) in (None, True) for point in points(DOMAINS))


@settings(max_examples=60)
@given(conditions([X, K, N], 2))
def test_proofs_with_symbolic_ranges_are_right(condition):
    analyzer = Analyzer()
    analyzer.bind(X, rng(0, N))
    analyzer.bind(K, rng(X, 3))
    if analyzer.prove(condition):
        function = function_of(condition, [X, K, N])
        for n in range(1, 6):
            for i in range(n):
                assert all(value_at(function, (i, k, n)) in (None, True) for k in range(i, i + 3))


@settings(max_examples=60)
@given(conditions(list(DOMAINS), 2), conditions(list(DOMAINS), 2))
def test_proofs_under_assumptions_are_right(assumption, condition):
    analyzer = bound(DOMAINS)
    with analyzer.assume(assumption):
        proved = analyzer.prove(condition)
    if proved:
        holds, function = function_of(assumption, list(DOMAINS)), function_of(condition, list(DOMAINS))
        for point in points(DOMAINS):
            if value_at(holds, point):
                assert value_at(function, point) in (None, True)


@pytest.fixture
def analyzer():
    result = Analyzer()
    result.bind(N, Interval(1, None))
    result.bind(M, Interval(1, None))
    result.bind(X, rng(0, M))
    result.bind(K, rng(0, N))
    result.bind(J, rng(0, 4))
    return result


@pytest.mark.parametrize(
    "condition",
    [
        build.ge((N + 31) // 32 * 32, N),
        (N + 31) // 32 * 32 < N + 32,
        X * N + K < M * N,
        K * 4 + J < N * 4,
        build.minimum(32, N - K * 32) <= 32,
        build.minimum(K + 5, N) <= N,
        build.maximum(K, J) >= K,
        K % N < N,
        build.ne(K - N, 0),
        build.eq(K + N, N + K),
        build.logical_or(K < 5, K >= 5),
        build.logical_and(K >= 0, K < N),
        K // 4 * 4 <= K,
        build.logical_not(N <= K),
        Broadcast(build.le(K, N), 4),
    ],
)
def test_proves(analyzer, condition):
    assert analyzer.prove(condition)


@pytest.mark.parametrize("condition", [K < N - 1, X < N, X * N + K < M * N - 1, build.eq(X, K), K * 4 + J < N * 4 - 1])
def test_does_not_prove(analyzer, condition):
    assert not analyzer.prove(condition)


def test_vector_comparisons():
    analyzer = bound({X: range(8)})
    lanes = Ramp(X * 4, IntImm(1, INDEX), 4)
    assert analyzer.prove(build.lt(lanes, Broadcast(IntImm(32, INDEX), 4)))
    assert not analyzer.prove(build.lt(lanes, Broadcast(IntImm(31, INDEX), 4)))


def test_helpers():
    analyzer = bound({X: range(8)})
    assert analyzer.prove_equal(X * 2 - X, X)
    assert analyzer.prove_equal(X, X)
    assert not analyzer.prove_equal(X, IntImm(1, INT32))
    assert analyzer.prove_less(X, 8)
    assert not analyzer.prove_less(X, 7)
    assert analyzer.prove_nonnegative(X)
    assert analyzer.lower_bound(X + 1) == 1
    assert analyzer.upper_bound(X + 1) == 8


def test_facts_about_memory_are_not_kept():
    analyzer = Analyzer()
    load = Call("read", (X,), INDEX)
    with analyzer.assume(load < 4):
        assert not analyzer.prove(load < 4)
