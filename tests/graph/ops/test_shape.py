"""Operators that move elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.graph.ops.running import apply, data, infer
from tilewright.graph.ops.shape import TO_THE_END
from tilewright.ir.expr import Var
from tilewright.ir.types import TensorType, tensor_type
from tilewright.support.errors import UserError

N = Var("n")


def test_reshape():
    x = data(2, 3, 4)
    np.testing.assert_array_equal(apply("reshape", x, shape=(4, 6)), x.reshape(4, 6))
    np.testing.assert_array_equal(apply("reshape", x, shape=(4, -1)), x.reshape(4, 6))
    assert apply("reshape", data(), shape=(1, 1)).shape == (1, 1)


def test_reshape_of_symbolic_shapes():
    kind = infer("reshape", tensor_type((N, 6), "float32"), shape=(-1, 3))
    assert isinstance(kind, TensorType)
    assert kind.shape is not None
    assert "n" in repr(kind.shape[0])
    assert infer("reshape", tensor_type((N, 6), "float32"), shape=(4, 3)).static_shape == (4, 3)


@given(st.permutations(range(4)))
def test_transpose(axes):
    x = data(2, 3, 4, 5)
    np.testing.assert_array_equal(apply("transpose", x, axes=tuple(axes)), x.transpose(axes))


def test_broadcast_to():
    np.testing.assert_array_equal(apply("broadcast_to", np.array([[1], [2]]), shape=(3, 2, 2))[1], [[1, 1], [2, 2]])
    assert apply("broadcast_to", data(), shape=()).shape == ()
    assert infer("broadcast_to", tensor_type((N, 1), "float32"), shape=(4, 5)).static_shape == (4, 5)


def test_concatenate_and_split_undo_each_other():
    x = data(3, 7, 2)
    parts = apply("split", x, sizes=(2, 0, 5), axis=1)
    np.testing.assert_array_equal(apply("concatenate", *parts, axis=1), x)


def test_concatenate_of_symbolic_shapes():
    kind = infer("concatenate", tensor_type((N, 2), "float32"), tensor_type((3, 2), "float32"), axis=0)
    assert kind.shape[0] is N + 3
    kind = infer("concatenate", tensor_type((3, N), "float32"), tensor_type((3, 5), "float32"), axis=0)
    assert kind.static_shape == (6, 5)


@given(st.data())
def test_slice(draw):
    size = draw.draw(st.integers(1, 7))
    stride = draw.draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))
    begin, end, _ = slice(draw.draw(st.integers(-8, 8)), draw.draw(st.integers(-8, 8)), stride).indices(size)
    if not (0 <= begin <= size and -1 <= end <= size):
        return
    if stride < 0 and begin == size:
        return
    x = data(size, 2)
    expected = x[begin : (None if end < 0 else end) : stride] if (end - begin) * stride > 0 else x[:0]
    if stride > 0 and end < 0:
        return
    result = apply("slice", x, begin=(begin, 0), end=(end, 2), strides=(stride, 1))
    np.testing.assert_array_equal(result, expected)


def test_slice_of_symbolic_shapes():
    whole = infer("slice", tensor_type((N,), "float32"), begin=(0,), end=(TO_THE_END,), strides=(1,))
    assert whole.shape[0] is N
    assert infer("slice", tensor_type((N,), "float32"), begin=(1,), end=(4,), strides=(2,)).static_shape == (2,)
    unknown = infer("slice", tensor_type((None,), "float32"), begin=(1,), end=(TO_THE_END,), strides=(1,))
    assert unknown.shape == (None,)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad(mode):
    x = data(3, 4)
    options = {"constant_values": 2.5} if mode == "constant" else {}
    expected = np.pad(x, ((1, 0), (2, 3)), mode=mode, **options)
    np.testing.assert_array_equal(apply("pad", x, before=(1, 2), after=(0, 3), mode=mode, value=2.5), expected)
    apply("pad", data(3, dtype="int32"), before=(1,), after=(1,), mode=mode, value=2.0)


def test_tile():
    x = data(2, 3)
    np.testing.assert_array_equal(apply("tile", x, repeats=(2, 3)), np.tile(x, (2, 3)))


@pytest.mark.parametrize(
    ("name", "attributes", "message"),
    [
        ("reshape", {"shape": (5, 5)}, r"cannot reshape \(2, 3\) \(6 elements\) to \(5, 5\) \(25 elements\)"),
        ("reshape", {"shape": (-1, 4)}, "cannot reshape"),
        ("reshape", {"shape": (-1, -1)}, "is not a shape to reshape to"),
        ("transpose", {"axes": (0, 0)}, "not an order of axes"),
        ("transpose", {"axes": (0, 1, 2)}, "do not fit the shape"),
        ("broadcast_to", {"shape": (3, 3)}, "do not broadcast"),
        ("broadcast_to", {"shape": (3,)}, "does not broadcast to"),
        ("broadcast_to", {"shape": (-3, 3)}, "must not be negative"),
        ("concatenate", {"axis": 2}, "axis 2 is out of range for 2 dimensions"),
        ("split", {"sizes": (1, 1), "axis": 1}, "do not make up dimension 1 of size 3"),
        ("split", {"sizes": (), "axis": 1}, "at least one part"),
        ("split", {"sizes": (4, -1), "axis": 1}, "must not be negative"),
        ("slice", {"begin": (0,), "end": (1,), "strides": (1,)}, "begin must have 2 entries"),
        ("slice", {"begin": (0, 0), "end": (5, 1), "strides": (1, 1)}, "not within dimension 0 of size 2"),
        ("slice", {"begin": (0, 0), "end": (1, 1), "strides": (0, 1)}, "the stride of dimension 0 is 0"),
        ("pad", {"before": (1,), "after": (0,)}, "before must have 2 entries"),
        ("pad", {"before": (1, 0), "after": (0, 0), "mode": "odd"}, "unknown padding mode"),
        ("pad", {"before": (2, 0), "after": (0, 0), "mode": "reflect"}, "too small for reflect padding"),
        ("pad", {"before": (-2, 0), "after": (0, 0)}, "must not be negative"),
        ("tile", {"repeats": (2,)}, "repeats must have 2 entries"),
    ],
)
def test_wrong_attributes(name, attributes, message):
    with pytest.raises(UserError, match=message):
        infer(name, tensor_type((2, 3), "float32"), **attributes)


def test_wrong_parts():
    with pytest.raises(UserError, match="nothing to concatenate"):
        infer("concatenate", axis=0)
    with pytest.raises(UserError, match="2 and 1 dimensions"):
        infer("concatenate", tensor_type((2, 3), "float32"), tensor_type((2,), "float32"), axis=0)
    with pytest.raises(UserError, match="the first part is float32, another part is int8"):
        infer("concatenate", tensor_type((2,), "float32"), tensor_type((2,), "int8"), axis=0)
