"""Layers as the tensor processor computes them: int8 in blocks of channels, results in fixed point."""

from __future__ import annotations

import numpy as np

from tilewright.accel.config import PARAMETER_WORDS, RESIDUAL_SHIFT_AT
from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import tensors
from tilewright.graph.ops.convolution import windows
from tilewright.graph.ops.fixed_point import FixedPointAttributes, requantized
from tilewright.ir.dtype import INT8, INT32
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type, tensor_type
from tilewright.support.errors import UserError

_NAMES = ("data", "weight", "parameters", "residual")
_POOL_NAMES = ("data", "weight", "parameters")
Shape = tuple[int, ...]


@node()
class AccelConv2dAttributes(Attributes):
    """Windows, groups (in blocks of channels), the value of padding, and how sums become results."""

    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    pad: int = 0
    offset: int = 0
    low: int = -128
    high: int = 127
    kernel: tuple[int, int] = (0, 0)
    """Windows of this size with the same weights at every tap; (0, 0): the weights have a tap for each element."""
    shared: bool = False
    """Whether all groups have the same weights: they are there once then."""


@node()
class AccelPool2dAttributes(Attributes):
    """Windows of a maximum, groups (in blocks of channels), the value of padding, and the range of results."""

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    pad: int = -128
    offset: int = 0
    low: int = -128
    high: int = 127


@node()
class AccelSpreadAttributes(Attributes):
    """Steps between the results of one element, where the first of them lies, and the size of all of them."""

    strides: tuple[int, int]
    size: tuple[int, int]
    before: tuple[int, int] = (0, 0)
    """Rows and columns at the top and on the left that are left out."""
    phases: bool = False
    """Whether the results of one element are in channels of their own; else they are all the same."""


def _padded(data: Array, padding: Shape, pad: int) -> Array:
    top, left, bottom, right = padding
    frame = ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0), (0, 0))
    return np.pad(data.astype(np.int32), frame, constant_values=pad)


def _whole_weights(weight: Array, attributes: AccelConv2dAttributes) -> Array:
    """Weights with all that is shared repeated."""
    if any(attributes.kernel):
        weight = np.broadcast_to(weight, (*weight.shape[:2], *attributes.kernel, *weight.shape[4:]))
    return np.tile(weight, (attributes.groups, 1, 1, 1, 1, 1)) if attributes.shared else weight


def _sums(padded: Array, weight: Array, groups: int, strides: tuple[int, int]) -> Array:
    """Sums over windows, in blocks."""
    out_blocks, own_blocks, kernel_height, kernel_width, out_lanes, lanes = weight.shape
    batch, _, height, width, rows, _ = padded.shape
    matrix = weight.astype(np.int32).transpose(0, 4, 1, 5, 2, 3)
    matrix = matrix.reshape(groups, -1, own_blocks * lanes, kernel_height, kernel_width)
    parts = []
    for number, part in enumerate(matrix):
        planes = padded[:, number * own_blocks : (number + 1) * own_blocks].transpose(0, 4, 1, 5, 2, 3)
        planes = np.ascontiguousarray(planes.reshape(batch * rows, own_blocks * lanes, height, width))
        view = windows(planes, weight.shape[2:4], strides, (1, 1))
        parts.append(np.einsum("nchwij,ocij->nohw", view, part, optimize=True).astype(np.int32))
    sums = np.concatenate(parts, axis=1)
    return sums.reshape(batch, rows, out_blocks, out_lanes, *sums.shape[2:]).transpose(0, 2, 4, 5, 1, 3)


def _results(sums: Array, parameters: Array, residual: list[Array], form: FixedPointAttributes) -> Array:
    """What EPI makes of sums."""
    bias, multiplier, factor, shifts = (
        parameters[:, word].reshape(1, sums.shape[1], 1, 1, 1, sums.shape[5]) for word in range(PARAMETER_WORDS)
    )
    more = [*residual, factor, shifts >> RESIDUAL_SHIFT_AT] if residual else []
    return requantized([sums, bias, multiplier, shifts & ((1 << RESIDUAL_SHIFT_AT) - 1), *more], form)


def _conv2d(args: list[Array], attributes: AccelConv2dAttributes) -> Array:
    data, weight, *numbers = args
    padded = _padded(data, attributes.padding, attributes.pad)
    sums = _sums(padded, _whole_weights(weight, attributes), attributes.groups, attributes.strides)
    if not numbers:
        return sums
    form = FixedPointAttributes(attributes.offset, attributes.low, attributes.high)
    return _results(sums, numbers[0], numbers[1:], form)


def _static_shapes(types: Types, names: tuple[str, ...]) -> list[Shape]:
    """Sizes of inputs, which must be known, of the types that each has."""
    found = tensors(types, names[: len(types)])
    shapes = [item.static_shape for item in found]
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes):
        raise UserError("the tensor processor's layers have known sizes")
    if any(item.dtype is not (INT32 if name == "parameters" else INT8) for name, item in zip(names, found)):  # noqa: B905
        raise UserError("the tensor processor's layers are of int8, with parameters of int32")
    return known


def _check_parameters(parameters: Shape, blocks: int, lanes: int) -> None:
    if parameters != (blocks, PARAMETER_WORDS, lanes):
        raise UserError(
            f"parameters of {parameters} are not {PARAMETER_WORDS} words for each of {blocks} x {lanes} channels"
        )


def _window_size(
    data: Shape, kernel: Shape, attributes: AccelConv2dAttributes | AccelPool2dAttributes
) -> tuple[int, int]:
    top, left, bottom, right = attributes.padding
    height = (data[2] + top + bottom - kernel[0]) // attributes.strides[0] + 1
    width = (data[3] + left + right - kernel[1]) // attributes.strides[1] + 1
    if height < 1 or width < 1:
        raise UserError(f"windows of {tuple(kernel)} do not fit in {data[2:4]}")
    return height, width


