"""Reductions, positions of extremes, softmax, layer normalisation and running sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.topi.differential import check, cpu_program, random_array, results_of, run_reference
from tests.topi.scheduling import schedule_cpu
from tilewright.ir.visit import find_all
from tilewright.target import Target
from tilewright.tir.annotations import ROWS
from tilewright.tir.stmt import Block

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int32", "int64", "uint64")


@st.composite
def _reductions(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 5]), max_size=4)))
    axes = tuple(sorted(draw(st.sets(st.sampled_from(range(len(shape)))))) if shape else ())
    return shape, axes, draw(st.booleans())


@given(
    _reductions(),
    st.sampled_from(["sum", "mean", "max", "min", "prod"]),
    st.sampled_from([*FLOATS, *INTEGERS]),
    st.integers(0, 1000),
)
@settings(max_examples=100)
def test_reductions(case: tuple[tuple[int, ...], tuple[int, ...], bool], name: str, dtype: str, seed: int) -> None:
    shape, axes, keepdims = case
    if name == "mean" and dtype not in FLOATS and any(shape[axis] == 0 for axis in axes):
        return  # The mean of no integers does not exist.
    data = random_array(np.random.default_rng(seed), shape, dtype)
    check(name, data, axes=axes, keepdims=keepdims, tolerance=4e-6 if dtype == "float32" else None)


@pytest.mark.parametrize("name", ["all", "any"])
@given(case=_reductions(), seed=st.integers(0, 100))
def test_truth(name: str, case: tuple[tuple[int, ...], tuple[int, ...], bool], seed: int) -> None:
    shape, axes, keepdims = case
    check(name, random_array(np.random.default_rng(seed), shape, "bool"), axes=axes, keepdims=keepdims)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
def test_reductions_of_specials(name: str) -> None:
    data = np.array([[1, np.nan, 2], [np.inf, 1, 2], [-np.inf, 3, np.inf], [0, -0.0, 1]], np.float32)
    check(name, data, axes=(1,))
    check(name, data, axes=(0,))


def test_axes_in_any_order() -> None:
    data = random_array(np.random.default_rng(0), (2, 3, 4), "int32")
    for axes in ((2, 0), (1, 0), (2, 1, 0)):
        check("sum", data, axes=axes, keepdims=True)
        check("sum", data, axes=axes)


def test_wide_integer_means_do_not_wrap() -> None:
    check("mean", np.array([120, 120, 120, -7], np.int8), axes=(0,))
    check("mean", np.array([250, 250, 251], np.uint8), axes=(0,))
    check("mean", np.array([-7, 2], np.int32), axes=(0,))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=3).map(tuple),
    axis=st.integers(0, 2),
    keepdims=st.booleans(),
    select_last=st.booleans(),
    dtype=st.sampled_from([*FLOATS, *INTEGERS]),
    seed=st.integers(0, 1000),
)
def test_positions(
    name: str, shape: tuple[int, ...], axis: int, keepdims: bool, select_last: bool, dtype: str, seed: int
) -> None:
    # Few distinct values, so that equal ones are common.
    data = random_array(np.random.default_rng(seed), shape, "int32", 0, 2).astype(dtype)
    check(name, data, axis=axis % len(shape), keepdims=keepdims, select_last=select_last)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("select_last", [False, True])
def test_positions_of_specials(name: str, select_last: bool) -> None:
    nan, inf = np.nan, np.inf
    rows = [
        [1, nan, 2, nan],
        [nan, nan, nan, nan],
        [inf, -inf, inf, -inf],
        [-inf, -inf, -inf, -inf],
        [inf, inf, inf, inf],
        [nan, inf, -inf, 0],
        [0.0, -0.0, 0.0, -0.0],
    ]
    check(name, np.array(rows, np.float32), axis=1, select_last=select_last)


def test_positions_of_integer_extremes() -> None:
    for dtype in INTEGERS:
        info = np.iinfo(dtype)
        check("argmax", np.array([info.min, info.min], dtype), axis=0)
        check("argmin", np.array([info.max, info.max], dtype), axis=0)


@pytest.mark.parametrize("name", ["nn.softmax", "nn.log_softmax"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax(name: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    for shape, axis in (((3, 7), 1), ((3, 7), 0), ((2, 3, 4), 1), ((5,), 0), ((1, 1), 1), ((0, 3), 1), ((3, 0), 1)):
        check(name, random_array(rng, shape, dtype), axis=axis)
    check(name, np.array([[1000, 1000, -1000], [-1000, -1000, -1000]]).astype(dtype), axis=1)


@pytest.mark.parametrize("name", ["nn.softmax", "nn.log_softmax"])
def test_softmax_of_specials(name: str) -> None:
    nan, inf = np.nan, np.inf
    rows = [[1, -inf, 2], [-inf, -inf, -inf], [inf, 1, 2], [nan, 1, 2]]
    check(name, np.array(rows, np.float32), axis=1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_layer_norm(dtype: str) -> None:
    rng = np.random.default_rng(2)
    for shape, axis, inner in (
        ((3, 8), 1, (8,)),
        ((2, 3, 4), 1, (3, 4)),
        ((2, 3, 4), 2, (4,)),
        ((2, 3, 4), 1, (4,)),
        ((2, 3, 4), 1, (3, 1)),
        ((2, 3, 4), 0, (1,)),
        ((2, 3, 4), 2, ()),
    ):
        check(
            "nn.layer_norm",
            random_array(rng, shape, dtype),
            random_array(rng, inner, dtype),
            random_array(rng, inner, dtype),
            axis=axis,
            epsilon=1e-5,
            tolerance={"float16": 8e-3, "float32": 1e-5}.get(dtype),
        )


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "int64"])
def test_cumsum(exclusive: bool, reverse: bool, dtype: str) -> None:
    rng = np.random.default_rng(3)
    for shape, axis in (((7,), 0), ((3, 4), 0), ((3, 4), 1), ((2, 0, 3), 1), ((2, 0, 3), 2), ((1, 1), 0)):
        data = random_array(rng, shape, dtype)
        check(
            "cumsum",
            data,
            axis=axis,
            exclusive=exclusive,
            reverse=reverse,
            tolerance=8e-3 if dtype == "float16" else None,
        )


@pytest.mark.parametrize("name", ["nn.softmax", "nn.log_softmax"])
def test_softmax_of_long_rows(name: str) -> None:
    x = random_array(np.random.default_rng(3), (3, 2090), low=-30, high=30)
    x[1, 5:9] = [np.inf, -np.inf, np.nan, 0]
    x[2, ::3] = -np.inf
    check(name, x, axis=1, tolerance=2e-5)
    target = Target("native").replace(cores=2)
    func = cpu_program(name, [x], axis=1)
    assert any(ROWS.is_on(block) for block in find_all(func.body, Block))
    (result,) = results_of(func, [x])
    tw.build(schedule_cpu(func, target), target=target)(x, result)
    np.testing.assert_allclose(result, run_reference(name, [x], axis=1)[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("shape", [(9, 5), (3, 2, 70), (1, 130), (6,)])
def test_cumsum_of_several_rows_and_columns(shape: tuple[int, ...]) -> None:
    x = random_array(np.random.default_rng(2), shape)
    for axis in range(len(shape)):
        check("cumsum", x, axis=axis, exclusive=axis % 2 == 1, reverse=axis == 0, tolerance=2e-5)


def test_cumsum_keeps_specials_where_they_are() -> None:
    check("cumsum", np.array([1, 2, np.nan, 3, 4], np.float32), axis=0)
    check("cumsum", np.array([1, 2, np.inf, 3, 4], np.float32), axis=0, exclusive=True)


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
def test_running_products(exclusive, reverse):
    x = random_array(np.random.default_rng(2), (3, 5), "float32", low=-2, high=2)
    check("cumprod", x, axis=1, exclusive=exclusive, reverse=reverse)
    check("cumprod", x.astype(np.float16), axis=0, exclusive=exclusive, reverse=reverse)


@pytest.mark.parametrize(("exclusive", "reverse"), [(False, False), (True, False), (False, True), (True, True)])
def test_long_running_sums_are_made_of_blocks(exclusive: bool, reverse: bool) -> None:
    for size in (32, 33, 95, 528):
        data = random_array(np.random.default_rng(size), (size, 2), "int32")
        check("cumsum", data, axis=0, exclusive=exclusive, reverse=reverse)
    signs = np.where(np.arange(80) % 3, 1, -1)[np.newaxis].astype(np.float32)
    check("cumprod", signs, axis=1, exclusive=exclusive, reverse=reverse)
    marked = np.ones(70, np.float32)
    marked[40] = np.nan
    check("cumsum", marked, axis=0, exclusive=exclusive, reverse=reverse)


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_sums_of_many_pixels_keep_their_digits(name: str) -> None:
    """Channels last: one channel's pixels are far apart, and added up line by line."""
    target = Target("native").replace(cores=1)
    x = np.random.default_rng(0).random((1, 160, 120, 8), np.float32) + np.float32(0.5)
    func = schedule_cpu(cpu_program(name, [x], axes=(1, 2)), target)
    (out,) = results_of(func, [x])
    tw.build(func, target=target)(x, out)
    exact = getattr(np, name)(x.astype(np.float64), axis=(1, 2))
    assert np.abs(out / exact - 1).max() < 1e-6
