"""Operators that move elements without computing: reshape, transpose, slice, concatenate, pad and their kin."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size, Sizes, as_dim, numbers
from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import (
    Dim,
    add,
    agree,
    broadcast_shapes,
    constant_dim,
    dim_text,
    dims,
    multiply,
    product,
    require_axis,
    require_length,
    require_not_negative,
    same_dtype,
    shape_text,
    size_text,
    sizes_text,
    tensor,
    tensors,
)
from tilewright.ir import build
from tilewright.ir.expr import IntImm
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.errors import UserError

TO_THE_END = 1 << 62
"""The end of a slice that goes to the end of a dimension whatever its size."""


@node()
class ReshapeAttributes(Attributes):
    """The new shape; one entry may be -1 (what is left), which only symbolic inputs need."""

    shape: Sizes


@node()
class TransposeAttributes(Attributes):
    """Result dimension i is input dimension axes[i]."""

    axes: tuple[int, ...]


@node()
class BroadcastAttributes(Attributes):
    """The shape of the result."""

    shape: Sizes


@node()
class AxisAttributes(Attributes):
    """One axis."""

    axis: int = 0


@node()
class SplitAttributes(Attributes):
    """The size of each part along the axis."""

    sizes: Sizes
    axis: int = 0


@node()
class SliceAttributes(Attributes):
    """One entry a dimension, normalised and clamped: begin, end (not included; -1 is before the start), stride."""

    begin: Sizes
    end: Sizes
    strides: tuple[int, ...]


@node()
class PadAttributes(Attributes):
    """How many elements to put before and after each dimension; mode is constant, reflect or edge."""

    before: Sizes
    after: Sizes
    mode: str = "constant"
    value: float = 0.0


@node()
class TileAttributes(Attributes):
    """How often each dimension is repeated."""

    repeats: Sizes


def _reshape(args: list[Array], attributes: ReshapeAttributes) -> Array:
    return args[0].reshape(numbers(attributes.shape))


@operator("reshape", inputs=("data",), kind=FusionKind.INJECTIVE, reference=_reshape, attributes=ReshapeAttributes)
def reshape(types: Types, attributes: ReshapeAttributes) -> Type:
    """The same elements in row-major order under another shape."""
    data = tensor(types, 0, "the input")
    wanted = attributes.shape
    if sum(is_minus_one(size) for size in wanted) > 1 or any(isinstance(size, int) and size < -1 for size in wanted):
        raise UserError(f"{sizes_text(wanted)} is not a shape to reshape to")
    total = None if data.shape is None else product(data.shape)
    known = dimensions.product([size for size in wanted if not is_minus_one(size)])
    if not any(is_minus_one(size) for size in wanted):
        if total is not None and dimensions.different(total, known):
            raise UserError(
                f"cannot reshape {shape_text(data.shape)} ({dim_text(total)} elements) to {sizes_text(wanted)} "
                f"({size_text(known)} elements)"
            )
        return TensorType(dims(wanted), data.dtype)
    rest: Dim = None
    if total is not None:
        count = dimensions.divide_exactly(total, known)
        if count is not None:
            rest = as_dim(count)
        elif isinstance(total, IntImm) and isinstance(known, int):
            raise UserError(f"cannot reshape {shape_text(data.shape)} ({total.value} elements) to {sizes_text(wanted)}")
        elif known != 0:
            rest = as_dim(dimensions.floor_divide(total, known))
    return TensorType(tuple(rest if is_minus_one(size) else as_dim(size) for size in wanted), data.dtype)


def is_minus_one(size: Size) -> bool:
    """Whether an entry of a shape stands for what is left."""
    return isinstance(size, int) and size == -1


def _transpose(args: list[Array], attributes: TransposeAttributes) -> Array:
    return np.ascontiguousarray(args[0].transpose(attributes.axes)) if args[0].ndim else args[0]


@operator(
    "transpose", inputs=("data",), kind=FusionKind.INJECTIVE, reference=_transpose, attributes=TransposeAttributes
)
def transpose(types: Types, attributes: TransposeAttributes) -> Type:
    """Dimensions in another order."""
    data = tensor(types, 0, "the input")
    if sorted(attributes.axes) != list(range(len(attributes.axes))):
        raise UserError(f"{attributes.axes} is not an order of axes")
    if data.shape is None:
        return TensorType((None,) * len(attributes.axes), data.dtype)
    if len(attributes.axes) != len(data.shape):
        raise UserError(f"axes {attributes.axes} do not fit the shape {shape_text(data.shape)}")
    return TensorType(tuple(data.shape[axis] for axis in attributes.axes), data.dtype)


def _broadcast_to(args: list[Array], attributes: BroadcastAttributes) -> Array:
    shape = numbers(attributes.shape)
    return np.ascontiguousarray(np.broadcast_to(args[0], shape)).reshape(shape)


@operator(
    "broadcast_to",
    inputs=("data",),
    kind=FusionKind.INJECTIVE,
    reference=_broadcast_to,
    attributes=BroadcastAttributes,
)
def broadcast_to(types: Types, attributes: BroadcastAttributes) -> Type:
    """Dimensions of 1, and missing leading ones, repeated to fill a shape."""
    data = tensor(types, 0, "the input")
    require_not_negative(attributes.shape, "the shape")
    wanted = dims(attributes.shape)
    if data.shape is not None:
        result = broadcast_shapes([data.shape, wanted])
        if result is None or len(result) != len(wanted) or not all(map(_may_be, result, wanted)):
            raise UserError(f"{shape_text(data.shape)} does not broadcast to {shape_text(wanted)}")
    return TensorType(wanted, data.dtype)


def _may_be(a: Dim, b: Dim) -> bool:
    return a is None or b is None or not dimensions.different(a, b)


def _concatenate(args: list[Array], attributes: AxisAttributes) -> Array:
    return np.concatenate(args, axis=attributes.axis)


@operator(
    "concatenate",
    inputs=("parts",),
    kind=FusionKind.INJECTIVE,
    reference=_concatenate,
    attributes=AxisAttributes,
    variadic=True,
)
def concatenate(types: Types, attributes: AxisAttributes) -> Type:
    """The inputs one after the other along an axis."""
    if not types:
        raise UserError("there is nothing to concatenate")
    inputs = tensors(types, ("the parts",))
    dtype = same_dtype(inputs, ("the first part", "another part"))
    shapes = [item.shape for item in inputs if item.shape is not None]
    if len(shapes) != len(inputs):
        return TensorType(None, dtype)
    rank = len(shapes[0])
    require_axis(attributes.axis, rank)
    merged: list[Dim] = list(shapes[0])
    for shape in shapes[1:]:
        if len(shape) != rank:
            raise UserError(f"the parts have {rank} and {len(shape)} dimensions")
        for axis in range(rank):
            if axis == attributes.axis:
                merged[axis] = add(merged[axis], shape[axis])
            else:
                merged[axis] = agree(merged[axis], shape[axis], f"dimension {axis} of the parts")
    return TensorType(tuple(merged), dtype)


def _split(args: list[Array], attributes: SplitAttributes) -> tuple[Array, ...]:
    bounds = np.cumsum(numbers(attributes.sizes))[:-1]
    return tuple(np.ascontiguousarray(part) for part in np.split(args[0], bounds, axis=attributes.axis))


@operator("split", inputs=("data",), kind=FusionKind.INJECTIVE, reference=_split, attributes=SplitAttributes)
def split(types: Types, attributes: SplitAttributes) -> Type:
    """Consecutive parts along an axis, as a tuple."""
    data = tensor(types, 0, "the input")
    require_not_negative(attributes.sizes, "the sizes")
    if not attributes.sizes:
        raise UserError("split needs at least one part")
    if data.shape is None:
        return TupleType(tuple(TensorType(None, data.dtype) for _ in attributes.sizes))
    require_axis(attributes.axis, len(data.shape))
    total = data.shape[attributes.axis]
    if total is not None and dimensions.different(total, sum(attributes.sizes)):
        raise UserError(
            f"parts of {sizes_text(attributes.sizes)} do not make up dimension {attributes.axis} "
            f"of size {dim_text(total)}"
        )
    shape = data.shape
    return TupleType(
        tuple(
            TensorType((*shape[: attributes.axis], as_dim(size), *shape[attributes.axis + 1 :]), data.dtype)
            for size in attributes.sizes
        )
    )


def _slice(args: list[Array], attributes: SliceAttributes) -> Array:
    bounds = zip(numbers(attributes.begin), numbers(attributes.end), attributes.strides, strict=True)
    index = tuple(slice(begin, None if stride < 0 and end < 0 else end, stride) for begin, end, stride in bounds)
    return np.ascontiguousarray(args[0][index]) if index else args[0]


def _slice_dim(dim: Dim, begin: Size, end: Size, stride: int, axis: int) -> Dim:
    size = constant_dim(dim)
    if stride == 0:
        raise UserError(f"the stride of dimension {axis} is 0")
    if isinstance(end, int) and end >= TO_THE_END:
        if dim is None or stride < 0:
            return None
        end = dimensions.as_size(dim)
    if size is not None and isinstance(begin, int) and isinstance(end, int):
        inside = 0 <= begin <= size and 0 <= end <= size if stride > 0 else -1 <= begin < size and -1 <= end < size
        if not inside:
            raise UserError(f"slice {begin}:{end}:{stride} is not within dimension {axis} of size {size}")
    if dim is not None and stride == 1 and begin == 0 and dimensions.same(end, dimensions.as_size(dim)):
        # As long as it is: no size is negative, though an open one may look as if it could be.
        return dim
    distance = dimensions.subtract(end, begin) if stride > 0 else dimensions.subtract(begin, end)
    count = dimensions.ceil_divide(distance, abs(stride))
    return as_dim(dimensions.maximum(count, 0))


@operator("slice", inputs=("data",), kind=FusionKind.INJECTIVE, reference=_slice, attributes=SliceAttributes)
def slice_(types: Types, attributes: SliceAttributes) -> Type:
    """Elements begin, begin + stride, ... before end, along every dimension."""
    data = tensor(types, 0, "the input")
    if data.shape is None:
        return TensorType((None,) * len(attributes.begin), data.dtype)
    rank = len(data.shape)
    for values, what in ((attributes.begin, "begin"), (attributes.end, "end"), (attributes.strides, "strides")):
        require_length(values, rank, what)
    shape = tuple(
        _slice_dim(dim, attributes.begin[axis], attributes.end[axis], attributes.strides[axis], axis)
        for axis, dim in enumerate(data.shape)
    )
    return TensorType(shape, data.dtype)


def _pad(args: list[Array], attributes: PadAttributes) -> Array:
    (data,) = args
    widths = list(zip(numbers(attributes.before), numbers(attributes.after), strict=True))
    if not widths:
        return data
    if attributes.mode == "constant":
        value = attributes.value if data.dtype.kind == "f" else int(attributes.value)
        return np.pad(data, widths, mode="constant", constant_values=np.asarray(value).astype(data.dtype))
    mode: Any = attributes.mode
    return np.pad(data, widths, mode=mode)


@operator("pad", inputs=("data",), kind=FusionKind.INJECTIVE, reference=_pad, attributes=PadAttributes)
def pad(types: Types, attributes: PadAttributes) -> Type:
    """Elements added around the data: a constant, the mirrored data without its edge, or the edge repeated."""
    data = tensor(types, 0, "the input")
    if attributes.mode not in ("constant", "reflect", "edge"):
        raise UserError(f"unknown padding mode {attributes.mode!r}", hint="one of constant, reflect, edge")
    require_not_negative((*attributes.before, *attributes.after), "padding")
    if data.shape is None:
        return TensorType((None,) * len(attributes.before), data.dtype)
    require_length(attributes.before, len(data.shape), "before")
    require_length(attributes.after, len(data.shape), "after")
    shape: list[Dim] = []
    for axis, dim in enumerate(data.shape):
        before, after = attributes.before[axis], attributes.after[axis]
        reach = dimensions.add(dimensions.maximum(before, after), 1)
        least: Size = {"constant": 0, "reflect": reach, "edge": 1}[attributes.mode]
        added = dimensions.add(before, after)
        if dim is not None and added != 0 and dimensions.certainly(build.lt(dim, as_dim(least))):
            raise UserError(
                f"dimension {axis} of size {dim_text(dim)} is too small for {attributes.mode} padding "
                f"of {size_text(before)}, {size_text(after)}"
            )
        shape.append(add(dim, as_dim(added)))
    return TensorType(tuple(shape), data.dtype)


def _tile(args: list[Array], attributes: TileAttributes) -> Array:
    return np.tile(args[0], numbers(attributes.repeats))


@operator("tile", inputs=("data",), kind=FusionKind.INJECTIVE, reference=_tile, attributes=TileAttributes)
def tile(types: Types, attributes: TileAttributes) -> Type:
    """The data repeated along each dimension."""
    data = tensor(types, 0, "the input")
    require_not_negative(attributes.repeats, "repeats")
    if data.shape is None:
        return TensorType((None,) * len(attributes.repeats), data.dtype)
    require_length(attributes.repeats, len(data.shape), "repeats")
    shape = tuple(multiply(dim, as_dim(count)) for dim, count in zip(data.shape, attributes.repeats, strict=True))
    return TensorType(shape, data.dtype)
