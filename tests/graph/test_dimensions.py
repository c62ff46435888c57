"""Arithmetic of dimensions against plain integers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.graph.ir import dimensions as d
from tilewright.graph.ops.shape import ReshapeAttributes
from tilewright.ir import build
from tilewright.ir.expr import IntImm, Var
from tilewright.ir.types import tensor_type
from tilewright.support.errors import CompilerBug, UserError

N, M = Var("n"), Var("m")
LEAVES = st.one_of(st.sampled_from([N, M]), st.integers(0, 6))


def _grow(inner):
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: p[0] * p[1]),
        st.tuples(inner, st.integers(1, 4)).map(lambda p: p[0] // p[1]),
        st.tuples(inner, st.integers(1, 4)).map(lambda p: p[0] % p[1]),
        pairs.map(lambda p: d.minimum(*p)),
        pairs.map(lambda p: d.maximum(*p)),
    )


SIZES = st.recursive(LEAVES, _grow, max_leaves=6)
VALUES = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda p: {N: p[0], M: p[1]})


@settings(max_examples=150, deadline=None)
@given(SIZES, VALUES)
def test_the_normal_form_means_the_same(size, values):
    form = d.normal(size)
    assert d.normal(form) is form or isinstance(form, int)
    assert d.value_of(form, values) == d.value_of(size, values)
    assert d.as_size(d.as_dim(size)) is form or d.as_size(d.as_dim(size)) == form


@settings(max_examples=150, deadline=None)
@given(SIZES, SIZES, VALUES)
def test_claims_hold_for_all_values(a, b, values):
    x, y = d.value_of(a, values), d.value_of(b, values)
    if d.same(a, b):
        assert x == y
    if d.different(a, b):
        assert x != y
    if d.at_least(a, b):
        assert x >= y


@settings(max_examples=150, deadline=None)
@given(st.lists(LEAVES, max_size=4), st.lists(LEAVES, max_size=3), VALUES)
def test_exact_division(factors, more, values):
    total, part = d.product([*factors, *more]), d.product(factors)
    found = d.divide_exactly(total, part)
    if found is not None:
        assert d.value_of(found, values) * d.value_of(part, values) == d.value_of(total, values)
    if all(factor != 0 for factor in factors):
        assert found is not None


def test_what_does_not_divide():
    assert d.divide_exactly(N, 4) is None
    assert d.divide_exactly(N * M, N * 4) is None
    assert d.divide_exactly(6, 0) is None
    assert d.divide_exactly((N * 2 + 4) * M, 2 * M) is d.normal(N + 2)


def test_what_is_left_of_sizes():
    """Sizes that are sums cancel as they are, whatever place they have."""
    length = d.normal(N // 384 - 2)
    assert d.remaining_size((M, 8, length, 16, 2), (M, 8, length)) == 32
    assert d.remaining_size((M, length, 8, 52), (M, length)) == 416
    assert d.remaining_size((length, length), (length,)) is length
    assert d.remaining_size((6, M), (4,)) is None
    assert d.remaining_size((M, length), (d.normal(N // 384 - 1),)) is None


def test_equal_sizes_are_one_object():
    assert d.normal(N * M) is d.normal(M * N)
    assert d.normal(N + M - N) is M
    assert d.normal(N - d.minimum(N, 1)) is d.maximum(N - 1, 0)
    assert d.as_dims((3, N)) == (IntImm(3), N)
    assert d.constants((1, N)) is None
    assert d.constants((1, 2)) == (1, 2)
    assert d.symbols_of((tensor_type((N, M, N), "float32"), M)) == [N, M]


def test_binding_attributes():
    bound = d.bind_sizes(ReshapeAttributes((N * 2, 3)), {N: 4})
    assert bound.shape == (8, 3)
    with pytest.raises(CompilerBug, match="n have no value"):
        d.bind_sizes(ReshapeAttributes((N, 3)), {})
    with pytest.raises(CompilerBug, match="no values"):
        d.numbers((N,))
    with pytest.raises(UserError, match="divided by another one that is 0"):
        d.value_of(build.floordiv(M, N), {N: 0, M: 4})


def test_broadcasting_of_sizes():
    assert d.broadcast(N, 1) is N
    assert d.broadcast(1, N) is N
    assert d.broadcast(N, N) is N
    assert d.broadcast(N, M) is None
    with pytest.raises(UserError, match="3 and 4 do not broadcast"):
        d.broadcast(3, 4)
