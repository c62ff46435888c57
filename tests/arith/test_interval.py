"""Interval arithmetic: sharp where ends are known, sound where they are open."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilewright.arith import interval as iv
from tilewright.arith.interval import Interval
from tilewright.ir.dtype import BOOL, FLOAT32, INDEX, INT8


@given(st.integers(-6, 6), st.integers(0, 7), st.integers(-4, 4), st.integers(0, 5))
def test_interval_arithmetic_is_sharp(a_low, a_size, b_low, b_size):
    a, b = range(a_low, a_low + a_size + 1), range(b_low, b_low + b_size + 1)
    x, y = Interval(a[0], a[-1]), Interval(b[0], b[-1])

    def hull(function, pairs):
        values = [function(p, q) for p, q in pairs]
        return Interval(min(values), max(values))

    pairs = [(p, q) for p in a for q in b]
    assert iv.add(x, y) == hull(lambda p, q: p + q, pairs)
    assert iv.mul(x, y) == hull(lambda p, q: p * q, pairs)
    assert iv.minimum(x, y) == hull(min, pairs)
    assert iv.maximum(x, y) == hull(max, pairs)
    if b[0] > 0:
        assert iv.floordiv(x, y) == hull(lambda p, q: p // q, pairs)
        exact = hull(lambda p, q: p % q, pairs)
        found = iv.floormod(x, y)
        assert found.lower <= exact.lower and exact.upper <= found.upper


@given(
    st.tuples(st.none() | st.integers(-5, 5), st.none() | st.integers(-5, 5)),
    st.tuples(st.none() | st.integers(-5, 5), st.none() | st.integers(-5, 5)),
)
def test_interval_arithmetic_with_open_ends(a, b):
    x, y = Interval(*a), Interval(*b)
    for p in range(-12, 13):
        for q in range(-12, 13):
            if x.contains(p) and y.contains(q):
                assert iv.add(x, y).contains(p + q)
                assert iv.mul(x, y).contains(p * q)
                assert iv.minimum(x, y).contains(min(p, q))
                assert iv.maximum(x, y).contains(max(p, q))
                if q > 0:
                    assert iv.floordiv(x, y).contains(p // q)
                    assert iv.floormod(x, y).contains(p % q)


def test_of_types():
    assert iv.of_dtype(INDEX) == (None, None)
    assert iv.of_dtype(BOOL) == (0, 1)
    assert iv.of_dtype(INT8) == (-128, 127)
    assert iv.of_dtype(FLOAT32) == (None, None)
    assert iv.fits(Interval(0, 127), INT8) and not iv.fits(Interval(0, 128), INT8)
    assert not iv.fits(Interval(0, None), INT8) and iv.fits(Interval(None, None), INDEX)


def test_questions():
    assert Interval(3, 3).is_constant and not Interval(3, 4).is_constant and not Interval(None, None).is_constant
    assert Interval(1, None).is_positive and not Interval(0, 3).is_positive and not Interval(5, 4).is_positive
    assert iv.intersect(Interval(0, 5), Interval(3, None)) == (3, 5)
    assert iv.union(Interval(0, 5), Interval(3, None)) == (0, None)
    assert str(Interval(None, 3)) == "[-inf, 3]"
