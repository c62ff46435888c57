"""Converters of operators whose indices are data."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.core import indexing
from tilewright.frontend.core.builder import LARGEST_MADE, dtype_of, evaluate, rank_of, shape_of, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.core.indexing import along, limit_work, scalar, wrapped
from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.dimensions import Size, Sizes, add, at_least, constants, different, maximum, product, same
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.graph.ops.common import size_text, sizes_text
from tilewright.ir.dtype import BOOL, INT64
from tilewright.support.errors import UnsupportedError, UserError

_MOST_ROUNDS = 64
"""The most updates that a scatter combines in one place."""
_REDUCTIONS = {"none": None, "add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


@converter("Gather")
def gather(node: NodeContext) -> GraphExpr:
    """Slices along an axis; a single index is a slice and a reshape."""
    data, indices = node.input(0), node.input(1)
    axis = node.axis(node.integer("axis", 0), rank_of(data))
    size = sizes_of(data)[axis]
    # Elements at constant places are slices, which nothing may come between; they are clamped to what there is.
    if isinstance(size, int) or symbolic_value(indices) is None:
        indices = checked_index(node.builder, indices, [size], [axis])
    return node.call("take", data, indices, axis=axis)


@converter("GatherElements")
def gather_elements(node: NodeContext) -> GraphExpr:
    """One element an index: positions in the flattened data are computed, then taken."""
    data, indices = node.input(0), node.builder.cast(node.input(1), "int64")
    dims, wanted = sizes_of(data), sizes_of(indices)
    axis = node.axis(node.integer("axis", 0), len(dims))
    if len(wanted) != len(dims):
        raise UserError(f"indices of shape {sizes_text(wanted)} do not fit data of shape {sizes_text(dims)}")
    steps = [product(dims[place + 1 :]) for place in range(len(dims))]
    indices = _within(node, checked_index(node.builder, indices, [dims[axis]], [axis]), dims, axis)
    place = wrapped(node.builder, indices, dims[axis])
    place = node.call("multiply", place, scalar(node.builder, steps[axis]))
    for other, size in enumerate(wanted):
        if other != axis and not same(size, 1):
            place = node.call("add", place, along(node.builder, other, len(dims), size, steps[other]))
    flat = node.builder.reshape(data, (product(dims),))
    return node.call("take", flat, place, axis=0, mode="inside")


def _within(node: NodeContext, indices: GraphExpr, dims: Sizes, axis: int) -> GraphExpr:
    """Indices that are no longer than the data on the other axes, on which each stands at its own place."""
    wanted = sizes_of(indices)
    others = [(size, limit) for at, (size, limit) in enumerate(zip(wanted, dims, strict=True)) if at != axis]
    if any(at_least(size, add(limit, 1)) for size, limit in others):
        raise UserError(f"indices of shape {sizes_text(wanted)} reach beyond data of shape {sizes_text(dims)}")
    open_sizes = [(maximum(size, limit), limit) for size, limit in others if not at_least(limit, size)]
    return node.builder.under(indices, open_sizes) if open_sizes else indices


@converter("GatherND")
def gather_nd(node: NodeContext) -> GraphExpr:
    """Slices chosen by tuples of indices."""
    return indexing.gather_nd(node.builder, node.input(0), node.input(1), node.integer("batch_dims", 0))


def _scatter(node: NodeContext, data: GraphExpr, places: Array, updates: GraphExpr) -> GraphExpr:
    """Write elements of updates at constant flat places: a table says for each element where it comes from.

    A reduction combines the update with what is there; places that occur several times take a round each.
    """
    reduction = _reduction(node)
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
    reduction = _reduction(node)
    limit_work(product((*sizes_of(rows), *sizes_of(places))), sizes_text(sizes_of(node.input(0))))
    return node.builder.reshape(
        node.call("scatter", rows, places, updates, reduction=reduction, inside=True), sizes_of(node.input(0))
    )


def _reduction(node: NodeContext) -> str:
    reduction = node.text("reduction", "none")
    if reduction not in _REDUCTIONS:
        raise UserError(f"unknown reduction {reduction!r}", hint=f"one of {', '.join(_REDUCTIONS)}")
    return reduction


def _do_not_fit(found: Sizes, wanted: Sizes) -> bool:
    return len(found) != len(wanted) or any(map(different, found, wanted))


def _misfit(indices: GraphExpr, updates: GraphExpr, dims: Sizes) -> UserError:
    texts = [sizes_text(item) for item in (sizes_of(indices), sizes_of(updates), dims)]
    return UserError(f"indices {texts[0]} and updates {texts[1]} do not fit data of shape {texts[2]}")


def _scatter_computed_elements(node: NodeContext, axis: int) -> GraphExpr:
    """One element an index that is data."""
    builder = node.builder
    data, indices, updates = node.input(0), builder.cast(node.input(1), "int64"), node.input(2)
    dims, wanted = sizes_of(data), sizes_of(indices)
    if len(wanted) != len(dims) or _do_not_fit(sizes_of(updates), wanted) or 0 in wanted:
        raise _misfit(indices, updates, dims)
    updates = builder.match(updates, wanted)
    indices = _within(node, checked_index(builder, indices, [dims[axis]], [axis]), dims, axis)
    reduction = _reduction(node)
    limit_work(product((*dims, wanted[axis])), sizes_text(dims))
    return node.call("scatter_elements", data, indices, updates, axis=axis, reduction=reduction, inside=True)


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
    axis = node.axis(node.integer("axis", 0), rank_of(data))
    known = evaluate(node.input(1))
    if known is None or constants((*sizes_of(data), *sizes_of(updates))) is None:
        return _scatter_computed_elements(node, axis)
    dims = shape_of(data)
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
    known = evaluate(node.input(1))
    if known is None or constants((*sizes_of(data), *sizes_of(updates))) is None:
        return indexing.scatter_nd(node.builder, data, node.input(1), updates, _reduction(node))
    dims = shape_of(data)
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
    depth, numbers = _one_hot_depth(node)
    if at_least(0, depth) or _do_not_fit(sizes_of(values), (2,)):
        raise UserError(f"OneHot of depth {size_text(depth)} with values of shape {sizes_text(sizes_of(values))}")
    axis = node.axis(node.integer("axis", -1), rank_of(indices) + 1)
    whole = node.builder.cast(indices, "int64")
    place = node.builder.expand_dims(wrapped(node.builder, whole, depth), (axis,))
    counter: list[Size] = [1] * rank_of(place)
    counter[axis] = depth
    order = node.builder.reshape(numbers, counter)
    off = node.builder.reshape(node.builder.slice_axis(values, 0, 0, 1), ())
    on = node.builder.reshape(node.builder.slice_axis(values, 0, 1, 2), ())
    return node.call("where", node.call("equal", place, order), on, off)


def _one_hot_depth(node: NodeContext) -> tuple[Size, GraphExpr]:
    """The depth, and the numbers below it; a depth that is data is the length of a range."""
    known, symbolic = evaluate(node.input(1)), symbolic_value(node.input(1))
    if known is not None and known.size == 1:
        return int(known.ravel()[0]), node.builder.arange(int(known.ravel()[0]))
    if symbolic is not None and symbolic.size == 1:
        return symbolic.reshape(-1)[0], node.builder.arange(symbolic.reshape(-1)[0])
    depth = node.builder.reshape(node.builder.cast(node.input(1), "int64"), ())
    zero, one = node.builder.constant(0, "int64"), node.builder.constant(1, "int64")
    numbers = node.call("shape.range", zero, depth, one, dims=(node.symbol("depth"),))
    return sizes_of(numbers)[0], numbers


@converter("Compress")
def compress(node: NodeContext) -> GraphExpr:
    """Slices where a condition holds."""
    data = node.input(0)
    known = evaluate(node.input(1))
    if known is None:
        place = node.axis(node.integer("axis"), rank_of(data)) if node.has_attribute("axis") else -1
        return node.call("host.compress", data, node.input(1), dims=(node.symbol("count"),), axis=place)
    chosen = np.flatnonzero(known.ravel())
    if node.has_attribute("axis"):
        axis = node.axis(node.integer("axis"), rank_of(data))
    else:
        data, axis = node.builder.reshape(data, (product(sizes_of(data)),)), 0
    if chosen.size and at_least(int(chosen[-1]), sizes_of(data)[axis]):
        raise UserError("the condition of Compress is longer than the data")
    return node.call("take", data, node.builder.constant(chosen, "int64"), axis=axis)


@converter("NonZero")
def non_zero(node: NodeContext) -> GraphExpr:
    """Places of elements that are not 0."""
    data = node.input(0)
    known = evaluate(data)
    if known is None:
        return node.call("host.nonzero", data, dims=(node.symbol("count"),), dtype=dtype_of(data))
    return node.builder.constant(np.stack(np.nonzero(np.atleast_1d(known))), "int64")


@converter("ReverseSequence")
def reverse_sequence(node: NodeContext) -> GraphExpr:
    """The first elements of each sequence in reverse."""
    data, builder = node.input(0), node.builder
    dims, found = sizes_of(data), sizes_of(node.input(1))
    time_axis, batch_axis = node.integer("time_axis", 0), node.integer("batch_axis", 1)
    fits = sorted((time_axis, batch_axis)) == [0, 1] and len(dims) >= 2
    if not fits or len(found) != 1 or different(found[0], dims[batch_axis]):
        raise UserError(
            f"ReverseSequence over {sizes_text(found)} lengths does not fit data of shape {sizes_text(dims)}"
        )
    steps = dims[time_axis]
    known = evaluate(node.input(1))
    if known is not None and isinstance(steps, int) and ((known < 0) | (known > steps)).any():
        raise UserError(f"lengths {known[:8].tolist()} do not fit sequences of {steps}")
    return indexing.reverse_sequences(builder, data, node.input(1), time_axis, batch_axis)
