"""Converters of operators whose indices are data."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.builder import LARGEST_MADE, evaluate, rank_of, shape_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.expr import Constant, GraphExpr
from tilewright.graph.op import Array
from tilewright.ir.dtype import BOOL, INT64
from tilewright.support.errors import UnsupportedError, UserError

_MOST_ROUNDS = 64
"""The most updates that a scatter combines in one place."""
_MOST_COMPARISONS = 1 << 32
"""The most work of a scatter with computed indices: each element of the result looks at each update."""
_REDUCTIONS = {"none": None, "add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


@converter("Gather")
def gather(node: NodeContext) -> GraphExpr:
    """Slices along an axis; a single index is a slice and a reshape."""
    data, indices = node.input(0), node.input(1)
    axis = node.axis(node.integer("axis", 0), rank_of(data))
    _check_range(indices, shape_of(data)[axis])
    return node.call("take", data, indices, axis=axis)


def _check_range(indices: GraphExpr, size: int) -> None:
    """Indices that are known now must lie in the data; those that come at run time are clamped."""
    if isinstance(indices, Constant) and indices.data.size:
        least, most = int(indices.data.min()), int(indices.data.max())
        if least < -size or most >= size:
            wrong = least if least < -size else most
            raise UserError(f"the index {wrong} is out of range for a dimension of {size}")


def _wrapped(node: NodeContext, indices: GraphExpr, size: int) -> GraphExpr:
    """Negative indices counted from the end."""
    zero, length = node.builder.constant_like(0, indices), node.builder.constant_like(size, indices)
    return node.call("where", node.call("less", indices, zero), node.call("add", indices, length), indices)


@converter("GatherElements")
def gather_elements(node: NodeContext) -> GraphExpr:
    """One element an index: positions in the flattened data are computed, then taken."""
    data, indices = node.input(0), node.builder.cast(node.input(1), "int64")
    dims, wanted = shape_of(data), shape_of(indices)
    axis = node.axis(node.integer("axis", 0), len(dims))
    if len(wanted) != len(dims):
        raise UserError(f"indices of shape {wanted} do not fit data of shape {dims}")
    steps = [math.prod(dims[place + 1 :]) for place in range(len(dims))]
    _check_range(indices, dims[axis])
    place = _wrapped(node, indices, dims[axis])
    place = node.call("multiply", place, node.builder.constant(steps[axis], "int64"))
    for other, (size, limit) in enumerate(zip(wanted, dims, strict=True)):
        if other == axis:
            continue
        if size > limit:
            raise UserError(f"indices of shape {wanted} reach beyond data of shape {dims}")
        if size > 1:
            offsets = node.builder.count(size, steps[other]).reshape(
                [-1 if at == other else 1 for at in range(len(dims))]
            )
            place = node.call("add", place, node.builder.constant(offsets, "int64"))
    flat = node.builder.reshape(data, (math.prod(dims),))
    return node.call("take", flat, place, axis=0)


@converter("GatherND")
def gather_nd(node: NodeContext) -> GraphExpr:
    """Slices chosen by tuples of indices: their positions are computed, then taken."""
    data, indices = node.input(0), node.builder.cast(node.input(1), "int64")
    dims, wanted = shape_of(data), shape_of(indices)
    batch = node.integer("batch_dims", 0)
    depth = wanted[-1] if wanted else 0
    if not 0 <= batch < len(wanted) or depth < 1 or batch + depth > len(dims) or dims[:batch] != wanted[:batch]:
        raise UserError(f"indices of shape {wanted} with {batch} batch dimensions do not fit data of shape {dims}")
    indexed, rest = dims[batch : batch + depth], dims[batch + depth :]
    place: GraphExpr | None = None
    for column in range(depth):
        part = node.builder.slice_axis(indices, len(wanted) - 1, column, column + 1)
        part = _wrapped(node, node.builder.reshape(part, wanted[:-1]), indexed[column])
        step = math.prod(indexed[column + 1 :])
        part = node.call("multiply", part, node.builder.constant(step, "int64")) if step != 1 else part
        place = part if place is None else node.call("add", place, part)
    assert place is not None
    if batch:
        count = math.prod(dims[:batch])
        starts = node.builder.count(count, math.prod(indexed)).reshape(*dims[:batch], *(1,) * (len(wanted) - 1 - batch))
        place = node.call("add", place, node.builder.constant(starts, "int64"))
    flat = node.builder.reshape(data, (math.prod(dims[: batch + depth]), *rest))
    return node.call("take", flat, place, axis=0)


def _scatter(node: NodeContext, data: GraphExpr, places: Array, updates: GraphExpr) -> GraphExpr:
    """Write elements of updates at constant flat places: a table says for each element where it comes from.

    A reduction combines the update with what is there; places that occur several times take a round each.
    """
    reduction = node.text("reduction", "none")
    if reduction not in _REDUCTIONS:
        raise UserError(f"unknown reduction {reduction!r}", hint=f"one of {', '.join(_REDUCTIONS)}")
    dims = shape_of(data)
    total = math.prod(dims)
    if total > LARGEST_MADE:
        raise UnsupportedError(f"{node.node.op_type} on data of shape {dims}")
    if places.size and (places.min() < 0 or places.max() >= total):
        raise UserError(f"indices of {node.node.op_type} are out of range for data of shape {dims}")
    if not places.size:
        return data
    flat = node.builder.reshape(updates, (places.size,))
    combine = _REDUCTIONS[reduction]
    rounds = [np.arange(places.size)] if combine is None else _rounds(places.ravel())
    if len(rounds) > _MOST_ROUNDS:
        table = node.builder.constant(places.ravel(), "int64")
        return _scatter_rows(node, node.builder.reshape(data, (total,)), table, flat)
    result = data
    for chosen in rounds:
        source = np.full(total, -1, np.int64)
        source[places.ravel()[chosen]] = chosen
        written = node.builder.constant((source >= 0).reshape(dims), BOOL)
        table = node.builder.constant(np.maximum(source, 0).reshape(dims), "int64")
        fresh = node.call("take", flat, table, axis=0)
        fresh = fresh if combine is None else node.call(combine, result, fresh)
        result = node.call("where", written, fresh, result)
    return result


def _rounds(places: Array) -> list[Array]:
    """Updates grouped so that no place occurs twice in a group: the first ones of all places, then the second ..."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    starts = np.maximum.accumulate(np.where(first, np.arange(len(ordered)), 0))
    turn = np.arange(len(ordered)) - starts
    return [order[turn == index] for index in range(int(turn.max()) + 1)]


