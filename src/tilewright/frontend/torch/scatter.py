"""Converters of operators that write at places: scatter, index_put and their kin, and writes at known places."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tilewright.frontend.core.arithmetic import Number, Operand
from tilewright.frontend.core.builder import LARGEST_MADE, dtype_of, rank_of, shape_of, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.indexing import Index, wrapped
from tilewright.frontend.torch.registry import converter
from tilewright.frontend.torch.sizes import from_front
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, INT64
from tilewright.support.errors import UnsupportedError

_MOST_COMPARISONS = 1 << 32
"""The most work of a scatter: each element of the result looks at each update."""
_REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}
_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": -math.inf, "amin": math.inf}


def write_rows(
    b: TorchBuilder, rows: GraphExpr, places: GraphExpr, updates: GraphExpr, reduction: str, *, inside: bool = False
) -> GraphExpr:
    """Rows of updates written at (or combined with) rows of the data; `inside` if the places were checked.

    Updates whose places are outside the data (-1, for those that are not wanted) are left out.
    """
    if any(0 in sizes_of(value) for value in (places, rows, updates)):
        return rows
    _limit_work(sizes_of(rows), sizes_of(places)[0])

    def write(data: GraphExpr, values: GraphExpr, how: str) -> GraphExpr:
        return b.call("scatter", data, places, values, reduction=how, inside=inside)

    return _as_numbers(b, rows, updates, reduction, write)


def _limit_work(shape: Sequence[Size], updates: Size) -> None:
    comparisons = dimensions.product((*shape, updates))
    if isinstance(comparisons, int) and comparisons > _MOST_COMPARISONS:
        raise UnsupportedError(f"writing {updates} updates into data of shape {shape}")


def _as_numbers(
    b: TorchBuilder,
    data: GraphExpr,
    updates: GraphExpr,
    reduction: str,
    write: Callable[[GraphExpr, GraphExpr, str], GraphExpr],
) -> GraphExpr:
    """Write updates; truth values as numbers, whose sum is whether any holds."""
    if not dtype_of(data).is_bool:
        return write(data, updates, reduction)
    how = "max" if reduction == "add" else reduction
    return b.cast(write(b.cast(data, "int8"), b.cast(updates, "int8"), how), BOOL)


def _write_elements(
    b: TorchBuilder, x: GraphExpr, dim: int, index: GraphExpr, src: Operand, reduction: str
) -> GraphExpr:
    """One element an index along an axis."""
    if 0 in sizes_of(index):
        return x
    data, index = b.at_least_1d(x), b.at_least_1d(index)
    axis = b.axis(dim, rank_of(data))
    places = wrapped(b, index, sizes_of(data)[axis], axis, negative=False)
    _limit_work(sizes_of(data), sizes_of(index)[axis])

    def write(numbers: GraphExpr, values: GraphExpr, how: str) -> GraphExpr:
        return b.call("scatter_elements", numbers, places, values, axis=axis, reduction=how, inside=True)

    return b.reshape(_as_numbers(b, data, _updates(b, src, sizes_of(index), data), reduction, write), sizes_of(x))


def _updates(b: TorchBuilder, src: Operand, shape: Sequence[Size], like: GraphExpr) -> GraphExpr:
    """The part of the source that an index uses."""
    if not isinstance(src, GraphExpr):
        return b.broadcast_to(b.scalar(src, dtype_of(like)), shape)
    value = b.at_least_1d(src)
    for axis, size in enumerate(shape):
        value = b.slice_axis(value, axis, 0, size)
    return value


@converter("scatter")
def scatter(
    b: TorchBuilder,
    x: GraphExpr,
    dim: int,
    index: GraphExpr,
    src: GraphExpr | None = None,
    value: Number | None = None,
    reduce: str | None = None,
) -> GraphExpr:
    """Elements written along an axis; the last of several stays."""
    source = src if src is not None else value
    assert source is not None
    return _write_elements(b, x, dim, index, source, "none" if reduce is None else _REDUCTIONS[reduce])


@converter("scatter_add")
def scatter_add(b: TorchBuilder, x: GraphExpr, dim: int, index: GraphExpr, src: GraphExpr) -> GraphExpr:
    """Elements added along an axis."""
    return _write_elements(b, x, dim, index, src, "add")


@converter("scatter_reduce")
def scatter_reduce(
    b: TorchBuilder,
    x: GraphExpr,
    dim: int,
    index: GraphExpr,
    src: GraphExpr,
    reduce: str,
    include_self: bool = True,
) -> GraphExpr:
    """Elements combined along an axis, with what is there or without."""

    def write(data: GraphExpr, values: Operand, reduction: str) -> GraphExpr:
        return _write_elements(b, data, dim, index, values, reduction)

    return _combined(b, x, src, reduce, include_self, write)


def _combined(
    b: TorchBuilder, x: GraphExpr, src: GraphExpr, reduce: str, include_self: bool, write: object
) -> GraphExpr:
    """A reduction whose start is the data where it counts, or where nothing is written."""
    assert callable(write)
    dtype = dtype_of(x)
    zeros = b.filled(0, sizes_of(x), INT64)
    count = write(zeros, 1, "add") if not include_self or reduce == "mean" else zeros
    start = x
    if not include_self:
        neutral = _NEUTRAL[reduce]
        if math.isinf(neutral) and not dtype.is_float:
            neutral = float(dtype.min_value() if neutral < 0 else dtype.max_value())
        start = b.call("where", b.compare("greater", count, 0), b.scalar(neutral, dtype), x)
    if reduce != "mean":
        return write(start, src, _REDUCTIONS[reduce])  # type: ignore[no-any-return]
    total = write(start, src, "add")
    number = b.add(count, 1) if include_self else b.call("maximum", count, b.scalar(1, INT64))
    return b.call("divide" if dtype.is_float else "floor_divide", total, b.cast(number, dtype))


# Slices along an axis by a list of indices


def _write_slices(
    b: TorchBuilder,
    x: GraphExpr,
    dim: int,
    index: GraphExpr,
    source: Operand,
    reduction: str,
    *,
    negative: bool = False,
) -> GraphExpr:
    data, places = b.at_least_1d(x), b.at_least_1d(index)
    axis = b.axis(dim, rank_of(data))
    if 0 in sizes_of(places):
        return x
    if reduction == "none" and isinstance(source, GraphExpr) and rank_of(source) == rank_of(data):
        inside = wrapped(b, places, sizes_of(data)[axis], axis, negative=negative)
        return b.reshape(_selected(b, data, axis, inside, b.cast(source, dtype_of(data))), sizes_of(x))
    order = [axis, *(at for at in range(rank_of(data)) if at != axis)]
    rows = b.transpose(data, order)
    wanted = (sizes_of(places)[0], *sizes_of(rows)[1:])
    if isinstance(source, GraphExpr) and rank_of(source) == rank_of(data):
        updates = b.transpose(source, order)
    elif isinstance(source, GraphExpr):
        updates = b.broadcast_to(source, wanted)
    else:
        updates = b.broadcast_to(b.scalar(source, dtype_of(data)), wanted)
    updates = b.cast(updates, dtype_of(data))
    inside = wrapped(b, places, sizes_of(rows)[0], axis, negative=negative)
    done = write_rows(b, rows, inside, updates, reduction, inside=True)
    return b.reshape(b.transpose(done, [order.index(at) for at in range(len(order))]), sizes_of(x))


def _selected(b: TorchBuilder, data: GraphExpr, axis: int, places: GraphExpr, source: GraphExpr) -> GraphExpr:
    """Slices at places along an axis, or the data's own: elementwise, so that state is written where it lies.

    Which slice comes to each place is a list as long as the axis; of one slice it is a comparison.
    """
    length, count = sizes_of(data)[axis], sizes_of(places)[0]
    if 0 in sizes_of(data):
        return data
    along: list[Size] = [1] * rank_of(data)
    along[axis] = length
    if count == 1:
        return b.where(b.reshape(b.compare("equal", b.arange(length), places), along), source, data)
    _limit_work((length,), count)
    nothing = b.filled(-1, (length,), INT64)
    last = b.call("scatter", nothing, places, b.arange(count), reduction="none", inside=True)
    moved = b.call("take", source, b.call("maximum", last, b.scalar(0, INT64)), axis=axis)
    return b.where(b.reshape(b.compare("greater_equal", last, 0), along), moved, data)


@converter("index_add")
def index_add(
    b: TorchBuilder, x: GraphExpr, dim: int, index: GraphExpr, source: GraphExpr, alpha: Number = 1
) -> GraphExpr:
    """Slices added at places along an axis."""
    scaled = source if alpha == 1 else b.multiply(source, b.scalar(alpha, dtype_of(source)))
    return _write_slices(b, x, dim, index, scaled, "add")


@converter("index_copy")
def index_copy(b: TorchBuilder, x: GraphExpr, dim: int, index: GraphExpr, source: GraphExpr) -> GraphExpr:
    """Slices written at places along an axis."""
    return _write_slices(b, x, dim, index, source, "none")


@converter("index_fill")
def index_fill(b: TorchBuilder, x: GraphExpr, dim: int, index: GraphExpr, value: Operand) -> GraphExpr:
    """A value written at places along an axis."""
    return _write_slices(b, x, dim, index, value, "none", negative=True)


@converter("index_reduce")
def index_reduce(
    b: TorchBuilder,
    x: GraphExpr,
    dim: int,
    index: GraphExpr,
    source: GraphExpr,
    reduce: str,
    include_self: bool = True,
) -> GraphExpr:
    """Slices combined at places along an axis."""

    def write(data: GraphExpr, values: Operand, reduction: str) -> GraphExpr:
        return _write_slices(b, data, dim, index, values, reduction)

    return _combined(b, x, source, reduce, include_self, write)


# x[i, :, j] = values


@converter("index_put", "_index_put_impl")
def index_put(
    b: TorchBuilder,
    x: GraphExpr,
    indices: Sequence[GraphExpr | None],
    values: GraphExpr,
    accumulate: bool = False,
    unsafe: bool = False,
) -> GraphExpr:
    """Values written where tensors of indices say, or a number where a mask says."""
    return _put(b, x, indices, values, accumulate, is_checked=not unsafe)


@converter("_unsafe_index_put")
def unsafe_index_put(
    b: TorchBuilder,
    x: GraphExpr,
    indices: Sequence[GraphExpr | None],
    values: GraphExpr,
    accumulate: bool = False,
) -> GraphExpr:
    """The same where torch knows that the indices are inside."""
    return _put(b, x, indices, values, accumulate, is_checked=False)


def _put(
    b: TorchBuilder,
    x: GraphExpr,
    indices: Sequence[GraphExpr | None],
    values: GraphExpr,
    accumulate: bool,
    *,
    is_checked: bool,
) -> GraphExpr:
    if len(indices) == 1 and indices[0] is not None and dtype_of(indices[0]).is_bool:
        mask = indices[0]
        if dimensions.product(sizes_of(values)) == 1:
            mask = b.reshape(mask, sizes_of(mask) + (1,) * (rank_of(x) - rank_of(mask)))
            value = b.reshape(b.cast(values, dtype_of(x)), ())
            return b.call("where", mask, b.add(x, value) if accumulate else value, x)
    if 0 in sizes_of(x):
        return x
    how = Index(b, x, indices, is_checked=is_checked)
    if 0 in how.chosen_shape:
        return x
    order = how.result_order()
    wanted = (*how.chosen_shape, *how.inner)
    spread = b.broadcast_to(values, [wanted[axis] for axis in order])
    updates = b.transpose(spread, [order.index(at) for at in range(len(order))])
    count = dimensions.product(how.chosen_shape)
    done = write_rows(
        b,
        how.as_rows(b, x),
        b.reshape(how.places, (count,)),
        b.reshape(b.cast(updates, dtype_of(x)), (count, *how.inner)),
        "add" if accumulate else "none",
        inside=is_checked,
    )
    return how.from_rows(b, done)


@converter("_unsafe_masked_index_put_accumulate")
def masked_index_put(
    b: TorchBuilder, x: GraphExpr, mask: GraphExpr, indices: Sequence[GraphExpr | None], values: GraphExpr
) -> GraphExpr:
    """Values added where tensors of indices say, as far as a mask holds."""
    if 0 in shape_of(x):
        return x
    kept = b.where(mask, values, b.scalar(0, dtype_of(values)))
    limited = [
        None if item is None else b.call("clip", item, minimum=float(-size), maximum=float(size - 1))
        for item, size in zip(indices, shape_of(x), strict=False)
    ]
    return unsafe_index_put(b, x, limited, kept, accumulate=True)


@converter("put")
def put(b: TorchBuilder, x: GraphExpr, index: GraphExpr, source: GraphExpr, accumulate: bool = False) -> GraphExpr:
    """Elements written by their flat positions."""
    places = wrapped(b, b.flatten(index), dimensions.product(sizes_of(x)), 0)
    done = write_rows(b, b.flatten(x), places, b.flatten(source), "add" if accumulate else "none", inside=True)
    return b.reshape(done, sizes_of(x))


@converter("masked_scatter")
def masked_scatter(b: TorchBuilder, x: GraphExpr, mask: GraphExpr, source: GraphExpr) -> GraphExpr:
    """Elements of the source in order where a mask holds."""
    if 0 in b.shape or 0 in shape_of(source):
        return b.broadcast_to(x, b.shape)
    chosen = b.flatten(b.broadcast_to(mask, b.shape))
    place = b.subtract(b.call("cumsum", b.cast(chosen, INT64), axis=0), 1)
    place = b.call("clip", place, minimum=0.0, maximum=float(math.prod(shape_of(source)) - 1))
    fresh = b.call("take", b.flatten(source), place, axis=0)
    return b.reshape(b.call("where", chosen, fresh, b.flatten(b.broadcast_to(x, b.shape))), b.shape)


# Writes at places that are known: a table says where each element comes from


def write_known(
    b: TorchBuilder, x: GraphExpr, places: np.ndarray[tuple[int, ...], np.dtype[np.int64]], src: GraphExpr
) -> GraphExpr:
    """Elements of the source written at constant flat places."""
    total = math.prod(shape_of(x))
    if total > LARGEST_MADE:
        raise UnsupportedError(f"writing into data of shape {shape_of(x)}")
    if not places.size:
        return x
    source = np.full(total, -1, np.int64)
    source[places.ravel()] = np.arange(places.size)
    written = b.constant((source >= 0).reshape(shape_of(x)), BOOL)
    table = b.constant(np.maximum(source, 0).reshape(shape_of(x)), INT64)
    return b.call("where", written, b.call("take", b.flatten(b.cast(src, dtype_of(x))), table, axis=0), x)


def _flat_places(x: GraphExpr) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.arange(math.prod(shape_of(x)), dtype=np.int64).reshape(shape_of(x))


@converter("slice_scatter")
def slice_scatter(
    b: TorchBuilder,
    x: GraphExpr,
    src: GraphExpr,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: int = 1,
) -> GraphExpr:
    """A range along an axis replaced; the source says how long it is."""
    axis = b.axis(dim, rank_of(x))
    size, count = sizes_of(x)[axis], sizes_of(src)[axis]
    if 0 in sizes_of(x) or count == 0:
        return x
    fresh = b.cast(src, dtype_of(x))
    if dimensions.same(size, count):
        return fresh
    begin = from_front(0 if start is None else start, size)
    if step == 1:
        return _spliced(b, x, axis, begin, fresh)
    # Where each element comes from: every step-th one from the source, as many as it has.
    ahead = b.subtract(b.arange(size), b.size(begin))
    place = b.call("floor_divide", ahead, b.scalar(step, INT64))
    is_fresh = b.compare("equal", b.multiply(place, step), ahead)
    for relation, bound in (("greater_equal", 0), ("less", b.size(count))):
        is_fresh = b.call("logical_and", is_fresh, b.compare(relation, place, bound))
    chosen = b.call("take", fresh, b.where(is_fresh, place, 0), axis=axis)
    line = [size if at == axis else 1 for at in range(rank_of(x))]
    return b.call("where", b.reshape(is_fresh, line), chosen, x)


@converter("select_scatter")
def select_scatter(b: TorchBuilder, x: GraphExpr, src: GraphExpr, dim: int, index: Size) -> GraphExpr:
    """One slice along an axis replaced."""
    axis = b.axis(dim, rank_of(x))
    if 0 in sizes_of(x):
        return x
    middle = b.expand_dims(b.cast(src, dtype_of(x)), (axis,))
    return _spliced(b, x, axis, from_front(index, sizes_of(x)[axis]), middle)


def _spliced(b: TorchBuilder, x: GraphExpr, axis: int, begin: Size, middle: GraphExpr) -> GraphExpr:
    """What lies before a place along an axis, a middle that is put there, and what lies behind it."""
    size, stop = sizes_of(x)[axis], dimensions.add(begin, sizes_of(middle)[axis])
    before = [] if begin == 0 else [b.slice_axis(x, axis, 0, begin)]
    behind = [] if dimensions.same(stop, size) else [b.slice_axis(x, axis, stop, size)]
    return b.concatenate([*before, middle, *behind], axis)


@converter("diagonal_scatter")
def diagonal_scatter(
    b: TorchBuilder, x: GraphExpr, src: GraphExpr, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> GraphExpr:
    """A diagonal replaced."""
    places = np.diagonal(_flat_places(x), offset, b.axis(dim1, rank_of(x)), b.axis(dim2, rank_of(x)))
    return write_known(b, x, places, src)
