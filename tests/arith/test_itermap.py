"""Iterator maps: random chains of splits and fusions are recognised; whatever is claimed holds by enumeration."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arith.helpers import function_of, rng
from tilewright.arith.analyzer import Analyzer
from tilewright.arith.interval import Interval
from tilewright.arith.itermap import detect_iter_map, inverse, is_bijective
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.expr import TRUE, IntImm, PrimExpr, Range, Var

X, Y, Z, N = Var("x"), Var("y"), Var("z"), Var("n")


def images(exprs, domains, predicate=TRUE):
    """The values of the expressions at each iteration where the predicate holds."""
    variables = list(domains)
    functions = [function_of(expr, variables) for expr in exprs]
    holds = function_of(predicate, variables)
    spaces = [range(d.min.value, d.min.value + d.extent.value) for d in domains.values()]
    for point in itertools.product(*spaces):
        if holds(*point):
            yield point, tuple(function(*point) for function in functions)


def check_claims(exprs, domains, predicate=TRUE):
    """Everything that detection claims is true; the map found is returned."""
    found = detect_iter_map(exprs, domains, predicate)
    if found is None:
        return None
    pairs = list(images(exprs, domains, predicate))
    values = [value for _, value in pairs]
    if found.injective:
        assert len(set(values)) == len(values)
    if found.bijective:
        ranges = found.ranges()
        box = itertools.product(*(range(r.min.value, r.min.value + r.extent.value) for r in ranges))
        assert set(values) == set(box)
        assert is_bijective(exprs, domains, predicate, onto=ranges)
        outputs = [Var(f"o{k}") for k in range(len(exprs))]
        back = inverse(found, outputs)
        for var, expr in back.items():
            function = function_of(expr, outputs)
            position = list(domains).index(var)
            assert all(function(*value) == point[position] for point, value in pairs)
    return found


@st.composite
def split_fuse_maps(draw) -> tuple[list[PrimExpr], dict[Var, Range]]:
    """Loops, and indices made from them by random fusions, exact splits and exchanges."""
    variables = [X, Y, Z][: draw(st.integers(1, 3))]
    extents = [draw(st.sampled_from([2, 3, 4, 6])) for _ in variables]
    domains = {var: rng(draw(st.integers(-1, 2)), extent) for var, extent in zip(variables, extents, strict=True)}
    current = [(var - domains[var].min, extent) for var, extent in zip(variables, extents, strict=True)]
    for _ in range(draw(st.integers(0, 4))):
        action = draw(st.sampled_from(["fuse", "split", "swap"]))
        position = draw(st.integers(0, len(current) - 1))
        if action == "fuse" and len(current) > 1:
            position = min(position, len(current) - 2)
            (a, a_extent), (b, b_extent) = current[position : position + 2]
            current[position : position + 2] = [(a * b_extent + b, a_extent * b_extent)]
        elif action == "split":
            expr, extent = current[position]
            factor = draw(st.sampled_from([f for f in range(1, extent + 1) if extent % f == 0]))
            current[position : position + 1] = [(expr // factor, extent // factor), (expr % factor, factor)]
        elif action == "swap":
            current.append(current.pop(position))
    return [expr for expr, _ in current], domains


@settings(max_examples=100)
@given(split_fuse_maps(), st.booleans())
def test_splits_and_fusions_are_recognised(case, simplified):
    exprs, domains = case
    if simplified:
        analyzer = Analyzer()
        for var, value in domains.items():
            analyzer.bind(var, value)
        exprs = [analyzer.simplify(expr) for expr in exprs]
    found = check_claims(exprs, domains)
    if not simplified:
        assert found is not None and found.bijective


def affine(variables):
    leaves = st.sampled_from(variables) | st.integers(0, 4).map(IntImm)
    factor = st.sampled_from([1, 2, 3, 4, 6, 8]).map(IntImm)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(e.Add, inner, inner),
            st.builds(e.Mul, inner, factor),
            st.builds(e.FloorDiv, inner, factor),
            st.builds(e.FloorMod, inner, factor),
        ),
        max_leaves=5,
    )


@settings(max_examples=100)
@given(st.lists(affine([X, Y]), min_size=1, max_size=3), st.integers(1, 8), st.integers(1, 6), st.integers(1, 40))
def test_claims_about_random_maps_hold(exprs, x_extent, y_extent, limit):
    domains = {X: rng(0, x_extent), Y: rng(0, y_extent)}
    check_claims(exprs, domains)
    check_claims(exprs, domains, build.lt(X * y_extent + Y, limit))
    check_claims(exprs, domains, build.lt(exprs[0], limit))
    check_claims(exprs, domains, build.logical_and(exprs[-1] < limit, build.ne(X, limit)))


def test_a_split_with_a_remainder_and_its_predicate():
    domains = {X: rng(0, 4), Y: rng(0, 32)}
    fused = X * 32 + Y
    assert is_bijective([fused], domains, fused < 100, onto=[rng(0, 100)])
    assert not is_bijective([fused], domains, fused < 100, onto=[rng(0, 99)])
    found = check_claims([fused // 10, fused % 10], domains, fused < 100)
    assert found is not None and found.extents == (10, 10)
    assert not is_bijective([fused // 3, fused % 3], domains, fused < 100)
    assert is_bijective([X, Y], domains, fused < 96, onto=[rng(0, 3), rng(0, 32)])
    assert not is_bijective([X, Y], domains, fused < 100)


def test_nested_splits_with_remainders():
    domains = {X: rng(0, 4), Y: rng(0, 7), Z: rng(0, 5)}
    inner = Y * 5 + Z
    outer = X * 32 + inner
    assert is_bijective([outer], domains, build.logical_and(outer < 100, inner < 32), onto=[rng(0, 100)])
    assert not is_bijective([outer], domains, outer < 100)


def test_symbolic_extents():
    analyzer = Analyzer()
    analyzer.bind(N, Interval(1, None))
    domains = {X: rng(0, (N + 31) // 32), Y: rng(0, 32)}
    fused = X * 32 + Y
    assert is_bijective([fused], domains, fused < N, analyzer, onto=[rng(0, N)])
    assert is_bijective([X * N + Y], {X: rng(0, 6), Y: rng(0, N)}, TRUE, analyzer, onto=[rng(0, N * 6)])
    assert is_bijective([X // N, X % N], {X: rng(0, N * 6)}, TRUE, analyzer, onto=[rng(0, 6), rng(0, N)])
    assert not is_bijective([X // N, X % N], {X: rng(0, N * 6 + 1)}, TRUE, analyzer)


@pytest.mark.parametrize(
    "exprs", [[X, X], [X // 2], [X * 2], [X + Y], [X * Y], [build.minimum(X, 3)], [X // 4, X % 3], [X // 5, X % 5]]
)
def test_maps_that_lose_or_overlap(exprs):
    assert not is_bijective(exprs, {X: rng(0, 8), Y: rng(0, 3)})


def test_predicates_that_are_not_limits():
    domains = {X: rng(0, 8)}
    found = check_claims([X], domains, build.ne(X, 3))
    assert found is not None and found.injective and not found.bijective
    assert is_bijective([X], domains, X < 9)
    assert is_bijective([X], domains, X < 5, onto=[rng(0, 5)])
    assert not is_bijective([X], domains, build.le(3, X))
    found = check_claims([X, Y], {X: rng(0, 8), Y: rng(0, 3)}, X * 3 + Y < 11)
    assert found is not None and found.injective and not found.bijective


def test_no_iterations():
    assert detect_iter_map([X], {X: rng(0, 0)}) is None
    assert not is_bijective([X], {X: rng(0, 4)}, X < 0)


def test_a_map_without_inverse():
    found = detect_iter_map([X // 2], {X: rng(0, 8)})
    assert found is not None and not found.injective and found.ranges() is None
    assert inverse(found, [Y]) is None


def test_loops_of_one_iteration():
    found = detect_iter_map([X], {X: rng(0, 8), Y: rng(3, 1)})
    assert found is not None and found.bijective
    assert inverse(found, [Z]) == {X: Z, Y: IntImm(3)}


@pytest.mark.parametrize(
    ("extents", "lanes"), [((4, 4, 4, 7), 64), ((1, 4, 4, 5), 16), ((4, 2, 6, 5), 16), ((3, 5, 7), 16)]
)
def test_loops_fused_and_split_at_a_number_that_shares_factors(extents: tuple[int, ...], lanes: int) -> None:
    """The vector loop of an element-wise kernel of an odd shape, with the guard of its tail."""
    total = 1
    for extent in extents:
        total *= extent
    flat = X * lanes + Y
    indices: list[PrimExpr] = []
    step = total
    for position, extent in enumerate(extents):
        step //= extent
        index = flat if step == 1 else flat // step
        indices.append(index if position == 0 else index % extent)
    domains = {X: rng(0, -(-total // lanes)), Y: rng(0, lanes)}
    found = check_claims(indices, domains, build.lt(flat, total) if total % lanes else TRUE)
    assert found is not None
    assert found.injective
