"""Depthwise convolutions by dot products of four neighbouring pixels: an operator for processors that have those.

A channel of a window is a run of pixels of each of its lines. The runs of some neighbouring windows lie within
`4 * groups` pixels, which are loaded once; each of these windows has the weights at places of its own:

    sums[x] = sum over lines, groups, k of pixels[first(x) + 4 group + k] * weight[x % several, line, group, channel, k]

`arranged` makes these weights.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import (
    agree,
    require_length,
    require_not_negative,
    require_positive,
    require_rank,
    tensors,
    window_dim,
)
from tilewright.ir.dtype import INT8, INT32, INT64
from tilewright.ir.expr import IntImm
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

GROUP = 4
"""Pixels that an instruction multiplies at once."""


@node()
class WindowDotsAttributes(Attributes):
    """Steps, padding (top, left, bottom, right), and the pixels across a window.

    With padding below zero on the right no window meets as many of the last pixels.
    """

    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    width: int = 3


def windows_together(width: int, stride: int) -> tuple[int, int]:
    """How many windows share what is loaded, and how many groups of pixels that is."""
    groups = -(-width // GROUP)
    return (GROUP * groups - width) // stride + 1, groups


def pixels_read(columns: int, width: int, stride: int) -> int:
    """How many pixels of a line are loaded for so many windows, in whole groups."""
    several, groups = windows_together(width, stride)
    return (-(-columns // several) - 1) * several * stride + groups * GROUP


def arranged(weight: Array, stride: int) -> Array:
    """Weights (height, width, 1, channels) as the operator takes them: (windows, height, groups, channels, 4)."""
    height, width, _, channels = weight.shape
    several, groups = windows_together(width, stride)
    result = np.zeros((several, height, groups * GROUP, channels), weight.dtype)
    for n in range(several):
        result[n, :, n * stride : n * stride + width] = weight[:, :, 0]
    apart = result.reshape(several, height, groups, GROUP, channels)
    return np.ascontiguousarray(apart.transpose(0, 1, 2, 4, 3))


def _window_dots(args: list[Array], attributes: WindowDotsAttributes) -> Array:
    data, weight, zero = args
    top, left, bottom, right = attributes.padding
    several, height, groups, _, _ = weight.shape
    (down, across), run = attributes.strides, groups * GROUP
    columns = max(0, data.shape[2] + left + right - attributes.width + across) // across
    # The last windows' runs may reach past the border.
    widths = ((0, 0), (top, bottom), (left, right + run + several * across), (0, 0))
    padded = np.pad(data.astype(np.int32), widths, constant_values=int(zero.reshape(())))
    firsts = np.arange(columns) // several * several * across
    # (batch, rows, columns, channels, lines, pixels)
    view = sliding_window_view(padded, (height, run), axis=(1, 2))[:, ::down][:, :, firsts]
    taps = weight.astype(np.int32).transpose(0, 3, 1, 2, 4).reshape(several, -1, height, run)
    return np.asarray(np.einsum("nyxclp,xclp->nyxc", view, taps[np.arange(columns) % several], dtype=np.int32))


@operator(
    "qnn.window_dots",
    inputs=("data", "weight", "zero"),
    kind=FusionKind.OUT_FUSABLE,
    reference=_window_dots,
    attributes=WindowDotsAttributes,
)
def window_dots(types: Types, attributes: WindowDotsAttributes) -> Type:
    """Convolution of each channel of NHWC signed bytes by itself, in 32 bits; the border is `zero`, a single byte.

    The weight is (windows, height, groups, channels, 4): that of each of some neighbouring windows, at its place
    among the pixels that they share.
    """
    data, weight, zero = tensors(types, ("data", "weight", "zero"))
    if data.dtype is not INT8 or weight.dtype is not INT8 or zero.dtype is not INT8:
        raise UserError(f"data, weight and zero must be {INT8}, they are {data.dtype}, {weight.dtype} and {zero.dtype}")
    if zero.static_shape not in ((), (1,)):
        raise UserError(f"zero must be a single {data.dtype}, it is {zero}")
    require_length(attributes.strides, 2, "strides")
    require_length(attributes.padding, 4, "padding")
    require_positive((*attributes.strides, attributes.width), "strides and width")
    require_not_negative(attributes.padding[:3], "padding at the top, on the left and at the bottom")
    if data.shape is None or weight.shape is None:
        return TensorType((None,) * 4, INT32)
    require_rank(data.shape, 4, "data")
    require_rank(weight.shape, 5, "weight")
    several, height, groups, channels, four = weight.shape
    shared, runs = windows_together(attributes.width, attributes.strides[1])
    for dim, size, what in ((several, shared, "windows"), (groups, runs, "groups"), (four, GROUP, "pixels of a group")):
        agree(dim, IntImm(size, INT64), f"{what} of the weight, and {size}")
    agree(data.shape[3], channels, "channels of the data and of the weight")
    batch, lines, pixels, _ = data.shape
    top, left, bottom, right = attributes.padding
    rows = window_dim(lines, height, attributes.strides[0], top, bottom, 1, "height")
    width = IntImm(attributes.width, INT64)
    columns = window_dim(pixels, width, attributes.strides[1], left, right, 1, "width")
    return TensorType((batch, rows, columns, channels), INT32)
