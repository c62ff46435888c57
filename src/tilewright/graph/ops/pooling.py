"""Pooling over windows in two dimensions."""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops import special
from tilewright.graph.ops.common import (
    require_length,
    require_not_negative,
    require_number,
    require_positive,
    require_rank,
    tensor,
    window_dim,
)
from tilewright.graph.ops.convolution import windows
from tilewright.graph.ops.reduce import lowest
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError


@node()
class Pool2dAttributes(Attributes):
    """The window, its steps, padding (top, left, bottom, right) and spacing, and the order of dimensions.

    `count_include_pad`: whether an average divides by the whole window or by the elements within the data.
    A window that reaches beyond the data (ceil mode of frameworks) is written as more padding after it.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    count_include_pad: bool = False
    layout: str = "NCHW"


def padded_windows(data: Array, attributes: Pool2dAttributes, fill: float | int) -> Array:
    """A view of NCHW data as windows, with `fill` for the padding."""
    top, left, bottom, right = attributes.padding
    padded = np.pad(
        data,
        ((0, 0), (0, 0), (top, bottom), (left, right)),
        mode="constant",
        constant_values=np.asarray(fill).astype(data.dtype),
    )
    return windows(padded, attributes.kernel, attributes.strides, attributes.dilation)


def _max_pool2d(args: list[Array], attributes: Pool2dAttributes) -> Array:
    (data,) = args
    if attributes.layout == "NHWC":
        data = data.transpose(0, 3, 1, 2)
    result = padded_windows(data, attributes, lowest(data.dtype)).max(axis=(4, 5))
    return np.ascontiguousarray(result.transpose(0, 2, 3, 1) if attributes.layout == "NHWC" else result)


def window_counts(attributes: Pool2dAttributes, size: tuple[int, int]) -> Array:
    """How many elements of an image lie in each window, (1, 1, rows, columns); 1 where there are none."""
    ones = np.ones((1, 1, *size), np.int64)
    return np.asarray(np.maximum(padded_windows(ones, attributes, 0).sum(axis=(4, 5)), 1))


def _avg_pool2d(args: list[Array], attributes: Pool2dAttributes) -> Array:
    (data,) = args
    if attributes.layout == "NHWC":
        data = data.transpose(0, 3, 1, 2)
    floating = data.dtype.kind == "f"
    total = padded_windows(data, attributes, 0).sum(axis=(4, 5), dtype=np.float64 if floating else np.int64)
    count = np.asarray(attributes.kernel[0] * attributes.kernel[1])
    if not attributes.count_include_pad:
        count = window_counts(attributes, (data.shape[2], data.shape[3]))
    with np.errstate(all="ignore"):
        result = total / count if floating else special.divide_toward_zero(total, count)
    result = result.transpose(0, 2, 3, 1) if attributes.layout == "NHWC" else result
    return np.ascontiguousarray(result, args[0].dtype)


def pool_type(types: Types, attributes: Pool2dAttributes) -> Type:
    """The type of a pool's result."""
    data = tensor(types, 0, "the input")
    require_number(data.dtype)
    require_length(attributes.kernel, 2, "kernel")
    require_length(attributes.strides, 2, "strides")
    require_length(attributes.padding, 4, "padding")
    require_length(attributes.dilation, 2, "dilation")
    require_positive((*attributes.kernel, *attributes.strides, *attributes.dilation), "kernel, strides and dilation")
    require_not_negative(attributes.padding, "padding")
    if attributes.layout not in ("NCHW", "NHWC"):
        raise UserError(f"unknown layout {attributes.layout!r}", hint="one of NCHW, NHWC")
    if data.shape is None:
        return TensorType((None,) * 4, data.dtype)
    require_rank(data.shape, 4, "the input")
    top, left, bottom, right = attributes.padding
    (kernel_h, kernel_w), (step_h, step_w), (space_h, space_w) = (
        attributes.kernel,
        attributes.strides,
        attributes.dilation,
    )
    height, width = data.shape[2:] if attributes.layout == "NCHW" else data.shape[1:3]
    rows = window_dim(height, kernel_h, step_h, top, bottom, space_h, "height")
    columns = window_dim(width, kernel_w, step_w, left, right, space_w, "width")
    if attributes.layout == "NCHW":
        return TensorType((*data.shape[:2], rows, columns), data.dtype)
    return TensorType((data.shape[0], rows, columns, data.shape[3]), data.dtype)


@operator(
    "nn.max_pool2d", inputs=("data",), kind=FusionKind.REDUCTION, reference=_max_pool2d, attributes=Pool2dAttributes
)
def max_pool2d(types: Types, attributes: Pool2dAttributes) -> Type:
    """The greatest element of each window; padding never wins."""
    return pool_type(types, attributes)


@operator(
    "nn.avg_pool2d", inputs=("data",), kind=FusionKind.REDUCTION, reference=_avg_pool2d, attributes=Pool2dAttributes
)
def avg_pool2d(types: Types, attributes: Pool2dAttributes) -> Type:
    """The average of each window; of integers, rounded toward zero. That of a window wholly in the padding is 0."""
    return pool_type(types, attributes)
