"""Slices and mirrored borders as TFLite and TensorFlow say them: shared by importers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.frontend.core.builder import rank_of, sizes_of
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.graph.ir.dimensions import Size, add, as_dims, at_least, constants, maximum, minimum, same, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError


def sliced(node: NodeInputs) -> GraphExpr:
    """Of input 0, from places (input 1) on, so many elements (input 2); -1 is all that follow."""
    data = node.input(0)
    starts, counts = node.sizes(1, "the begin"), node.sizes(2, "the sizes")
    sizes = sizes_of(data)
    if starts is None or counts is None:
        return _slice_by_data(node, data, counts)
    if not len(starts) == len(counts) == len(sizes):
        raise UserError(f"a slice from {sizes_text(starts)} does not fit data of shape {sizes_text(sizes)}")
    ends = [
        size if isinstance(count, int) and count == -1 else add(start, count)
        for start, count, size in zip(starts, counts, sizes, strict=True)
    ]
    known = constants((*starts, *ends, *sizes))
    if known is not None and any(
        not 0 <= first <= last <= size
        for first, last, size in zip(known[: len(sizes)], known[len(sizes) :], known[2 * len(sizes) :], strict=False)
    ):
        raise UserError(f"a slice from {sizes_text(starts)} to {sizes_text(ends)} of data of shape {sizes_text(sizes)}")
    if all(isinstance(first, int) and first == 0 for first in starts) and all(map(same, ends, sizes)):
        return data
    return node.call("slice", data, begin=tuple(starts), end=tuple(ends), strides=(1,) * len(sizes))


def _slice_by_data(node: NodeInputs, data: GraphExpr, counts: Sequence[Size] | None) -> GraphExpr:
    """A slice whose place, or size, only a run knows; sizes that are known stay known."""
    builder, call = node.builder, node.call
    starts, amounts = builder.cast(node.input(1), INT64), builder.cast(node.input(2), INT64)
    if counts is not None and all(not isinstance(size, int) or size >= 0 for size in counts):
        return sliced_at(node, data, starts, counts)
    whole = builder.shape_tensor(sizes_of(data))
    rest = call("less", amounts, builder.constant(0, INT64))
    ends = call("where", rest, whole, call("add", starts, amounts))
    dims = [node.symbol(str(at)) for at in range(rank_of(data))]
    steps = builder.constant([1] * rank_of(data), INT64)
    return call("shape.slice", data, starts, ends, steps, dims=as_dims(dims), axes=tuple(range(rank_of(data))))


def sliced_at(node: NodeInputs, data: GraphExpr, starts: GraphExpr, counts: Sequence[Size]) -> GraphExpr:
    """So many elements from a place that is data, along each axis; a slice keeps within the data."""
    builder, call = node.builder, node.call
    for axis, (count, size) in enumerate(zip(counts, sizes_of(data), strict=True)):
        if same(count, size):
            continue
        start = builder.reshape(builder.slice_axis(starts, 0, axis, axis + 1), ())
        last = builder.reshape(builder.shape_tensor([subtract(size, count)]), ())
        kept = call("minimum", call("maximum", start, builder.constant(0, INT64)), last)
        places = call("add", builder.arange(count), kept)
        data = call("take", data, places, axis=axis, mode="inside")
    return data


@dataclass(frozen=True, slots=True)
class Masks:
    """Which bounds of a strided slice count, and which places are one index or a new axis: a bit for each place."""

    begin: int
    end: int
    ellipsis: int
    new_axis: int
    shrink_axis: int


def strided_slice(node: NodeInputs, masks: Masks, from_begin: bool = False) -> GraphExpr:
    """Slices of input 0 with numpy's meaning: begin, end and strides are inputs 1 to 3.

    `from_begin`: ends are counted from the begins.
    """
    data = node.input(0)
    starts, ends = node.sizes(1, "the begin"), node.sizes(2, "the end")
    strides = node.constant_ints(3, "the strides")
    if starts is None or ends is None:
        return _strided_by_data(node, data, strides, masks, from_begin)
    sizes = sizes_of(data)
    begin: list[Size] = []
    stop: list[Size] = []
    steps: list[int] = []
    shape_plan: list[str] = []
    fresh = sum(1 for at in range(len(starts)) if masks.new_axis >> at & 1 and not masks.ellipsis >> at & 1)
    for at in range(len(starts)):
        if masks.ellipsis >> at & 1:
            for _ in range(len(sizes) - (len(starts) - fresh - 1)):
                begin.append(0)
                stop.append(sizes[len(stop)])
                steps.append(1)
                shape_plan.append("keep")
            continue
        if masks.new_axis >> at & 1:
            shape_plan.append("new")
            continue
        axis = len(begin)
        if axis >= len(sizes):
            raise UserError(f"{node.operator} of {len(starts)} places of data of shape {sizes_text(sizes)}")
        first = None if masks.begin >> at & 1 else starts[at]
        last = None if masks.end >> at & 1 else ends[at]
        if from_begin and last is not None:
            last = add(starts[at], last)
        shrinks = bool(masks.shrink_axis >> at & 1)
        low, high, step = _bounds(sizes[axis], first, last, strides[at], shrinks)
        begin.append(low)
        stop.append(high)
        steps.append(step)
        shape_plan.append("drop" if shrinks else "keep")
    for axis in range(len(begin), len(sizes)):
        begin.append(0)
        stop.append(sizes[axis])
        steps.append(1)
        shape_plan.append("keep")
    return _planned(node, data, begin, stop, steps, shape_plan)


def _planned(
    node: NodeInputs, data: GraphExpr, begin: list[Size], stop: list[Size], steps: list[int], plan: list[str]
) -> GraphExpr:
    """The slice, then without dimensions that are one index and with new ones."""
    sizes = sizes_of(data)
    is_whole = all(isinstance(item, int) and item == 0 for item in begin) and all(map(same, stop, sizes))
    if not is_whole or any(step != 1 for step in steps):
        data = node.call("slice", data, begin=tuple(begin), end=tuple(stop), strides=tuple(steps))
    shape: list[Size] = []
    axis = 0
    for item in plan:
        if item == "new":
            shape.append(1)
            continue
        if item == "keep":
            shape.append(sizes_of(data)[axis])
        axis += 1
    return node.builder.reshape(data, shape)


def _bounds(size: Size, first: Size | None, last: Size | None, step: int, shrinks: bool) -> tuple[Size, Size, int]:
    """Begin, end and stride within a dimension."""
    if step == 0:
        raise UserError("a stride is 0")
    if shrinks:
        start = 0 if first is None else first
        if isinstance(start, int) and start < 0:
            start = add(size, start)
        if isinstance(start, int) and isinstance(size, int) and not 0 <= start < size:
            raise UserError(f"the index {first} is outside of a dimension of {size}")
        return start, add(start, 1), 1
    known = all(item is None or isinstance(item, int) for item in (first, last))
    if known and isinstance(size, int):
        low, high, _ = slice(_whole(first), _whole(last), step).indices(size)
        return (0, 0, 1) if (high - low) * step <= 0 else (low, high, step)
    if step < 0:
        if first is None and last is None:
            return subtract(size, 1), -1, step
        raise UnsupportedError(f"a slice with the stride {step} of a dimension of open size")
    return _placed(size, 0 if first is None else first), size if last is None else _placed(size, last), step


def _placed(size: Size, bound: Size) -> Size:
    """A bound within a dimension: negative ones count from the end."""
    if at_least(bound, 0):
        return minimum(bound, size)
    if at_least(-1, bound):
        return maximum(add(size, bound), 0)
    raise UnsupportedError("a slice whose bound may count from either end")


def _whole(bound: Size | None) -> int | None:
    assert bound is None or isinstance(bound, int)
    return bound


def _strided_by_data(
    node: NodeInputs, data: GraphExpr, strides: tuple[int, ...], masks: Masks, from_begin: bool
) -> GraphExpr:
    """Bounds that only a run knows."""
    builder, call, rank = node.builder, node.call, rank_of(data)
    count = len(strides)
    if masks.ellipsis or masks.new_axis or from_begin:
        raise UnsupportedError(f"{node.operator} of new axes with bounds that only a run knows")
    starts, ends = (builder.cast(node.input(at), INT64) for at in (1, 2))
    shrinks = [at for at in range(count) if masks.shrink_axis >> at & 1]
    result, axes = data, [at for at in range(count) if at not in shrinks]
    if axes:
        chosen = builder.constant(axes, INT64)
        firsts, lasts = (call("take", value, chosen, axis=0) for value in (starts, ends))
        limit = (1 << 31) - 1
        steps = [strides[at] for at in axes]
        firsts = _masked(node, firsts, axes, masks.begin, [0 if step > 0 else limit for step in steps])
        lasts = _masked(node, lasts, axes, masks.end, [limit if step > 0 else -limit for step in steps])
        dims = [node.symbol(str(at)) if at in axes else size for at, size in enumerate(sizes_of(data))]
        values = (firsts, lasts, builder.constant(steps, INT64))
        result = call("shape.slice", data, *values, dims=as_dims(dims), axes=tuple(axes))
    for axis in reversed(shrinks):
        place = builder.reshape(builder.slice_axis(starts, 0, axis, axis + 1), ())
        result = call("take", result, place, axis=axis)
    assert rank >= len(shrinks)
    return result


def _masked(node: NodeInputs, bounds: GraphExpr, axes: list[int], mask: int, instead: list[int]) -> GraphExpr:
    """Bounds, or what stands for those that a mask leaves out."""
    left_out = np.array([mask >> at & 1 for at in axes], bool)
    if not left_out.any():
        return bounds
    return node.call("where", node.builder.constant(left_out, "bool"), node.builder.constant(instead, INT64), bounds)


def mirror_pad(node: NodeInputs, mode: str) -> GraphExpr:
    """Input 0 mirrored at its borders, without the border (`reflect`) or with it (`symmetric`), by input 1."""
    data = node.input(0)
    amounts = np.array(node.constant_ints(1, "the amounts")).reshape(-1, 2)
    if len(amounts) != rank_of(data):
        raise UserError(f"{len(amounts)} amounts of padding for data of {rank_of(data)} dimensions")
    for axis, (before, after) in enumerate(amounts.tolist()):
        if not before and not after:
            continue
        size = sizes_of(data)[axis]
        if not isinstance(size, int):
            if mode == "reflect":
                pads = [(before, after) if at == axis else (0, 0) for at in range(rank_of(data))]
                first, last = zip(*pads, strict=True)
                data = node.call("pad", data, before=first, after=last, mode="reflect")
                continue
            raise UnsupportedError(f"{node.operator} of a dimension of open size, with its border")
        limit = size - (mode == "reflect")
        if not 0 <= before <= limit or not 0 <= after <= limit:
            raise UserError(f"padding by {before} and {after} of a dimension of {size}")
        places = np.pad(np.arange(size), (before, after), mode=mode)  # type: ignore[call-overload]
        data = node.call("take", data, node.builder.constant(places, INT64), axis=axis)
    return data