def _scatter_rows(node: NodeContext, rows: GraphExpr, places: GraphExpr, updates: GraphExpr) -> GraphExpr:
    """Rows written at computed places."""
    reduction = node.text("reduction", "none")
    if reduction not in _REDUCTIONS:
        raise UserError(f"unknown reduction {reduction!r}", hint=f"one of {', '.join(_REDUCTIONS)}")
    work = math.prod(shape_of(rows)) * shape_of(places)[0]
    if work > _MOST_COMPARISONS:
        raise UnsupportedError(f"{node.node.op_type} with computed indices on data of shape {shape_of(node.input(0))}")
    return node.builder.reshape(
        node.call("scatter", rows, places, updates, reduction=reduction), shape_of(node.input(0))
    )


def _scatter_computed_elements(node: NodeContext, axis: int) -> GraphExpr:
    """One element an index that is data."""
    builder = node.builder
    data, indices, updates = node.input(0), builder.cast(node.input(1), "int64"), node.input(2)
    dims, wanted = shape_of(data), shape_of(indices)
    if len(wanted) != len(dims) or shape_of(updates) != wanted or 0 in wanted:
        raise UserError(f"indices {wanted} and updates {shape_of(updates)} do not fit data of shape {dims}")
    steps = [math.prod(dims[place + 1 :]) for place in range(len(dims))]
    place = node.call("multiply", _wrapped(node, indices, dims[axis]), builder.constant(steps[axis], "int64"))
    for other, (size, limit) in enumerate(zip(wanted, dims, strict=True)):
        if other == axis:
            continue
        if size > limit:
            raise UserError(f"indices of shape {wanted} reach beyond data of shape {dims}")
        offsets = builder.count(size, steps[other]).reshape([-1 if at == other else 1 for at in range(len(dims))])
        place = node.call("add", place, builder.constant(offsets, "int64"))
    count = math.prod(wanted)
    flat = builder.reshape(data, (math.prod(dims),))
    return _scatter_rows(node, flat, builder.reshape(place, (count,)), builder.reshape(updates, (count,)))


