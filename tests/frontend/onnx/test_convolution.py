"""Convolutions against onnxruntime."""

from __future__ import annotations

import pytest

from tests.frontend.onnx.helpers import check, data, import_one, operators_of
from tilewright.support.errors import UnsupportedError, UserError


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 1, 1, 1]},
        {"pads": [0, 1, 2, 3], "strides": [2, 1]},
        {"dilations": [2, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
        {"auto_pad": "VALID"},
        {"kernel_shape": [3, 2], "dilations": [1, 2], "pads": [1, 0, 1, 0]},
    ],
)
def test_conv(attributes):
    check("Conv", data(2, 3, 9, 8), data(4, 3, 3, 2), data(4), tolerance=1e-4, **attributes)


@pytest.mark.parametrize(("channels", "group", "outputs"), [(4, 2, 6), (4, 4, 4), (4, 4, 8)])
def test_grouped_conv(channels, group, outputs):
    check("Conv", data(1, channels, 7, 7), data(outputs, channels // group, 3, 3), group=group, tolerance=1e-4)


def test_conv_in_one_dimension():
    check("Conv", data(2, 3, 11), data(4, 3, 3), data(4), strides=[2], pads=[1, 2], dilations=[2], tolerance=1e-4)
    check("Conv", data(2, 3, 11), data(4, 3, 4), auto_pad="SAME_UPPER", tolerance=1e-4)


def test_conv_is_two_operators():
    assert operators_of(import_one("Conv", data(1, 3, 5, 5), data(4, 3, 3, 3), data(4), constants=[1, 2])) == [
        "add",
        "nn.conv2d",
    ]


@pytest.mark.parametrize(
    ("values", "attributes", "message"),
    [
        ([data(1, 3, 5, 5), data(4, 2, 3, 3)], {}, "input channels of a group.*3 and 2"),
        ([data(1, 3, 5, 5), data(4, 3, 3, 3)], {"kernel_shape": [2, 2]}, "kernel_shape"),
        ([data(1, 3, 5, 5), data(4, 3, 3, 3)], {"pads": [1, 1]}, "pads must have 4 entries"),
        ([data(1, 3, 5, 5), data(4, 3, 3, 3)], {"strides": [0, 1]}, "must be positive"),
        ([data(1, 3, 5, 5), data(4, 3, 3, 3)], {"auto_pad": "MAYBE"}, "unknown auto_pad 'MAYBE'"),
        ([data(1, 3, 5, 5), data(4, 3, 3, 3), data(3)], {}, "the bias has shape"),
        ([data(1, 3, 5, 5), data(4, 3, 9, 9)], {}, "does not fit along the height"),
        ([data(1, 3, 5, 5), data(4, 3, 3)], {}, "does not fit a weight"),
        ([data(3, 5), data(4, 3)], {}, "at least 3 dimensions"),
        ([data(1, 4, 5, 5), data(3, 2, 3, 3)], {"group": 2}, "output channels"),
    ],
)
def test_conv_refuses(values, attributes, message):
    with pytest.raises(UserError, match=message):
        import_one("Conv", *values, **attributes)


def test_conv_in_four_dimensions_is_unsupported():
    with pytest.raises(UnsupportedError, match="Conv in 4 dimensions"):
        import_one("Conv", data(1, 2, 5, 5, 5, 5), data(3, 2, 3, 3, 3, 3))


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 0, 2, 0, 1, 1], "strides": [2, 1, 2]},
        {"dilations": [2, 1, 1], "group": 2},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2, 1]},
    ],
)
def test_conv_in_three_dimensions(attributes):
    check("Conv", data(2, 4, 6, 5, 7), data(4, 4 // attributes.get("group", 1), 3, 2, 3), data(4), **attributes)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 0, 1, 0, 1, 1], "strides": [2, 1, 2], "output_padding": [1, 0, 1]},
        {"dilations": [2, 1, 1], "group": 2},
        {"strides": [3, 2, 2], "output_shape": [9, 7, 8]},
    ],
)
def test_conv_transpose_in_three_dimensions(attributes):
    check("ConvTranspose", data(2, 4, 3, 3, 4), data(4, 3, 3, 2, 3), **attributes)


def test_three_dimensions_that_leave_nothing():
    with pytest.raises(UserError, match="does not fit along the depth"):
        import_one("Conv", data(1, 2, 2, 5, 5), data(3, 2, 4, 3, 3))
    with pytest.raises(UserError, match="leaves nothing of the depth"):
        import_one("ConvTranspose", data(1, 2, 1, 5, 5), data(2, 2, 2, 3, 3), pads=[1, 0, 0, 1, 0, 0])


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"strides": [2, 2]},
        {"strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"strides": [2, 3], "pads": [1, 0, 0, 2], "output_padding": [1, 2]},
        {"dilations": [2, 2], "strides": [1, 2]},
        {"strides": [2, 2], "output_shape": [10, 12]},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
    ],
)
def test_conv_transpose(attributes):
    check("ConvTranspose", data(2, 3, 5, 6), data(3, 4, 3, 4), data(4), tolerance=1e-4, **attributes)


def test_grouped_conv_transpose():
    check("ConvTranspose", data(1, 4, 5, 5), data(4, 3, 3, 3), group=2, strides=[2, 2], tolerance=1e-4)


def test_conv_transpose_in_one_dimension():
    check("ConvTranspose", data(1, 2, 7), data(2, 3, 4), strides=[2], pads=[1, 1], tolerance=1e-4)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"pads": [9, 9, 9, 9]}, "leaves nothing of the height"),
        ({"output_padding": [1]}, "output_padding must have 2 entries"),
        ({"output_shape": [7]}, "output_shape must have 2 entries"),
        ({"auto_pad": "MAYBE"}, "unknown auto_pad"),
        ({"pads": [1]}, "pads must have 4"),
        ({"kernel_shape": [9, 9]}, "kernel_shape"),
    ],
)
def test_conv_transpose_refuses(attributes, message):
    with pytest.raises(UserError, match=message):
        import_one("ConvTranspose", data(1, 3, 5, 5), data(3, 4, 3, 3), **attributes)
