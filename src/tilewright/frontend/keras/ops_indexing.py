"""Operations with indices: parts of tensors, elements at places, tables of categories."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontend.core.builder import LARGEST_MADE, dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.core.indexing import gather_nd, scatter_nd, wrapped
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.layer import as_dtype
from tilewright.frontend.keras.ops_elementwise import tensor
from tilewright.frontend.keras.ops_shape import whole, wholes
from tilewright.frontend.keras.registry import operation
from tilewright.frontend.keras.values import KerasBuilder, Value
from tilewright.graph.ir.dimensions import Size, add, maximum, minimum, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT32, INT32, INT64, DataType
from tilewright.support.errors import UnsupportedError, UserError


@operation("GetItem")
def get_item(call: LayerCall) -> GraphExpr:
    """x[key]: places, ranges, new axes and an ellipsis."""
    return item_of(call, tensor(call), call.argument("key", 1))


def item_of(call: LayerCall, value: GraphExpr, key: Any) -> GraphExpr:
    """A part of a tensor, as Python's brackets choose it."""
    keys = list(key) if isinstance(key, (list, tuple)) else [key]
    taken = sum(item is not None and item is not Ellipsis for item in keys)
    rank = rank_of(value)
    if keys.count(Ellipsis) > 1 or taken > rank:
        raise UserError(f"{len(keys)} indices do not fit {rank} dimensions")
    if Ellipsis not in keys:
        keys.append(Ellipsis)
    at = keys.index(Ellipsis)
    keys[at : at + 1] = [slice(None)] * (rank - taken)
    axis = 0
    for item in keys:
        if item is None:
            value = call.builder.expand_dims(value, (axis,))
            axis += 1
        elif isinstance(item, slice):
            value = _sliced(call, value, axis, item)
            axis += 1
        elif isinstance(item, (Value, np.ndarray)):
            places = _inside(call.builder, call.as_tensor(item), sizes_of(value)[axis], axis)
            value = call.call("take", value, places, axis=axis)
            axis += rank_of(places)
        else:
            value = _selected(call, value, axis, whole(item, "an index"))
    return value


def _selected(call: LayerCall, value: GraphExpr, axis: int, place: int) -> GraphExpr:
    size = sizes_of(value)[axis]
    if isinstance(size, int) and not -size <= place < size:
        raise UserError(f"index {place} is out of range for {size} elements")
    return call.builder.select(value, axis, place if place >= 0 else add(size, place))


def _sliced(call: LayerCall, value: GraphExpr, axis: int, item: slice) -> GraphExpr:
    b, size = call.builder, sizes_of(value)[axis]
    if item.start is None and item.stop is None and item.step in (None, 1):
        return value
    start, stop, step = (None if part is None else _bound(part) for part in (item.start, item.stop, item.step))
    if isinstance(size, int):
        places = range(*slice(start, stop, step).indices(size))
        if len(places) == 0:
            return b.slice_axis(value, axis, 0, 0)
        if places.step == 1:
            return b.slice_axis(value, axis, places.start, places.stop)
        if places.step > 0:
            return b.slice(value, axis, places.start, places.stop, places.step)
        return call.call("take", value, b.constant(np.array(places), INT64), axis=axis)
    if step not in (None, 1):
        if step == -1 and start is None and stop is None:
            return b.flip(value, (axis,))
        raise UnsupportedError("steps along a dimension of open size", hint="give the shapes of inputs: shapes={...}")
    begin: Size = 0 if start is None else start if start >= 0 else maximum(add(size, start), 0)
    end: Size = size if stop is None else minimum(stop, size) if stop >= 0 else add(size, stop)
    return b.slice_axis(value, axis, begin, end)


def _bound(part: Any) -> int:
    return whole(part, "the bound of a range")


def _inside(b: KerasBuilder, indices: GraphExpr, size: Size, axis: int) -> GraphExpr:
    """Indices that may count from the end, checked when the model runs."""
    if dtype_of(indices).is_bool:
        raise UnsupportedError("a choice by truth values, whose size only a run knows")
    return checked_index(b, b.cast(indices, INT64), (size,), (axis,))


