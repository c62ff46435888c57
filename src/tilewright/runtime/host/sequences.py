"""Host functions on sequences (Python lists) and optionals (None when empty)."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.host.registry import HostValue, register
from tilewright.runtime.host.values import Attributes, integer, scalar, sequence, tensor
from tilewright.support.errors import UserError


@register("sequence.make")
def make(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """A sequence of the inputs (of none: an empty one)."""
    return [list(values)]


def _place(value: HostValue, count: int, most: int) -> int:
    place = int(scalar(value, "the position"))
    if not -count <= place <= most:
        raise UserError(f"the position {place} is not in a sequence of {count}")
    return place + count if place < 0 else place


@register("sequence.insert")
def insert(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """A sequence with one item more, before a position or at the end."""
    items = list(sequence(values[0]))
    position = values[2] if len(values) > 2 else None
    items.insert(len(items) if position is None else _place(position, len(items), len(items)), values[1])
    return [items]


@register("sequence.erase")
def erase(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """A sequence without the item at a position, or without the last."""
    items = list(sequence(values[0]))
    if not items:
        raise UserError("an item of an empty sequence cannot be erased")
    position = values[1] if len(values) > 1 else None
    del items[-1 if position is None else _place(position, len(items), len(items) - 1)]
    return [items]


@register("sequence.at")
def at(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The item at a position."""
    items = sequence(values[0])
    return [items[_place(values[1], len(items), len(items) - 1)]]


@register("sequence.length")
def length(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The number of items."""
    return [np.array(len(sequence(values[0])), np.int64)]


@register("sequence.concatenate")
def concatenate(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The items one after the other, along an axis they have or a new one."""
    tensors = [tensor(item, "an item") for item in sequence(values[0])]
    if not tensors:
        raise UserError("the items of an empty sequence cannot be joined")
    try:
        if attributes["new_axis"]:
            return [np.stack(tensors, axis=integer(attributes, "axis"))]
        return [np.concatenate(tensors, axis=integer(attributes, "axis"))]
    except ValueError as error:
        raise UserError(f"the items of the sequence cannot be joined: {error}") from error


@register("sequence.split")
def split(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Parts of a tensor along an axis: of given sizes, of one size (the last may be shorter), or single slices."""
    data, axis = tensor(values[0]), integer(attributes, "axis")
    extent = data.shape[axis]
    sizes = None if len(values) < 2 or values[1] is None else tensor(values[1])
    if sizes is None or not sizes.ndim:
        step = 1 if sizes is None else int(sizes)
        if step < 1:
            raise UserError(f"parts of {step} elements")
        ends = list(range(step, extent + step, step)) if extent else []
    else:
        ends = np.cumsum(sizes).tolist()
        if (sizes < 0).any() or int(sizes.sum()) != extent:
            raise UserError(f"parts of {sizes.tolist()} do not fit a dimension of {extent}")
    parts: list[HostValue] = []
    start = 0
    for end in ends:
        part = data[(slice(None),) * axis + (slice(start, min(end, extent)),)]
        parts.append(part if sizes is not None or attributes["keepdims"] else np.squeeze(part, axis))
        start = end
    return [parts]


@register("optional.make")
def make_optional(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """A value that may be missing: the input, or nothing."""
    return [values[0] if values else None]


@register("optional.has")
def has(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Whether a value is there."""
    return [np.array(bool(values) and values[0] is not None)]


@register("optional.get")
def get(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The value, which must be there."""
    if values[0] is None:
        raise UserError("an optional value that is needed is empty")
    return [values[0]]


@register("sequence.pairs")
def pairs(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """For each row of a matrix, the pair of the keys (the same for all) and the row: what ONNX calls a list of maps."""
    keys, data = tensor(values[0]), tensor(values[1])
    if data.ndim != 2 or data.shape[1] != keys.size:
        raise UserError(f"{keys.size} keys do not fit values of shape {data.shape}")
    return [[(keys, row) for row in data]]
