"""Operators about sizes: tensors made of symbols, and tensors shaped by numbers that are data.

`dimensions` and `arange` bring symbols into data; they have no inputs. `shape.match` goes the other way: it says what
the dimensions of a value are, which gives values to symbols that have none yet and checks the rest. The other `shape.`
operators take their target as a tensor; what only the run knows of their results are symbols in the attribute `dims`.
A call that introduces symbols is bound by a `let`, so that everything that uses them comes after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from tilewright.graph.ir import dimensions as sizes
from tilewright.graph.ir.dimensions import Size, Sizes, as_dims
from tilewright.graph.ir.expr import Attributes, Call, Function
from tilewright.graph.ir.op import Array, FusionKind, Types, is_call_to, operator
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.ops.common import dims, require_axis, require_integer, require_not_negative, shape_text, tensor
from tilewright.graph.ops.host import host_operator
from tilewright.ir.dtype import INT64, DataType
from tilewright.ir.expr import PrimExpr
from tilewright.ir.node import node
from tilewright.ir.types import SequenceType, TensorType, TupleType, Type
from tilewright.support.errors import UserError

_Any = TypeVar("_Any")


@node()
class DimensionsAttributes(Attributes):
    """The elements in row-major order, the shape, and the data type (of whole numbers)."""

    values: Sizes
    shape: tuple[int, ...]
    dtype: DataType = INT64


def _dimensions(args: list[Array], attributes: DimensionsAttributes) -> Array:
    found = np.array(sizes.numbers(attributes.values), np.int64)
    return found.reshape(attributes.shape).astype(attributes.dtype.numpy())


@operator("dimensions", inputs=(), kind=FusionKind.INJECTIVE, reference=_dimensions, attributes=DimensionsAttributes)
def dimensions(types: Types, attributes: DimensionsAttributes) -> Type:
    """A small tensor whose elements are sizes."""
    require_integer(attributes.dtype, "the result")
    if sizes.product(attributes.shape) != len(attributes.values):
        raise UserError(f"{len(attributes.values)} values do not fill the shape {attributes.shape}")
    return TensorType(dims(attributes.shape), attributes.dtype)


@node()
class ArangeAttributes(Attributes):
    """The first number, the number of elements, the step, and the data type (of whole numbers)."""

    count: Size
    start: Size = 0
    step: int = 1
    dtype: DataType = INT64


def _arange(args: list[Array], attributes: ArangeAttributes) -> Array:
    start, count = sizes.numbers((attributes.start, attributes.count))
    return (start + np.arange(count, dtype=np.int64) * attributes.step).astype(attributes.dtype.numpy())


@operator("arange", inputs=(), kind=FusionKind.INJECTIVE, reference=_arange, attributes=ArangeAttributes)
def arange(types: Types, attributes: ArangeAttributes) -> Type:
    """start, start + step, ...: count numbers."""
    require_integer(attributes.dtype, "the result")
    require_not_negative((attributes.count,), "the number of elements")
    return TensorType(dims((attributes.count,)), attributes.dtype)


@node()
class AssumeShapeAttributes(Attributes):
    """What the shape is; and pairs of other sizes that are equal, one after the other."""

    shape: Sizes
    equal: Sizes = ()


def _assume_shape(args: list[Array], attributes: AssumeShapeAttributes) -> Array:
    shape = sizes.numbers(attributes.shape)
    if args[0].shape != shape:
        raise UserError(f"a value has shape {args[0].shape}, the model needs {shape}")
    for a, b in _pairs(sizes.numbers(attributes.equal)):
        if a != b:
            raise UserError(f"the model needs two sizes to be equal that are {a} and {b}")
    return args[0]


@operator(
    "assume_shape",
    inputs=("data",),
    kind=FusionKind.INJECTIVE,
    reference=_assume_shape,
    attributes=AssumeShapeAttributes,
)
def assume_shape(types: Types, attributes: AssumeShapeAttributes) -> Type:
    """The data, whose shape is this, in symbols that have values; whoever runs it checks that it is so beforehand.

    `equal` are further sizes, of which each second one must be as the one before. `requirements` of a function says
    what there is to check.
    """
    data = tensor(types, 0, "the data")
    wanted = as_dims(attributes.shape)
    _require_fit(data, wanted)
    for a, b in _pairs(attributes.equal):
        if sizes.different(a, b):
            raise UserError(f"the model needs {a} and {b} to be equal, which they are not")
    return TensorType(wanted, data.dtype)


def _pairs(values: Sequence[_Any]) -> list[tuple[_Any, _Any]]:
    return list(zip(values[::2], values[1::2], strict=True))


def requirements(function: Function) -> list[tuple[PrimExpr, PrimExpr]]:
    """Pairs of sizes that must be equal for a function to run, because `assume_shape` says so."""
    found: dict[tuple[PrimExpr, PrimExpr], None] = {}
    for item in post_order(function):
        if not is_call_to(item, "assume_shape"):
            continue
        assert isinstance(item, Call)
        assert isinstance(item.attributes, AssumeShapeAttributes)
        shape = item.args[0].tensor_type.shape or ()
        pairs = [*zip(shape, as_dims(item.attributes.shape), strict=True), *_pairs(as_dims(item.attributes.equal))]
        for dim, wanted in pairs:
            if dim is not None and not sizes.same(dim, wanted):
                found[(dim, wanted)] = None
    return list(found)


Dims = tuple[PrimExpr, ...]


@node()
class MatchAttributes(Attributes):
    """What the dimensions are."""

    dims: Dims


@host_operator("shape.match", "data", attributes=MatchAttributes)
def match(types: Types, attributes: MatchAttributes) -> Type:
    """The data, whose dimensions are these: symbols without a value take one, everything else is checked."""
    data = tensor(types, 0, "the data")
    _require_fit(data, attributes.dims)
    return TensorType(as_dims(attributes.dims), data.dtype)


def _require_fit(data: TensorType, wanted: Dims) -> None:
    """Refuse dimensions that are certainly others."""
    if data.shape is None:
        return
    if len(data.shape) != len(wanted):
        raise UserError(f"{shape_text(data.shape)} has not {len(wanted)} dimensions")
    for found, dim in zip(data.shape, wanted, strict=True):
        if found is not None and sizes.different(found, dim):
            raise UserError(f"{shape_text(data.shape)} is not {shape_text(wanted)}")


@node()
class ReshapeByDataAttributes(Attributes):
    """The dimensions of the result, and whether a 0 in the shape copies a dimension."""

    dims: Dims
    copy_zeros: bool = False


@host_operator("shape.reshape", "data", "shape", attributes=ReshapeByDataAttributes)
def reshape(types: Types, attributes: ReshapeByDataAttributes) -> Type:
    """`reshape` to a shape that is data."""
    return _shaped(types, attributes.dims)


@host_operator("shape.broadcast", "data", "shape", attributes=MatchAttributes)
def broadcast(types: Types, attributes: MatchAttributes) -> Type:
    """The data repeated so that it broadcasts with a shape that is data."""
    return _shaped(types, attributes.dims)


@host_operator("shape.tile", "data", "repeats", attributes=MatchAttributes)
def tile(types: Types, attributes: MatchAttributes) -> Type:
    """`tile` by repeats that are data."""
    return _shaped(types, attributes.dims)


def _shaped(types: Types, found: Dims) -> Type:
    require_integer(tensor(types, 1, "the shape").dtype, "the shape")
    return TensorType(as_dims(found), tensor(types, 0, "the data").dtype)


@node()
class SliceByDataAttributes(Attributes):
    """The axes that are sliced (unless they are an input), and the dimensions of the result."""

    dims: Dims
    axes: tuple[int, ...] = ()


@host_operator("shape.slice", "data", "starts", "ends", "steps", "axes", attributes=SliceByDataAttributes, optional=1)
def slice_(types: Types, attributes: SliceByDataAttributes) -> Type:
    """Elements from a place to another by a step along axes, where these are data (negative ones from the end)."""
    return TensorType(as_dims(attributes.dims), tensor(types, 0, "the data").dtype)


@node()
class PadByDataAttributes(Attributes):
    """The axes that are padded (unless they are an input), the result's dimensions; constant, reflect, edge or wrap."""

    dims: Dims
    axes: tuple[int, ...] = ()
    mode: str = "constant"


