"""topk: the loop program against the reference, ties and NaN included; and compiled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.topi.differential import check, random_array, specials
from tilewright.graph.expr import Function, Var
from tilewright.graph.op import call
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type

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