@operation("Take")
def take(call: LayerCall) -> GraphExpr:
    """Slices at places along an axis, or elements of all."""
    b, value = call.builder, tensor(call)
    indices = tensor(call, 1, "indices")
    described = call.layer.option("axis")
    value = b.flatten(value) if described is None else value
    axis = 0 if described is None else call.axis(described, rank_of(value))
    indices = b.cast(indices, INT64) if dtype_of(indices).is_float else indices
    return call.call("take", value, _inside(b, indices, sizes_of(value)[axis], axis), axis=axis)


@operation("TakeAlongAxis")
def take_along_axis(call: LayerCall) -> GraphExpr:
    """For each element, the one at a place along an axis."""
    b, value, indices = call.builder, tensor(call), tensor(call, 1, "indices")
    described = call.layer.option("axis")
    if described is None:
        value, indices, described = b.flatten(value), b.flatten(indices), 0
    axis = call.axis(described, rank_of(value))
    shape = list(sizes_of(indices))
    for at, size in enumerate(sizes_of(value)):
        if at != axis and shape[at] == 1:
            shape[at] = size
    indices = b.broadcast_to(_inside(b, indices, sizes_of(value)[axis], axis), shape)
    wide = list(sizes_of(value))
    for at, size in enumerate(shape):
        if at != axis:
            wide[at] = size
    value = b.broadcast_to(value, wide)
    columns = [b.broadcast_to(b.positions(shape, at), shape) for at in range(len(shape))]
    columns[axis] = wrapped(b, indices, sizes_of(value)[axis])
    return gather_nd(b, value, b.stack(columns, len(shape)))


def _starts(call: LayerCall, rank: int) -> list[Any]:
    """Where a block begins along each axis: numbers, or values that are data."""
    starts = call.argument("start_indices", 1)
    if isinstance(starts, (list, tuple, np.ndarray)):
        return list(starts)
    return [call.builder.select(call.as_tensor(starts), 0, axis) for axis in range(rank)]


def _place(call: LayerCall, start: Any, most: Size) -> GraphExpr:
    """A start that is data, moved so that the block lies inside."""
    b = call.builder
    place = b.reshape(b.cast(call.as_tensor(start), INT64), ())
    return b.call("maximum", b.call("minimum", place, b.scalar(most, INT64)), b.scalar(0, INT64))


@operation("Slice")
def slice_part(call: LayerCall) -> GraphExpr:
    """A block that begins at places which may be data."""
    b, value = call.builder, tensor(call)
    shape = wholes(call.layer.option("shape"), "shape")
    for axis, (start, count) in enumerate(zip(_starts(call, rank_of(value)), shape, strict=True)):
        count = size_at(value, axis) if count == -1 else count
        if isinstance(start, (Value, GraphExpr)):
            place = _place(call, start, subtract(sizes_of(value)[axis], count))
            value = call.call("take", value, b.add(b.arange(count), place), axis=axis, mode="clip")
        else:
            begin = whole(start, "a place")
            value = b.slice_axis(value, axis, begin, begin + count)
    return value


@operation("SliceUpdate")
def slice_update(call: LayerCall) -> GraphExpr:
    """A block written at places which may be data."""
    b, value, updates = call.builder, tensor(call, 0, "inputs"), tensor(call, 2, "updates")
    shape = [size_at(updates, axis) for axis in range(rank_of(updates))]
    starts: list[GraphExpr] = []
    for start, size, count in zip(_starts(call, rank_of(value)), sizes_of(value), shape, strict=True):
        is_data = isinstance(start, (Value, GraphExpr))
        starts.append(
            _place(call, start, subtract(size, count)) if is_data else b.scalar(whole(start, "a place"), INT64)
        )
    grid = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    places = b.add(b.constant(grid, INT64), b.stack(starts, 0))
    return scatter_nd(b, value, places, b.cast(updates, dtype_of(value)))


@operation("ScatterUpdate")
def scatter_update(call: LayerCall) -> GraphExpr:
    """Elements written, added or compared at tuples of indices."""
    b, value = call.builder, tensor(call, 0, "inputs")
    indices, updates = tensor(call, 1, "indices"), tensor(call, 2, "updates")
    how = call.layer.option("reduction", call.kwargs.get("reduction"))
    names = {None: "none", "add": "add", "mul": "mul", "max": "max", "min": "min"}
    if how not in names:
        raise UserError(f"the reduction {how!r} is not known")
    return scatter_nd(b, value, indices, b.cast(updates, dtype_of(value)), names[how])


