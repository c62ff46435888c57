"""Host functions that rearrange dimensions along axes that are data."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.host.registry import HostValue, register
from tilewright.runtime.host.values import Array, Attributes, tensor
from tilewright.support.errors import UserError


def axes_within(value: HostValue, rank: int) -> list[int]:
    """Axes (which may count from the end) as 0 .. rank-1."""
    numbers = [int(item) for item in tensor(value, "the axes").reshape(-1)]
    if any(not -rank <= axis < rank for axis in numbers):
        raise UserError(f"axes {numbers} are out of range for {rank} dimensions")
    axes = [axis % rank for axis in numbers]
    if len(set(axes)) != len(axes):
        raise UserError(f"axes {numbers} repeat")
    return axes


def _order(data: Array, value: HostValue) -> list[int]:
    """The order that puts axes last, in the order in which they are in the data."""
    chosen = set(axes_within(value, data.ndim))
    return [axis for axis in range(data.ndim) if axis not in chosen] + sorted(chosen)


@register("axes.to_end")
def to_end(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The data with some axes moved to the end."""
    data = tensor(values[0])
    return [np.ascontiguousarray(np.transpose(data, _order(data, values[1])))]


@register("axes.from_end")
def from_end(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """What `axes.to_end` moved, back in its place."""
    data = tensor(values[0])
    return [np.ascontiguousarray(np.transpose(data, np.argsort(_order(data, values[1]))))]


@register("axes.insert")
def insert(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """New dimensions of 1 at places counted in the result."""
    data = tensor(values[0])
    count = tensor(values[1]).size
    return [np.expand_dims(data, tuple(axes_within(values[1], data.ndim + count)))]


@register("axes.remove")
def remove(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Without some dimensions, which must be 1."""
    data = tensor(values[0])
    axes = axes_within(values[1], data.ndim)
    if any(data.shape[axis] != 1 for axis in axes):
        raise UserError(f"dimensions {axes} of {data.shape} are not all 1")
    return [np.squeeze(data, tuple(axes))]
