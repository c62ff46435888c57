"""Elementwise operators of several inputs, which broadcast as in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.graph.ir.op import Array, FusionKind, NoAttributes, Types, operator
from tilewright.graph.ops import special
from tilewright.graph.ops.common import (
    broadcast_shapes,
    require_bool,
    require_float,
    require_integer,
    require_number,
    same_dtype,
    tensor,
    tensors,
)
from tilewright.ir.dtype import BOOL, DataType
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

_NAMES = ("a", "b")


def _any_type(dtype: DataType, what: str) -> None:
    """Accept everything."""


def _bits(dtype: DataType, what: str) -> None:
    if not dtype.is_bool:
        require_integer(dtype, what)


def _declare(
    name: str,
    compute: Callable[[Array, Array], Array],
    description: str,
    check: Callable[[DataType, str], None] = require_number,
    result: DataType | None = None,
) -> None:
    """Register a binary operator; its result has the data type of the inputs, or the one given."""

    def reference(args: list[Array], attributes: NoAttributes) -> Array:
        with np.errstate(all="ignore"):
            value = compute(args[0], args[1])
        return np.asarray(value, args[0].dtype if result is None else result.numpy())

    def infer(types: Types, attributes: NoAttributes) -> Type:
        inputs = tensors(types, _NAMES)
        dtype = same_dtype(inputs, _NAMES)
        check(dtype, "the inputs")
        return TensorType(broadcast_shapes([item.shape for item in inputs]), result or dtype)

    infer.__doc__ = description
    operator(name, inputs=_NAMES, kind=FusionKind.INJECTIVE, reference=reference, elementwise=True)(infer)


_declare("add", np.add, "a + b (integers wrap).")
_declare("subtract", np.subtract, "a - b (integers wrap).")
_declare("multiply", np.multiply, "a * b (integers wrap).")
_declare("divide", special.divide_toward_zero, "a / b; integers divide toward zero.")
_declare("power", special.power, "a to the power of b.")
_declare("minimum", np.minimum, "The lesser; NaN if either is NaN.")
_declare("maximum", np.maximum, "The greater; NaN if either is NaN.")
_declare("floor_divide", np.floor_divide, "a / b rounded toward minus infinity.")
_declare("floor_mod", np.mod, "The remainder with the sign of b: belongs to floor_divide.")
_declare("fmod", np.fmod, "The remainder with the sign of a: belongs to division toward zero.")
_declare("equal", np.equal, "a == b.", _any_type, BOOL)
_declare("not_equal", np.not_equal, "a != b (true if either is NaN).", _any_type, BOOL)
_declare("less", np.less, "a < b.", require_number, BOOL)
_declare("less_equal", np.less_equal, "a <= b.", require_number, BOOL)
_declare("greater", np.greater, "a > b.", require_number, BOOL)
_declare("greater_equal", np.greater_equal, "a >= b.", require_number, BOOL)
_declare("logical_and", np.logical_and, "a and b.", require_bool)
_declare("logical_or", np.logical_or, "a or b.", require_bool)
_declare("logical_xor", np.logical_xor, "Exactly one of a and b.", require_bool)
_declare("bitwise_and", np.bitwise_and, "The bits set in both.", _bits)
_declare("bitwise_or", np.bitwise_or, "The bits set in either.", _bits)
_declare("bitwise_xor", np.bitwise_xor, "The bits set in exactly one.", _bits)
_declare("left_shift", special.shift_left, "a shifted left by b bits (modulo the width).", require_integer)
_declare(
    "right_shift",
    special.shift_right,
    "a shifted right by b bits (modulo the width); signed types keep the sign.",
    require_integer,
)


def _where(args: list[Array], attributes: NoAttributes) -> Array:
    return np.asarray(np.where(args[0], args[1], args[2]), args[1].dtype)


@operator(
    "where",
    inputs=("condition", "a", "b"),
    kind=FusionKind.INJECTIVE,
    reference=_where,
    elementwise=True,
)
def where(types: Types, attributes: NoAttributes) -> Type:
    """a where the condition holds, else b."""
    condition, a, b = tensors(types, ("condition", "a", "b"))
    require_bool(condition.dtype, "the condition")
    dtype = same_dtype([a, b], _NAMES)
    return TensorType(broadcast_shapes([condition.shape, a.shape, b.shape]), dtype)


def _prelu(args: list[Array], attributes: NoAttributes) -> Array:
    data, slope = args
    with np.errstate(all="ignore"):
        return np.asarray(np.where(data < 0, data * slope, data), data.dtype)


@operator(
    "nn.prelu",
    inputs=("data", "slope"),
    kind=FusionKind.INJECTIVE,
    reference=_prelu,
    elementwise=True,
)
def prelu(types: Types, attributes: NoAttributes) -> Type:
    """x, or slope * x where x is negative; the slope broadcasts to the shape of x."""
    data, slope = tensor(types, 0, "data"), tensor(types, 1, "slope")
    require_float(same_dtype([data, slope], ("data", "slope")))
    shape = broadcast_shapes([data.shape, slope.shape])
    if shape is not None and data.shape is not None and len(shape) != len(data.shape):
        raise UserError("the slope has more dimensions than the data")
    return TensorType(shape, data.dtype)