@operation("Scatter")
def scatter(call: LayerCall) -> GraphExpr:
    """Values added at tuples of indices of a tensor of zeros."""
    b, indices, values = call.builder, tensor(call, 0, "indices"), tensor(call, 1, "values")
    shape = wholes(call.layer.option("shape"), "shape")
    return scatter_nd(b, b.filled(0, shape, dtype_of(values)), indices, values, "add")


# Categories


def _type_of(call: LayerCall, default: DataType = FLOAT32) -> DataType:
    described = call.layer.option("dtype")
    return default if described is None else as_dtype(described)


def hot(b: KerasBuilder, indices: GraphExpr, depth: int, axis: int, dtype: DataType) -> GraphExpr:
    """A new axis with a 1 at each index."""
    if not 0 < depth <= LARGEST_MADE:
        raise UserError(f"{depth} classes")
    shape: list[Size] = [1] * (rank_of(indices) + 1)
    shape[axis] = depth
    order = b.reshape(b.arange(depth), shape)
    wide = b.expand_dims(b.cast(indices, INT64), (axis,))
    return b.cast(b.call("equal", wide, order), dtype)


@operation("OneHot")
def one_hot(call: LayerCall) -> GraphExpr:
    """Indices as rows with a 1."""
    value = tensor(call)
    axis = call.axis(call.layer.option("axis", -1), rank_of(value) + 1)
    return hot(call.builder, value, call.layer.integer("num_classes"), axis, _type_of(call))


@operation("MultiHot")
def multi_hot(call: LayerCall) -> GraphExpr:
    """Whether each class is among the indices of a sample."""
    b, value = call.builder, tensor(call, 0, "inputs")
    depth = call.layer.integer("num_classes", call.layer.integer("num_tokens", 0) or None)
    reduced = 1 if rank_of(value) > 1 else 0
    axis = call.axis(call.layer.option("axis", -1), rank_of(value) + 1)
    rows = hot(b, value, depth, axis, BOOL)
    return b.cast(b.reduce("any", rows, (reduced if axis > reduced else reduced + 1,)), _type_of(call))


@operation("SearchSorted")
def search_sorted(call: LayerCall) -> GraphExpr:
    """Where values belong in a row that rises."""
    b = call.builder
    row, values = tensor(call, 0, "sorted_sequence"), tensor(call, 1, "values")
    row, values = b.operands(row, values)
    name = "greater" if call.layer.text("side", "left") == "left" else "greater_equal"
    reached = b.compare(name, b.expand_dims(values, (rank_of(values),)), row)
    return b.reduce("sum", b.cast(reached, INT32), (rank_of(values),))


@operation("Digitize")
def digitize(call: LayerCall) -> GraphExpr:
    """The number of boundaries that are not above a value."""
    b, value = call.builder, tensor(call)
    bins = call.argument("bins", 1)
    bounds = call.as_tensor(bins) if isinstance(bins, Value) else b.constant(np.asarray(bins, np.float32).reshape(-1))
    value, bounds = b.operands(value, bounds)
    reached = b.compare("greater_equal", b.expand_dims(value, (rank_of(value),)), bounds)
    return b.reduce("sum", b.cast(reached, INT32), (rank_of(value),))


@operation("IsIn")
def is_in(call: LayerCall) -> GraphExpr:
    """Whether values are among others."""
    b = call.builder
    x, others = b.operands(tensor(call, 0, "x1"), tensor(call, 1, "x2"))
    found = b.call("equal", b.expand_dims(x, (rank_of(x),)), b.flatten(others))
    result = b.reduce("any", found, (rank_of(x),))
    return b.call("logical_not", result) if call.layer.flag("invert") else result


@operation("Bincount")
def bincount(call: LayerCall) -> GraphExpr:
    """How often each of so many numbers occurs along the last axis."""
    b, value = call.builder, tensor(call)
    least = call.layer.integer("minlength", 0)
    if least < 1:
        raise UnsupportedError("bincount without minlength, whose size only a run knows", hint="give minlength")
    weights = call.tensor("weights", 1)
    rows = hot(b, value, least, rank_of(value), INT32 if weights is None else dtype_of(weights))
    if weights is not None:
        rows = b.multiply(rows, b.expand_dims(weights, (rank_of(weights),)))
    return b.reduce("sum", rows, (rank_of(value) - 1,))
