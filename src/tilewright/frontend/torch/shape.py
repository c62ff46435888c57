"""Converters of operators that move elements without computing: views, joins, splits, padding, diagonals."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.arithmetic import Number
from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import converter
from tilewright.frontend.torch.sizes import from_front
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, INT64


@converter(
    "view",
    "reshape",
    "_unsafe_view",
    "view_copy",
    "flatten",
    "_reshape_copy",
    "unflatten",
    "squeeze",
    "unsqueeze",
    "_reshape_alias",
    "reshape_as",
    "view_as",
    "squeeze_copy",
    "unsqueeze_copy",
    "ravel",
    "prims::view_of",
)
def reshape(b: TorchBuilder, x: GraphExpr, **_: object) -> GraphExpr:
    """Any change of shape that keeps the order: torch says what the result's shape is."""
    return b.reshape(x, b.shape)


@converter("expand", "expand_copy", "expand_as", "broadcast_to")
def expand(b: TorchBuilder, x: GraphExpr, **_: object) -> GraphExpr:
    """Repeated along dimensions of 1 and new ones: torch says what the result's shape is."""
    return b.broadcast_to(x, b.shape)


@converter("permute", "permute_copy")
def permute(b: TorchBuilder, x: GraphExpr, dims: Sequence[int]) -> GraphExpr:
    """Dimensions in another order."""
    return b.transpose(x, [b.axis(axis, rank_of(x)) for axis in dims])


@converter("transpose", "transpose_copy")
def transpose(b: TorchBuilder, x: GraphExpr, dim0: int, dim1: int) -> GraphExpr:
    """Two dimensions exchanged."""
    if not rank_of(x):
        return x
    order = list(range(rank_of(x)))
    first, second = b.axis(dim0, rank_of(x)), b.axis(dim1, rank_of(x))
    order[first], order[second] = second, first
    return b.transpose(x, order)


