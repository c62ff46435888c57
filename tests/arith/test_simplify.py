"""The simplifier: chosen shapes, and equality by enumeration on random expressions."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings

from tests.arith.helpers import bound, conditions, index_expressions, rng, same_everywhere
from tilewright.arith.analyzer import Analyzer
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import FLOAT32, INDEX, INT32, UINT8
from tilewright.ir.expr import FALSE, TRUE, Broadcast, Call, FloatImm, IntImm, Ramp, Var
from tilewright.ir.visit import pre_order

X, J, K, N = Var("i"), Var("j"), Var("k"), Var("n")
DOMAINS = {X: range(7), J: range(-3, 4), K: range(2, 6)}


@settings(max_examples=100)
@given(index_expressions(list(DOMAINS)))
def test_simplify_keeps_the_value(expr):
    analyzer = bound(DOMAINS)
    simple = analyzer.simplify(expr)
    same_everywhere(expr, simple, DOMAINS)
    assert analyzer.simplify(expr) is simple


@settings(max_examples=100)
@given(conditions(list(DOMAINS)))
def test_simplify_keeps_conditions(condition):
    same_everywhere(condition, bound(DOMAINS).simplify(condition), DOMAINS)


@settings(max_examples=100)
@given(index_expressions([X, K, N], 3))
def test_simplify_with_a_symbolic_range(expr):
    analyzer = Analyzer()
    analyzer.bind(X, rng(0, N))
    analyzer.bind(K, rng(X, 3))
    simple = analyzer.simplify(expr)
    for n in range(1, 6):
        for i in range(n):
            same_everywhere(expr, simple, {X: range(i, i + 1), K: range(i, i + 3), N: range(n, n + 1)})


@settings(max_examples=100)
@given(index_expressions([X, N], 3))
def test_simplify_with_a_known_residue(expr):
    analyzer = Analyzer()
    analyzer.bind(X, rng(0, 5))
    analyzer.assume_always(build.eq(N % 4, 3))
    simple = analyzer.simplify(expr)
    for n in (-5, -1, 3, 7, 11):
        same_everywhere(expr, simple, {X: range(5), N: range(n, n + 1)})


@pytest.fixture
def analyzer():
    result = Analyzer()
    result.bind(X, rng(0, 16))
    result.bind(J, rng(0, 8))
    result.bind(K, rng(0, N))
    return result


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((X * 8 + J) // 8, X),
        ((X * 8 + J) % 8, J),
        ((X * 8 + J) // 4, X * 2 + J // 4),
        ((X * 8 + J) // 4 % 2, J // 4),
        ((X * 8 + J) // 16, X // 2),
        ((X * 16 + J * 2 + 1) // 32, X // 2),
        (X // 4 * 4 + X % 4, X),
        (X // 4 % 2 * 4 + X % 4, X % 8),
        (X - X // 4 * 4, X % 4),
        (X // 2 - X // 8 * 4, X // 2 % 4),
        (X % 8 % 4, X % 4),
        (X % 8 // 4, X // 4 % 2),
        (X // 2 // 3, X // 6),
        ((X + N) - N, X),
        (build.minimum(X * 32 + 32, N) - X * 32, build.minimum(N - X * 32, 32)),
        (build.minimum(build.minimum(X, 5), 3), build.minimum(X, 3)),
        (build.maximum(X, -1), X),
        ((X * N + K) // N, X),
        ((X * N + K) % N, K),
        (X * 8 + J < 64, X < 8),
        (X // 4 < 2, X < 8),
        (X * 2 < 7, X < 4),
        (X * 2 + 1 < X * 2, FALSE),
        (K < N, TRUE),
        (build.eq(X * 2, 7), FALSE),
        (build.select(X < 4, build.minimum(X, 5), X), X),
        (build.logical_and(X < 5, X < 3), X < 3),
        (build.logical_or(X < 5, X < 3), X < 5),
        (build.logical_not(build.logical_and(X < 5, J < 3)), build.logical_or(build.le(5, X), build.le(3, J))),
        (e.Div(X, IntImm(4)), X // 4),
        (e.Mod(X, IntImm(4)), X % 4),
    ],
)
def test_simplify_to(analyzer, before, after):
    assert analyzer.simplify(before) is after


def test_a_symbolic_quotient_and_its_remainder_are_the_number() -> None:
    """What fused loops of open extents give back: n * (x // n) + x % n, for any n that divides."""
    simple = Analyzer()
    for divisor in (N, build.floordiv(N + 3, 4), N + 2, N * K):
        number = X * 5 + J
        whole = build.floordiv(number, divisor) * divisor + build.floormod(number, divisor)
        assert simple.simplify(whole) is simple.simplify(number)
        assert simple.simplify(whole * 3 + 1) is simple.simplify(number * 3 + 1)
        assert simple.simplify(build.floordiv(whole, 5)) is simple.simplify(X + build.floordiv(J, 5))
    other = build.floordiv(X, N) * N + build.floormod(J, N)
    assert build.floormod(J, N) in list(pre_order(simple.simplify(other)))


def test_a_search_for_bounds_ends() -> None:
    """Sums of products of sizes have inequalities without number."""
    sizes = [Var(f"s{n}") for n in range(9)]
    analyzer = Analyzer()
    for size in sizes:
        analyzer.assume_always(build.ge(size, 0))
    total = sum((a * b for a, b in zip(sizes[1:], sizes, strict=False)), start=sizes[0] * sizes[8])
    analyzer.bind(X, rng(0, total))
    start = time.process_time()
    assert not analyzer.prove(build.le(X * 7 + sizes[0] * sizes[1], total - 3 * sizes[2] * sizes[3]))
    assert time.process_time() - start < 2


def test_products_are_multiplied_out_only_where_that_is_cheaper():
    a, b, c = Var("a"), Var("b"), Var("c")
    analyzer = Analyzer()
    nest = ((a * b + c) * b + a) * c + b
    assert analyzer.simplify(nest) is nest
    assert analyzer.prove_equal(nest, a * b * b * c + b * c * c + a * c + b)
    assert analyzer.simplify((a + 1) * b - b) is a * b


def test_conditions_guard_loads_in_short_circuit_operands():
    """`q` may only be evaluated where the first operand holds, so the first operand is never dropped for it."""
    q = e.LT(Call("read", (X,), INDEX), IntImm(0, INDEX))
    analyzer = Analyzer()
    both = build.logical_and(X < 4, build.logical_and(q, X < 9))
    assert analyzer.simplify(both) is build.logical_and(X < 4, q)


def test_wrapping_types_are_exact():
    analyzer = Analyzer()
    x, u = Var("x", INT32), Var("u", UINT8)
    assert analyzer.simplify(e.LT(x, e.Add(x, IntImm(1, INT32)))) is e.LT(x, e.Add(x, IntImm(1, INT32)))
    assert analyzer.simplify((x + 5) - 5) is x
    assert analyzer.simplify(u + 200 + 100) is u + 44
    with analyzer.assume(u < 10):
        assert analyzer.simplify(u + 200 < 210) is TRUE
        assert analyzer.simplify(u + 250 < 5) is not TRUE
    assert analyzer.simplify(e.Sub(x, x)) is IntImm(0, INT32)


def test_floats_keep_nan_and_zeros():
    x = Var("x", FLOAT32)
    analyzer = Analyzer()
    assert analyzer.simplify(e.Mul(x, FloatImm(1.0, FLOAT32))) is x
    kept = e.Add(x, FloatImm(0.0, FLOAT32))
    assert analyzer.simplify(kept) is kept
    assert analyzer.simplify(e.Sub(x, x)) is e.Sub(x, x)
    less = e.LT(x, x)
    assert analyzer.simplify(less) is FALSE
    assert analyzer.simplify(build.logical_not(x < 1.0)) is build.logical_not(x < 1.0)


def test_vectors():
    analyzer = Analyzer()
    zero, one = IntImm(0, INDEX), IntImm(1, INDEX)
    lanes = Ramp(X * 4, one, 4)
    assert analyzer.simplify(e.Add(lanes, Broadcast(J, 4))) is Ramp(X * 4 + J, one, 4)
    assert analyzer.simplify(e.Mul(Broadcast(J, 4), Broadcast(X, 4))) is Broadcast(X * J, 4)
    assert analyzer.simplify(Ramp(X, zero, 4)) is Broadcast(X, 4)
    analyzer.bind(X, rng(0, 8))
    assert analyzer.simplify(e.LT(lanes, Broadcast(IntImm(32), 4))) is Broadcast(TRUE, 4)
    assert analyzer.simplify(e.LE(Broadcast(IntImm(32), 4), lanes)) is Broadcast(FALSE, 4)
    assert analyzer.simplify(e.NE(lanes, Broadcast(IntImm(32), 4))) is Broadcast(TRUE, 4)
    guarded = e.Select(e.LT(lanes, Broadcast(IntImm(32), 4)), lanes, e.Add(lanes, lanes))
    assert analyzer.simplify(guarded) is lanes
    stepped = e.FloorDiv(Ramp(X, IntImm(8, INDEX), 4), Broadcast(IntImm(4, INDEX), 4))
    assert analyzer.simplify(stepped) is Ramp(X // 4, IntImm(2, INDEX), 4)


def test_casts():
    analyzer = Analyzer()
    analyzer.bind(X, rng(0, 100))
    narrow = build.cast(X, INT32)
    assert analyzer.simplify(build.cast(build.cast(narrow, "int64"), "int32")) is narrow
    assert analyzer.prove(build.cast(narrow, INDEX) < 100)
    assert analyzer.simplify(build.cast(IntImm(3, INT32), INDEX)) is IntImm(3, INDEX)


def test_a_loop_of_one_iteration_disappears():
    analyzer = Analyzer()
    analyzer.bind(X, rng(J, 1))
    assert analyzer.simplify(X * 4 + 1) is J * 4 + 1


def test_nested_selections_are_not_looked_at_in_all_combinations() -> None:
    """Twelve nested selections on the same variable: what is below a condition is simplified under it, but not under
    every combination of the conditions around it."""
    x = Var("x")
    analyzer = Analyzer()
    analyzer.bind(x, rng(0, 1000))
    value: e.PrimExpr = x % 7
    for number in range(12):
        value = build.select((x + number) % 11 < 5, value + x // (number + 2), value % (number + 3))
    start = time.process_time()
    analyzer.simplify(value)
    assert time.process_time() - start < 20
