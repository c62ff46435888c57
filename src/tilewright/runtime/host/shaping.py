"""Host functions that shape tensors by numbers that are data: reshape, expand, slice, tile, pad, range, split."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.host.axes import axes_within
from tilewright.runtime.host.registry import HostValue, register
from tilewright.runtime.host.rows import Rows
from tilewright.runtime.host.values import Array, Attributes, integer, sequence, tensor, text, whole_numbers
from tilewright.support.errors import UserError

MOST_ELEMENTS = 1 << 40
"""Tensors larger than this are taken for a mistake: a shape that is data may be anything."""


def _entries(value: HostValue, what: str) -> list[int]:
    array = tensor(value, what)
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise UserError(f"{what} must be a list of whole numbers, it is {array.dtype} of shape {array.shape}")
    entries: list[int] = array.reshape(-1).tolist()
    return entries


def _checked(shape: list[int]) -> tuple[int, ...]:
    if min(shape, default=0) < 0 or math.prod(shape) > MOST_ELEMENTS:
        raise UserError(f"{tuple(shape)} is not a shape")
    return tuple(shape)


def shape_of_entries(value: HostValue) -> tuple[int, ...]:
    """A shape that is data."""
    return _checked(_entries(value, "the shape"))


def _moved(data: Array, move: Callable[[Array], Any], what: str) -> list[HostValue]:
    """The result of a numpy function that refuses what does not fit."""
    try:
        return [np.asarray(move(data))]
    except ValueError as error:
        raise UserError(f"cannot {what} a tensor of shape {data.shape}: {error}") from error


@register("shape.match")
def match(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Itself: the caller checks its dimensions and gives values to symbols."""
    return [values[0]]


