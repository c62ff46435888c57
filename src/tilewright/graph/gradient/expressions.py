"""Typed expressions that gradient rules are written in: arithmetic with numbers, zeros, sums over broadcast dimensions.

Every function takes and gives expressions that have types, so that a rule can ask for shapes as it builds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from tilewright.graph.interpreter import to_bfloat16
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size, Sizes, as_size
from tilewright.graph.ir.expr import Constant, GraphExpr, Tuple, TupleGet
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.rewrite import known_sizes, make
from tilewright.graph.ir.traverse import rewrite
from tilewright.graph.ops.common import shape_text
from tilewright.graph.ops.shape import TO_THE_END
from tilewright.ir.dtype import BFLOAT16, BOOL, FLOAT32, INT64, DataType
from tilewright.ir.expr import PrimExpr
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

Value = GraphExpr | float
"""An expression, or a number that takes the data type of what it is combined with."""
_NARROW_BITS: Final = 16
"""Floats of this width and less are summed in float32."""


def typed(item: GraphExpr, kind: Type | None) -> GraphExpr:
    """An expression with its type filled in."""
    item.type = kind
    return item


def substituted(root: GraphExpr, mapping: Mapping[int, GraphExpr]) -> GraphExpr:
    """An expression with nodes replaced, by identity; what is built anew keeps its types."""

    def keep_type(old: GraphExpr, new: GraphExpr) -> None:
        if new.type is None:
            new.type = old.type

    return rewrite(root, keep_type, mapping)


def number(value: float, dtype: DataType) -> Constant:
    """A scalar constant of a data type."""
    if dtype is BFLOAT16:
        return Constant(to_bfloat16(np.asarray(value, np.float32)), dtype)
    return Constant(np.asarray(value).astype(dtype.numpy()), dtype)


def _pair(a: Value, b: Value) -> tuple[GraphExpr, GraphExpr]:
    if isinstance(a, GraphExpr):
        return a, b if isinstance(b, GraphExpr) else number(b, a.tensor_type.dtype)
    assert isinstance(b, GraphExpr)
    return number(a, b.tensor_type.dtype), b


def binary(name: str, a: Value, b: Value) -> GraphExpr:
    """An elementwise operator of two inputs, of which one may be a number."""
    return make(name, *_pair(a, b))


def add(a: Value, b: Value) -> GraphExpr:
    """a + b."""
    return binary("add", a, b)


def subtract(a: Value, b: Value) -> GraphExpr:
    """a - b."""
    return binary("subtract", a, b)


def multiply(a: Value, b: Value) -> GraphExpr:
    """a * b."""
    return binary("multiply", a, b)


def divide(a: Value, b: Value) -> GraphExpr:
    """a / b."""
    return binary("divide", a, b)


def negative(a: GraphExpr) -> GraphExpr:
    """-a."""
    return make("negative", a)


def compare(name: str, a: Value, b: Value) -> GraphExpr:
    """A comparison."""
    return binary(name, a, b)


def where(condition: GraphExpr, a: Value, b: Value) -> GraphExpr:
    """a where the condition holds, else b."""
    return make("where", condition, *_pair(a, b))


def cast(a: GraphExpr, dtype: DataType) -> GraphExpr:
    """a in another data type; itself if it has it."""
    return a if a.tensor_type.dtype is dtype else make("cast", a, dtype=dtype)


def item(value: GraphExpr, index: int) -> GraphExpr:
    """One item of a tuple."""
    if isinstance(value, Tuple):
        return value.items[index]
    return fill_type(TupleGet(value, index))


def tuple_of(items: Sequence[GraphExpr]) -> GraphExpr:
    """A tuple, whatever the number of its items."""
    return fill_type(Tuple(tuple(items)))


def rank_of(value: GraphExpr) -> int:
    """The number of dimensions."""
    rank = value.tensor_type.rank
    if rank is None:
        raise UserError(
            "the gradient of a value whose number of dimensions is not known",
            where=None if value.span is None else str(value.span),
            hint="import the model with the shapes of its inputs",
        )
    return rank


def sizes_of(value: GraphExpr) -> Sizes:
    """The shape as numbers and expressions of symbols."""
    sizes = known_sizes(value)
    if sizes is None:
        raise UserError(
            f"the gradient needs the shape of a value that only a run knows: {shape_text(value.tensor_type.shape)}",
            where=None if value.span is None else str(value.span),
            hint="import the model with the shapes of its inputs",
        )
    return sizes


def reshape(value: GraphExpr, shape: Sequence[Size]) -> GraphExpr:
    """The same elements under another shape."""
    known = known_sizes(value)
    if known is not None and len(known) == len(shape) and all(map(_identical, known, shape)):
        return value
    return make("reshape", value, shape=tuple(shape))


def _identical(a: Size, b: Size) -> bool:
    return a == b if isinstance(a, int) and isinstance(b, int) else a is b


def transpose(value: GraphExpr, axes: Sequence[int]) -> GraphExpr:
    """Dimensions in another order."""
    return value if list(axes) == list(range(len(axes))) else make("transpose", value, axes=tuple(axes))


def swap_last(value: GraphExpr) -> GraphExpr:
    """Matrices transposed."""
    rank = rank_of(value)
    return transpose(value, (*range(rank - 2), rank - 1, rank - 2))


def broadcast_to(value: GraphExpr, shape: Sequence[Size]) -> GraphExpr:
    """Repeated to fill a shape."""
    known = known_sizes(value)
    if known is not None and len(known) == len(shape) and all(map(_identical, known, shape)):
        return value
    return make("broadcast_to", value, shape=tuple(shape))


def expand(value: GraphExpr, axes: Sequence[int]) -> GraphExpr:
    """With dimensions of 1 at these axes of the result."""
    sizes = iter(sizes_of(value))
    rank = rank_of(value) + len(axes)
    return reshape(value, [1 if axis in axes else next(sizes) for axis in range(rank)])


def total(value: GraphExpr, axes: Sequence[int], keepdims: bool = False) -> GraphExpr:
    """The sum over axes; short floats are added up in float32."""
    if not axes:
        return value
    dtype = value.tensor_type.dtype
    if dtype.is_float and dtype.bits <= _NARROW_BITS:
        wide = make("sum", cast(value, FLOAT32), axes=tuple(axes), keepdims=keepdims)
        return cast(wide, dtype)
    return make("sum", value, axes=tuple(axes), keepdims=keepdims)


def slice_axis(value: GraphExpr, axis: int, begin: Size, end: Size, stride: int = 1) -> GraphExpr:
    """A part along one axis."""
    rank = rank_of(value)
    sizes = known_sizes(value)
    ends: list[Size] = list(sizes) if sizes is not None else [TO_THE_END] * rank
    begins: list[Size] = [0] * rank
    strides = [1] * rank
    begins[axis], ends[axis], strides[axis] = begin, end, stride
    return make("slice", value, begin=tuple(begins), end=tuple(ends), strides=tuple(strides))


def flip(value: GraphExpr, axis: int) -> GraphExpr:
    """The elements along an axis from the last to the first."""
    return slice_axis(value, axis, dimensions.subtract(sizes_of(value)[axis], 1), -1, -1)


def pad(value: GraphExpr, before: Sequence[Size], after: Sequence[Size]) -> GraphExpr:
    """Zeros added around."""
    if all(isinstance(size, int) and size == 0 for size in (*before, *after)):
        return value
    return make("pad", value, before=tuple(before), after=tuple(after))


def concatenate(parts: Sequence[GraphExpr], axis: int) -> GraphExpr:
    """One after the other along an axis."""
    return parts[0] if len(parts) == 1 else make("concatenate", *parts, axis=axis)


def arange(count: Size) -> GraphExpr:
    """0, 1, ... as int64."""
    return make("arange", count=count, dtype=INT64)


def filled(value: float, shape: Sequence[Size], dtype: DataType) -> GraphExpr:
    """A tensor all of whose elements are one number."""
    return broadcast_to(number(value, dtype), shape)


def zeros_like(value: GraphExpr) -> GraphExpr:
    """Zeros in the shape of a tensor, whether or not the shape is known."""
    kind = value.tensor_type
    sizes = known_sizes(value)
    if sizes is not None:
        return filled(0, sizes, kind.dtype)
    return make("where", Constant(np.asarray(False), BOOL), value, number(0, kind.dtype))


def ones_like(value: GraphExpr) -> GraphExpr:
    """Ones in the shape of a tensor."""
    kind = value.tensor_type
    sizes = known_sizes(value)
    if sizes is not None:
        return filled(1, sizes, kind.dtype)
    return make("where", Constant(np.asarray(False), BOOL), value, number(1, kind.dtype))


def with_type(value: GraphExpr, kind: Type | None) -> GraphExpr:
    """A tensor that is known to have the shape of a type, where its own type says less."""
    found = value.type
    if found is kind or not isinstance(kind, TensorType) or not isinstance(found, TensorType):
        return value
    if kind.shape is None or found.shape is None or any(dim is None for dim in kind.shape):
        return value
    sizes = tuple(as_size(dim) for dim in kind.shape if dim is not None)
    return make("assume_shape", value, shape=sizes)


def sum_to(value: GraphExpr, target: GraphExpr) -> GraphExpr:
    """A cotangent of a broadcast result as that of an input: summed over the dimensions that were repeated."""
    wanted = target.tensor_type
    if value.type is wanted:
        return value
    found = value.tensor_type
    if wanted.shape is None or found.shape is None:
        raise UserError(
            "the gradient of a broadcast between tensors whose numbers of dimensions are not known",
            where=None if target.span is None else str(target.span),
            hint="import the model with the shapes of its inputs",
        )
    extra = len(found.shape) - len(wanted.shape)
    repeated = [
        axis + extra
        for axis, (mine, given) in enumerate(zip(wanted.shape, found.shape[extra:], strict=True))
        if _is_repeated(mine, given, target)
    ]
    if not repeated and not extra:
        return with_type(value, wanted)
    value = total(value, [*range(extra), *repeated])
    return with_type(reshape(value, sizes_of(target)) if repeated else value, wanted)


def _is_repeated(mine: object, given: object, target: GraphExpr) -> bool:
    """Whether a dimension was repeated to another; one that may be 1 or not is said by the user's shapes alone."""
    if mine is given:
        if mine is None:
            raise UserError(
                "the gradient of a broadcast along a dimension whose size is not known",
                where=None if target.span is None else str(target.span),
                hint="import the model with the shapes of its inputs",
            )
        return False
    assert isinstance(mine, PrimExpr)
    return dimensions.acts_as_one(as_size(mine))


def matmul(a: GraphExpr, b: GraphExpr, transpose_a: bool = False, transpose_b: bool = False) -> GraphExpr:
    """The product of matrices."""
    return make("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)