def _scatter_computed_slices(node: NodeContext) -> GraphExpr:
    """Slices at tuples of indices that are data."""
    builder = node.builder
    data, indices, updates = node.input(0), builder.cast(node.input(1), "int64"), node.input(2)
    dims, wanted = shape_of(data), shape_of(indices)
    depth = wanted[-1] if wanted else 0
    if depth < 1 or depth > len(dims) or shape_of(updates) != (*wanted[:-1], *dims[depth:]) or 0 in wanted:
        raise UserError(f"indices {wanted} and updates {shape_of(updates)} do not fit data of shape {dims}")
    count, inner = math.prod(wanted[:-1]), math.prod(dims[depth:])
    table = builder.reshape(indices, (count, depth))
    place: GraphExpr | None = None
    for column in range(depth):
        part = builder.reshape(builder.slice_axis(table, 1, column, column + 1), (count,))
        part = _wrapped(node, part, dims[column])
        part = node.call("multiply", part, builder.constant(math.prod(dims[column + 1 : depth]), "int64"))
        place = part if place is None else node.call("add", place, part)
    assert place is not None
    rows = builder.reshape(data, (math.prod(dims[:depth]), inner))
    return _scatter_rows(node, rows, place, builder.reshape(updates, (count, inner)))


@converter("TensorScatter")
def tensor_scatter(node: NodeContext) -> GraphExpr:
    """A part of each sequence of a cache written from its own place on, around the end if it is circular."""
    builder = node.builder
    cache, update, starts = node.input(0), node.input(1), node.optional(2)
    dims, wanted = shape_of(cache), shape_of(update)
    axis = node.axis(node.integer("axis", -2), len(dims))
    mode = node.text("mode", "linear")
    if mode not in ("linear", "circular"):
        raise UserError(f"unknown mode {mode!r} of TensorScatter", hint="one of linear, circular")
    if axis == 0 or len(wanted) != len(dims) or wanted[axis] > dims[axis]:
        raise UserError(f"an update of shape {wanted} does not fit a cache of shape {dims}")
    batch, length, count = dims[0], dims[axis], wanted[axis]
    begin = builder.filled(0, (batch,), INT64) if starts is None else builder.cast(starts, "int64")
    # Element t of the cache takes element t - begin of the update, if there is one.
    source = node.call(
        "subtract",
        builder.constant(builder.count(length).reshape(1, length), "int64"),
        builder.reshape(begin, (batch, 1)),
    )
    if mode == "circular":
        source = node.call("floor_mod", source, builder.constant(length, "int64"))
    fresh = node.call(
        "logical_and",
        node.call("greater_equal", source, builder.constant(0, "int64")),
        node.call("less", source, builder.constant(count, "int64")),
    )
    rest = [at for at in range(1, len(dims)) if at != axis]
    rows = builder.reshape(builder.transpose(update, (0, axis, *rest)), (batch * count, *(dims[at] for at in rest)))
    place = node.call("clip", source, minimum=0.0, maximum=float(count - 1))
    place = node.call("add", place, builder.constant(builder.count(batch, count).reshape(batch, 1), "int64"))
    order = [0] * len(dims)
    for at, old in enumerate((0, axis, *rest)):
        order[old] = at
    taken = builder.transpose(node.call("take", rows, place, axis=0), order)
    chosen = builder.reshape(fresh, [batch if at == 0 else length if at == axis else 1 for at in range(len(dims))])
    return node.call("where", chosen, taken, cache)


@converter("ScatterElements", "Scatter")
def scatter_elements(node: NodeContext) -> GraphExpr:
    """One element an index."""
    data, updates = node.input(0), node.input(2)
    dims = shape_of(data)
    axis = node.axis(node.integer("axis", 0), len(dims))
    known = evaluate(node.input(1))
    if known is None:
        return _scatter_computed_elements(node, axis)
    indices = known.astype(np.int64)
    if indices.ndim != len(dims) or shape_of(updates) != indices.shape:
        raise UserError(f"indices {indices.shape} and updates {shape_of(updates)} do not fit data of shape {dims}")
    grid = np.indices(indices.shape, dtype=np.int64)
    grid[axis] = np.where(indices < 0, indices + dims[axis], indices)
    if indices.size and any(part.min() < 0 or part.max() >= dim for part, dim in zip(grid, dims, strict=True)):
        raise UserError(f"indices are out of range for data of shape {dims}")
    steps = [math.prod(dims[place + 1 :]) for place in range(len(dims))]
    places = sum((part * step for part, step in zip(grid, steps, strict=True)), np.zeros(indices.shape, np.int64))
    return _scatter(node, data, np.asarray(places), updates)