@register("shape.reshape")
def reshape(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The same elements under another shape: -1 is what is left, 0 copies a dimension if `copy_zeros` is set."""
    data, sizes = tensor(values[0]), _entries(values[1], "the shape")
    if attributes["copy_zeros"] and 0 in sizes:
        if any(size == 0 and axis >= data.ndim for axis, size in enumerate(sizes)):
            raise UserError(f"the shape {tuple(sizes)} copies a dimension that {data.shape} does not have")
        sizes = [data.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    if sizes.count(-1) == 1:
        known = math.prod(size for size in sizes if size != -1)
        if known <= 0 or data.size % known:
            raise UserError(f"cannot reshape {data.shape} to {tuple(sizes)}")
        sizes[sizes.index(-1)] = data.size // known
    shape = _checked(sizes)
    return _moved(data, lambda item: item.reshape(shape), f"reshape to {shape}")


@register("shape.broadcast")
def broadcast(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The data repeated so that it broadcasts with a shape."""
    data, shape = tensor(values[0]), _checked(_entries(values[1], "the shape"))

    def expand(item: Array) -> Array:
        return np.array(np.broadcast_to(item, np.broadcast_shapes(item.shape, shape)), order="C")

    return _moved(data, expand, f"broadcast to {shape}")


def _axes(given: list[HostValue], attributes: Attributes, rank: int) -> list[int]:
    """Axes that are an input, else those that are known."""
    return axes_within(given[0], rank) if given else list(whole_numbers(attributes, "axes"))


@register("shape.slice")
def slice_(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Elements from a place to another by a step along axes, with Python's meaning of bounds.

    Downwards, a place before the first element means the first one, as importers have it for known bounds.
    """
    data = tensor(values[0])
    axes = _axes(values[4:], attributes, data.ndim)
    begin, end, steps = (
        _entries(value, what) for value, what in zip(values[1:4], ("starts", "ends", "steps"), strict=True)
    )
    if not len(begin) == len(end) == len(steps) == len(axes) or 0 in steps:
        raise UserError(f"starts {begin}, ends {end} and steps {steps} do not fit axes {axes}")
    chosen = [slice(None)] * data.ndim
    for axis, first, last, step in zip(axes, begin, end, steps, strict=True):
        start, stop, _ = slice(first, last, step).indices(data.shape[axis])
        if step < 0:
            start = min(max(start, 0), data.shape[axis] - 1)
        # Downwards, -1 stands for "before the first element", which as a bound would mean the last one.
        none_left = step < 0 and start < 0
        chosen[axis] = slice(0, 0) if none_left else slice(start, None if step < 0 and stop < 0 else stop, step)
    return [np.array(data[tuple(chosen)], order="C")]


@register("shape.tile")
def tile(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The data repeated along each dimension."""
    data, repeats = tensor(values[0]), _entries(values[1], "the repeats")
    if len(repeats) != data.ndim:
        raise UserError(f"repeats {repeats} do not fit {data.ndim} dimensions")
    _checked([size * count for size, count in zip(data.shape, repeats, strict=True)])
    return [np.tile(data, repeats)]


@register("shape.pad")
def pad(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Elements put before and after dimensions (or cut off); the value comes as a tensor of one element."""
    data, amounts = tensor(values[0]), _entries(values[1], "the amounts")
    axes, mode = _axes(values[3:], attributes, data.ndim), text(attributes, "mode")
    if len(amounts) != 2 * len(axes):
        raise UserError(f"amounts {amounts} do not fit axes {axes}")
    widths = [(0, 0)] * data.ndim
    for place, axis in enumerate(axes):
        widths[axis] = (amounts[place], amounts[place + len(axes)])
    _checked([max(0, size + low + high) for size, (low, high) in zip(data.shape, widths, strict=True)])
    chosen, grown = [], []
    for axis, (size, (low, high)) in enumerate(zip(data.shape, widths, strict=True)):
        kept = slice(max(0, -low), size - max(0, -high))
        if kept.start <= kept.stop:
            chosen.append(kept)
            grown.append((max(0, low), max(0, high)))
            continue
        if mode != "constant" or size + low + high < 0:
            raise UserError(f"pads cut {max(0, -low)} and {max(0, -high)} off dimension {axis}, which is {size}")
        # What is cut off beyond the data is cut off what is put there.
        chosen.append(slice(0, 0))
        grown.append((size + low + high, 0))
    if mode == "constant":
        value = tensor(values[2]).reshape(())
        return _moved(data[tuple(chosen)], lambda item: np.pad(item, grown, constant_values=value), "pad")
    chosen_mode: Any = mode
    return _moved(data[tuple(chosen)], lambda item: np.pad(item, grown, mode=chosen_mode), "pad")


@register("shape.range")
def range_(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """start, start + delta, ... before the limit."""
    first, last, step = (tensor(value).reshape(()) for value in values)
    if step == 0:
        raise UserError("delta of a range is 0")
    span = (float(last) - float(first)) / float(step)
    if not math.isfinite(span) or span > MOST_ELEMENTS:
        raise UserError(f"a range from {first} to {last} by {step}")
    count = max(0, math.ceil(span))
    return [(first + np.arange(count) * step).astype(first.dtype)]


@register("sequence.stack")
def stack(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The items of a sequence along a new axis; of none, an empty tensor of items of a shape."""
    axis = integer(attributes, "axis")
    if isinstance(values[0], Rows) and len(values[0]):
        return [values[0].stacked(axis)]
    items = [tensor(item, "an item") for item in sequence(values[0])]
    if items:
        try:
            return [np.stack(items, axis=axis)]
        except ValueError as error:
            raise UserError(f"the values that a loop collected cannot be stacked: {error}") from error
    shape = _entries(values[1], "the shape of an item")
    shape.insert(axis, 0)
    return [np.zeros(_checked(shape), storage_dtype(text(attributes, "dtype")))]


@register("shape.split")
def split(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Parts of computed sizes along an axis, as one tuple."""
    data, sizes, axis = tensor(values[0]), _entries(values[1], "the sizes"), integer(attributes, "axis")
    if any(size < 0 for size in sizes) or sum(sizes) != data.shape[axis]:
        raise UserError(f"parts of {sizes} do not make up a dimension of {data.shape[axis]}")
    bounds = np.cumsum(sizes)[:-1].tolist()
    return [np.ascontiguousarray(part) for part in np.split(data, bounds, axis=axis)]
