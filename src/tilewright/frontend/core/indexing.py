"""Gathering and scattering by tuples of indices, sequences reversed by lengths that are data: shared by importers."""

from __future__ import annotations

from tilewright.frontend.core.builder import Builder, dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.graph.ir.dimensions import Size, Sizes, different, product, same
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import INT64, DataType
from tilewright.support.errors import UnsupportedError, UserError

MOST_COMPARISONS = 1 << 32
"""The most work of a scatter with computed indices: each element of the result looks at each update."""


def wrapped(builder: Builder, indices: GraphExpr, size: Size) -> GraphExpr:
    """Negative indices counted from the end."""
    zero, length = builder.constant_like(0, indices), scalar(builder, size, dtype_of(indices))
    is_negative = builder.call("less", indices, zero)
    return builder.call("where", is_negative, builder.call("add", indices, length), indices)


def scalar(builder: Builder, size: Size, dtype: DataType = INT64) -> GraphExpr:
    """A size as a scalar tensor."""
    return builder.reshape(builder.cast(builder.shape_tensor([size]), dtype), ())


def along(builder: Builder, axis: int, rank: int, count: Size, step: Size) -> GraphExpr:
    """0, step, 2 * step ... along one axis of tensors of a rank."""
    shape: list[Size] = [1] * rank
    shape[axis] = count
    numbers = builder.reshape(builder.arange(count), shape)
    return numbers if same(step, 1) else builder.call("multiply", numbers, scalar(builder, step))


def _places(builder: Builder, indices: GraphExpr, indexed: Sizes) -> GraphExpr:
    """Tuples of indices (the last axis) as places in dimensions that are flattened."""
    shape = sizes_of(indices)
    place: GraphExpr | None = None
    for column in range(len(indexed)):
        part = builder.slice_axis(indices, len(shape) - 1, column, column + 1)
        part = wrapped(builder, builder.reshape(part, shape[:-1]), indexed[column])
        step = product(indexed[column + 1 :])
        part = part if same(step, 1) else builder.call("multiply", part, scalar(builder, step))
        place = part if place is None else builder.call("add", place, part)
    assert place is not None
    return place


def gather_nd(builder: Builder, data: GraphExpr, indices: GraphExpr, batch: int = 0) -> GraphExpr:
    """Slices chosen by tuples of indices: their positions are computed, then taken."""
    indices = builder.cast(indices, INT64)
    dims, wanted = sizes_of(data), sizes_of(indices)
    depth = size_at(indices, -1) if wanted else 0
    fits = 0 <= batch < len(wanted) and depth >= 1 and batch + depth <= len(dims)
    if not fits or any(map(different, dims[:batch], wanted[:batch])):
        raise UserError(
            f"indices of shape {sizes_text(wanted)} with {batch} batch dimensions "
            f"do not fit data of shape {sizes_text(dims)}"
        )
    indexed, rest = dims[batch : batch + depth], dims[batch + depth :]
    indices = checked_index(builder, indices, indexed, range(batch, batch + depth))
    place = _places(builder, indices, indexed)
    if batch:
        starts = along(builder, 0, 1, product(dims[:batch]), product(indexed))
        starts = builder.reshape(starts, (*dims[:batch], *(1,) * (len(wanted) - 1 - batch)))
        place = builder.call("add", place, starts)
    flat = builder.reshape(data, (product(dims[: batch + depth]), *rest))
    return builder.call("take", flat, place, axis=0, mode="inside")


