"""Shape arithmetic on symbols against numpy on numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.frontend.core.builder import Builder
from tilewright.frontend.core.symbolic_values import partial_value, symbolic_value
from tilewright.graph.ir.dimensions import value_of
from tilewright.graph.ir.expr import Call, Constant, Var
from tilewright.graph.ir.op import get_operator
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import tensor_type

N, M = Symbol("n"), Symbol("m")
VALUES = {N: 5, M: 3}
STEPS = ["add", "subtract", "multiply", "floor_divide", "minimum", "maximum", "concatenate", "take", "slice", "prod",
         "sum", "max", "cast", "where", "negative", "reshape", "tile"]  # fmt: skip


def numbers(value, values=VALUES):
    found = symbolic_value(value)
    return np.array([value_of(item, values) for item in found.reshape(-1)], np.int64).reshape(found.shape)


def step(builder, name, a, b):
    """An operator on one or two lists of two sizes, which gives a list of two sizes again."""
    match name:
        case "concatenate":
            return builder.call("slice", builder.concatenate([a, b], 0), begin=(1,), end=(3,), strides=(1,))
        case "take":
            return builder.call("take", a, builder.constant([1, 0], "int64"), axis=0)
        case "slice":
            return builder.call("slice", a, begin=(1,), end=(-1,), strides=(-1,))
        case "prod" | "sum" | "max":
            reduced = builder.call(name, a, axes=(0,), keepdims=True)
            return builder.concatenate([reduced, builder.slice_axis(b, 0, 0, 1)], 0)
        case "cast":
            return builder.cast(builder.cast(a, "int32"), "int64")
        case "where":
            return builder.call("where", builder.constant([True, False], "bool"), a, b)
        case "negative":
            return builder.call("negative", a)
        case "reshape":
            return builder.reshape(builder.transpose(builder.reshape(a, (2, 1)), (1, 0)), (2,))
        case "tile":
            return builder.call("slice", builder.call("tile", a, repeats=(2,)), begin=(0,), end=(4,), strides=(2,))
        case "floor_divide":
            return builder.call(name, a, builder.constant([2, 3], "int64"))
    return builder.call(name, a, b)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6))
def test_any_chain_of_operators(steps):
    builder = Builder()
    symbolic = [builder.shape_tensor((N, 2)), builder.shape_tensor((M, N * 2))]
    plain = [builder.constant(numbers(value)) for value in symbolic]
    for name, a, b in steps:
        left, right = a % len(symbolic), b % len(symbolic)
        symbolic.append(step(builder, name, symbolic[left], symbolic[right]))
        plain.append(step(builder, name, plain[left], plain[right]))
        assert isinstance(plain[-1], Constant)
        np.testing.assert_array_equal(numbers(symbolic[-1]), plain[-1].data)


def test_comparisons_that_are_certain():
    builder = Builder()
    shape = builder.shape_tensor((N, N + 2))
    minus = builder.constant([-1, -1], "int64")
    assert builder.call("equal", shape, minus).data.tolist() == [False, False]
    assert builder.call("greater", shape, minus).data.tolist() == [True, True]
    unknown = builder.call("equal", shape, builder.constant([1, 1], "int64"))
    assert isinstance(unknown, Call)
    assert builder.cast(builder.shape_tensor((N + 1,)), "bool").data.tolist() == [True]
    assert isinstance(builder.cast(builder.shape_tensor((N,)), "bool"), Call)


def test_sizes_as_data():
    builder = Builder()
    found = builder.call("add", builder.cast(builder.shape_tensor((N,)), "float32"), builder.constant(1.0, "float32"))
    assert isinstance(found, Call)
    assert symbolic_value(found) is None
    assert isinstance(builder.shape_tensor((3, 4)), Constant)
    assert builder.arange(3).data.tolist() == [0, 1, 2]
    assert builder.arange(N, start=2, step=3).type is tensor_type((N,), "int64")


def test_parts_of_a_shape_that_are_known():
    builder = Builder()
    data = Var("x", tensor_type((1,), "int64"))
    shape = builder.concatenate([builder.shape_tensor((N,)), data, builder.constant([7], "int64")], 0)
    assert partial_value(shape) == [N, None, 7]
    assert partial_value(builder.cast(shape, "int32")) == [N, None, 7]
    assert partial_value(Var("x", tensor_type((N,), "int64"))) is None


@pytest.mark.parametrize("name", ["divide", "floor_divide"])
def test_division_by_zero_is_left_to_the_run(name):
    builder = Builder()
    zero = builder.constant([0], "int64")
    assert isinstance(builder.call(name, builder.shape_tensor((N,)), zero), Call)
    assert get_operator(name).elementwise
