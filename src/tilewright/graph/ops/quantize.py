"""Products of 8-bit integers, or floats, in 32 bits: what quantised matrix products and convolutions are made of.

Zero points are not part of them: with x = a - za and w constant, `sum(x * w) = sum(a * w) - za * sum(w)`, and the
second sum is known at compile time (the pass `integer_products` writes it so). Processors that multiply no bytes take
integers of 16 bits, which have their zero points taken off.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, NoAttributes, Types, operator
from tilewright.graph.ops.common import (
    agree,
    require_length,
    require_not_negative,
    require_positive,
    require_rank,
    tensors,
    window_dim,
)
from tilewright.graph.ops.convolution import windows
from tilewright.ir.dtype import FLOAT32, INT32, INT64, DataType
from tilewright.ir.expr import IntImm, const_value
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

_BYTES = ("int8", "uint8")
_SHORTS = ("int16",)
_FLOATS = ("float8_e4m3fn", "float8_e5m2")


def product_type(a: DataType, b: DataType) -> DataType:
    """The type of the sums: int32 of integers, float32 of floats."""
    for types, total in ((_BYTES, INT32), (_SHORTS, INT32), (_FLOATS, FLOAT32)):
        if a.name in types and b.name in types:
            return total
    raise UserError(f"operands must be 8-bit integers, 16-bit integers or 8-bit floats, they are {a} and {b}")


def byte_product(a: Array, b: Array) -> Array:
    """A matrix product by way of float64: of small integers exact (sums stay below 2^53), and quick in numpy."""
    total = np.matmul(a.astype(np.float64), b.astype(np.float64))
    if a.dtype.kind == "f":
        return np.asarray(total.astype(np.float32))
    return np.asarray(total.astype(np.int64).astype(np.int32))


def _matmul(args: list[Array], attributes: NoAttributes) -> Array:
    return byte_product(args[0], args[1])


@operator("qnn.matmul", inputs=("a", "b"), kind=FusionKind.OUT_FUSABLE, reference=_matmul)
def matmul(types: Types, attributes: NoAttributes) -> Type:
    """The product of matrices of bytes (the last two dimensions) with one matrix of bytes, or one each, in 32 bits."""
    a, b = tensors(types, ("a", "b"))
    total = product_type(a.dtype, b.dtype)
    if a.shape is None or b.shape is None:
        return TensorType(None, total)
    if len(a.shape) < 2:
        raise UserError(f"a must have at least 2 dimensions, it has {len(a.shape)}")
    if len(b.shape) not in (2, len(a.shape)):
        raise UserError(f"b must have 2 dimensions, or as many as a, it has {len(b.shape)}")
    for ours, theirs in zip(a.shape[:-2], b.shape[:-2], strict=False):
        agree(ours, theirs, "the numbers of matrices of a and b")
    agree(a.shape[-1], b.shape[-2], "the inner dimensions of a and b")
    return TensorType((*a.shape[:-1], b.shape[-1]), total)


@node()
class IntegerConv2dAttributes(Attributes):
    """Steps, padding (top, left, bottom, right) and spacing of the window."""

    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)


@node()
class IntegerDepthwiseAttributes(IntegerConv2dAttributes):
    """Also the byte that stands for 0 in the data."""

    zero: int = 0


def sums_of_windows(
    data: TensorType, weight: TensorType, attributes: IntegerConv2dAttributes, total: DataType
) -> TensorType:
    """The type of the sums, of a type of elements, over windows of NHWC data with HWIO weights."""
    require_length(attributes.strides, 2, "strides")
    require_length(attributes.padding, 4, "padding")
    require_length(attributes.dilation, 2, "dilation")
    require_positive(attributes.strides, "strides")
    require_positive(attributes.dilation, "dilation")
    require_not_negative(attributes.padding, "padding")
    if data.shape is None or weight.shape is None:
        return TensorType((None,) * 4, total)
    require_rank(data.shape, 4, "data")
    require_rank(weight.shape, 4, "weight")
    batch, height, width, _ = data.shape
    kernel_height, kernel_width, _, outputs = weight.shape
    top, left, bottom, right = attributes.padding
    (step_h, step_w), (space_h, space_w) = attributes.strides, attributes.dilation
    rows = window_dim(height, kernel_height, step_h, top, bottom, space_h, "height")
    columns = window_dim(width, kernel_width, step_w, left, right, space_w, "width")
    return TensorType((batch, rows, columns, outputs), total)


def windowed_product(data: Array, weight: Array, zero: Array, attributes: IntegerConv2dAttributes) -> Array:
    """The convolution of NHWC data with HWIO weights, borders filled with a byte."""
    top, left, bottom, right = attributes.padding
    widths = ((0, 0), (top, bottom), (left, right), (0, 0))
    padded = np.pad(data, widths, constant_values=zero.reshape(()).item()).transpose(0, 3, 1, 2)
    height, width, inputs, outputs = weight.shape
    view = windows(padded, (height, width), attributes.strides, attributes.dilation)
    gathered = view.transpose(0, 2, 3, 4, 5, 1)
    n, rows, columns = gathered.shape[:3]
    flat = gathered.reshape(n * rows * columns, height * width * inputs)
    return byte_product(flat, weight.reshape(-1, outputs)).reshape(n, rows, columns, outputs)


def _conv2d(args: list[Array], attributes: IntegerConv2dAttributes) -> Array:
    return windowed_product(args[0], args[1], args[2], attributes)


@operator(
    "qnn.conv2d",
    inputs=("data", "weight", "zero"),
    kind=FusionKind.OUT_FUSABLE,
    reference=_conv2d,
    attributes=IntegerConv2dAttributes,
)
def conv2d(types: Types, attributes: IntegerConv2dAttributes) -> Type:
    """Convolution of NHWC bytes with HWIO bytes in 32 bits; the border is filled with `zero`, a single byte."""
    data, weight, zero = tensors(types, ("data", "weight", "zero"))
    total = product_type(data.dtype, weight.dtype)
    if zero.dtype is not data.dtype or zero.static_shape not in ((), (1,)):
        raise UserError(f"zero must be a single {data.dtype}, it is {zero}")
    if data.shape is not None and weight.shape is not None and len(data.shape) == len(weight.shape) == 4:
        agree(data.shape[3], weight.shape[2], "channels of the data, and inputs of the weight")
    return sums_of_windows(data, weight, attributes, total)


def _depthwise_conv2d(args: list[Array], attributes: IntegerDepthwiseAttributes) -> Array:
    data, weight = args
    top, left, bottom, right = attributes.padding
    shifted = np.pad(data.astype(np.int32) - attributes.zero, ((0, 0), (top, bottom), (left, right), (0, 0)))
    view = windows(shifted.transpose(0, 3, 1, 2), weight.shape[:2], attributes.strides, attributes.dilation)
    each = weight.shape[3] // max(1, data.shape[3])
    # (batch, channels, rows, columns, taps down, taps across)
    taps = weight[:, :, 0].astype(np.int32).transpose(2, 0, 1)
    sums = (view.repeat(each, axis=1) * taps[None, :, None, None]).sum(axis=(4, 5), dtype=np.int32)
    return np.ascontiguousarray(sums.transpose(0, 2, 3, 1))


@operator(
    "qnn.depthwise_conv2d",
    inputs=("data", "weight"),
    kind=FusionKind.OUT_FUSABLE,
    reference=_depthwise_conv2d,
    attributes=IntegerDepthwiseAttributes,
)
def depthwise_conv2d(types: Types, attributes: IntegerDepthwiseAttributes) -> Type:
    """Convolution of each channel of NHWC bytes, less `zero`, by itself with HWIO bytes, in 32 bits; borders are 0."""
    data, weight = tensors(types, ("data", "weight"))
    if product_type(data.dtype, weight.dtype) is not INT32:
        raise UserError(f"data and weight must be integers, they are {data.dtype} and {weight.dtype}")
    if data.shape is not None and weight.shape is not None and len(data.shape) == len(weight.shape) == 4:
        agree(weight.shape[2], IntImm(1, INT64), "inputs of a depthwise weight, and 1")
        channels, outputs = (None if dim is None else const_value(dim) for dim in (data.shape[3], weight.shape[3]))
        if isinstance(channels, int) and isinstance(outputs, int) and (not channels or outputs % channels):
            raise UserError(f"{outputs} outputs are no multiple of {channels} channels")
    return sums_of_windows(data, weight, attributes, INT32)


def _grouped_conv2d(args: list[Array], attributes: IntegerConv2dAttributes) -> Array:
    data, weight, zero = args
    parts = [
        _conv2d([np.ascontiguousarray(data[:, :, :, group]), weight[group], zero], attributes)
        for group in range(weight.shape[0])
    ]
    return np.ascontiguousarray(np.stack(parts, axis=3))


@operator(
    "qnn.grouped_conv2d",
    inputs=("data", "weight", "zero"),
    kind=FusionKind.OUT_FUSABLE,
    reference=_grouped_conv2d,
    attributes=IntegerConv2dAttributes,
)
def grouped_conv2d(types: Types, attributes: IntegerConv2dAttributes) -> Type:
    """Convolutions of groups of channels by themselves, in 32 bits.

    Data (batch, height, width, group, input), weight (group, height, width, input, output); the result is (batch,
    height, width, group, output). The border is filled with `zero`, a single byte.
    """
    data, weight = _grouped_operands(types, 5)
    if data.shape is None or weight.shape is None:
        return TensorType((None,) * 5, INT32)
    inner = TensorType((*data.shape[:3], data.shape[4]), data.dtype), TensorType(weight.shape[1:], weight.dtype)
    sums = sums_of_windows(*inner, attributes, INT32).shape
    assert sums is not None
    return TensorType((*sums[:3], weight.shape[0], sums[3]), INT32)


def _grouped_operands(types: Types, weight_rank: int) -> tuple[TensorType, TensorType]:
    """Data and weight of a grouped product of bytes whose groups and inputs agree."""
    data, weight, zero = tensors(types, ("data", "weight", "zero"))
    if product_type(data.dtype, weight.dtype) is not INT32:
        raise UserError(f"data and weight must be integers, they are {data.dtype} and {weight.dtype}")
    if zero.dtype is not data.dtype or zero.static_shape not in ((), (1,)):
        raise UserError(f"zero must be a single {data.dtype}, it is {zero}")
    if data.shape is not None and weight.shape is not None:
        require_rank(data.shape, 5, "data")
        require_rank(weight.shape, weight_rank, "weight")
        agree(data.shape[3], weight.shape[0], "groups of the data, and of the weight")
        agree(data.shape[4], weight.shape[-2], "inputs of a group of the data, and of the weight")
    return data, weight


@node()
class IntegerConv2dTransposeAttributes(Attributes):
    """How many steps of all phases there are down and across, and what the result lacks at the top and left."""

    steps: tuple[int, int]
    padding: tuple[int, int] = (0, 0)

    def first(self, phase: int, axis: int, stride: int, taps: int) -> int:
        """The input element that the first tap of a phase meets at step 0; it may lie before the image."""
        return (phase + self.padding[axis]) // stride - (taps - 1)


def _conv2d_transpose(args: list[Array], attributes: IntegerConv2dTransposeAttributes) -> Array:
    data, weight, zero = args
    batch, height, width, groups, inputs = data.shape
    down, across, rows, columns, _, outputs = weight.shape[1:]
    steps_y, steps_x = attributes.steps
    result = np.zeros((batch, steps_y, down, steps_x, across, groups, outputs), np.int32)
    # Room for every window around the image.
    room_y, room_x = steps_y + height + rows + 1, steps_x + width + columns + 1
    widths = ((0, 0), (rows, room_y), (columns, room_x), (0, 0), (0, 0))
    padded = np.pad(data, widths, constant_values=zero.reshape(()).item())
    for p, q, g in np.ndindex(down, across, groups):
        top = attributes.first(p, 0, down, rows) + rows
        left = attributes.first(q, 1, across, columns) + columns
        view = padded[:, top : top + steps_y + rows - 1, left : left + steps_x + columns - 1, g].transpose(0, 3, 1, 2)
        gathered = windows(view, (rows, columns), (1, 1), (1, 1)).transpose(0, 2, 3, 4, 5, 1)
        flat = gathered.reshape(batch * steps_y * steps_x, rows * columns * inputs)
        sums = byte_product(flat, weight[g, p, q].reshape(-1, outputs))
        result[:, :, p, :, q, g] = sums.reshape(batch, steps_y, steps_x, outputs)
    return result


@operator(
    "qnn.conv2d_transpose",
    inputs=("data", "weight", "zero"),
    kind=FusionKind.OUT_FUSABLE,
    reference=_conv2d_transpose,
    attributes=IntegerConv2dTransposeAttributes,
)
def conv2d_transpose(types: Types, attributes: IntegerConv2dTransposeAttributes) -> Type:
    """A transposed convolution of bytes in 32 bits, phase by phase: each is a convolution of its own.

    Data (batch, height, width, group, input); weight (group, phase down, phase across, height, width, input, output),
    whose taps meet neighbouring inputs in order; the result is (batch, step, phase, step, phase, group, output), rows
    and columns taken apart in steps of all phases. What lies outside of the image is `zero`, a single byte.
    """
    data, weight = _grouped_operands(types, 7)
    require_length(attributes.steps, 2, "steps")
    require_length(attributes.padding, 2, "padding")
    require_not_negative(attributes.steps, "steps")
    require_not_negative(attributes.padding, "padding")
    if data.shape is None or weight.shape is None:
        return TensorType((None,) * 7, INT32)
    groups, down, across, *_, outputs = weight.shape
    rows, columns = (IntImm(steps, INT64) for steps in attributes.steps)
    return TensorType((data.shape[0], rows, down, columns, across, groups, outputs), INT32)


@node()
class LineConv2dAttributes(Attributes):
    """Steps down (lines) and across (bytes); padding (top, left, bottom, right) in lines and bytes."""

    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)


def _line_conv2d(args: list[Array], attributes: LineConv2dAttributes) -> Array:
    data, weight, zero = args
    top, left, bottom, right = attributes.padding
    widths = ((0, 0), (top, bottom), (left, right))
    padded = np.pad(data, widths, constant_values=zero.reshape(()).item())
    height, length, outputs = weight.shape
    down, across = attributes.strides
    view = sliding_window_view(padded, (height, length), axis=(1, 2))[:, ::down, ::across]
    n, rows, columns = view.shape[:3]
    flat = view.reshape(n * rows * columns, height * length)
    return byte_product(flat, weight.reshape(-1, outputs)).reshape(n, rows, columns, outputs)


@operator(
    "qnn.line_conv2d",
    inputs=("data", "weight", "zero"),
    kind=FusionKind.OUT_FUSABLE,
    reference=_line_conv2d,
    attributes=LineConv2dAttributes,
)
def line_conv2d(types: Types, attributes: LineConv2dAttributes) -> Type:
    """Convolution of an image of few channels, whose lines (all pixels, all channels) are bytes (batch, lines, bytes).

    A window meets one run of bytes of each of its lines: the weight is (lines, bytes, outputs). Borders are `zero`.
    """
    data, weight, zero = tensors(types, ("data", "weight", "zero"))
    if product_type(data.dtype, weight.dtype) is not INT32:
        raise UserError(f"data and weight must be 8-bit integers, they are {data.dtype} and {weight.dtype}")
    if zero.dtype is not data.dtype or zero.static_shape not in ((), (1,)):
        raise UserError(f"zero must be a single {data.dtype}, it is {zero}")
    require_length(attributes.strides, 2, "strides")
    require_length(attributes.padding, 4, "padding")
    require_positive(attributes.strides, "strides")
    require_not_negative(attributes.padding, "padding")
    if data.shape is None or weight.shape is None:
        return TensorType((None,) * 4, INT32)
    require_rank(data.shape, 3, "data")
    require_rank(weight.shape, 3, "weight")
    batch, lines, length = data.shape
    height, run, outputs = weight.shape
    top, left, bottom, right = attributes.padding
    rows = window_dim(lines, height, attributes.strides[0], top, bottom, 1, "height")
    columns = window_dim(length, run, attributes.strides[1], left, right, 1, "width")
    return TensorType((batch, rows, columns, outputs), INT32)