@host_operator("shape.pad", "data", "amounts", "value", "axes", attributes=PadByDataAttributes, optional=1)
def pad(types: Types, attributes: PadByDataAttributes) -> Type:
    """Padding by amounts that are data: first all before, then all after; negative ones cut off."""
    if attributes.mode not in ("constant", "reflect", "edge", "wrap"):
        raise UserError(f"unknown padding mode {attributes.mode!r}", hint="one of constant, reflect, edge, wrap")
    return TensorType(as_dims(attributes.dims), tensor(types, 0, "the data").dtype)


@host_operator("shape.range", "start", "limit", "delta", attributes=MatchAttributes)
def range_(types: Types, attributes: MatchAttributes) -> Type:
    """start, start + delta, ... before the limit."""
    if len(attributes.dims) != 1:
        raise UserError(f"a range has one dimension, not {len(attributes.dims)}")
    return TensorType(as_dims(attributes.dims), tensor(types, 0, "start").dtype)


@node()
class StackAttributes(Attributes):
    """The new axis, the data type of the items, and the dimensions of the result."""

    dims: Dims
    dtype: DataType
    axis: int = 0


@host_operator("sequence.stack", "sequence", "item_shape", attributes=StackAttributes)
def stack(types: Types, attributes: StackAttributes) -> Type:
    """The items of a sequence along a new axis; of none, an empty tensor of items of a shape."""
    if not isinstance(types[0], SequenceType):
        raise UserError(f"a sequence is needed here, not {types[0]!r}")
    return TensorType(as_dims(attributes.dims), attributes.dtype)


@node()
class SplitByDataAttributes(Attributes):
    """The axis, and the size of each part along it."""

    dims: Dims
    axis: int = 0


@host_operator("shape.split", "data", "sizes", attributes=SplitByDataAttributes)
def split(types: Types, attributes: SplitByDataAttributes) -> Type:
    """Consecutive parts along an axis, of sizes that are data."""
    data = tensor(types, 0, "the data")
    if data.shape is None:
        raise UserError("the rank of the data is not known")
    axis = attributes.axis
    require_axis(axis, len(data.shape))
    parts = [(*data.shape[:axis], part, *data.shape[axis + 1 :]) for part in as_dims(attributes.dims)]
    return TupleType(tuple(TensorType(part, data.dtype) for part in parts))


@node()
class ColumnsAttributes(Attributes):
    """The dimensions of the result, and steps, spaces and padding of the blocks (none: 1, 1 and 0)."""

    dims: Dims
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()


@host_operator("host.col2im", "data", "image", "block", attributes=ColumnsAttributes)
def columns_to_image(types: Types, attributes: ColumnsAttributes) -> Type:
    """Columns as an image of a size that is data, of blocks of a size that is data, summed where they overlap."""
    require_integer(tensor(types, 1, "the size of the image").dtype, "the size of the image")
    require_integer(tensor(types, 2, "the size of blocks").dtype, "the size of blocks")
    return TensorType(as_dims(attributes.dims), tensor(types, 0, "the data").dtype)
