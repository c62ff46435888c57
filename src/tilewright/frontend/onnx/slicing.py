"""Converters of operators that cut, pad and repeat tensors: Slice, Pad, Expand, Tile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import LARGEST_MADE, evaluate, of_known_length, rank_of, shape_of, sizes_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.frontend.onnx.tensor import expand_by_input
from tilewright.graph.ir.dimensions import (
    Size,
    add,
    as_dims,
    at_least,
    constants,
    maximum,
    minimum,
    same,
    subtract,
)
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.support.errors import UnsupportedError, UserError

_TO_THE_END = (1 << 31) - 1
"""Bounds this large (or, negative, this small) mean the end: exporters write the largest number they have."""


@converter("Slice", until=9)
def slice_by_attributes(node: NodeContext) -> GraphExpr:
    """Starts and ends as attributes."""
    data = node.input(0)
    starts, ends = node.ints("starts"), node.ints("ends")
    axes = node.ints("axes", tuple(range(len(starts))))
    return build_slice(node, data, starts, ends, axes, (1,) * len(starts))


@converter("Slice", since=10)
def slice_by_inputs(node: NodeContext) -> GraphExpr:
    """Starts, ends, axes and steps as inputs."""
    data = node.input(0)
    starts, ends = node.sizes(1, "starts"), node.sizes(2, "ends")
    steps = node.sizes(4, "steps") if node.has_input(4) else None
    known_steps = None if steps is None else constants(steps)
    count = _count(node, 1, "starts")
    if not node.has_input(4):
        known_steps = (1,) * count
    if node.has_input(3) and evaluate(node.input(3)) is None:
        return _slice_by_data(node, data, None, count)
    axes = node.constant_ints(3, "axes") if node.has_input(3) else tuple(range(count))
    if starts is None or ends is None or known_steps is None:
        return _slice_by_data(node, data, node.axes(axes, rank_of(data)), count)
    return build_slice(node, data, starts, ends, axes, known_steps)


def _count(node: NodeContext, index: int, what: str) -> int:
    """How many elements a list has; a run decides it where it is not known."""
    shape = shape_of(of_known_length(node.input(index), rank_of(node.input(0))))
    if len(shape) != 1:
        raise UserError(f"{what} must be a list, it has shape {shape}")
    return shape[0]


def _slice_by_data(node: NodeContext, data: GraphExpr, axes: Sequence[int] | None, count: int) -> GraphExpr:
    """A slice whose bounds, and axes (None), only a run knows."""
    dims = [node.symbol(str(at)) if axes is None or at in axes else size for at, size in enumerate(sizes_of(data))]
    steps = node.input(4) if node.has_input(4) else node.builder.constant([1] * count, "int64")
    values = [node.input(1), node.input(2), steps, *([node.input(3)] if axes is None else [])]
    return node.call("shape.slice", data, *values, dims=as_dims(dims), axes=tuple(axes or ()))


def build_slice(
    node: NodeContext,
    data: GraphExpr,
    starts: Sequence[Size],
    ends: Sequence[Size],
    axes: Sequence[int],
    steps: Sequence[int],
) -> GraphExpr:
    """A slice with Python's meaning of bounds: negative ones count from the end, all are clamped.

    Downwards, one that starts before the first element starts at it, as the standard says (Python has nothing then).
    """
    dims = sizes_of(data)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise UserError(
            f"starts {sizes_text(starts)}, ends {sizes_text(ends)}, axes {axes} and steps {steps} must have one length"
        )
    begin: list[Size] = [0] * len(dims)
    end, strides = list(dims), [1] * len(dims)
    for axis, start, stop, step in zip(node.axes(axes, len(dims)), starts, ends, steps, strict=True):
        if step == 0:
            raise UserError("a step is 0")
        found = _bounds(dims[axis], start, stop, step)
        if found is None:
            return _slice_of_unknown_sign(node, data, starts, ends, axes, steps)
        begin[axis], end[axis], strides[axis] = found
    whole = all(isinstance(first, int) and first == 0 for first in begin) and all(map(same, end, dims))
    if whole and strides == [1] * len(dims):
        return data
    return node.call("slice", data, begin=tuple(begin), end=tuple(end), strides=tuple(strides))


def _bounds(dim: Size, start: Size, stop: Size, step: int) -> tuple[Size, Size, int] | None:
    """Begin, end and stride within a dimension; None if the sign of a bound is not known."""
    if isinstance(dim, int) and isinstance(start, int) and isinstance(stop, int):
        first, last, _ = slice(start, stop, step).indices(dim)
        if step < 0:
            first = min(max(first, 0), dim - 1)
        # Where nothing is left any valid bounds that are equal will do.
        return (0, 0, 1) if (last - first) * step <= 0 else (first, last, step)
    low: Size = 0 if step > 0 else -1
    high = dim if step > 0 else subtract(dim, 1)
    found: list[Size] = []
    for bound, least in ((start, 0), (stop, low)):
        if isinstance(bound, int) and abs(bound) >= _TO_THE_END:
            found.append(high if bound > 0 else least)
        elif at_least(bound, 0):
            found.append(minimum(bound, high))
        elif bound == -1 and step < 0:
            found.append(high)
        elif at_least(-1, bound):
            # Downwards from before the first element of nothing, there is no element to begin at.
            place = maximum(add(bound, dim), least)
            found.append(place if step > 0 or least else minimum(place, high))
        else:
            return None
    return found[0], found[1], step


def _slice_of_unknown_sign(
    node: NodeContext,
    data: GraphExpr,
    starts: Sequence[Size],
    ends: Sequence[Size],
    axes: Sequence[int],
    steps: Sequence[int],
) -> GraphExpr:
    """A slice whose bounds are symbolic and may count from either end: decided when it runs."""
    builder = node.builder
    places = node.axes(axes, rank_of(data))
    dims = [node.symbol(str(axis)) if axis in places else size for axis, size in enumerate(sizes_of(data))]
    bounds = [builder.shape_tensor(part) for part in (starts, ends, steps)]
    return node.call("shape.slice", data, *bounds, dims=as_dims(dims), axes=places)


@converter("Pad", until=10)
def pad_by_attributes(node: NodeContext) -> GraphExpr:
    """Amounts and value as attributes."""
    data = node.input(0)
    axes = tuple(range(rank_of(data)))
    return build_pad(node, data, node.ints("pads"), axes, node.text("mode", "constant"), node.number("value", 0.0))


@converter("Pad", since=11)
def pad_by_inputs(node: NodeContext) -> GraphExpr:
    """Amounts, value and axes as inputs."""
    data = node.input(0)
    rank = rank_of(data)
    mode, amounts = node.text("mode", "constant"), node.sizes(1, "the amounts")
    if node.has_input(3) and evaluate(node.input(3)) is None:
        return _pad_by_data(node, data, None, mode)
    axes = node.axes(node.constant_ints(3, "the axes"), rank) if node.has_input(3) else tuple(range(rank))
    known = None if amounts is None else constants(amounts)
    stored = evaluate(node.input(2)) if node.has_input(2) else np.zeros(())
    is_open = any(not isinstance(size, int) for size in sizes_of(data))
    if known is None or stored is None or (mode == "wrap" and is_open):
        return _pad_by_data(node, data, axes, mode)
    if stored.size != 1:
        raise UserError(f"the value must be one number, it has shape {stored.shape}")
    return build_pad(node, data, known, axes, mode, float(stored.ravel()[0]))


def _pad_by_data(node: NodeContext, data: GraphExpr, axes: Sequence[int] | None, mode: str) -> GraphExpr:
    """Padding of which only a run knows the amounts, the value or (None) the axes."""
    value = node.input(2) if node.has_input(2) else node.builder.constant_like(0, data)
    dims = [node.symbol(str(at)) if axes is None or at in axes else size for at, size in enumerate(sizes_of(data))]
    values = [node.input(1), node.builder.reshape(value, ()), *([node.input(3)] if axes is None else [])]
    return node.call("shape.pad", data, *values, dims=as_dims(dims), axes=tuple(axes or ()), mode=mode)


def build_pad(
    node: NodeContext, data: GraphExpr, pads: Sequence[int], axes: Sequence[int], mode: str, value: float
) -> GraphExpr:
    """Padding of some axes; negative amounts cut off. What is cut off beyond the data is cut off what is put there."""
    dims = sizes_of(data)
    if len(pads) != 2 * len(axes):
        raise UserError(f"pads must have {2 * len(axes)} entries, it is {tuple(pads)}")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise UserError(f"unknown padding mode {mode!r}", hint="one of constant, reflect, edge, wrap")
    before, after = [0] * len(dims), [0] * len(dims)
    for index, axis in enumerate(axes):
        before[axis], after[axis] = pads[index], pads[index + len(axes)]
    # What is cut off goes first: what is mirrored, repeated or wrapped is the rest, as in onnxruntime.
    cut_before, cut_after = [max(0, -item) for item in before], [max(0, -item) for item in after]
    starts = [minimum(cut, dim) for cut, dim in zip(cut_before, dims, strict=True)]
    grown_before, grown_after = [max(0, item) for item in before], [max(0, item) for item in after]
    for axis, (dim, first, last) in enumerate(zip(dims, cut_before, cut_after, strict=True)):
        if isinstance(dim, int) and first + last > dim:
            left = dim + before[axis] + after[axis]
            if mode != "constant" or left < 0:
                raise UserError(f"pads cut {first} and {last} off dimension {axis}, which is {dim}")
            starts[axis], cut_after[axis], grown_before[axis], grown_after[axis] = 0, dim, left, 0
    ends = [maximum(start, subtract(dim, cut)) for start, dim, cut in zip(starts, dims, cut_after, strict=True)]
    # Of the others an open size may look as if it could be negative.
    shorter = [axis for axis in range(len(dims)) if cut_before[axis] or cut_after[axis]]
    bounds = [starts[axis] for axis in shorter], [ends[axis] for axis in shorter]
    result = build_slice(node, data, *bounds, shorter, [1] * len(shorter))
    if mode != "constant":
        return _pad_by_index(node, result, grown_before, grown_after, mode)
    if any(grown_before) or any(grown_after):
        result = node.call("pad", result, before=tuple(grown_before), after=tuple(grown_after), value=value)
    both = [axis for axis, dim in enumerate(dims) if not isinstance(dim, int) and before[axis] * after[axis] < 0]
    sizes = [maximum(0, add(dims[axis], before[axis] + after[axis])) for axis in both]
    return build_slice(node, result, [0] * len(both), sizes, both, [1] * len(both)) if both else result


def _pad_by_index(
    node: NodeContext, data: GraphExpr, before: Sequence[int], after: Sequence[int], mode: str
) -> GraphExpr:
    """Reflect and edge where the operator does it; otherwise elements chosen along each axis."""
    dims = sizes_of(data)
    room = all(
        not isinstance(dim, int) or (dim > max(low, high) if mode == "reflect" else dim > 0)
        for dim, low, high in zip(dims, before, after, strict=True)
        if low or high
    )
    if mode in ("reflect", "edge") and room:
        if not any(before) and not any(after):
            return data
        return node.call("pad", data, before=tuple(before), after=tuple(after), mode=mode)
    result = data
    for axis, (dim, low, high) in enumerate(zip(dims, before, after, strict=True)):
        if not low and not high:
            continue
        if not isinstance(dim, int):
            raise UnsupportedError(f"padding by {mode} of a symbolic dimension: {sizes_text(dims)}")
        if dim == 0 or dim + low + high > LARGEST_MADE:
            raise UserError(f"cannot pad dimension {axis} of size {dim} by {low} and {high}")
        order = np.arange(dim)
        if mode == "reflect":
            places = np.pad(order, (low, high), mode="reflect")
        elif mode == "edge":
            places = np.pad(order, (low, high), mode="edge")
        else:
            places = np.pad(order, (low, high), mode="wrap")
        result = node.call("take", result, node.builder.constant(places, "int64"), axis=axis)
    return result


@converter("Expand")
def expand(node: NodeContext) -> GraphExpr:
    """Broadcast with a shape, in both directions."""
    return expand_by_input(node, node.input(0), 1)


@converter("Tile")
def tile(node: NodeContext) -> GraphExpr:
    """Repeated along each dimension."""
    data = node.input(0)
    repeats = node.sizes(1, "the repeats")
    if repeats is None:
        dims = [node.symbol(str(axis)) for axis in range(rank_of(data))]
        return node.call("shape.tile", data, node.input(1), dims=as_dims(dims))
    if all(isinstance(count, int) and count == 1 for count in repeats) and len(repeats) == rank_of(data):
        return data
    return node.call("tile", data, repeats=repeats)
