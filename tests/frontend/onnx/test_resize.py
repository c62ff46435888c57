"""Resampling against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.frontend.onnx.helpers import check, data, import_one, make_model, operators_of, run_tilewright
from tilewright.support.errors import UserError

_X = data(1, 2, 5, 6)


def scales(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("transformation", "factor"),
    [
        (transformation, factor)
        for transformation in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
        # onnxruntime stretches aligned corners by the rounded size, the standard does not.
        for factor in ((2.0,) if transformation == "align_corners" else (2.0, 1.5, 0.6))
    ],
)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_by_scales(mode, transformation, factor):
    check(
        "Resize",
        _X,
        None,
        scales(1, 1, factor, factor),
        constants=[2],
        mode=mode,
        coordinate_transformation_mode=transformation,
        tolerance=1e-4,
    )


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("factor", [1.5, 0.6])
def test_aligned_corners_stretch_by_the_scale(mode, factor):
    attributes = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], **attributes)
    model = make_model([node], {"x": _X}, ["y"], {"s": scales(1, 1, factor, factor)})
    (mine,), (wanted,) = run_tilewright(model, {"x": _X}), ReferenceEvaluator(model).run(None, {"x": _X})
    np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest_modes(nearest):
    check("Resize", _X, None, scales(1, 1, 1.7, 0.7), constants=[2], nearest_mode=nearest)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_by_sizes(mode):
    sizes = np.array([1, 2, 7, 9], np.int64)
    check("Resize", _X, None, None, sizes, constants=[3], mode=mode, tolerance=1e-4)
    check("Resize", _X, None, None, np.array([7, 9], np.int64), constants=[3], mode=mode, axes=[2, 3], tolerance=1e-4)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_aspect_ratio_policies(policy):
    sizes = np.array([7, 9], np.int64)
    check("Resize", _X, None, None, sizes, constants=[3], axes=[2, 3], keep_aspect_ratio_policy=policy)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias(mode):
    check("Resize", _X, None, scales(1, 1, 0.5, 0.6), constants=[2], mode=mode, antialias=1, tolerance=1e-4,
          exclude_outside=1)  # fmt: skip


def test_crop_and_resize():
    region = np.array([0, 0, 0.1, 0.2, 1, 1, 1.4, 0.9], np.float32)
    sizes = np.array([1, 2, 4, 4], np.int64)
    check(
        "Resize",
        _X,
        region,
        None,
        sizes,
        constants=[1, 3],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=9.0,
        tolerance=1e-4,
    )


def test_old_forms():
    check("Upsample", _X, scales(1, 1, 2, 3), constants=[1], opset=9)
    check("Upsample", _X, scales(1, 1, 2, 3), constants=[1], opset=9, mode="linear", tolerance=1e-4)
    check("Upsample", _X, opset=7, scales=[1.0, 1.0, 2.0, 2.0], mode="nearest")
    check("Resize", _X, scales(1, 1, 2, 0.5), constants=[1], opset=10)


def test_nearest_is_only_a_choice():
    assert operators_of(import_one("Resize", _X, None, scales(1, 1, 2, 2), constants=[2])) == ["take", "take"]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"mode": "best"}, "unknown mode 'best'"),
        ({"coordinate_transformation_mode": "odd"}, "unknown coordinate_transformation_mode"),
        ({"nearest_mode": "odd"}, "unknown nearest_mode"),
        ({"axes": [2]}, "must have one entry for each of 1 axes"),
    ],
)
def test_refusals(attributes, message):
    with pytest.raises(UserError, match=message):
        import_one("Resize", _X, None, scales(1, 1, 2, 2), constants=[2], **attributes)


def test_refusals_of_sizes():
    with pytest.raises(UserError, match="needs scales or sizes"):
        import_one("Resize", _X)
    with pytest.raises(UserError, match="a scale must be positive"):
        import_one("Resize", _X, None, scales(1, 1, -1, 2), constants=[2])
    with pytest.raises(UserError, match="cannot resize dimension 2"):
        import_one("Resize", _X, None, None, np.array([1, 2, -1, 3], np.int64), constants=[3])
    with pytest.raises(UserError, match="scales must have one entry"):
        import_one("Upsample", _X, scales(1, 1, 2), constants=[1], opset=9)
    with pytest.raises(UserError, match="unknown keep_aspect_ratio_policy"):
        import_one(
            "Resize", _X, None, None, np.array([1, 2, 3, 3], np.int64), constants=[3], keep_aspect_ratio_policy="x"
        )
