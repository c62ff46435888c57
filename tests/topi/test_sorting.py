"""topk: the loop program against the reference, ties and NaN included; and compiled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.topi.differential import (
    check,
    cpu_program,
    operator_program,
    random_array,
    results_of,
    run_reference,
    specials,
)
from tests.topi.scheduling import schedule_cpu
from tilewright.graph.ir.expr import Function, Var
from tilewright.graph.ir.op import call
from tilewright.ir.dtype import DataType
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.target import Target
from tilewright.topi.selection import has_keys, is_list_better
from tilewright.topi.sorting import rounds

RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_topk(axis, dtype, largest):
    x = random_array(RANDOM, (4, 5, 3), dtype, low=0, high=3)
    check("topk", x, axis=axis, k=2, largest=largest)


@pytest.mark.parametrize("largest", [True, False])
def test_special_values(largest):
    x = np.concatenate([specials("float32"), specials("float32")])
    check("topk", x, axis=0, k=len(x), largest=largest)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8), st.booleans(), st.data())
def test_ties_keep_their_order(values, largest, choice):
    k = choice.draw(st.integers(0, len(values)))
    check("topk", np.array(values, np.int64), axis=0, k=k, largest=largest)


def test_compiled():
    x = RANDOM.normal(size=(3, 40)).astype(np.float32)
    data = Var("x", tensor_type(x.shape, "float32"))
    executable = tw.compile(IRModule([Function("main", (data,), call("topk", data, axis=1, k=7))]), threads=1)
    values, places = executable(x)
    np.testing.assert_array_equal(places, np.argsort(-x, axis=1)[:, :7])
    np.testing.assert_array_equal(values, np.take_along_axis(x, places, 1))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("size", "k"), [(200, 3), (330, 20), (1000, 1)])
def test_few_of_many_are_found_in_rounds(size: int, k: int, largest: bool) -> None:
    assert len(rounds(size, k)) >= 1
    x = RANDOM.integers(0, 25, (2, size)).astype(np.float32)
    x[:, ::7] = RANDOM.choice(specials("float32"), x[:, ::7].shape)
    for data in (x, np.zeros_like(x), np.full_like(x, -np.inf), np.full_like(x, np.nan)):
        assert_found(data, k, largest)
    assert_found(RANDOM.integers(250, 256, (2, size)).astype(np.uint8), k, largest)


def assert_found(x: np.ndarray, k: int, largest: bool) -> None:
    """Both ways compiled, against the operator's reference."""
    attributes: dict[str, object] = {"axis": 1, "k": k, "largest": largest}
    expected = run_reference("topk", [x], **attributes)
    target = Target("native").replace(cores=1)
    for func in (operator_program("topk", [x], **attributes), cpu_program("topk", [x], **attributes)):
        results = results_of(func, [x])
        tw.build(schedule_cpu(func, target), target=target)(x, *results)
        for actual, wanted in zip(results, expected, strict=True):
            np.testing.assert_array_equal(actual, wanted)


@pytest.mark.grid
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("size", "k"), [(7, 7), (90, 1), (100, 33), (500, 120), (33, 33), (1000, 1000), (700, 400), (65, 64)]
)
def test_lists_and_merged_runs(size: int, k: int, largest: bool) -> None:
    x = RANDOM.standard_normal((2, size)).astype(np.float32)
    x[1] = RANDOM.choice(specials("float32"), size)
    assert_found(x, k, largest)
    assert_found(np.sort(x), k, largest)


def test_many_of_many_are_merged() -> None:
    assert is_list_better(10_000, 50)
    assert not is_list_better(4096, 2048)
    assert not is_list_better(1024, 1024)


@pytest.mark.parametrize("dtype", ["int8", "uint32", "float16", "int64", "float64"])
@pytest.mark.parametrize("k", [5, 200])
def test_types(dtype: str, k: int) -> None:
    x = random_array(RANDOM, (3, 200), dtype, low=-100, high=100)
    x[0, :4] = [0, 1, np.iinfo(dtype).max, np.iinfo(dtype).min] if dtype[0] in "iu" else [np.nan, np.inf, -np.inf, -0.0]
    for largest in (True, False):
        assert_found(x, k, largest)
    # Numbers of 64 bits do not fit beside a place: they are counted.
    assert has_keys(DataType.of(dtype)) is (dtype not in ("int64", "float64"))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("shape", "axis", "k"), [((30, 11), 0, 5), ((2, 9, 8), 1, 9), ((40, 16), 0, 17), ((5, 9), 0, 1)]
)
def test_columns_side_by_side(shape: tuple[int, ...], axis: int, k: int, largest: bool) -> None:
    x = RANDOM.standard_normal(shape).astype(np.float32)
    x[:, ::3] = RANDOM.choice(specials("float32"), x[:, ::3].shape)
    check("topk", x, axis=axis, k=k, largest=largest)


def test_rows_of_other_axes_in_parallel() -> None:
    x = RANDOM.standard_normal((400, 3, 64)).astype(np.float32)
    data = Var("x", tensor_type(x.shape, "float32"))
    executable = tw.compile(IRModule([Function("main", (data,), call("topk", data, axis=0, k=3))]), threads=2)
    for actual, wanted in zip(executable(x), run_reference("topk", [x], axis=0, k=3), strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_rounds_leave_fewer_and_fewer() -> None:
    assert rounds(128, 3) == []
    assert rounds(10_000, 50) == [(10_000, 128, 3916), (3916, 128, 1550), (1550, 128, 614), (614, 128, 250)]
    assert rounds(10_000, 6000) == []
    assert rounds(None, 3) == rounds(100, None) == rounds(5000, 0) == []
