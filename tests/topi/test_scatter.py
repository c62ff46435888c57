"""scatter: the loop program against the reference; and compiled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.topi.differential import check, random_array
from tilewright.graph.ir.expr import Function, Var
from tilewright.graph.ir.op import call, get_operator
from tilewright.graph.ops.scatter import REDUCTIONS
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type

RANDOM = np.random.default_rng(6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_scatter(dtype, reduction):
    data, updates = random_array(RANDOM, (6, 3), dtype), random_array(RANDOM, (5, 3), dtype)
    places = np.array([2, 0, 2, -1, 6], np.int64)  # twice the same, and two that are outside
    check("scatter", data, places, updates, reduction=reduction)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-1, 5), min_size=1, max_size=7), st.sampled_from(REDUCTIONS))
def test_any_places(places, reduction):
    updates = np.arange(1, len(places) + 1, dtype=np.int32)
    check("scatter", np.arange(10, 15, dtype=np.int32), np.array(places, np.int32), updates, reduction=reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_compiled(reduction):
    values = [RANDOM.normal(size=(20, 9)).astype(np.float32), RANDOM.integers(0, 20, 30), None]
    values[2] = RANDOM.normal(size=(30, 9)).astype(np.float32)
    params = tuple(Var(f"x{n}", tensor_type(value.shape, value.dtype.name)) for n, value in enumerate(values))
    executable = tw.compile(
        IRModule([Function("main", params, call("scatter", *params, reduction=reduction))]), threads=1
    )
    operator = get_operator("scatter")
    wanted = operator.reference(values, operator.attributes_class(reduction=reduction))
    np.testing.assert_allclose(executable(*values), wanted, rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-2, 12), min_size=1, max_size=9), st.sampled_from(["float32", "float16", "int32"]))
def test_sums_of_any_segments(segments, dtype):
    """Few rows look for their updates, many have them sorted."""
    updates = random_array(RANDOM, (len(segments), 3), dtype)
    for count in (2, 11):
        check("segment_sum", updates, np.array(segments, np.int64), count=count)
    check("segment_sum", updates[:, 0], np.array(segments, np.int32), count=30)