@converter("ScatterND")
def scatter_nd(node: NodeContext) -> GraphExpr:
    """Slices written at tuples of indices."""
    data, updates = node.input(0), node.input(2)
    dims = shape_of(data)
    known = evaluate(node.input(1))
    if known is None:
        return _scatter_computed_slices(node)
    indices = known.astype(np.int64)
    depth = indices.shape[-1] if indices.ndim else 0
    if depth < 1 or depth > len(dims) or shape_of(updates) != (*indices.shape[:-1], *dims[depth:]):
        raise UserError(f"indices {indices.shape} and updates {shape_of(updates)} do not fit data of shape {dims}")
    limits = np.array(dims[:depth], np.int64)
    wrapped = np.where(indices < 0, indices + limits, indices)
    if wrapped.size and ((wrapped < 0) | (wrapped >= limits)).any():
        raise UserError(f"indices are out of range for data of shape {dims}")
    inner = math.prod(dims[depth:])
    steps = np.array([math.prod(dims[place + 1 :]) for place in range(depth)], np.int64)
    starts = (wrapped * steps).sum(axis=-1)
    return _scatter(node, data, np.asarray(starts)[..., None] + np.arange(inner), updates)


@converter("OneHot")
def one_hot(node: NodeContext) -> GraphExpr:
    """One of two values by whether an index names the place along a new axis."""
    indices, values = node.input(0), node.input(2)
    depth = int(node.constant(1, "the depth").ravel()[0])
    if depth < 1 or shape_of(values) != (2,):
        raise UserError(f"OneHot of depth {depth} with values of shape {shape_of(values)}")
    axis = node.axis(node.integer("axis", -1), rank_of(indices) + 1)
    whole = node.builder.cast(indices, "int64")
    place = node.builder.expand_dims(_wrapped(node, whole, depth), (axis,))
    counter = [1] * rank_of(place)
    counter[axis] = depth
    order = node.builder.constant(node.builder.count(depth).reshape(counter), "int64")
    off = node.builder.reshape(node.builder.slice_axis(values, 0, 0, 1), ())
    on = node.builder.reshape(node.builder.slice_axis(values, 0, 1, 2), ())
    return node.call("where", node.call("equal", place, order), on, off)


@converter("Compress")
def compress(node: NodeContext) -> GraphExpr:
    """Slices where a constant condition holds."""
    data = node.input(0)
    chosen = np.flatnonzero(node.constant(1, "the condition").ravel())
    if node.has_attribute("axis"):
        axis = node.axis(node.integer("axis"), rank_of(data))
    else:
        data, axis = node.builder.reshape(data, (math.prod(shape_of(data)),)), 0
    if chosen.size and chosen[-1] >= shape_of(data)[axis]:
        raise UserError("the condition of Compress is longer than the data")
    return node.call("take", data, node.builder.constant(chosen, "int64"), axis=axis)


@converter("NonZero")
def non_zero(node: NodeContext) -> GraphExpr:
    """Places of elements that are not 0: only of constants, since their number is data."""
    return node.builder.constant(np.stack(np.nonzero(np.atleast_1d(node.constant(0, "the input")))), "int64")


@converter("ReverseSequence")
def reverse_sequence(node: NodeContext) -> GraphExpr:
    """The first elements of each sequence in reverse, by constant lengths."""
    data = node.input(0)
    dims = shape_of(data)
    time_axis, batch_axis = node.integer("time_axis", 0), node.integer("batch_axis", 1)
    lengths = node.constant_ints(1, "the lengths")
    if sorted((time_axis, batch_axis)) != [0, 1] or len(dims) < 2 or len(lengths) != dims[batch_axis]:
        raise UserError(f"ReverseSequence over {len(lengths)} lengths does not fit data of shape {dims}")
    steps, count = dims[time_axis], dims[batch_axis]
    if steps * count > LARGEST_MADE or any(not 0 <= length <= steps for length in lengths):
        raise UserError(f"lengths {lengths[:8]} do not fit sequences of {steps}")
    table = np.arange(steps)[None, :].repeat(count, axis=0)
    for row, length in enumerate(lengths):
        table[row, :length] = table[row, :length][::-1]
    rows = np.arange(count)[:, None]
    places = rows * steps + table if batch_axis == 0 else (table * count + rows).T
    flat = node.builder.reshape(data, (dims[0] * dims[1], *dims[2:]))
    return node.call("take", flat, node.builder.constant(places, "int64"), axis=0)