def gather_batched(builder: Builder, data: GraphExpr, indices: GraphExpr, axis: int, batch: int) -> GraphExpr:
    """Slices along an axis by indices that are inside; the first dimensions may be those of a batch."""
    sizes, wanted, rank = sizes_of(data), sizes_of(indices), rank_of(data)
    if not batch:
        return builder.call("take", data, indices, axis=axis)
    if any(map(different, sizes[:batch], wanted[:batch])):
        raise UserError(f"indices of shape {sizes_text(wanted)} do not fit data of shape {sizes_text(sizes)}")
    # The batch becomes part of the axis that is taken along; what lies between goes behind it.
    between, after = sizes[batch:axis], sizes[axis + 1 :]
    order = (*range(batch), axis, *range(batch, axis), *range(axis + 1, rank))
    count = product(sizes[:batch])
    flat = builder.reshape(builder.transpose(data, order), (product((count, sizes[axis])), *between, *after))
    inner = wanted[batch:]
    starts = builder.reshape(along(builder, 0, 1, count, sizes[axis]), (count, *(1,) * len(inner)))
    places = builder.call("add", builder.reshape(builder.cast(indices, INT64), (count, *inner)), starts)
    taken = builder.call("take", flat, places, axis=0, mode="inside")
    taken = builder.reshape(taken, (*sizes[:batch], *inner, *between, *after))
    first, middle = batch + len(inner), len(between)
    back = (*range(batch), *range(first, first + middle), *range(batch, first), *range(first + middle, rank_of(taken)))
    return builder.transpose(taken, back)


def scatter_nd(
    builder: Builder, data: GraphExpr, indices: GraphExpr, updates: GraphExpr, reduction: str = "none"
) -> GraphExpr:
    """Slices written at tuples of indices that are data."""
    indices = builder.cast(indices, INT64)
    dims, wanted = sizes_of(data), sizes_of(indices)
    depth = size_at(indices, -1) if wanted else 0
    if depth < 1 or depth > len(dims) or _do_not_fit(sizes_of(updates), (*wanted[:-1], *dims[depth:])) or 0 in wanted:
        texts = [sizes_text(item) for item in (wanted, sizes_of(updates), dims)]
        raise UserError(f"indices {texts[0]} and updates {texts[1]} do not fit data of shape {texts[2]}")
    updates = builder.match(updates, (*wanted[:-1], *dims[depth:]))
    count, inner = product(wanted[:-1]), product(dims[depth:])
    indices = checked_index(builder, indices, dims[:depth], range(depth))
    place = _places(builder, builder.reshape(indices, (count, depth)), dims[:depth])
    rows = builder.reshape(data, (product(dims[:depth]), inner))
    limit_work(product((*sizes_of(rows), count)), sizes_text(dims))
    values = builder.reshape(updates, (count, inner))
    return builder.reshape(builder.call("scatter", rows, place, values, reduction=reduction, inside=True), dims)


def limit_work(comparisons: Size, shape: str) -> None:
    """Refuse scatters that would take too long."""
    if isinstance(comparisons, int) and comparisons > MOST_COMPARISONS:
        raise UnsupportedError(f"writing with computed indices on data of shape {shape}")


def _do_not_fit(found: Sizes, wanted: Sizes) -> bool:
    return len(found) != len(wanted) or any(map(different, found, wanted))


def reverse_sequences(
    builder: Builder, data: GraphExpr, lengths: GraphExpr, time_axis: int, batch_axis: int
) -> GraphExpr:
    """The first elements of each sequence in reverse: length - 1 - t as long as t is below the length."""
    call, rank = builder.call, rank_of(data)
    rest = [at for at in range(rank) if at not in (time_axis, batch_axis)]
    order = [batch_axis, time_axis, *rest]
    turned = builder.transpose(data, order)
    count, steps = sizes_of(turned)[:2]
    lengths = builder.cast(builder.match(lengths, (count,)), INT64)
    lengths = checked_index(builder, lengths, [steps], [time_axis], is_length=True)
    wide = builder.reshape(lengths, (count, 1))
    time = along(builder, 1, 2, steps, 1)
    last = call("subtract", wide, builder.constant(1, INT64))
    places = call("where", call("less", time, wide), call("subtract", last, time), time)
    places = call("add", places, along(builder, 0, 2, count, steps))
    flat = builder.reshape(turned, (product((count, steps)), *sizes_of(turned)[2:]))
    result = call("take", flat, places, axis=0, mode="inside")
    back = [0] * rank
    for at, old in enumerate(order):
        back[old] = at
    return builder.transpose(result, back)
