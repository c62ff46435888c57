"""Converters of operators that cut and pad."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.loops import reverse
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.dimensions import Size, add, as_dims, at_least, constants, maximum, minimum, same, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError


@converter("SLICE")
def slice_(node: NodeContext) -> GraphExpr:
    """From places on, so many elements; -1 is all that follow."""
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


def _slice_by_data(node: NodeContext, data: GraphExpr, counts: Sequence[Size] | None) -> GraphExpr:
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


def sliced_at(node: NodeContext, data: GraphExpr, starts: GraphExpr, counts: Sequence[Size]) -> GraphExpr:
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


@converter("STRIDED_SLICE")
def strided_slice(node: NodeContext) -> GraphExpr:
    """Slices with numpy's meaning: masks say which bounds count, and which places are one index or a new axis."""
    data = node.input(0)
    starts, ends = node.sizes(1, "the begin"), node.sizes(2, "the end")
    strides = node.constant_ints(3, "the strides")
    if starts is None or ends is None:
        return _strided_by_data(node, data, strides)
    masks = {key: node.integer(f"{key}_mask") for key in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    sizes = sizes_of(data)
    begin: list[Size] = []
    stop: list[Size] = []
    steps: list[int] = []
    shape_plan: list[str] = []
    fresh = sum(1 for at in range(len(starts)) if masks["new_axis"] >> at & 1 and not masks["ellipsis"] >> at & 1)
    for at in range(len(starts)):
        if masks["ellipsis"] >> at & 1:
            for _ in range(len(sizes) - (len(starts) - fresh - 1)):
                begin.append(0)
                stop.append(sizes[len(stop)])
                steps.append(1)
                shape_plan.append("keep")
            continue
        if masks["new_axis"] >> at & 1:
            shape_plan.append("new")
            continue
        axis = len(begin)
        if axis >= len(sizes):
            raise UserError(f"STRIDED_SLICE of {len(starts)} places of data of shape {sizes_text(sizes)}")
        first = None if masks["begin"] >> at & 1 else starts[at]
        last = None if masks["end"] >> at & 1 else ends[at]
        if node.flag("offset") and last is not None:
            last = add(starts[at], last)
        shrinks = bool(masks["shrink_axis"] >> at & 1)
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
    node: NodeContext, data: GraphExpr, begin: list[Size], stop: list[Size], steps: list[int], plan: list[str]
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


def _strided_by_data(node: NodeContext, data: GraphExpr, strides: tuple[int, ...]) -> GraphExpr:
    """Bounds that only a run knows."""
    builder, call, rank = node.builder, node.call, rank_of(data)
    count = len(strides)
    if node.integer("ellipsis_mask") or node.integer("new_axis_mask") or node.flag("offset"):
        raise UnsupportedError("STRIDED_SLICE of new axes with bounds that only a run knows")
    starts, ends = (builder.cast(node.input(at), INT64) for at in (1, 2))
    shrinks = [at for at in range(count) if node.integer("shrink_axis_mask") >> at & 1]
    result, axes = data, [at for at in range(count) if at not in shrinks]
    if axes:
        chosen = builder.constant(axes, INT64)
        firsts, lasts = (call("take", value, chosen, axis=0) for value in (starts, ends))
        limit = (1 << 31) - 1
        steps = [strides[at] for at in axes]
        firsts = _masked(node, firsts, axes, "begin_mask", [0 if step > 0 else limit for step in steps])
        lasts = _masked(node, lasts, axes, "end_mask", [limit if step > 0 else -limit for step in steps])
        dims = [node.symbol(str(at)) if at in axes else size for at, size in enumerate(sizes_of(data))]
        values = (firsts, lasts, builder.constant(steps, INT64))
        result = call("shape.slice", data, *values, dims=as_dims(dims), axes=tuple(axes))
    for axis in reversed(shrinks):
        place = builder.reshape(builder.slice_axis(starts, 0, axis, axis + 1), ())
        result = call("take", result, place, axis=axis)
    assert rank >= len(shrinks)
    return result


def _masked(node: NodeContext, bounds: GraphExpr, axes: list[int], key: str, instead: list[int]) -> GraphExpr:
    """Bounds, or what stands for those that a mask leaves out."""
    mask = np.array([node.integer(key) >> at & 1 for at in axes], bool)
    if not mask.any():
        return bounds
    return node.call("where", node.builder.constant(mask, "bool"), node.builder.constant(instead, INT64), bounds)


@converter("PAD", "PADV2")
def pad(node: NodeContext) -> GraphExpr:
    """Elements of one value added around the data; zeros, or what stands for zero."""
    data = node.input(0)
    amounts = node.constant_ints(1, "the amounts")
    stored = float(node.levels(0).zero) if node.is_quantized() else 0.0
    if node.has_input(2):
        stored = float(node.constant(2, "the value").ravel()[0])
    before, after = amounts[0::2], amounts[1::2]
    if len(before) != rank_of(data):
        raise UserError(f"{len(before)} amounts of padding for data of {rank_of(data)} dimensions")
    if not any(amounts):
        return data
    if any(item < 0 for item in amounts):
        raise UserError(f"padding by {amounts} is negative")
    return node.call("pad", data, before=before, after=after, value=stored)


@converter("MIRROR_PAD")
def mirror_pad(node: NodeContext) -> GraphExpr:
    """The data mirrored at its borders, without the border (reflect) or with it (symmetric)."""
    data = node.input(0)
    amounts = np.array(node.constant_ints(1, "the amounts")).reshape(-1, 2)
    if len(amounts) != rank_of(data):
        raise UserError(f"{len(amounts)} amounts of padding for data of {rank_of(data)} dimensions")
    mode = "symmetric" if node.integer("mode") else "reflect"
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
            raise UnsupportedError("MIRROR_PAD of a dimension of open size, with its border")
        limit = size - (mode == "reflect")
        if not 0 <= before <= limit or not 0 <= after <= limit:
            raise UserError(f"padding by {before} and {after} of a dimension of {size}")
        places = np.pad(np.arange(size), (before, after), mode=mode)  # type: ignore[call-overload]
        data = node.call("take", data, node.builder.constant(places, INT64), axis=axis)
    return data


@converter("REVERSE_V2")
def reverse_(node: NodeContext) -> GraphExpr:
    """In the other direction along axes that are an input."""
    data = node.input(0)
    for axis in node.constant_ints(1, "the axes"):
        data = reverse(node.builder, data, node.axis(axis, rank_of(data)))
    return data


@converter("DYNAMIC_UPDATE_SLICE", "STABLEHLO_DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(node: NodeContext) -> GraphExpr:
    """A part of the data replaced, at a place that is data and kept within it."""
    builder, call = node.builder, node.call
    data, update = node.input(0), node.input(1)
    if node.node.name == "DYNAMIC_UPDATE_SLICE":
        starts = builder.cast(node.input(2), INT64)
    else:
        parts = [builder.reshape(builder.cast(node.input(at), INT64), (1,)) for at in range(2, len(node.inputs))]
        starts = builder.concatenate(parts, 0)
    sizes, counts, rank = sizes_of(data), sizes_of(update), rank_of(data)
    inside: GraphExpr | None = None
    moved = update
    for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        if same(size, count):
            continue
        start = builder.reshape(builder.slice_axis(starts, 0, axis, axis + 1), ())
        last = builder.reshape(builder.shape_tensor([subtract(size, count)]), ())
        kept = call("minimum", call("maximum", start, builder.constant(0, INT64)), last)
        places = call("subtract", builder.arange(size), kept)
        length = builder.reshape(builder.shape_tensor([count]), ())
        zero = builder.constant(0, INT64)
        here = call("logical_and", call("greater_equal", places, zero), call("less", places, length))
        moved = call("take", moved, places, axis=axis, mode="clip")
        here = builder.reshape(here, [size if at == axis else 1 for at in range(rank)])
        inside = here if inside is None else call("logical_and", inside, here)
    if inside is None:
        return update
    return call("where", inside, moved, data)


@converter("STABLEHLO_SLICE")
def slice_by_options(node: NodeContext) -> GraphExpr:
    """Bounds and strides as options."""
    bounds = [
        tuple(int(item) for item in node.option(key, ())) for key in ("start_indices", "limit_indices", "strides")
    ]
    begin, end, strides = bounds
    return node.call("slice", node.input(0), begin=begin, end=end, strides=strides or (1,) * len(begin))


@converter("STABLEHLO_DYNAMIC_SLICE")
def dynamic_slice(node: NodeContext) -> GraphExpr:
    """So many elements from places that are data."""
    builder = node.builder
    parts = [builder.reshape(builder.cast(node.input(at), INT64), (1,)) for at in range(1, len(node.inputs))]
    counts = tuple(int(item) for item in node.option("slice_sizes", ()))
    return sliced_at(node, node.input(0), builder.concatenate(parts, 0), counts)


@converter("STABLEHLO_PAD", "DILATE")
def interior_pad(node: NodeContext) -> GraphExpr:
    """Elements of one value before, after and between those of the data; negative amounts cut off."""
    builder, data, rank = node.builder, node.input(0), rank_of(node.input(0))
    if node.node.name == "DILATE":
        between = [item - 1 for item in node.constant_ints(1, "the dilations")]
        low, high, value = [0] * rank, [0] * rank, node.constant(2, "the value")
    else:
        keys = ("edge_padding_low", "edge_padding_high", "interior_padding")
        low, high, between = ([int(item) for item in node.option(key, ())] for key in keys)
        value = node.constant(1, "the value")
    fill = float(value.ravel()[0])
    for axis, space in enumerate(between):
        size = sizes_of(data)[axis]
        if not space:
            continue
        if not isinstance(size, int) or space < 0:
            raise UnsupportedError(f"padding by {space} between elements of a dimension of {size}")
        sizes = list(sizes_of(data))
        parts = builder.reshape(data, (*sizes[: axis + 1], 1, *sizes[axis + 1 :]))
        after = [0] * (rank + 1)
        after[axis + 1] = space
        spread = node.call("pad", parts, before=(0,) * (rank + 1), after=tuple(after), value=fill)
        sizes[axis] = size * (space + 1)
        data = builder.slice_axis(builder.reshape(spread, sizes), axis, 0, max(0, size * (space + 1) - space))
    grown = tuple(max(0, item) for item in low), tuple(max(0, item) for item in high)
    if any((*grown[0], *grown[1])):
        data = node.call("pad", data, before=grown[0], after=grown[1], value=fill)
    for axis, (first, last) in enumerate(zip(low, high, strict=True)):
        data = builder.slice_axis(data, axis, max(0, -first), subtract(sizes_of(data)[axis], max(0, -last)))
    assert dtype_of(data) is dtype_of(node.input(0))
    return data
