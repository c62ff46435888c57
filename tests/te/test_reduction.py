"""Reductions: the named ones, tuples, custom reducers, conditions, empty domains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.te.running import run
from tilewright import te
from tilewright.ir.expr import PrimExpr
from tilewright.support.errors import UserError
from tilewright.te.tensor import Axis
from tilewright.tir.interpreter import interpret


def _reduced(reduce: Any, values: np.ndarray[Any, Any], **options: Any) -> list[object]:
    a = te.placeholder(values.shape, values.dtype.name, "A")
    k = te.reduce_axis((0, values.shape[1]), "k")
    b = te.compute((values.shape[0],), lambda i: reduce(a[i, k], axis=k, **options), name="B")
    (out,) = run([a, b], values)
    return out.tolist()  # type: ignore[no-any-return]


VALUES = np.array([[1, 5, 3], [-2, -7, 0]], np.int32)


@pytest.mark.parametrize(
    ("reduce", "wanted"),
    [(te.sum, [9, -9]), (te.prod, [15, 0]), (te.max, [5, 0]), (te.min, [1, -7])],
)
def test_named_reductions(reduce: Any, wanted: list[int]) -> None:
    assert _reduced(reduce, VALUES) == wanted
    assert _reduced(reduce, VALUES.astype(np.float32)) == wanted


def test_truth() -> None:
    values = np.array([[True, True, False], [True, True, True], [False, False, False]])
    assert _reduced(te.all, values) == [False, True, False]
    assert _reduced(te.any, values) == [True, True, False]


def test_a_condition_leaves_elements_out() -> None:
    a = te.placeholder((2, 3), "int32", "A")
    k = te.reduce_axis((0, 3), "k")
    b = te.compute((2,), lambda i: te.sum(a[i, k], axis=k, where=a[i, k] > 0), name="B")
    (out,) = run([a, b], VALUES)
    assert out.tolist() == [9, 0]


def test_several_axes_and_offsets() -> None:
    a = te.placeholder((4, 5), "int32", "A")
    i, j = te.reduce_axis((1, 4), "i"), te.reduce_axis((2, 5), "j")
    b = te.compute((), lambda: te.sum(a[i, j], axis=[i, j]), name="B")
    values = np.arange(20, dtype=np.int32).reshape(4, 5)
    (out,) = run([a, b], values)
    assert out.item() == values[1:4, 2:5].sum()


@pytest.mark.parametrize(
    ("reduce", "wanted"), [(te.sum, 0), (te.prod, 1), (te.max, -(1 << 31)), (te.min, (1 << 31) - 1)]
)
def test_a_reduction_of_nothing_is_the_identity(reduce: Any, wanted: int) -> None:
    assert _reduced(reduce, np.zeros((2, 0), np.int32)) == [wanted, wanted]


@pytest.mark.parametrize(("reduce", "places"), [(te.argmax, [1, 2]), (te.argmin, [0, 1])])
def test_argmax_and_argmin_give_place_and_value(reduce: Any, places: list[int]) -> None:
    a = te.placeholder((2, 3), "int32", "A")
    k = te.reduce_axis((0, 3), "k")
    place, value = te.compute_many((2,), lambda i: reduce((k, a[i, k]), axis=k), name="best")
    assert (place.name, value.name) == ("best_v0", "best_v1")
    assert place.dtype.name == "int64"
    got_place, got_value = run([a, place, value], VALUES)
    assert got_place.tolist() == places
    assert got_value.tolist() == [VALUES[n, p] for n, p in enumerate(places)]


def test_of_equal_values_the_first_wins_and_nan_wins_over_all() -> None:
    rows = np.array([[2, 7, 7], [np.nan, 9, np.nan], [-np.inf, -np.inf, -np.inf]], np.float32)
    a = te.placeholder(rows.shape, name="A")
    k = te.reduce_axis((0, 3), "k")
    place, value = te.compute_many((3,), lambda i: te.argmax((k, a[i, k]), axis=k), name="best")
    assert run([a, place, value], rows)[0].tolist() == [1, 0, 0]


def test_a_custom_reducer() -> None:
    longest = te.comm_reducer(
        lambda x, y: te.select(te.maximum(x, -x) < te.maximum(y, -y), y, x), lambda t: te.const(0, t), name="longest"
    )
    assert _reduced(longest, VALUES) == [5, -7]


def test_a_custom_reducer_of_tuples() -> None:
    """Mean and count merged as pairs of sums."""
    pair = te.comm_reducer(
        lambda x, y: (x[0] + y[0], x[1] + y[1]), lambda t0, t1: (te.const(0, t0), te.const(0, t1)), name="stats"
    )
    a = te.placeholder((2, 3), "int32", "A")
    k = te.reduce_axis((0, 3), "k")
    total, squares = te.compute_many((2,), lambda i: pair((a[i, k], a[i, k] * a[i, k]), axis=k), name="stats")
    got_total, got_squares = run([a, total, squares], VALUES)
    assert got_total.tolist() == [9, -9]
    assert got_squares.tolist() == [35, 53]


def test_values_that_depend_on_each_other_are_stored_together() -> None:
    """Products of 2x2 rotation-like pairs: each new value needs both old ones."""
    product = te.comm_reducer(
        lambda x, y: (x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]),
        lambda t0, t1: (te.const(1, t0), te.const(0, t1)),
        name="complex",
    )
    a = te.placeholder((4, 2), "int32", "A")
    k = te.reduce_axis((0, 4), "k")
    real, imaginary = te.compute_many((), lambda: product((a[k, 0], a[k, 1]), axis=k), name="product")
    values = np.array([[1, 2], [3, -1], [0, 2], [2, 2]], np.int32)
    wanted = complex(1, 2) * complex(3, -1) * complex(0, 2) * complex(2, 2)
    got_real, got_imaginary = run([a, real, imaginary], values)
    assert complex(got_real.item(), got_imaginary.item()) == wanted


def test_extremes_of_types() -> None:
    assert te.min_value("int8").value == -128  # type: ignore[attr-defined]
    assert te.max_value("uint16").value == 65535  # type: ignore[attr-defined]
    assert te.min_value("float32").value == float("-inf")  # type: ignore[attr-defined]
    assert te.max_value("bool").value == 1  # type: ignore[attr-defined]


def test_a_reducer_must_give_as_many_values_as_it_takes() -> None:
    wrong = te.comm_reducer(lambda x, y: x[0] + y[0], lambda t0, t1: (te.const(0, t0), te.const(0, t1)))
    k = te.reduce_axis((0, 3), "k")
    with pytest.raises(UserError, match="a reducer of 2 values must give 2 results, not 1"):
        wrong((k, k), axis=k)


@pytest.mark.parametrize(
    "step", ["plain", "split", "reorder", "fuse", "decompose", "vectorize", "parallel", "partition", "cache_write"]
)
def test_reducers_that_speak_of_axes_of_the_result(step: str) -> None:
    """Rows start at their own number and never fall below it, under every schedule."""
    x = te.placeholder((10, 4), name="X")
    k = te.reduce_axis((0, 4), "k")

    def row(n: Axis) -> PrimExpr:
        at_least = te.comm_reducer(
            lambda a, b: te.maximum(a + b, te.cast(n, "float32")), lambda dtype: te.cast(n, dtype)
        )
        return at_least(x[n, k], axis=k)

    y = te.compute((10,), row, name="Y")
    schedule = te.create_schedule(y.op).loops
    block = schedule.get_block("Y")
    n, steps = schedule.get_loops(block)
    actions = {
        "plain": lambda: None,
        "split": lambda: schedule.split(n, [None, 3]),
        "reorder": lambda: schedule.reorder(steps, n),
        "fuse": lambda: schedule.fuse(n, steps),
        "decompose": lambda: schedule.decompose_reduction(block, n),
        "vectorize": lambda: (schedule.reorder(steps, n), schedule.vectorize(n)),
        "parallel": lambda: schedule.parallel(n),
        "partition": lambda: schedule.partition(n, [4]),
        "cache_write": lambda: schedule.cache_write(block, 0, "local"),
    }
    actions[step]()
    values = np.random.default_rng(0).random((10, 4), dtype=np.float32) - 0.5
    expected = np.arange(10, dtype=np.float32)
    for column in range(4):
        expected = np.maximum(expected + values[:, column], np.arange(10, dtype=np.float32))
    found, compiled = np.zeros(10, np.float32), np.zeros(10, np.float32)
    interpret(schedule.func, values, found)
    tw.build(schedule)(values, compiled)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(compiled, expected, rtol=1e-6)


def test_an_identity_does_not_speak_of_steps() -> None:
    x = te.placeholder((10,), name="X")
    k = te.reduce_axis((0, 10), "k")
    reducer = te.comm_reducer(lambda a, b: a + b, lambda dtype: te.cast(k, dtype))
    with pytest.raises(UserError, match="the identity of a reducer uses the axis k that it reduces"):
        reducer(x[k], axis=k)
