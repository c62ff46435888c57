"""Reductions over axes: sums, extremes, truth, positions of extremes, running sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops import special
from tilewright.graph.ops.common import (
    constant_dim,
    reduced_shape,
    require_axes,
    require_axis,
    require_bool,
    require_float,
    require_number,
    tensor,
)
from tilewright.ir.dtype import FLOAT32, INT64, DataType
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.errors import UserError


@node()
class ReduceAttributes(Attributes):
    """The axes reduced, and whether they stay as dimensions of 1."""

    axes: tuple[int, ...]
    keepdims: bool = False


@node()
class ArgReduceAttributes(Attributes):
    """The axis searched, whether it stays as 1, and whether the last of equal elements wins instead of the first."""

    axis: int = 0
    keepdims: bool = False
    select_last: bool = False


@node()
class CumulativeAttributes(Attributes):
    """The axis, whether an element leaves itself out, and whether the sum runs from the end."""

    axis: int = 0
    exclusive: bool = False
    reverse: bool = False


def _sum(x: Array, attributes: ReduceAttributes) -> Array:
    # Floats accumulate in double precision: the reference is the yardstick for faster, less exact forms.
    wide = np.float64 if x.dtype.kind == "f" else x.dtype
    return np.asarray(np.sum(x, axis=attributes.axes, keepdims=attributes.keepdims, dtype=wide))


def _prod(x: Array, attributes: ReduceAttributes) -> Array:
    wide = np.float64 if x.dtype.kind == "f" else x.dtype
    return np.asarray(np.prod(x, axis=attributes.axes, keepdims=attributes.keepdims, dtype=wide))


def _mean(x: Array, attributes: ReduceAttributes) -> Array:
    count = int(np.prod([x.shape[axis] for axis in attributes.axes], dtype=np.int64))
    if x.dtype.kind == "f":
        return np.asarray(_sum(x, attributes) / np.float64(count))
    total = np.sum(x, axis=attributes.axes, keepdims=attributes.keepdims, dtype=np.int64)
    return special.divide_toward_zero(np.asarray(total), np.asarray(count, np.int64))


def lowest(dtype: np.dtype[Any]) -> float | int:
    """The value that a maximum starts from."""
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def highest(dtype: np.dtype[Any]) -> float | int:
    """The value that a minimum starts from."""
    return np.inf if dtype.kind == "f" else int(np.iinfo(dtype).max)


def _max(x: Array, attributes: ReduceAttributes) -> Array:
    return np.asarray(np.max(x, axis=attributes.axes, keepdims=attributes.keepdims, initial=lowest(x.dtype)))


def _min(x: Array, attributes: ReduceAttributes) -> Array:
    return np.asarray(np.min(x, axis=attributes.axes, keepdims=attributes.keepdims, initial=highest(x.dtype)))


def _all(x: Array, attributes: ReduceAttributes) -> Array:
    return np.asarray(np.all(x, axis=attributes.axes, keepdims=attributes.keepdims))


def _any(x: Array, attributes: ReduceAttributes) -> Array:
    return np.asarray(np.any(x, axis=attributes.axes, keepdims=attributes.keepdims))


def _declare(
    name: str,
    compute: Callable[[Array, ReduceAttributes], Array],
    description: str,
    check: Callable[[DataType], None] = require_number,
) -> None:
    """Register a reduction whose result has the data type of its input."""

    def reference(args: list[Array], attributes: ReduceAttributes) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(compute(args[0], attributes)).astype(args[0].dtype)

    def infer(types: Types, attributes: ReduceAttributes) -> Type:
        data = tensor(types, 0, "the input")
        check(data.dtype)
        if data.shape is None:
            return data
        require_axes(attributes.axes, len(data.shape))
        return TensorType(reduced_shape(data.shape, attributes.axes, attributes.keepdims), data.dtype)

    infer.__doc__ = description
    operator(name, inputs=("data",), kind=FusionKind.REDUCTION, reference=reference, attributes=ReduceAttributes)(infer)


_declare("sum", _sum, "The sum over axes.")
_declare("mean", _mean, "The mean over axes; of integers, rounded toward zero.")
_declare("max", _max, "The greatest over axes; NaN if any is NaN.")
_declare("min", _min, "The least over axes; NaN if any is NaN.")
_declare("prod", _prod, "The product over axes.")
_declare("all", _all, "Whether all over axes are true.", require_bool)
_declare("any", _any, "Whether any over axes is true.", require_bool)


def sum_type(dtype: DataType) -> DataType:
    """The type of sums that are kept as they were added up: float32 of narrower floats."""
    return FLOAT32 if dtype.bits < FLOAT32.bits else dtype


def _moments(args: list[Array], attributes: ReduceAttributes) -> tuple[Array, Array]:
    (data,) = args
    wide = data.astype(np.float64)
    dtype = np.promote_types(data.dtype, np.float32)
    with np.errstate(all="ignore"):
        mean = wide.mean(axis=attributes.axes, keepdims=attributes.keepdims)
        variance = wide.var(axis=attributes.axes, keepdims=attributes.keepdims)
        return np.asarray(mean, dtype), np.asarray(variance, dtype)


@operator("moments", inputs=("data",), kind=FusionKind.REDUCTION, reference=_moments, attributes=ReduceAttributes)
def moments(types: Types, attributes: ReduceAttributes) -> Type:
    """The mean and the variance over axes, of one read: sums of distances from an element, and of their squares.

    The variance is that of the elements (divided by their number). Both are float32 for narrower floats.
    """
    data = tensor(types, 0, "the input")
    require_float(data.dtype)
    if data.shape is None:
        return TupleType((TensorType(None, sum_type(data.dtype)),) * 2)
    require_axes(attributes.axes, len(data.shape))
    for axis in attributes.axes:
        if constant_dim(data.shape[axis]) == 0:
            raise UserError(f"dimension {axis} is empty: it has no mean")
    kept = reduced_shape(data.shape, attributes.axes, attributes.keepdims)
    return TupleType((TensorType(kept, sum_type(data.dtype)),) * 2)


def _declare_position(name: str, find: Callable[..., Array], description: str) -> None:
    """Register a search for the position of an extreme."""

    def reference(args: list[Array], attributes: ArgReduceAttributes) -> Array:
        data, axis = args[0], attributes.axis
        if attributes.select_last:
            place = data.shape[axis] - 1 - find(np.flip(data, axis), axis=axis, keepdims=attributes.keepdims)
        else:
            place = find(data, axis=axis, keepdims=attributes.keepdims)
        return np.asarray(place, np.int64)

    def infer(types: Types, attributes: ArgReduceAttributes) -> Type:
        data = tensor(types, 0, "the input")
        require_number(data.dtype)
        if data.shape is None:
            return TensorType(None, INT64)
        require_axis(attributes.axis, len(data.shape))
        if constant_dim(data.shape[attributes.axis]) == 0:
            raise UserError(f"dimension {attributes.axis} is empty: it has no extreme")
        return TensorType(reduced_shape(data.shape, (attributes.axis,), attributes.keepdims), INT64)

    infer.__doc__ = description
    operator(name, inputs=("data",), kind=FusionKind.REDUCTION, reference=reference, attributes=ArgReduceAttributes)(
        infer
    )


_declare_position("argmax", np.argmax, "The position of the greatest along an axis, as int64.")
_declare_position("argmin", np.argmin, "The position of the least along an axis, as int64.")


def _cumulative(args: list[Array], attributes: CumulativeAttributes, run: Callable[..., Array], first: int) -> Array:
    (data,) = args
    axis = attributes.axis
    wide = np.float64 if data.dtype.kind == "f" else data.dtype
    source = np.flip(data, axis) if attributes.reverse else data
    with np.errstate(all="ignore"):
        total = run(source, axis=axis, dtype=wide)
    if attributes.exclusive:
        shifted = np.full_like(total, first)
        keep = [slice(None)] * data.ndim
        fill = [slice(None)] * data.ndim
        keep[axis], fill[axis] = slice(None, -1), slice(1, None)
        shifted[tuple(fill)] = total[tuple(keep)]
        total = shifted
    with np.errstate(all="ignore"):
        return np.asarray(np.flip(total, axis) if attributes.reverse else total).astype(data.dtype)


def _cumsum(args: list[Array], attributes: CumulativeAttributes) -> Array:
    return _cumulative(args, attributes, np.cumsum, 0)


def _cumprod(args: list[Array], attributes: CumulativeAttributes) -> Array:
    return _cumulative(args, attributes, np.cumprod, 1)


@operator("cumsum", inputs=("data",), kind=FusionKind.OPAQUE, reference=_cumsum, attributes=CumulativeAttributes)
def cumsum(types: Types, attributes: CumulativeAttributes) -> Type:
    """Running sums along an axis."""
    data = tensor(types, 0, "the input")
    require_number(data.dtype)
    if data.shape is not None:
        require_axis(attributes.axis, len(data.shape))
    return data


@operator("cumprod", inputs=("data",), kind=FusionKind.OPAQUE, reference=_cumprod, attributes=CumulativeAttributes)
def cumprod(types: Types, attributes: CumulativeAttributes) -> Type:
    """Running products along an axis."""
    return cumsum(types, attributes)
