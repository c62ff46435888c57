"""Convolutions in two dimensions, and their transpose."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import (
    Dim,
    add,
    agree,
    constant_dim,
    dim_text,
    floor_divide,
    multiply,
    require_length,
    require_not_negative,
    require_number,
    require_positive,
    require_rank,
    same_dtype,
    tensors,
    window_dim,
)
from tilewright.graph.ops.contract import accumulation_type
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

_NAMES = ("data", "weight")
LAYOUTS = {("NCHW", "OIHW"), ("NHWC", "HWIO")}
"""Orders of dimensions of data and weights that belong together."""


@node()
class Conv2dAttributes(Attributes):
    """Steps, padding (top, left, bottom, right), spacing of the window, groups, and the order of dimensions."""

    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    data_layout: str = "NCHW"
    kernel_layout: str = "OIHW"


@node()
class Conv2dTransposeAttributes(Attributes):
    """As of conv2d, and `output_padding`: rows and columns added at the bottom and right of the result."""

    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    output_padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    data_layout: str = "NCHW"
    kernel_layout: str = "IOHW"


def windows(padded: Array, kernel: tuple[int, int], strides: tuple[int, int], dilation: tuple[int, int]) -> Array:
    """A view of NCHW data as windows: (N, C, rows, columns, kernel rows, kernel columns)."""
    n, c, height, width = padded.shape
    rows = (height - (kernel[0] - 1) * dilation[0] - 1) // strides[0] + 1
    columns = (width - (kernel[1] - 1) * dilation[1] - 1) // strides[1] + 1
    step_n, step_c, step_h, step_w = padded.strides
    return as_strided(
        padded,
        (n, c, rows, columns, *kernel),
        (
            step_n,
            step_c,
            step_h * strides[0],
            step_w * strides[1],
            step_h * dilation[0],
            step_w * dilation[1],
        ),
        writeable=False,
    )


def _conv2d(args: list[Array], attributes: Conv2dAttributes) -> Array:
    data, weight = (array.astype(accumulation_type(array.dtype), copy=False) for array in args)
    if attributes.data_layout == "NHWC":
        data, weight = data.transpose(0, 3, 1, 2), weight.transpose(3, 2, 0, 1)
    top, left, bottom, right = attributes.padding
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)))
    kernel = (weight.shape[2], weight.shape[3])
    view = windows(padded, kernel, attributes.strides, attributes.dilation)
    with np.errstate(all="ignore"):
        if attributes.groups == data.shape[1] and weight.shape[1] == 1:
            result = _depthwise(view, weight)
        else:
            result = _grouped(view, weight, attributes.groups)
    if attributes.data_layout == "NHWC":
        result = result.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(result, args[0].dtype)


def _grouped(view: Array, weight: Array, groups: int) -> Array:
    """Windows gathered into columns, then one matrix product a group."""
    n, channels, rows, columns = view.shape[:4]
    taps = channels // groups * weight.shape[2] * weight.shape[3]
    gathered = view.reshape(n, groups, channels // groups, rows, columns, *weight.shape[2:])
    gathered = gathered.transpose(0, 1, 2, 5, 6, 3, 4).reshape(n, groups, taps, rows * columns)
    matrices = weight.reshape(groups, weight.shape[0] // groups, taps)
    return np.asarray(np.matmul(matrices, gathered)).reshape(n, weight.shape[0], rows, columns)


def _depthwise(view: Array, weight: Array) -> Array:
    """One multiply-add of the whole plane a tap; each channel may feed several outputs."""
    n, channels, rows, columns, height, width = view.shape
    filters = weight.reshape(channels, -1, height, width)
    total = np.zeros((n, channels, filters.shape[1], rows, columns), weight.dtype)
    for i in range(height):
        for j in range(width):
            total += view[:, :, None, :, :, i, j] * filters[:, :, i, j, None, None]
    return total.reshape(n, weight.shape[0], rows, columns)


def check_common(attributes: Conv2dAttributes | Conv2dTransposeAttributes) -> None:
    """Refuse steps, padding, spacing and groups that no convolution has."""
    require_length(attributes.strides, 2, "strides")
    require_length(attributes.padding, 4, "padding")
    require_length(attributes.dilation, 2, "dilation")
    require_positive(attributes.strides, "strides")
    require_positive(attributes.dilation, "dilation")
    require_not_negative(attributes.padding, "padding")
    require_positive((attributes.groups,), "groups")


def divisible(dim: Dim, groups: int, what: str) -> None:
    """Refuse channels that certainly do not divide into the groups."""
    size = constant_dim(dim)
    if size is not None and size % groups:
        raise UserError(f"the {what} ({size}) do not divide into {groups} groups")


@operator("nn.conv2d", inputs=_NAMES, kind=FusionKind.OUT_FUSABLE, reference=_conv2d, attributes=Conv2dAttributes)
def conv2d(types: Types, attributes: Conv2dAttributes) -> Type:
    """Convolution (the kernel is not flipped) of NCHW data with OIHW weights, or NHWC with HWIO."""
    data, weight = tensors(types, _NAMES)
    dtype = same_dtype([data, weight], _NAMES)
    require_number(dtype, "the inputs")
    check_common(attributes)
    if (attributes.data_layout, attributes.kernel_layout) not in LAYOUTS:
        raise UserError(
            f"no convolution for data in {attributes.data_layout} with a kernel in {attributes.kernel_layout}",
            hint="NCHW with OIHW, or NHWC with HWIO",
        )
    if data.shape is None or weight.shape is None:
        return TensorType((None,) * 4, dtype)
    require_rank(data.shape, 4, "data")
    require_rank(weight.shape, 4, "weight")
    batch, channels, height, width = data.shape
    outputs, group_inputs, kernel_height, kernel_width = weight.shape
    if attributes.data_layout == "NHWC":
        batch, height, width, channels = data.shape
        kernel_height, kernel_width, group_inputs, outputs = weight.shape
    divisible(channels, attributes.groups, "input channels")
    divisible(outputs, attributes.groups, "output channels")
    if constant_dim(channels) is not None:
        agree(floor_divide(channels, attributes.groups), group_inputs, "input channels of a group, and of the weight")
    top, left, bottom, right = attributes.padding
    (step_h, step_w), (space_h, space_w) = attributes.strides, attributes.dilation
    rows = window_dim(height, kernel_height, step_h, top, bottom, space_h, "height")
    columns = window_dim(width, kernel_width, step_w, left, right, space_w, "width")
    shape = (batch, outputs, rows, columns)
    if attributes.data_layout == "NHWC":
        shape = (batch, rows, columns, outputs)
    return TensorType(shape, dtype)


_FILTERS_LAST = (1, 2, 3, 0)
"""From weights [o, h, w, i] to [h, w, i, o]."""


def _conv2d_by_filters(args: list[Array], attributes: Conv2dAttributes) -> Array:
    return _conv2d([args[0], args[1].transpose(_FILTERS_LAST)], attributes.replace(kernel_layout="HWIO"))


@operator(
    "nn.conv2d_by_filters",
    inputs=_NAMES,
    kind=FusionKind.OUT_FUSABLE,
    reference=_conv2d_by_filters,
    attributes=Conv2dAttributes,
)
def conv2d_by_filters(types: Types, attributes: Conv2dAttributes) -> Type:
    """nn.conv2d of NHWC data with OHWI weights: those of each filter one after the other, as some tensor cores need."""
    data, weight = tensors(types, _NAMES)
    if (attributes.data_layout, attributes.kernel_layout) != ("NHWC", "OHWI"):
        raise UserError(f"the layouts must be NHWC and OHWI, not {attributes.data_layout}, {attributes.kernel_layout}")
    shape = weight.shape
    if shape is not None:
        require_rank(shape, 4, "weight")
        weight = TensorType(tuple(shape[axis] for axis in _FILTERS_LAST), weight.dtype)
    return conv2d([data, weight], attributes.replace(kernel_layout="HWIO"))


def _conv2d_transpose(args: list[Array], attributes: Conv2dTransposeAttributes) -> Array:
    data, weight = (array.astype(accumulation_type(array.dtype), copy=False) for array in args)
    last = attributes.data_layout == "NHWC"
    if last:
        data, weight = data.transpose(0, 3, 1, 2), weight.transpose(2, 3, 0, 1)
    groups = attributes.groups
    n, channels, height, width = data.shape
    _, group_outputs, kernel_height, kernel_width = weight.shape
    (step_h, step_w), (space_h, space_w) = attributes.strides, attributes.dilation
    top, left, bottom, right = attributes.padding
    full_h = (height - 1) * step_h + (kernel_height - 1) * space_h + 1 + attributes.output_padding[0]
    full_w = (width - 1) * step_w + (kernel_width - 1) * space_w + 1 + attributes.output_padding[1]
    total = np.zeros((n, groups, group_outputs, full_h, full_w), data.dtype)
    flat = data.reshape(n, groups, channels // groups, height * width)
    matrices = weight.reshape(groups, channels // groups, group_outputs, kernel_height, kernel_width)
    with np.errstate(all="ignore"):
        for i in range(kernel_height):
            for j in range(kernel_width):
                part = np.matmul(matrices[:, :, :, i, j].transpose(0, 2, 1), flat)
                rows = slice(i * space_h, i * space_h + height * step_h, step_h)
                columns = slice(j * space_w, j * space_w + width * step_w, step_w)
                total[:, :, :, rows, columns] += part.reshape(n, groups, group_outputs, height, width)
    result = total.reshape(n, groups * group_outputs, full_h, full_w)
    result = result[:, :, top : full_h - bottom, left : full_w - right]
    return np.ascontiguousarray(result.transpose(0, 2, 3, 1) if last else result, args[0].dtype)


def _transposed_dim(size: Dim, kernel: Dim, stride: int, padding: int, extra: int, dilation: int, what: str) -> Dim:
    span = multiply(add(size, -1), stride)
    reach = multiply(add(kernel, -1), dilation)
    result = add(add(span, reach), 1 + extra - padding)
    known = constant_dim(result)
    if known is not None and known < 0:
        raise UserError(f"padding of {padding} leaves nothing of the {what}, which would be {dim_text(result)}")
    return result


@operator(
    "nn.conv2d_transpose",
    inputs=_NAMES,
    kind=FusionKind.OUT_FUSABLE,
    reference=_conv2d_transpose,
    attributes=Conv2dTransposeAttributes,
)
def conv2d_transpose(types: Types, attributes: Conv2dTransposeAttributes) -> Type:
    """The transpose of a convolution (each input element spreads the kernel): NCHW with IOHW, or NHWC with HWIO."""
    data, weight = tensors(types, _NAMES)
    dtype = same_dtype([data, weight], _NAMES)
    require_number(dtype, "the inputs")
    check_common(attributes)
    require_length(attributes.output_padding, 2, "output_padding")
    require_not_negative(attributes.output_padding, "output_padding")
    layouts = (attributes.data_layout, attributes.kernel_layout)
    if layouts not in (("NCHW", "IOHW"), ("NHWC", "HWIO")):
        raise UserError(
            f"no transposed convolution for {attributes.data_layout} with {attributes.kernel_layout}",
            hint="NCHW with IOHW, or NHWC with HWIO",
        )
    if data.shape is None or weight.shape is None:
        return TensorType((None,) * 4, dtype)
    require_rank(data.shape, 4, "data")
    require_rank(weight.shape, 4, "weight")
    last = attributes.data_layout == "NHWC"
    batch, channels, height, width = [data.shape[n] for n in ((0, 3, 1, 2) if last else (0, 1, 2, 3))]
    order = (2, 3, 0, 1) if last else (0, 1, 2, 3)
    inputs, group_outputs, kernel_height, kernel_width = [weight.shape[n] for n in order]
    agree(channels, inputs, "channels of the data, and inputs of the weight")
    divisible(channels, attributes.groups, "input channels")
    top, left, bottom, right = attributes.padding
    (step_h, step_w), (space_h, space_w) = attributes.strides, attributes.dilation
    extra_h, extra_w = attributes.output_padding
    rows = _transposed_dim(height, kernel_height, step_h, top + bottom, extra_h, space_h, "height")
    columns = _transposed_dim(width, kernel_width, step_w, left + right, extra_w, space_w, "width")
    outputs = multiply(group_outputs, attributes.groups)
    return TensorType((batch, rows, columns, outputs) if last else (batch, outputs, rows, columns), dtype)
