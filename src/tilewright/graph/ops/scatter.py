"""Operators that write at places that are data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import agree, require_integer, require_number, same_dtype, shape_text, tensors
from tilewright.ir.build import as_expr
from tilewright.ir.expr import const_value
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

REDUCTIONS = ("none", "add", "mul", "max", "min")
_NAMES = ("the data", "the places", "the updates")


@node()
class ScatterAttributes(Attributes):
    """How an update combines with what is there: `none` (it replaces it), `add`, `mul`, `max` or `min`.

    `inside`: the places are computed from indices that were `checked`, so that none is outside the data; compiled code
    for a CPU relies on it.
    """

    reduction: str = "none"
    inside: bool = False


_COMBINE: dict[str, Callable[..., None]] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _scatter(args: list[Array], attributes: ScatterAttributes) -> Array:
    data, places, updates = args
    inside = np.flatnonzero((places >= 0) & (places < data.shape[0]))
    result = data.copy()
    with np.errstate(all="ignore"):
        if attributes.reduction == "none":
            for index in inside:  # in order: the last of several updates stays
                result[places[index]] = updates[index]
        else:
            _COMBINE[attributes.reduction](result, places[inside].astype(np.int64), updates[inside])
    return result


def _check_types(data: TensorType, places: TensorType, updates: TensorType, reduction: str) -> None:
    same_dtype([data, updates], (_NAMES[0], _NAMES[2]))
    require_integer(places.dtype, _NAMES[1])
    if reduction not in REDUCTIONS:
        raise UserError(f"unknown reduction {reduction!r}", hint=f"one of {', '.join(REDUCTIONS)}")
    if reduction != "none":
        require_number(data.dtype, "the data")


@operator(
    "scatter",
    inputs=("data", "places", "updates"),
    kind=FusionKind.OPAQUE,
    reference=_scatter,
    attributes=ScatterAttributes,
)
def scatter(types: Types, attributes: ScatterAttributes) -> Type:
    """The data with rows of updates written at rows that places name, the last update last.

    Places outside the data are left out.
    """
    data, places, updates = tensors(types, _NAMES)
    _check_types(data, places, updates, attributes.reduction)
    if data.shape is None or places.shape is None or updates.shape is None:
        return data
    if len(data.shape) < 1 or len(places.shape) != 1 or len(updates.shape) != len(data.shape):
        raise UserError(
            f"updates of shape {shape_text(updates.shape)} at places of shape {shape_text(places.shape)} "
            f"do not fit data of shape {shape_text(data.shape)}"
        )
    agree(places.shape[0], updates.shape[0], "the number of places, and of updates")
    for mine, other in zip(data.shape[1:], updates.shape[1:], strict=True):
        agree(mine, other, "the rows of the data, and of the updates")
    return data


@node()
class SegmentSumAttributes(Attributes):
    """How many rows the result has, and whether the segments were `checked`, so that none is outside of them."""

    count: int
    inside: bool = False


def _segment_sum(args: list[Array], attributes: SegmentSumAttributes) -> Array:
    updates, segments = args
    zeros = np.zeros((attributes.count, *updates.shape[1:]), updates.dtype)
    return _scatter([zeros, segments, updates], ScatterAttributes(reduction="add"))


@operator(
    "segment_sum",
    inputs=("updates", "segments"),
    kind=FusionKind.OPAQUE,
    reference=_segment_sum,
    attributes=SegmentSumAttributes,
)
def segment_sum(types: Types, attributes: SegmentSumAttributes) -> Type:
    """Rows of updates added up in the rows of the result that segments name, in their order; zeros where none is.

    It is the gradient of `take`. Segments outside the result are left out.
    """
    updates, segments = tensors(types, ("the updates", "the segments"))
    require_integer(segments.dtype, "the segments")
    require_number(updates.dtype, "the updates")
    if attributes.count < 0:
        raise UserError(f"segment_sum cannot have {attributes.count} rows", hint="count is 0 or more")
    if updates.shape is None or segments.shape is None:
        return TensorType(None, updates.dtype)
    if len(updates.shape) < 1 or len(segments.shape) != 1:
        raise UserError(
            f"updates of shape {shape_text(updates.shape)} do not fit segments of shape {shape_text(segments.shape)}",
            hint="segments are a vector, with a number for each row of the updates",
        )
    agree(segments.shape[0], updates.shape[0], "the number of segments, and of updates")
    return TensorType((as_expr(attributes.count), *updates.shape[1:]), updates.dtype)


@node()
class ScatterElementsAttributes(Attributes):
    """The axis that the indices are along, how an update combines, and whether the indices were `checked`."""

    axis: int
    reduction: str = "none"
    inside: bool = False


def _scatter_elements(args: list[Array], attributes: ScatterElementsAttributes) -> Array:
    data, indices, updates = args
    size = data.shape[attributes.axis]
    wrapped = np.where(indices < 0, indices + size, indices).astype(np.int64)
    inside = (wrapped >= 0) & (wrapped < size)
    grid: list[Array] = [*np.indices(indices.shape)]
    grid[attributes.axis] = wrapped
    places = tuple(part[inside] for part in grid)
    result = data.copy()
    with np.errstate(all="ignore"):
        if attributes.reduction == "none":
            result[places] = updates[inside]
        else:
            _COMBINE[attributes.reduction](result, places, updates[inside])
    return result


@operator(
    "scatter_elements",
    inputs=("data", "indices", "updates"),
    kind=FusionKind.OPAQUE,
    reference=_scatter_elements,
    attributes=ScatterElementsAttributes,
)
def scatter_elements(types: Types, attributes: ScatterElementsAttributes) -> Type:
    """The data with updates written one by one: along an axis where indices say, along the others where they are.

    Negative indices count from the end, those outside the axis are left out, and the last of several updates stays.
    """
    data, indices, updates = tensors(types, _NAMES)
    _check_types(data, indices, updates, attributes.reduction)
    if data.shape is None or indices.shape is None or updates.shape is None:
        return data
    rank = len(data.shape)
    if not 0 <= attributes.axis < rank or len(indices.shape) != rank or len(updates.shape) != rank:
        raise UserError(
            f"updates of shape {shape_text(updates.shape)} at indices of shape {shape_text(indices.shape)} along axis "
            f"{attributes.axis} do not fit data of shape {shape_text(data.shape)}"
        )
    for axis, (size, index, update) in enumerate(zip(data.shape, indices.shape, updates.shape, strict=True)):
        agree(index, update, f"the sizes of indices and updates along axis {axis}")
        known, most = (None if item is None else const_value(item) for item in (index, size))
        if axis != attributes.axis and known is not None and most is not None and known > most:
            raise UserError(
                f"indices of shape {shape_text(indices.shape)} reach beyond data of shape {shape_text(data.shape)}"
            )
    return data
