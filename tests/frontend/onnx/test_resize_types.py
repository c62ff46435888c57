"""Resize of every element type, in every mode: sums over all axes are rounded once, and saturate."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.frontend.onnx.helpers import make_model, open_model, run_onnxruntime, run_tilewright
from tilewright.support.errors import UserError

RANDOM = np.random.default_rng(3)
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
MODES = ("nearest", "linear", "cubic")
TRANSFORMATIONS = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")


def resize_model(values, sizes, **attributes):
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)
    return make_model([node], {"x": values}, ["y"], {"sizes": np.array(sizes, np.int64)})


def whole_range(dtype, *shape):
    """Numbers of the whole range of a type, its ends (which cubic weights overshoot) among them."""
    limits = np.iinfo(dtype)
    edge = max(limits.min, -(1 << 40)), min(limits.max, 1 << 40)
    values = RANDOM.integers(edge[0], edge[1], shape, np.int64, endpoint=True)
    values.reshape(-1)[::3], values.reshape(-1)[1::3] = edge
    return values.astype(dtype)


def reference_of(model, values):
    return ReferenceEvaluator(model).run(None, {"x": values})[0]


def is_rounding(mine, wanted, exact):
    """Whether integers are the same but for one where the exact value is half-way between two."""
    difference = np.abs(mine.astype(np.float64) - wanted.astype(np.float64))
    noise = 4e-6 * float(np.abs(exact).max())  # places are computed in float32, as runtimes do
    tie = np.abs(exact - np.floor(exact) - 0.5) <= noise
    return bool(((difference <= np.floor(noise)) | ((difference <= 1) & tie)).all())


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    # There is nothing to smooth in what is only chosen.
    ("mode", "antialias"),
    [(mode, antialias) for mode in MODES for antialias in ((0,) if mode == "nearest" else (0, 1))],
)
def test_integers(dtype, mode, antialias):
    for at, (rows, columns) in enumerate([(9, 4), (3, 13)]):
        values = whole_range(dtype, 1, 2, 5, 7)
        attributes = {"mode": mode, "antialias": antialias, "exclude_outside": at % 2}
        attributes["coordinate_transformation_mode"] = TRANSFORMATIONS[at]
        model = resize_model(values, (1, 2, rows, columns), **attributes)
        (mine,) = run_tilewright(model, {"x": values})
        assert mine.dtype == values.dtype
        wide = resize_model(values.astype(np.float64), (1, 2, rows, columns), **attributes)
        exact = reference_of(wide, values.astype(np.float64))
        limits = np.iinfo(dtype)
        wanted = np.clip(np.round(exact), float(limits.min), float(limits.max))
        assert is_rounding(mine, wanted, exact)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_what_cubic_weights_overshoot_saturates(dtype):
    limits = np.iinfo(dtype)
    row = np.array([limits.min, limits.max, limits.max, limits.min, limits.min, limits.max], dtype)
    model = resize_model(row, (12,), mode="cubic")
    (mine,) = run_tilewright(model, {"x": row})
    slack = 2048 if limits.bits == 64 else 0  # the largest integers of 64 bits are no floats
    assert limits.max - int(mine.max()) <= slack and int(mine.min()) - limits.min <= slack
    (compiled,) = tw.compile(model, threads=1).run({"x": row})
    np.testing.assert_array_equal(compiled, mine)


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("mode", MODES)
def test_bytes_are_those_of_the_reference(mode, transformation):
    values = whole_range("uint8", 1, 2, 5, 6)
    model = resize_model(values, (1, 2, 10, 4), mode=mode, coordinate_transformation_mode=transformation)
    wide = resize_model(
        values.astype(np.float64), (1, 2, 10, 4), mode=mode, coordinate_transformation_mode=transformation
    )
    (mine,) = run_tilewright(model, {"x": values})
    assert is_rounding(mine, reference_of(model, values), reference_of(wide, values.astype(np.float64)))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("sizes", [(9, 4), (3, 13)])
def test_antialiased_floats(mode, sizes):
    """With the weights of places outside left out: onnxruntime leaves them out always."""
    values = RANDOM.uniform(-1, 1, (1, 2, 7, 6)).astype(np.float32)
    model = resize_model(values, (1, 2, *sizes), mode=mode, antialias=1, exclude_outside=1)
    (mine,) = run_tilewright(model, {"x": values})
    np.testing.assert_allclose(mine, reference_of(model, values), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mine, run_onnxruntime(model, {"x": values})[0], rtol=1e-4, atol=1e-5)


def test_float16_is_rounded_once():
    values = RANDOM.uniform(-4, 4, (1, 1, 6, 6)).astype(np.float16)
    model = resize_model(values, (1, 1, 9, 11), mode="cubic")
    wide = resize_model(values.astype(np.float64), (1, 1, 9, 11), mode="cubic")
    (mine,) = run_tilewright(model, {"x": values})
    assert mine.dtype == np.float16
    np.testing.assert_allclose(mine, reference_of(wide, values.astype(np.float64)), rtol=6e-4, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_sizes_of_zero(mode):
    values = RANDOM.uniform(-1, 1, (1, 2, 4, 4)).astype(np.float32)
    for transformation in TRANSFORMATIONS:
        model = resize_model(values, (1, 2, 0, 7), mode=mode, coordinate_transformation_mode=transformation)
        assert run_tilewright(model, {"x": values})[0].shape == (1, 2, 0, 7)
    scaled = helper.make_node("Resize", ["x", "", "s"], ["y"], mode=mode)
    model = make_model([scaled], {"x": values}, ["y"], {"s": np.array([1, 1, 0.2, 1], np.float32)})
    assert (
        run_tilewright(model, {"x": values})[0].shape == run_onnxruntime(model, {"x": values})[0].shape == (1, 2, 0, 4)
    )
    assert tw.compile(model, threads=1).run({"x": values})[0].shape == (1, 2, 0, 4)
    empty = values[:, :, :0]
    with pytest.raises(UserError, match="cannot resize dimension 2 from 0 to 3"):
        run_tilewright(resize_model(empty, (1, 2, 3, 4), mode=mode), {"x": empty})


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_bytes_of_open_sizes(mode):
    """The same numbers where places and weights are computed when the model runs."""
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode=mode)
    stored = {"s": np.array([1, 1, 2.0, 1.5], np.float32)}
    executable = tw.compile(open_model([node], {"x": (TensorProto.UINT8, [1, 1, "h", "w"])}, ["y"], stored), threads=1)
    values = whole_range("uint8", 1, 1, 5, 6)
    fixed = make_model([node], {"x": values}, ["y"], stored)
    np.testing.assert_array_equal(executable.run({"x": values})[0], run_tilewright(fixed, {"x": values})[0])
