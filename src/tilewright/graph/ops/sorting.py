"""Operators that order elements."""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.dimensions import Size, as_dim, certainly, numbers
from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import (
    dim_text,
    require_axis,
    require_not_negative,
    require_number,
    size_text,
    tensor,
)
from tilewright.ir import build
from tilewright.ir.dtype import INT64
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.errors import UserError


@node()
class TopKAttributes(Attributes):
    """The axis, how many elements are kept, and whether they are the greatest or the least."""

    axis: int = 0
    k: Size = 1
    largest: bool = True


def _topk(args: list[Array], attributes: TopKAttributes) -> tuple[Array, Array]:
    (data,) = args
    axis = attributes.axis
    if attributes.largest:
        # Of equal elements the first wins: ascending order of the reversed data, read from its end.
        order = np.flip(data.shape[axis] - 1 - np.argsort(np.flip(data, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(data, axis=axis, kind="stable")
    places = np.take(order, np.arange(*numbers((attributes.k,))), axis=axis).astype(np.int64)
    return np.take_along_axis(data, places, axis=axis), places


@operator("topk", inputs=("data",), kind=FusionKind.OPAQUE, reference=_topk, attributes=TopKAttributes)
def topk(types: Types, attributes: TopKAttributes) -> Type:
    """The k greatest (or least) elements along an axis, in order, and their places as int64.

    The first of equal elements comes first; NaN counts as greater than all numbers.
    """
    data = tensor(types, 0, "the input")
    require_number(data.dtype)
    if data.shape is None:
        return TupleType((TensorType(None, data.dtype), TensorType(None, INT64)))
    require_axis(attributes.axis, len(data.shape))
    size = data.shape[attributes.axis]
    require_not_negative((attributes.k,), "k")
    if size is not None and certainly(build.gt(as_dim(attributes.k), size)):
        raise UserError(f"k is {size_text(attributes.k)}, dimension {attributes.axis} has {dim_text(size)} elements")
    shape = tuple(as_dim(attributes.k) if at == attributes.axis else dim for at, dim in enumerate(data.shape))
    return TupleType((TensorType(shape, data.dtype), TensorType(shape, INT64)))
