"""Canonical forms: equal sums get equal forms, whatever way they were written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arith.helpers import bound, rng
from tilewright.arith.analyzer import Analyzer
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import Call, IntImm, Var, const_value
from tilewright.ir.visit import substitute

X, Y, Z, N = Var("x"), Var("y"), Var("z"), Var("n")
DOMAINS = {X: range(7), Y: range(-3, 4), Z: range(2, 6)}


@settings(max_examples=100)
@given(st.tuples(*[st.integers(-6, 12)] * 4), st.integers(1, 9), st.integers(1, 4))
def test_digits_add_up(factors, base, more):
    analyzer = bound(DOMAINS)
    number = X * factors[0] + Y * factors[1] + Z * factors[2] + factors[3]
    whole = number // base * base + number % base
    assert analyzer.prove_equal(whole, number)
    number = X + factors[3]
    three = number // (base * more) * (base * more) + number // base % more * base + number % base
    assert analyzer.prove_equal(three, number)


@settings(max_examples=100)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(-20, 20))
def test_digits_of_numbers_with_the_same_remainder_add_up(base, more, factor):
    """Remainders lose multiples of what they are taken of, and inner remainders, which quotients keep."""
    analyzer = bound(DOMAINS)
    number = X % more * factor + Y
    other = X * factor + Y
    assert analyzer.prove_equal(number // base * base + number % base, number)
    mixed = analyzer.simplify(number // base * base + other % base)
    for x in DOMAINS[X]:
        for y in DOMAINS[Y]:
            wanted = (x % more * factor + y) // base * base + (x * factor + y) % base
            assert const_value(analyzer.simplify(substitute(mixed, {X: IntImm(x), Y: IntImm(y)}))) == wanted


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from([X, Y, X // 3, Y % 5, N * X]), st.integers(-5, 5)), max_size=6), st.randoms())
def test_the_order_of_summands_does_not_matter(parts, random):
    analyzer = Analyzer()
    total = build.const(0)
    for term, factor in parts:
        total = total + term * factor
    random.shuffle(parts)
    again = build.const(0)
    for term, factor in parts:
        again = again - term * -factor
    assert analyzer.form(total).same_as(analyzer.form(again))
    assert analyzer.prove_equal(total, again)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (X * 4 + 1 + Y - X * 4, Y + 1),
        (4 - X, IntImm(4) - X),
        (-X, IntImm(0) - X),
        (X * 2 - Y * 3 - 5, X * 2 - Y * 3 - 5),
        ((X + 5) // 4, (X + 1) // 4 + 1),
        ((X * 6 + 3) // 4, (X * 3 + 1) // 2),
        ((X * 4 + Y * 8) % 8, X % 2 * 4),
        (X % 12 // 4, X // 4 % 3),
        (X // -4, (IntImm(0) - X) // 4),
        (build.minimum(X + 3, Y + 3), build.minimum(X, Y) + 3),
        (build.maximum(X * 4, Y * 8), build.maximum(X, Y * 2) * 4),
        (build.minimum(X * 4 + 4, 16) // 4, build.minimum(X, 3) + 1),
        (build.minimum(-X, -Y), IntImm(0) - build.maximum(X, Y)),
        ((X + Y) * (X - Y), X * X - Y * Y),
        (build.select(X < Y, X + 1, X + 2) - X, build.select(X < Y, IntImm(1), IntImm(2))),
        ((X * N + N) // N, X + 1),
        ((X + Y) // (X + Y), IntImm(1)),
        (X // 0, X // 0),
        (X % 0, X % 0),
    ],
)
def test_normal_shapes(expr, text):
    assert Analyzer().simplify(expr) is text


def test_opaque_terms():
    analyzer = Analyzer()
    load = Call("read", (X + 1 - 1,), INDEX)
    simple = Call("read", (X,), INDEX)
    assert analyzer.simplify(load) is simple
    assert analyzer.simplify(load * 2 - simple) is simple
    assert analyzer.simplify((simple * 8 + 3) // 8) is simple


def test_products_stop_growing():
    analyzer = Analyzer()
    names = [Var(f"v{k}") for k in range(12)]
    total = build.const(1)
    for name in names:
        total = total * (name + 1)
    assert analyzer.prove_equal(total, total)
    assert isinstance(analyzer.simplify(total), e.Mul)


def test_names_do_not_decide_identity():
    first, second = Var("a"), Var("a")
    analyzer = Analyzer()
    analyzer.bind(second, rng(0, 4))
    assert analyzer.simplify(first - second) is first - second
    assert analyzer.simplify((second + first) - (first + second)) is IntImm(0)
    assert analyzer.simplify((second + first) // 2) is analyzer.simplify((first + second) // 2)
