"""Numbers to small integers and back: what quantised models are made of, as operators of their own.

`docs/quantization.md` states rounding and saturation. Scale and zero point broadcast to the data: a single number
(per tensor), one a channel, or one a group of an axis that was split. The pass `expand_quantization` spells both
operators out in arithmetic before anything else looks at them.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, NoAttributes, Types, operator
from tilewright.graph.ops.common import broadcast_shapes, require_float, tensors
from tilewright.ir.dtype import INT8, DataType
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

_NAMES = ("data", "scale", "zero")
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "int4", "uint4", "int2", "uint2", "int1", "uint1")


@node()
class QuantizeAttributes(Attributes):
    """The integer type of the result, and how many of its bits are used (fewer than it has: a narrower range)."""

    dtype: DataType = INT8
    bits: int = 8


def integer_range(dtype: DataType, bits: int) -> tuple[int, int]:
    """The smallest and the largest integer of so many bits."""
    if dtype.is_uint:
        return 0, (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _quantize(args: list[Array], attributes: QuantizeAttributes) -> Array:
    data, scale, zero = args
    low, high = integer_range(attributes.dtype, attributes.bits)
    with np.errstate(all="ignore"):
        steps = np.rint(data / scale) + zero.astype(data.dtype)
        return np.asarray(np.clip(steps, low, high), attributes.dtype.numpy())


def _check(types: Types, dtype: DataType, numbers: DataType) -> Type:
    data, scale, zero = tensors(types, _NAMES)
    require_float(numbers, "the numbers that are quantised")
    if scale.dtype is not numbers:
        raise UserError(f"the scale is {scale.dtype}, the numbers are {numbers}", hint="cast one of them")
    if dtype.name not in _INTEGERS:
        raise UserError(f"numbers are quantised to one of {', '.join(_INTEGERS)}, not {dtype}")
    if zero.dtype is not dtype:
        raise UserError(f"the zero point must be {dtype}, as the integers are; it is {zero.dtype}")
    shape = broadcast_shapes([data.shape, scale.shape, zero.shape])
    if shape is not None and data.shape is not None and len(shape) != len(data.shape):
        raise UserError("scale and zero point have more dimensions than the data")
    return TensorType(data.shape, dtype)


@operator(
    "qnn.quantize",
    inputs=_NAMES,
    kind=FusionKind.INJECTIVE,
    reference=_quantize,
    attributes=QuantizeAttributes,
    elementwise=True,
)
def quantize(types: Types, attributes: QuantizeAttributes) -> Type:
    """round(data / scale) + zero, to the nearest even integer at ties, kept within `bits` bits."""
    width = attributes.dtype.bits
    if not 1 <= attributes.bits <= width:
        raise UserError(f"{attributes.dtype} has {width} bits, {attributes.bits} were asked for")
    return _check(types, attributes.dtype, tensors(types, _NAMES)[0].dtype)


def _dequantize(args: list[Array], attributes: NoAttributes) -> Array:
    data, scale, zero = args
    shifted = data.astype(np.int64) - zero.astype(np.int64)
    with np.errstate(all="ignore"):
        return np.asarray(shifted.astype(scale.dtype) * scale, scale.dtype)


@operator("qnn.dequantize", inputs=_NAMES, kind=FusionKind.INJECTIVE, reference=_dequantize, elementwise=True)
def dequantize(types: Types, attributes: NoAttributes) -> Type:
    """(data - zero) * scale: the numbers that integers stand for."""
    data, scale, _ = tensors(types, _NAMES)
    _check(types, data.dtype, scale.dtype)
    return TensorType(data.shape, scale.dtype)
