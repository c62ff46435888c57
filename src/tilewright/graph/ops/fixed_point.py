"""Sums of integer products to integers of 8 bits by integer arithmetic alone: what processors without floats do.

`docs/quantization.md` has the formula, and `docs/accelerator.md` the instruction that computes it (EPI).
"""

from __future__ import annotations

import numpy as np

from tilewright.accel.config import MULTIPLIER_BITS, RESIDUAL_SHIFT_BITS
from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import broadcast_shapes, tensors
from tilewright.ir.dtype import INT8, INT32
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

_NAMES = ("sums", "bias", "multiplier", "shift", "residual", "residual_multiplier", "residual_shift")
_PLAIN = 4
MOST_RESIDUAL_SHIFT, MOST_MULTIPLIER = (1 << RESIDUAL_SHIFT_BITS) - 1, (1 << (MULTIPLIER_BITS - 1)) - 1
"""What shifts and multipliers may be: all sums are exact in 64 bits."""


@node()
class FixedPointAttributes(Attributes):
    """What is added in the end, and the range of results."""

    offset: int = 0
    low: int = -128
    high: int = 127


def requantized(args: list[Array], attributes: FixedPointAttributes) -> Array:
    """What the operator computes, of arrays."""
    sums, bias, multiplier, shift = args[:_PLAIN]
    with np.errstate(over="ignore"):
        value = (sums + bias).astype(np.int64) * multiplier
    if len(args) > _PLAIN:
        residual, factor, places = args[_PLAIN:]
        value = value + (residual.astype(np.int64) * factor << places.astype(np.int64))
    steps = shift.astype(np.int64)
    half = np.where(steps > 0, np.int64(1) << np.maximum(steps - 1, 0), 0)
    rounded = (value + half >> steps) + attributes.offset
    return np.asarray(np.clip(rounded, attributes.low, attributes.high), np.int8)


def high_product(args: list[Array], attributes: object) -> Array:
    """The rounded upper half of twice the product, of arrays."""
    data, multiplier = args
    product = (data.astype(np.int64) * multiplier + (1 << 30)) >> 31
    return np.asarray(np.minimum(product, INT32.max_value()), np.int32)


@operator(
    "qnn.high_product",
    inputs=("data", "multiplier"),
    kind=FusionKind.INJECTIVE,
    reference=high_product,
    elementwise=True,
)
def _high_product(types: Types, attributes: object) -> Type:
    """data * multiplier / 2^31 of 32-bit integers, rounded, halves up: a product with a fraction of 31 digits."""
    return _words(types, ("data", "multiplier"))


def rounded_shift(args: list[Array], attributes: object) -> Array:
    """Times powers of two below one, rounded, of arrays."""
    data, shift = (item.astype(np.int64) for item in args)
    places = -shift & 31
    return np.asarray((data + ((np.int64(1) << places) >> 1)) >> places, np.int32)


@operator(
    "qnn.rounded_shift",
    inputs=("data", "shift"),
    kind=FusionKind.INJECTIVE,
    reference=rounded_shift,
    elementwise=True,
)
def _rounded_shift(types: Types, attributes: object) -> Type:
    """data * 2^shift of 32-bit integers, rounded, halves up; shifts are from -31 to 0."""
    return _words(types, ("data", "shift"))


def _words(types: Types, names: tuple[str, ...]) -> Type:
    """The type of what is computed element by element of 32-bit integers."""
    found = tensors(types, names)
    for name, item in zip(names, found, strict=True):
        if item.dtype is not INT32:
            raise UserError(f"'{name}' must be {INT32}; it is {item.dtype}")
    return TensorType(broadcast_shapes([item.shape for item in found]), INT32)


@operator(
    "qnn.fixed_point",
    inputs=_NAMES,
    optional=len(_NAMES) - _PLAIN,
    kind=FusionKind.INJECTIVE,
    reference=requantized,
    attributes=FixedPointAttributes,
    elementwise=True,
)
def fixed_point(types: Types, attributes: FixedPointAttributes) -> Type:
    """The sums plus a bias, times a multiplier, plus the residual times its own, shifted right and rounded, in int8."""
    found = tensors(types, _NAMES[: len(types)])
    if len(found) not in (_PLAIN, len(_NAMES)):
        raise UserError("a residual comes with its multiplier and its shift")
    for name, item in zip(_NAMES, found, strict=False):
        wanted = INT8 if name == "residual" else INT32
        if item.dtype is not wanted:
            raise UserError(f"'{name}' must be {wanted}; it is {item.dtype}")
    if not -128 <= attributes.low <= attributes.high <= 127:
        raise UserError(f"results from {attributes.low} to {attributes.high} are no range of int8")
    shape = broadcast_shapes([item.shape for item in found])
    sums = found[0].shape
    if shape is not None and sums is not None and len(shape) != len(sums):
        raise UserError("bias, multipliers or shifts have more dimensions than the sums")
    return TensorType(sums, INT8)
