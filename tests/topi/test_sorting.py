"""topk: the loop program against the reference, ties and NaN included; and compiled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.topi.differential import check, random_array, specials
from tilewright.graph.expr import Function, Var
from tilewright.graph.op import call, get_operator
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
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
    """Compiled, against the operator's reference."""
    data = Var("x", tensor_type(x.shape, str(x.dtype)))
    made = call("topk", data, axis=1, k=k, largest=largest)
    executable = tw.compile(IRModule([Function("main", (data,), made)]), threads=1)
    expected = get_operator("topk").reference([x], made.attributes)
    for actual, wanted in zip(executable(x), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_rounds_leave_fewer_and_fewer() -> None:
    assert rounds(128, 3) == []
    assert rounds(10_000, 50) == [(10_000, 128, 3916), (3916, 128, 1550), (1550, 128, 614), (614, 128, 250)]
    assert rounds(10_000, 6000) == []
    assert rounds(None, 3) == rounds(100, None) == rounds(5000, 0) == []
