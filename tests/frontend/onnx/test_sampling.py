"""Sampling between elements, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.frontend.onnx.helpers import agree, check, data, import_one, open_model
from tilewright.support.errors import UnsupportedError, UserError


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_grid_sample(mode, padding, aligned):
    grid = data(2, 3, 4, 2, low=-1.6, high=1.6)
    check("GridSample", data(2, 3, 5, 6), grid, mode=mode, padding_mode=padding, align_corners=aligned,
          opset=20, tolerance=1e-4)  # fmt: skip


def test_grid_sample_of_volumes():
    check("GridSample", data(1, 2, 3, 4, 5), data(1, 2, 3, 4, 3, low=-1.2, high=1.2), opset=20, tolerance=1e-4)


def test_grid_sample_refuses():
    with pytest.raises(UserError, match="a grid of shape"):
        import_one("GridSample", data(1, 2, 4, 4), data(1, 2, 2, 3), opset=20)
    with pytest.raises(UserError, match="unknown mode 'magic'"):
        import_one("GridSample", data(1, 2, 4, 4), data(1, 2, 2, 2), opset=20, mode="magic")
    with pytest.raises(UnsupportedError, match="GridSample of int32"):
        import_one("GridSample", data(1, 2, 4, 4, dtype="int32"), data(1, 2, 2, 2), opset=20)


REGIONS = np.array([[0, 0, 7, 7], [1.5, 2, 5, 6.5], [3, 1, 9, 12]], np.float32)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("half", ["half_pixel", "output_half_pixel"])
def test_roi_align(mode, half):
    images = np.array([0, 1, 0], np.int64)
    check("RoiAlign", data(2, 3, 8, 9, low=0.1), REGIONS, images, mode=mode, coordinate_transformation_mode=half,
          output_height=3, output_width=2, sampling_ratio=2, spatial_scale=0.75, opset=16, tolerance=1e-4)  # fmt: skip


def test_roi_align_refuses():
    values = (data(2, 3, 8, 9), REGIONS, np.array([0, 1, 0], np.int64))
    with pytest.raises(UnsupportedError, match="depends on the regions"):
        import_one("RoiAlign", *values, opset=16)
    with pytest.raises(UserError, match="regions of shape"):
        import_one("RoiAlign", values[0], data(3, 5), values[2], opset=16)
    with pytest.raises(UserError, match="unknown mode 'magic'"):
        import_one("RoiAlign", *values, mode="magic", opset=16)


def test_deform_conv():
    x, w = data(2, 4, 6, 7), data(6, 2, 3, 2)
    offset, mask = data(2, 2 * 6 * 2, 3, 7, low=-1.5, high=1.5), data(2, 2 * 6, 3, 7)
    check("DeformConv", x, w, offset, data(6), mask, group=2, offset_group=2, pads=[1, 1, 1, 0], strides=[2, 1],
          opset=19, tolerance=1e-4)  # fmt: skip


def test_deform_conv_refuses():
    with pytest.raises(UserError, match="offsets of shape"):
        import_one("DeformConv", data(1, 2, 4, 4), data(2, 2, 3, 3), data(1, 4, 2, 2), opset=19)
    with pytest.raises(UnsupportedError, match="DeformConv of data"):
        import_one("DeformConv", data(1, 2, 4), data(2, 2, 3), data(1, 4, 2), opset=19)


def test_places_in_double_precision_stay_there():
    def wide(*shape, **bounds):
        return data(*shape, dtype="float64", **bounds)

    offset, images = wide(1, 8, 3, 3, low=-1.5, high=1.5), np.array([0, 1, 0], np.int64)
    check("DeformConv", wide(1, 2, 4, 4), wide(2, 2, 2, 2), offset, opset=19, tolerance=1e-12)
    check("RoiAlign", wide(2, 3, 8, 9), REGIONS.astype("float64"), images, output_height=3, output_width=2,
          sampling_ratio=2, spatial_scale=0.73, opset=16, tolerance=1e-12)  # fmt: skip


@pytest.mark.grid
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize(("padding", "aligned"), [("zeros", 0), ("border", 1), ("reflection", 0), ("reflection", 1)])
def test_images_and_grids_of_any_size(mode, padding, aligned):
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], **attributes)
    inputs = {"x": (TensorProto.FLOAT, ["n", 3, "h", "w"]), "grid": (TensorProto.FLOAT, ["n", "a", "b", 2])}
    model = open_model([node], inputs, ["y"], opset=20)
    calls = [((2, 3, 4, 5), (2, 3, 6, 2)), ((1, 3, 7, 2), (1, 1, 4, 2))]
    agree(model, *({"x": data(*image), "grid": data(*grid, low=-1.4, high=1.4)} for image, grid in calls))
