"""Operators whose indices are data."""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import constant_dim, require_axis, require_integer, tensor
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError


@node()
class TakeAttributes(Attributes):
    """The axis indexed into, and what indices outside it mean.

    `wrap_negative`: negative ones count from the end; `clip`: they are 0. Either way, what is still outside is clamped
    to the first or last element: an index never reads outside the data. `inside`: they are computed from indices that
    were `checked`, so that none is outside; compiled code for a CPU relies on it.
    """

    axis: int = 0
    mode: str = "wrap_negative"


def _take(args: list[Array], attributes: TakeAttributes) -> Array:
    data, indices = args
    size = data.shape[attributes.axis]
    places = indices.astype(np.int64)
    if attributes.mode == "wrap_negative":
        places = np.where(places < 0, places + size, places)
    return np.take(data, np.clip(places, 0, size - 1), axis=attributes.axis)


@operator("take", inputs=("data", "indices"), kind=FusionKind.INJECTIVE, reference=_take, attributes=TakeAttributes)
def take(types: Types, attributes: TakeAttributes) -> Type:
    """Slices of the data along an axis, chosen by indices: the axis is replaced by the shape of the indices."""
    data, indices = tensor(types, 0, "the data"), tensor(types, 1, "the indices")
    require_integer(indices.dtype, "the indices")
    if attributes.mode not in ("wrap_negative", "clip", "inside"):
        raise UserError(f"unknown mode {attributes.mode!r} of take", hint="one of wrap_negative, clip, inside")
    if data.shape is None or indices.shape is None:
        return TensorType(None, data.dtype)
    require_axis(attributes.axis, len(data.shape))
    if constant_dim(data.shape[attributes.axis]) == 0:
        raise UserError(f"dimension {attributes.axis} is empty: there is nothing to take from")
    shape = (*data.shape[: attributes.axis], *indices.shape, *data.shape[attributes.axis + 1 :])
    return TensorType(shape, data.dtype)
