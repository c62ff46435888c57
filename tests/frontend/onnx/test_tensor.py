"""Making, shaping and moving tensors, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontend.onnx.helpers import body_of, check, data, import_one, make_model, operators_of, run_tilewright
from tilewright.graph.ir.expr import Constant
from tilewright.support.errors import UnsupportedError, UserError


def ints(*values: int) -> np.ndarray:
    """A list of numbers as ONNX has it."""
    return np.array(values, np.int64)


@pytest.mark.parametrize("shape", [(6, 4), (-1,), (0, -1), (2, 0, 1, -1), (1, 24)])
def test_reshape(shape):
    check("Reshape", data(2, 3, 4), ints(*shape), constants=[1])


def test_reshape_with_real_zeros():
    check("Reshape", data(0, 3), ints(3, 0), constants=[1], allowzero=1)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5, 5), "cannot reshape"),
        ((-1, 5), "cannot reshape"),
        ((-1, -1), "negative"),
        ((1, 1, 1, 0), "copies dimension 3"),
    ],
)
def test_reshape_refuses(shape, message):
    with pytest.raises(UserError, match=message):
        import_one("Reshape", data(2, 3, 4), ints(*shape), constants=[1])


@pytest.mark.parametrize("axis", [0, 1, 3, -1])
def test_flatten(axis):
    check("Flatten", data(2, 3, 4), axis=axis)


def test_flatten_refuses():
    with pytest.raises(UserError, match="axis 4 is out of range"):
        import_one("Flatten", data(2, 3, 4), axis=4)


def test_squeeze_and_unsqueeze():
    check("Squeeze", data(1, 3, 1, 4))
    check("Squeeze", data(1, 3, 1, 4), ints(-2), constants=[1])
    check("Squeeze", data(1, 3, 1, 4), opset=11, axes=[0])
    check("Unsqueeze", data(3, 4), ints(0, -1), constants=[1])
    check("Unsqueeze", data(3, 4), opset=11, axes=[1, 3])
    with pytest.raises(UserError, match="is not 1: it cannot be squeezed"):
        import_one("Squeeze", data(1, 3), ints(1), constants=[1])
    with pytest.raises(UserError, match="Unsqueeze needs axes"):
        import_one("Unsqueeze", data(1, 3))


def test_transpose():
    check("Transpose", data(2, 3, 4))
    check("Transpose", data(2, 3, 4), perm=[1, 2, 0])
    with pytest.raises(UserError, match="no order of the dimensions"):
        import_one("Transpose", data(2, 3, 4), perm=[1, 1, 0])


def test_concat():
    check("Concat", data(2, 3), data(2, 1), data(2, 5), axis=-1)
    check("Concat", data(2, 3), axis=0)
    with pytest.raises(UserError, match="dimension 0 of the parts: 2 and 3 must be equal"):
        import_one("Concat", data(2, 3), data(3, 3), axis=1)


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_split(opset):
    check("Split", data(6, 4), outputs=3, opset=opset, **({"num_outputs": 3} if opset == 18 else {}))
    if opset == 11:
        check("Split", data(6, 4), outputs=2, opset=opset, split=[1, 5])
    else:
        check("Split", data(6, 4), ints(1, 3), constants=[1], outputs=2, opset=opset, axis=1)


def test_split_into_unequal_parts():
    check("Split", data(7, 2), outputs=3, num_outputs=3)
    with pytest.raises(UserError, match="does not split into 3 equal parts"):
        import_one("Split", data(7, 2), outputs=3, opset=13)
    with pytest.raises(UserError, match="do not fit 2 outputs"):
        import_one("Split", data(7, 2), ints(3, 3), constants=[1], outputs=2)


@given(
    st.integers(-9, 9),
    st.integers(-9, 9),
    st.sampled_from([-3, -2, -1, 1, 2, 3, 7]),
    st.integers(0, 6),
    st.integers(-2, 1),
)
def test_slice_means_what_numpy_means(start, end, step, size, axis):
    x = np.arange(size * 3).reshape(size, 3).astype(np.float32) if axis in (0, -2) else data(3, size)
    module_inputs = {"x": x}
    node = onnx.helper.make_node("Slice", ["x", "s", "e", "a", "t"], ["y"])
    stored = {"s": ints(start), "e": ints(end), "a": ints(axis), "t": ints(step)}
    (result,) = run_tilewright(make_model([node], module_inputs, ["y"], stored), module_inputs)
    index = [slice(None), slice(None)]
    # Downwards, the standard begins at the first element where numpy begins before it.
    index[axis] = slice(max(start, -size) if step < 0 and size else start, end, step)
    np.testing.assert_array_equal(result, x[tuple(index)])


def test_slice():
    check("Slice", data(5, 6), opset=9, starts=[1, -3], ends=[3, 1000], axes=[0, 1])
    check("Slice", data(5, 6), opset=9, starts=[1], ends=[-1])
    check("Slice", data(5, 6), ints(4, 5), ints(-100, 0), ints(0, 1), ints(-1, -2), constants=[1, 2, 3, 4])
    check("Slice", data(5, 6), ints(1), ints(4), constants=[1, 2])
    check("Slice", data(5, 6), ints(1), ints(np.iinfo(np.int64).max), ints(-1), constants=[1, 2, 3])


def test_slice_refuses():
    with pytest.raises(UserError, match="a step is 0"):
        import_one("Slice", data(5), ints(0), ints(3), ints(0), ints(0), constants=[1, 2, 3, 4])
    with pytest.raises(UserError, match="must have one length"):
        import_one("Slice", data(5), ints(0), ints(3, 4), constants=[1, 2])


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad(mode):
    check("Pad", data(3, 4), opset=10, pads=[0, 1, 2, 1], mode=mode, **({"value": 1.5} if mode == "constant" else {}))
    check("Pad", data(3, 4), ints(0, 1, 2, 1), constants=[1], mode=mode)


def test_pad_options():
    value = np.array(3.5, np.float32)
    check("Pad", data(3, 4), ints(1, 2), value, ints(-1), constants=[1, 2, 3])
    check("Pad", data(3, 4), ints(1, -1, 0, 2), value, constants=[1, 2])
    check("Pad", data(3, 4), ints(2, 3, 0, 2), constants=[1], mode="wrap")
    check("Pad", data(3, 4), ints(0, 0, 0, 0), constants=[1], mode="edge")
    check("Pad", data(3, 4, dtype="int32"), ints(1, 1, 0, 0), np.array(7, np.int32), constants=[1, 2])


def test_pad_refuses():
    with pytest.raises(UserError, match="unknown padding mode 'mirror'"):
        import_one("Pad", data(3), ints(1, 1), constants=[1], mode="mirror")
    with pytest.raises(UserError, match="pads must have 4 entries"):
        import_one("Pad", data(3, 3), ints(1, 1), constants=[1])
    with pytest.raises(UserError, match="the value must be one number"):
        import_one("Pad", data(3), ints(1, 1), data(2), constants=[1, 2])
    with pytest.raises(UserError, match="cannot pad dimension 0"):
        import_one("Pad", data(0, 3), ints(1, 0, 1, 0), constants=[1], mode="wrap")


def test_expand_and_tile():
    check("Expand", data(3, 1), ints(2, 1, 6), constants=[1])
    check(
        "Expand",
        data(3, 4),
        ints(
            1,
        ),
        constants=[1],
    )
    check("Tile", data(2, 3), ints(2, 1), constants=[1])
    check("Tile", data(2, 3), ints(1, 1), constants=[1])
    with pytest.raises(UserError, match="does not broadcast with"):
        import_one("Expand", data(3, 4), ints(2, 5), constants=[1])
    with pytest.raises(UserError, match="repeats must have 2 entries"):
        import_one("Tile", data(2, 3), ints(2), constants=[1])


def test_shape_and_size_are_constants():
    for options in ({}, {"start": 1}, {"start": -2, "end": -1}, {"end": 7}):
        check("Shape", data(2, 3, 4), **options)
    check("Size", data(2, 3, 4))
    assert isinstance(body_of(import_one("Shape", data(2, 3))), Constant)


@pytest.mark.parametrize(
    "attributes",
    [
        {"value": onnx.numpy_helper.from_array(data(2, 3))},
        {"value_float": 1.5},
        {"value_int": 3},
        {"value_floats": [1.0, 2.0]},
        {"value_ints": [1, 2]},
    ],
)
def test_constant(attributes):
    check("Constant", **attributes)


def test_sparse_constant():
    values = onnx.numpy_helper.from_array(np.array([1.0, 2.0], np.float32), "v")
    places = onnx.numpy_helper.from_array(np.array([[0, 1], [2, 0]], np.int64), "i")
    sparse = onnx.helper.make_sparse_tensor(values, places, [3, 2])
    result = body_of(import_one("Constant", sparse_value=sparse))
    assert isinstance(result, Constant)
    assert result.data.tolist() == [[0, 1], [0, 0], [2, 0]]


def test_constant_refuses():
    with pytest.raises(UserError, match="exactly one value"):
        import_one("Constant")
    with pytest.raises(UnsupportedError, match="texts are not supported"):
        import_one("Constant", value_string="x")


def test_constant_of_shape():
    check("ConstantOfShape", ints(2, 3), constants=[0])
    check("ConstantOfShape", ints(2), constants=[0], value=onnx.numpy_helper.from_array(np.array([7], np.int64)))
    with pytest.raises(UserError, match="must be one number"):
        import_one("ConstantOfShape", ints(2), constants=[0], value=onnx.numpy_helper.from_array(data(2)))
    with pytest.raises(UserError, match="negative dimension"):
        import_one("ConstantOfShape", ints(-2), constants=[0])


def test_large_constants_stay_small():
    module = import_one("ConstantOfShape", ints(1 << 20, 1 << 10), constants=[0])
    assert operators_of(module) == ["broadcast_to"]


def test_range():
    check("Range", np.array(1, np.int64), np.array(9, np.int64), np.array(3, np.int64), constants=[0, 1, 2])
    check("Range", *(np.array(v, np.float32) for v in (2.0, -1.0, -0.5)), constants=[0, 1, 2])
    check("Range", *(np.array(v, np.int64) for v in (3, 1, 1)), constants=[0, 1, 2])
    with pytest.raises(UserError, match="delta not 0"):
        import_one("Range", *(np.array(v, np.int64) for v in (3, 1, 0)), constants=[0, 1, 2])
    with pytest.raises(UnsupportedError, match="Range of"):
        import_one("Range", *(np.array(v, np.int64) for v in (0, 1 << 40, 1)), constants=[0, 1, 2])


def test_eye_like_and_triangles():
    check("EyeLike", data(3, 4), k=1)
    check("EyeLike", data(3, 4), dtype=onnx.TensorProto.INT64)
    for upper in (0, 1):
        check("Trilu", data(2, 4, 5), upper=upper)
        check("Trilu", data(4, 5), np.array(-1, np.int64), constants=[1], upper=upper)
    with pytest.raises(UserError, match="EyeLike needs a matrix"):
        import_one("EyeLike", data(3))
    with pytest.raises(UserError, match="Trilu needs matrices"):
        import_one("Trilu", data(3))


def test_blocks():
    check("DepthToSpace", data(1, 8, 2, 3), blocksize=2)
    check("DepthToSpace", data(1, 8, 2, 3), blocksize=2, mode="CRD")
    check("SpaceToDepth", data(1, 2, 4, 6), blocksize=2)
    with pytest.raises(UserError, match="does not fit data of shape"):
        import_one("DepthToSpace", data(1, 7, 2, 3), blocksize=2)
    with pytest.raises(UserError, match="does not fit data of shape"):
        import_one("SpaceToDepth", data(1, 7, 3, 3), blocksize=2)


def test_dropout_does_nothing():
    check("Dropout", data(3, 4), outputs=2)
    check("Dropout", data(3, 4), opset=11, ratio=0.3)
    assert operators_of(import_one("Dropout", data(3))) == []
    training = import_one("Dropout", data(3), np.array(0.5, np.float32), np.array(True), constants=[1, 2])
    assert "random.uniform" in operators_of(training)


def test_identity():
    check("Identity", data(3))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("bounds", [(-7, 0), (-7, -100), (-3, -100), (-2, -100), (5, -100), (0, -100), (-9, 9)])
@pytest.mark.parametrize("step", [1, -1, -2])
def test_slices_that_begin_beyond_the_data(known, bounds, step):
    """Downwards, the standard clamps the begin to the first element (ONNX's reference, like Python, has nothing)."""
    places = [ints(bounds[0]), ints(bounds[1]), ints(0), ints(step)]
    for length in (1, 2, 5):
        check("Slice", data(length, 2), *places, constants=[1, 2, 3, 4] if known else [2, 3, 4])
    node = onnx.helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"])
    stored = dict(zip(["starts", "ends", "axes", "steps"], places, strict=True))
    given = {"x": data(0, 2)} | ({} if known else {"starts": stored.pop("starts")})
    assert run_tilewright(make_model([node], given, ["y"], stored), given)[0].shape == (0, 2)
