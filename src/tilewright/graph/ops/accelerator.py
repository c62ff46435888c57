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


def _conv2d(args: list[Array], attributes: AccelConv2dAttributes) -> Array:
    data, weight, parameters = args[:3]
    top, left, bottom, right = attributes.padding
    frame = ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0), (0, 0))
    padded = np.pad(data.astype(np.int32), frame, constant_values=attributes.pad)
    out_blocks, own_blocks, kernel_height, kernel_width, out_lanes, lanes = weight.shape
    batch, _, height, width, rows, _ = padded.shape
    matrix = weight.astype(np.int32).transpose(0, 4, 1, 5, 2, 3)
    matrix = matrix.reshape(attributes.groups, -1, own_blocks * lanes, kernel_height, kernel_width)
    parts = []
    for number, part in enumerate(matrix):
        planes = padded[:, number * own_blocks : (number + 1) * own_blocks].transpose(0, 4, 1, 5, 2, 3)
        planes = np.ascontiguousarray(planes.reshape(batch * rows, own_blocks * lanes, height, width))
        view = windows(planes, weight.shape[2:4], attributes.strides, (1, 1))
        parts.append(np.einsum("nchwij,ocij->nohw", view, part, optimize=True).astype(np.int32))
    sums = np.concatenate(parts, axis=1)
    sums = sums.reshape(batch, rows, out_blocks, out_lanes, *sums.shape[2:]).transpose(0, 2, 4, 5, 1, 3)
    bias, multiplier, factor, shifts = (
        parameters[:, word].reshape(1, out_blocks, 1, 1, 1, out_lanes) for word in range(PARAMETER_WORDS)
    )
    residual = [args[3], factor, shifts >> RESIDUAL_SHIFT_AT] if len(args) > 3 else []
    form = FixedPointAttributes(attributes.offset, attributes.low, attributes.high)
    return requantized([sums, bias, multiplier, shifts & ((1 << RESIDUAL_SHIFT_AT) - 1), *residual], form)


@operator(
    "accel.conv2d",
    inputs=_NAMES,
    optional=1,
    kind=FusionKind.OPAQUE,
    reference=_conv2d,
    attributes=AccelConv2dAttributes,
)
def conv2d(types: Types, attributes: AccelConv2dAttributes) -> Type:
    """Convolution of [n, ci, h, w, rows, lanes] with [co, ci, kh, kw, lanes, lanes] blocks, and EPI's fixed point."""
    found = tensors(types, _NAMES[: len(types)])
    shapes = [item.static_shape for item in found]
    if any(shape is None for shape in shapes):
        raise UserError("the tensor processor's layers have known sizes")
    data, weight, parameters, *residual = (shape for shape in shapes if shape is not None)
    wanted = (INT8, INT8, INT32, INT8)
    if any(item.dtype is not dtype for item, dtype in zip(found, wanted, strict=False)):
        raise UserError("the tensor processor's layers are of int8, with parameters of int32")
    if len(data) != 6 or len(weight) != 6 or data[1] != weight[1] * attributes.groups or data[5] != weight[5]:
        raise UserError(f"data of {data} and weights of {weight} are not in blocks of the same channels")
    if attributes.groups < 1 or weight[0] % attributes.groups:
        raise UserError(f"{weight[0]} blocks of channels are not in {attributes.groups} groups")
    if parameters != (weight[0], PARAMETER_WORDS, weight[4]):
        raise UserError(
            f"parameters of {parameters} are not {PARAMETER_WORDS} words for each of {weight[0]} x {weight[4]} channels"
        )
    top, left, bottom, right = attributes.padding
    height = (data[2] + top + bottom - weight[2]) // attributes.strides[0] + 1
    width = (data[3] + left + right - weight[3]) // attributes.strides[1] + 1
    if height < 1 or width < 1:
        raise UserError(f"windows of {weight[2:4]} do not fit in {data[2:4]}")
    result = (data[0], weight[0], height, width, data[4], weight[4])
    if residual and residual[0] != result:
        raise UserError(f"a residual of {residual[0]} is added to a result of {result}")
    shape: TensorType = tensor_type(result, "int8")
    return shape
