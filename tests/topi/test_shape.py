"""Operators that move elements: random shapes, sizes 0 and 1, negative strides, every padding mode."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.topi.differential import check, cpu_program, random_array, results_of
from tests.topi.scheduling import schedule_cpu
from tilewright.support.errors import UnsupportedError
from tilewright.target import Target
from tilewright.te.language import placeholder
from tilewright.topi.registry import compute_operator

SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 4]), max_size=4).map(tuple)


def _regroupings(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[int, ...]:
    """A random shape with the same number of elements."""
    rest = math.prod(shape)
    if rest == 0:
        dims = list(shape)
        rng.shuffle(dims)
        return tuple(dims)
    result = []
    while rest > 1:
        divisors = [d for d in range(1, rest + 1) if rest % d == 0]
        pick = int(rng.choice(divisors))
        result.append(pick)
        rest //= pick
    result.insert(int(rng.integers(0, len(result) + 1)), 1)
    return tuple(result)


@given(SHAPES, st.integers(0, 10_000))
def test_reshape(shape: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    check("reshape", data, shape=_regroupings(shape, rng))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ((2, 3, 4), (2, 12)),
        ((2, 12), (2, 3, 4)),
        ((4, 6), (6, 4)),
        ((6,), (1, 2, 1, 3, 1)),
        ((), (1, 1)),
        ((1, 1), ()),
        ((2, 3, 5, 7), (2, 15, 7)),
        ((4, 9), (2, 2, 3, 3)),
        ((2, 2, 9), (4, 3, 3)),
        ((0, 3), (3, 0)),
        ((0, 4), (2, 0, 5)),
        ((1, 6, 1), (3, 1, 2)),
    ],
)
def test_reshape_of_chosen_shapes(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    check("reshape", np.arange(math.prod(source), dtype=np.int64).reshape(source), shape=target)


@given(SHAPES, st.randoms(use_true_random=False))
def test_transpose(shape: tuple[int, ...], random: object) -> None:
    axes = list(range(len(shape)))
    random.shuffle(axes)  # type: ignore[attr-defined]
    check("transpose", np.arange(math.prod(shape), dtype=np.int32).reshape(shape), axes=tuple(axes))


@pytest.mark.parametrize(
    ("source", "target"), [((), (2, 3)), ((1,), (4,)), ((3, 1), (2, 3, 5)), ((1, 1), (0, 4)), ((2, 3), (2, 3))]
)
def test_broadcast_to(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    check("broadcast_to", random_array(np.random.default_rng(0), source), shape=target)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(0, 2))
def test_concatenate(sizes: list[int], axis: int) -> None:
    rng = np.random.default_rng(len(sizes))
    parts = []
    for size in sizes:
        shape = [2, 3, 2]
        shape[axis] = size
        parts.append(random_array(rng, shape, "int32", -100, 100))
    check("concatenate", *parts, axis=axis)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(0, 2))
def test_split(sizes: list[int], axis: int) -> None:
    shape = [2, 3, 2]
    shape[axis] = sum(sizes)
    check("split", random_array(np.random.default_rng(1), shape, "int32", -100, 100), sizes=tuple(sizes), axis=axis)


@st.composite
def _slices(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[int, int, int]]]:
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=3)))
    parts = []
    for size in shape:
        stride = draw(st.sampled_from([1, 2, 3, -1, -2]))
        if stride > 0 or size == 0:
            begin, end = draw(st.integers(0, size)), draw(st.integers(0, size))
            stride = abs(stride)
        else:
            begin, end = draw(st.integers(0, size - 1)), draw(st.integers(-1, size - 1))
        parts.append((begin, end, stride))
    return shape, parts


@given(_slices())
@settings(max_examples=100)
def test_slice(case: tuple[tuple[int, ...], list[tuple[int, int, int]]]) -> None:
    shape, parts = case
    begin, end, strides = (tuple(part[n] for part in parts) for n in range(3))
    data = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    check("slice", data, begin=begin, end=end, strides=strides)


@pytest.mark.parametrize("mode", ["wrap_negative", "clip"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int8"])
def test_take(dtype: str, mode: str) -> None:
    rng = np.random.default_rng(2)
    data = random_array(rng, (4, 5, 3), "float32")
    for axis in range(3):
        size = data.shape[axis]
        low = 0 if dtype == "uint8" else -size
        for shape in ((), (2,), (2, 0), (3, 2)):
            indices = rng.integers(low, size, shape).astype(dtype)
            check("take", data, indices, axis=axis, mode=mode)


@pytest.mark.parametrize("mode", ["wrap_negative", "clip"])
def test_take_outside_stays_within_the_data(mode: str) -> None:
    indices = np.array([-100, -5, -4, -1, 0, 3, 4, 100], np.int64)
    check("take", np.arange(4, dtype=np.float32), indices, axis=0, mode=mode)


@pytest.mark.parametrize(
    ("shape", "repeats"), [((), ()), ((3,), (2,)), ((2, 1, 3), (1, 4, 2)), ((2,), (0,)), ((0,), (3,))]
)
def test_tile(shape: tuple[int, ...], repeats: tuple[int, ...]) -> None:
    check("tile", random_array(np.random.default_rng(3), shape, "int16", -9, 9), repeats=repeats)


@pytest.mark.parametrize("dtype", ["float32", "int8", "float16"])
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_pad_constant(dtype: str, value: float) -> None:
    rng = np.random.default_rng(4)
    check("pad", random_array(rng, (3, 4), dtype), before=(1, 0), after=(2, 3), value=value)
    check("pad", random_array(rng, (0, 4), dtype), before=(1, 0), after=(2, 3), value=value)
    check("pad", random_array(rng, (), dtype), before=(), after=(), value=value)


@pytest.mark.parametrize(
    ("dtype", "shape", "axes"),
    [
        ("float32", (19, 33), (1, 0)),
        ("float16", (2, 16, 5, 4), (0, 2, 3, 1)),
        ("int8", (2, 4, 5, 17), (0, 3, 1, 2)),
        ("int32", (9, 2, 20), (2, 1, 0)),
        ("float32", (3, 18, 2, 16), (0, 2, 3, 1)),
        ("uint16", (16, 16), (1, 0)),
        ("int8", (16, 40), (1, 0)),
    ],
)
def test_transposes_in_squares(dtype: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = random_array(np.random.default_rng(5), shape, dtype, low=-100, high=100)
    check("transpose", x, axes=axes)
    target = Target("native").replace(cores=2)
    func = cpu_program("transpose", [x], axes=axes)
    results = results_of(func, [x])
    tw.build(schedule_cpu(func, target), target=target)(x, *results)
    np.testing.assert_array_equal(results[0], x.transpose(axes))


@pytest.mark.parametrize("mode", ["edge", "reflect"])
@pytest.mark.parametrize(
    ("shape", "before", "after"),
    [
        ((3, 20), (1, 2), (0, 3)),
        ((2, 3, 90), (0, 2, 5), (0, 1, 0)),
        ((17,), (0,), (16,)),
        ((0, 3, 16), (0, 0, 1), (0, 0, 1)),
    ],
)
def test_pad_long_lines(mode: str, shape: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]) -> None:
    check("pad", random_array(np.random.default_rng(4), shape), before=before, after=after, mode=mode)


def test_pad_with_infinity_nan_and_fractions() -> None:
    data = np.ones((2,), np.float32)
    for value in (float("-inf"), float("nan"), 0.1):
        check("pad", data, before=(1,), after=(1,), value=value)
    # A fraction truncates to an integer type.
    check("pad", np.ones((2,), np.int32), before=(1,), after=(1,), value=-2.7)
    check("pad", np.array([True, False]), before=(1,), after=(1,), value=1.0)


@pytest.mark.parametrize("mode", ["reflect", "edge"])
@given(data=st.data())
def test_pad_mirrors(mode: str, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    limits = [size - 1 if mode == "reflect" else 3 for size in shape]
    before = tuple(data.draw(st.integers(0, limit)) for limit in limits)
    after = tuple(data.draw(st.integers(0, limit)) for limit in limits)
    check("pad", np.arange(math.prod(shape), dtype=np.int32).reshape(shape), before=before, after=after, mode=mode)


def test_an_operator_without_computation_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match=r"operator nn\.mystery has no computation"):
        compute_operator("nn.mystery", [placeholder((2,))], object(), None)  # type: ignore[arg-type]