@converter("t", "t_copy", "numpy_T", "mT", "mH", "matrix_H", "adjoint")
def turn(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The last two dimensions exchanged."""
    order = list(range(rank_of(x)))
    if len(order) >= 2:
        order[-2], order[-1] = order[-1], order[-2]
    return b.transpose(x, order)


@converter("slice", "slice_copy")
def slice_axis(
    b: TorchBuilder, x: GraphExpr, dim: int = 0, start: Size | None = None, end: Size | None = None, step: int = 1
) -> GraphExpr:
    """A range along an axis; negative bounds count from the end, and torch says how long the result is."""
    axis = b.axis(dim, rank_of(x))
    size, count = sizes_of(x)[axis], b.shape[axis]
    begin = from_front(0 if start is None else start, size)
    if count == 0:
        return b.slice(x, axis, 0, 0)
    return b.slice(
        x,
        axis,
        begin,
        dimensions.add(begin, dimensions.add(dimensions.multiply(dimensions.subtract(count, 1), step), 1)),
        step,
    )


@converter("select", "select_copy")
def select(b: TorchBuilder, x: GraphExpr, dim: int, index: Size) -> GraphExpr:
    """One slice along an axis."""
    axis = b.axis(dim, rank_of(x))
    return b.select(x, axis, from_front(index, sizes_of(x)[axis]))


@converter("narrow", "narrow_copy")
def narrow(b: TorchBuilder, x: GraphExpr, dim: int, start: Size, length: Size) -> GraphExpr:
    """A number of elements along an axis from a place on."""
    axis = b.axis(dim, rank_of(x))
    begin = from_front(start, sizes_of(x)[axis])
    return b.slice_axis(x, axis, begin, dimensions.add(begin, length))


@converter(
    "split",
    "split_copy",
    "chunk",
    "split_with_sizes",
    "split_with_sizes_copy",
    "unsafe_split",
    "unsafe_chunk",
    "unsafe_split_with_sizes",
    "tensor_split",
)
def split(b: TorchBuilder, x: GraphExpr, dim: int = 0, **_: object) -> list[GraphExpr]:
    """Parts along an axis: torch says how long each is."""
    axis = b.axis(dim, rank_of(x))
    parts: list[GraphExpr] = []
    begin: Size = 0
    for item in b.meta:
        end = dimensions.add(begin, b.sizes.size(item.shape[axis]))
        parts.append(b.slice_axis(x, axis, begin, end))
        begin = end
    return parts


@converter("unbind", "unbind_copy")
def unbind(b: TorchBuilder, x: GraphExpr, dim: int = 0) -> list[GraphExpr]:
    """All slices along an axis."""
    axis = b.axis(dim, rank_of(x))
    return [b.select(x, axis, index) for index in range(size_at(x, axis))]


@converter("cat", "concat", "concatenate")
def concatenate(b: TorchBuilder, tensors: Sequence[GraphExpr], dim: int = 0) -> GraphExpr:
    """One after the other along an axis; empty lists are left out."""
    kept = [b.cast(item, b.dtype) for item in tensors if sizes_of(item) != (0,)]
    if not kept:
        return b.empty(b.shape, b.dtype)
    return b.concatenate(kept, b.axis(dim, rank_of(kept[0])))


@converter("stack")
def stack(b: TorchBuilder, tensors: Sequence[GraphExpr], dim: int = 0) -> GraphExpr:
    """Next to each other along a new axis."""
    values = [b.cast(item, b.dtype) for item in tensors]
    return b.stack(values, b.axis(dim, rank_of(values[0]) + 1))


@converter("repeat", "tile")
def repeat(b: TorchBuilder, x: GraphExpr, repeats: Sequence[int] = (), dims: Sequence[int] = ()) -> GraphExpr:
    """Copies along each dimension, and along new ones in front."""
    times = list(repeats or dims)
    rank = max(rank_of(x), len(times))
    times = [1] * (rank - len(times)) + times
    value = b.reshape(x, (1,) * (rank - rank_of(x)) + sizes_of(x))
    if 0 in b.shape:
        return b.empty(b.shape, b.dtype)
    return value if all(count == 1 for count in times) else b.call("tile", value, repeats=tuple(times))


@converter("flip")
def flip(b: TorchBuilder, x: GraphExpr, dims: Sequence[int]) -> GraphExpr:
    """Reversed along axes."""
    return b.flip(x, [b.axis(axis, rank_of(x)) for axis in dims] if rank_of(x) else [])


@converter("roll")
def roll(b: TorchBuilder, x: GraphExpr, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> GraphExpr:
    """Moved around along axes; without axes, in the order of all elements."""
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [dims] if isinstance(dims, int) else list(dims)
    if not axes:
        flat = _roll(b, b.flatten(x), 0, moves[0])
        return b.reshape(flat, sizes_of(x))
    value = x
    for shift, axis in zip(moves, axes, strict=True):
        if rank_of(x):
            value = _roll(b, value, b.axis(axis, rank_of(x)), shift)
    return value


def _roll(b: TorchBuilder, x: GraphExpr, axis: int, shift: int) -> GraphExpr:
    size = size_at(x, axis)
    cut = size - shift % size if size else 0
    if cut in (0, size):
        return x
    return b.concatenate([b.slice_axis(x, axis, cut, size), b.slice_axis(x, axis, 0, cut)], axis)


# Padding


@converter("constant_pad_nd")
def constant_pad(b: TorchBuilder, x: GraphExpr, pad: Sequence[Size], value: Number = 0) -> GraphExpr:
    """A constant around the last axes; negative padding cuts off."""
    rank = rank_of(x)
    before, after = [0] * rank, [0] * rank
    for index in range(len(pad) // 2):
        axis = rank - 1 - index
        low, high = pad[2 * index], pad[2 * index + 1]
        if not isinstance(low, int) or not isinstance(high, int):
            x = _padded_by_sizes(b, x, axis, low, high, value)
            continue
        if low < 0 or high < 0:
            start, end = max(0, -low), dimensions.subtract(sizes_of(x)[axis], max(0, -high))
            x = b.slice_axis(x, axis, start, dimensions.maximum(start, end))
        before[axis], after[axis] = max(0, low), max(0, high)
    if not any((*before, *after)):
        return x
    if 0 in sizes_of(x):
        return b.broadcast_to(b.scalar(value, dtype_of(x)), b.shape)
    if dtype_of(x).is_bool:
        return b.cast(
            b.call("pad", b.cast(x, "int8"), before=tuple(before), after=tuple(after), value=float(bool(value))), BOOL
        )
    return b.call("pad", x, before=tuple(before), after=tuple(after), value=float(value))


def _padded_by_sizes(b: TorchBuilder, x: GraphExpr, axis: int, low: Size, high: Size, value: Number) -> GraphExpr:
    """A constant before and after an axis, or less of the axis, as a run decides."""
    size = sizes_of(x)[axis]
    count = dimensions.add(dimensions.add(size, low), high)
    place = b.arange(count, dimensions.subtract(0, low))
    last = b.subtract(b.size(size), 1)
    inside = b.call("clip", b.call("minimum", place, b.operand(last, INT64)), minimum=0.0)
    line = [count if at == axis else 1 for at in range(rank_of(x))]
    kept = b.reshape(b.compare("equal", place, inside), line)
    return b.where(kept, b.call("take", x, inside, axis=axis), b.scalar(value, dtype_of(x)))


@converter("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(b: TorchBuilder, x: GraphExpr, padding: Sequence[Size]) -> GraphExpr:
    """The data mirrored at its edges."""
    return _pad_by_table(b, x, padding, "reflect")


@converter("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(b: TorchBuilder, x: GraphExpr, padding: Sequence[Size]) -> GraphExpr:
    """The edge repeated."""
    return _pad_by_table(b, x, padding, "edge")


def _pad_by_table(b: TorchBuilder, x: GraphExpr, padding: Sequence[Size], mode: str) -> GraphExpr:
    for index in range(len(padding) // 2):
        axis = rank_of(x) - 1 - index
        low, high = padding[2 * index], padding[2 * index + 1]
        if low == 0 and high == 0:
            continue
        size = sizes_of(x)[axis]
        last = b.reshape(b.shape_tensor((dimensions.subtract(size, 1),)), ())
        place = b.arange(dimensions.add(dimensions.add(size, low), high), dimensions.subtract(0, low))
        if mode == "edge":
            place = b.call("minimum", b.call("maximum", place, b.scalar(0, INT64)), last)
        else:
            place = b.call("abs", place)
            place = b.call("minimum", place, b.subtract(b.multiply(last, 2), place))
        x = b.call("take", x, place, axis=axis)
    return x


# Diagonals and triangles


@converter("diagonal", "diagonal_copy")
def diagonal(b: TorchBuilder, x: GraphExpr, offset: int = 0, dim1: int = 0, dim2: int = 1) -> GraphExpr:
    """The diagonal of two dimensions, as the last one."""
    rank = rank_of(x)
    first, second = b.axis(dim1, rank), b.axis(dim2, rank)
    rest = [axis for axis in range(rank) if axis not in (first, second)]
    value = b.transpose(x, [*rest, first, second])
    outer, (rows, columns) = sizes_of(value)[:-2], (size_at(value, axis) for axis in (-2, -1))
    row, column = max(0, -offset), max(0, offset)
    count = max(0, min(rows - row, columns - column))
    if 0 in (*outer, count):
        return b.empty((*outer, count), dtype_of(x))
    flat = b.reshape(value, (*outer, rows * columns))
    first_place = row * columns + column
    last = first_place + (count - 1) * (columns + 1) + 1
    return b.slice(flat, len(outer), first_place, last, columns + 1)


@converter("tril")
def lower_triangle(b: TorchBuilder, x: GraphExpr, diagonal: int = 0) -> GraphExpr:
    """Zeros above a diagonal."""
    return _triangle(b, x, diagonal, lower=True)


@converter("triu")
def upper_triangle(b: TorchBuilder, x: GraphExpr, diagonal: int = 0) -> GraphExpr:
    """Zeros below a diagonal."""
    return _triangle(b, x, diagonal, lower=False)


def _triangle(b: TorchBuilder, x: GraphExpr, diagonal: int, lower: bool) -> GraphExpr:
    rows, columns = sizes_of(x)[-2:]
    gap = b.subtract(b.arange(columns), b.expand_dims(b.arange(rows), (1,)))
    kept = b.compare("less_equal" if lower else "greater_equal", gap, diagonal)
    return b.call("where", kept, x, b.scalar(0, dtype_of(x)))


@converter("unfold", "unfold_copy")
def unfold(b: TorchBuilder, x: GraphExpr, dimension: int, size: int, step: int) -> GraphExpr:
    """All windows along an axis, as a last dimension."""
    if not rank_of(x):
        return b.reshape(x, b.shape) if 0 not in b.shape else b.empty(b.shape, dtype_of(x))
    axis = b.axis(dimension, rank_of(x))
    if 0 in b.shape or 0 in sizes_of(x):
        return b.empty(b.shape, dtype_of(x))
    starts = b.arange(b.shape[axis], 0, step)
    places = b.add(b.expand_dims(starts, (1,)), b.constant(b.count(size)[None, :], INT64))
    taken = b.call("take", x, places, axis=axis)
    order = [at for at in range(rank_of(taken)) if at != axis + 1] + [axis + 1]
    return b.transpose(taken, order)