@operator(
    "accel.conv2d",
    inputs=_NAMES,
    optional=2,
    kind=FusionKind.OPAQUE,
    reference=_conv2d,
    attributes=AccelConv2dAttributes,
)
def conv2d(types: Types, attributes: AccelConv2dAttributes) -> Type:
    """Convolution of [n, ci, h, w, rows, lanes] with [co, ci, kh, kw, lanes, lanes] blocks, and EPI's fixed point.

    Without parameters the results are the sums, in int32.
    """
    data, weight, *numbers = _static_shapes(types, _NAMES)
    if len(data) != 6 or len(weight) != 6 or data[1] != weight[1] * attributes.groups or data[5] != weight[5]:
        raise UserError(f"data of {data} and weights of {weight} are not in blocks of the same channels")
    if attributes.groups < 1 or (weight[0] % attributes.groups and not attributes.shared):
        raise UserError(f"{weight[0]} blocks of channels are not in {attributes.groups} groups")
    kernel = weight[2:4]
    if any(attributes.kernel):
        if kernel != (1, 1):
            raise UserError(f"weights of windows of {kernel} are not the same at every tap of {attributes.kernel}")
        kernel = attributes.kernel
    blocks = weight[0] * (attributes.groups if attributes.shared else 1)
    result = (data[0], blocks, *_window_size(data, kernel, attributes), data[4], weight[4])
    if not numbers:
        return tensor_type(result, "int32")
    _check_parameters(numbers[0], blocks, weight[4])
    if numbers[1:] and numbers[1] != result:
        raise UserError(f"a residual of {numbers[1]} is added to a result of {result}")
    shape: TensorType = tensor_type(result, "int8")
    return shape


def _max_pool2d(args: list[Array], attributes: AccelPool2dAttributes) -> Array:
    data, weight, parameters = args
    padded = _padded(data, attributes.padding, attributes.pad)
    wide = _sums(padded, np.tile(weight, (attributes.groups, 1, 1, 1, 1, 1)), attributes.groups, (1, 1))
    height, width = _window_size(data.shape, attributes.kernel, attributes)
    (down, across), best = attributes.strides, None
    for u in range(attributes.kernel[0]):
        for v in range(attributes.kernel[1]):
            taps = wide[:, :, u : u + (height - 1) * down + 1 : down, v : v + (width - 1) * across + 1 : across]
            best = taps if best is None else np.maximum(best, taps)
    assert best is not None
    form = FixedPointAttributes(attributes.offset, attributes.low, attributes.high)
    return _results(best, parameters, [], form)


@operator(
    "accel.max_pool2d",
    inputs=_POOL_NAMES,
    kind=FusionKind.OPAQUE,
    reference=_max_pool2d,
    attributes=AccelPool2dAttributes,
)
def max_pool2d(types: Types, attributes: AccelPool2dAttributes) -> Type:
    """The greatest of each window of products of [n, ci, h, w, rows, lanes] with one tensor, and EPI's fixed point.

    The weights [co, ci, 1, 1, lanes, lanes] are those of every group: ones on the diagonal make accumulators of bytes.
    """
    data, weight, parameters = _static_shapes(types, _POOL_NAMES)
    if len(data) != 6 or len(weight) != 6 or data[1] != weight[1] * attributes.groups or data[5] != weight[5]:
        raise UserError(f"data of {data} and weights of {weight} are not in blocks of the same channels")
    if weight[2:4] != (1, 1):
        raise UserError(f"weights of windows of {weight[2:4]} make no accumulators of single elements")
    blocks = weight[0] * attributes.groups
    _check_parameters(parameters, blocks, weight[4])
    size = _window_size(data, attributes.kernel, attributes)
    return tensor_type((data[0], blocks, *size, data[4], weight[4]), "int8")


def _spread(args: list[Array], attributes: AccelSpreadAttributes) -> Array:
    (data,) = args
    down, across = attributes.strides
    n, channels, height, width, rows, lanes = data.shape
    if attributes.phases:
        blocks = data.reshape(n, down, across, channels // (down * across), height, width, rows, lanes)
        whole = blocks.transpose(0, 3, 4, 1, 5, 2, 6, 7)
        whole = whole.reshape(n, channels // (down * across), height * down, width * across, rows, lanes)
    else:
        whole = data.repeat(down, axis=2).repeat(across, axis=3)
    (top, left), (high, wide) = attributes.before, attributes.size
    return np.ascontiguousarray(whole[:, :, top : top + high, left : left + wide])


@operator("accel.spread", inputs=("data",), kind=FusionKind.OPAQUE, reference=_spread, attributes=AccelSpreadAttributes)
def spread(types: Types, attributes: AccelSpreadAttributes) -> Type:
    """Each element of [n, c, h, w, rows, lanes] as stride x stride: the same ones, or those of as many channels."""
    (data,) = _static_shapes(types, ("data",))
    (down, across), (top, left), (high, wide) = attributes.strides, attributes.before, attributes.size
    phases = down * across if attributes.phases else 1
    if len(data) != 6 or down < 1 or across < 1 or data[1] % phases:
        raise UserError(f"data of {data} are not blocks of channels of {phases} phases")
    if min(top, left) < 0 or min(high, wide) < 1 or top + high > data[2] * down or left + wide > data[3] * across:
        raise UserError(f"results of {attributes.size} from {attributes.before} on are not within {data[2:4]} spread")
    return tensor_type((data[0], data[1] // phases, high, wide, *data[4:]), "int8")
