"""Operations that move elements: shapes, axes, joining, splitting, repeating, padding, diagonals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.core.builder import LARGEST_MADE, dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.ops_elementwise import tensor
from tilewright.frontend.keras.registry import operation
from tilewright.frontend.keras.reshaping import enlarged, reshaped
from tilewright.frontend.keras.values import KerasBuilder, Value
from tilewright.graph.ir.dimensions import Size, multiply, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT32, INT64
from tilewright.support.errors import UnsupportedError, UserError


def whole(value: Any, what: str) -> int:
    """A whole number."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(()).item()
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST_MADE:
        raise UserError(f"{what} must be a whole number, it is {str(value)[:40]!r}")
    return value


def wholes(value: Any, what: str) -> list[int]:
    """A list of whole numbers."""
    if isinstance(value, np.ndarray):
        value = value.reshape(-1).tolist()
    return [whole(item, what) for item in value] if isinstance(value, (list, tuple)) else [whole(value, what)]


@operation("Reshape")
def reshape(call: LayerCall) -> GraphExpr:
    """Another shape; a size of -1, and one that Keras left open, is what is left."""
    value = tensor(call)
    described = call.layer.option("newshape", call.layer.option("shape", call.argument("newshape", 1)))
    listed = list(described) if isinstance(described, (list, tuple)) else [described]
    shape: list[Size] = [-1 if item is None else whole(item, "a size") for item in listed]
    if shape.count(-1) > 1 and len(shape) >= 1 and rank_of(value):
        shape[shape.index(-1)] = sizes_of(value)[0]  # the batch
    return reshaped(call.builder, value, shape)


@operation("Ravel")
def ravel(call: LayerCall) -> GraphExpr:
    """All elements in a row."""
    return call.builder.flatten(tensor(call))


@operation("Transpose")
def transpose(call: LayerCall) -> GraphExpr:
    """Dimensions in another order, or in reverse."""
    value = tensor(call)
    rank, axes = rank_of(value), call.layer.option("axes")
    order = list(reversed(range(rank))) if axes is None else [call.axis(item, rank) for item in wholes(axes, "axes")]
    if sorted(order) != list(range(rank)):
        raise UserError(f"axes {order} are no order of {rank} dimensions")
    return call.builder.transpose(value, order)


@operation("Swapaxes")
def swapaxes(call: LayerCall) -> GraphExpr:
    """Two dimensions exchanged."""
    value = tensor(call)
    rank = rank_of(value)
    order = list(range(rank))
    a, b = (call.axis(call.layer.option(name), rank) for name in ("axis1", "axis2"))
    order[a], order[b] = order[b], order[a]
    return call.builder.transpose(value, order)


@operation("Moveaxis")
def moveaxis(call: LayerCall) -> GraphExpr:
    """Dimensions moved to other places."""
    value = tensor(call)
    rank = rank_of(value)
    source, target = (
        [call.axis(item, rank) for item in wholes(call.layer.option(name), name)] for name in ("source", "destination")
    )
    order = [axis for axis in range(rank) if axis not in source]
    for place, axis in sorted(zip(target, source, strict=True)):
        order.insert(place, axis)
    return call.builder.transpose(value, order)


@operation("ExpandDims")
def expand_dims(call: LayerCall) -> GraphExpr:
    """New dimensions of 1."""
    value = tensor(call)
    axes = wholes(call.layer.option("axis"), "axis")
    rank = rank_of(value) + len(axes)
    return call.builder.expand_dims(value, sorted(call.axis(axis, rank) for axis in axes))


@operation("Squeeze")
def squeeze(call: LayerCall) -> GraphExpr:
    """Dimensions of 1 taken away."""
    value = tensor(call)
    described, sizes = call.layer.option("axis"), sizes_of(value)
    if described is None:
        axes = [at for at, size in enumerate(sizes) if isinstance(size, int) and size == 1]
    else:
        axes = [call.axis(item, len(sizes)) for item in wholes(described, "axis")]
    return call.builder.reshape(value, [size for at, size in enumerate(sizes) if at not in axes])


@operation("BroadcastTo")
def broadcast_to(call: LayerCall) -> GraphExpr:
    """Repeated to fill a shape."""
    value, shape = tensor(call), wholes(call.layer.option("shape", call.argument("shape", 1)), "shape")
    return call.builder.broadcast_to(value, shape)


# Joining and splitting


def _several(call: LayerCall) -> list[GraphExpr]:
    given = call.argument("xs", 0, call.argument("arrays", 0))
    listed = given if isinstance(given, (list, tuple)) else [given]
    if not listed:
        raise UserError(f"{call.layer.kind} needs at least one tensor")
    values = [call.as_tensor(item) for item in listed]
    return call.builder.operands(*values)


@operation("Concatenate")
def concatenate(call: LayerCall) -> GraphExpr:
    """One after the other along an axis."""
    values = _several(call)
    described = call.layer.option("axis", -1)
    if described is None:
        values, described = [call.builder.flatten(value) for value in values], 0
    return call.builder.concatenate(values, call.axis(described, rank_of(values[0])))


@operation("Append")
def append(call: LayerCall) -> GraphExpr:
    """Two tensors along an axis, or in a row."""
    b, described = call.builder, call.layer.option("axis")
    values = b.operands(tensor(call, 0, "x1"), tensor(call, 1, "x2"))
    if described is None:
        return b.concatenate([b.flatten(value) for value in values], 0)
    return b.concatenate(values, call.axis(described, rank_of(values[0])))


@operation("Stack")
def stack(call: LayerCall) -> GraphExpr:
    """Next to each other along a new axis."""
    values = _several(call)
    axis = call.axis(call.layer.option("axis", 0), rank_of(values[0]) + 1)
    return call.builder.stack(values, axis)


@operation("Hstack", "Vstack", "Dstack")
def stacked(call: LayerCall) -> GraphExpr:
    """Next to each other, below each other or behind each other."""
    b, values = call.builder, _several(call)
    least = {"Hstack": 1, "Vstack": 2, "Dstack": 3}[call.layer.kind]
    values = [_at_least(b, value, least) for value in values]
    axis = {"Hstack": 0 if rank_of(values[0]) == 1 else 1, "Vstack": 0, "Dstack": 2}[call.layer.kind]
    return b.concatenate(values, axis)


def _at_least(b: KerasBuilder, value: GraphExpr, rank: int) -> GraphExpr:
    sizes = list(sizes_of(value))
    if len(sizes) >= rank:
        return value
    shapes: dict[int, list[list[Size]]] = {
        1: [[1]],
        2: [[1, 1], [1, *sizes]],
        3: [[1, 1, 1], [1, *sizes, 1], [*sizes, 1]],
    }
    return b.reshape(value, shapes[rank][len(sizes)])


def _parts(call: LayerCall, value: GraphExpr, axis: int, described: Any, uneven: bool) -> list[GraphExpr]:
    size = size_at(value, axis)
    if isinstance(described, (list, tuple, np.ndarray)):
        ends = [min(item if item >= 0 else item + size, size) for item in wholes(described, "a place to split at")]
        bounds = [0, *ends, size]
    else:
        count = whole(described, "the number of parts")
        if count < 1 or (size % count and not uneven):
            raise UserError(f"{size} elements cannot be split into {count} equal parts")
        base, more = divmod(size, count)
        bounds = [0]
        for part in range(count):
            bounds.append(bounds[-1] + base + (part < more))
    return [call.builder.slice_axis(value, axis, begin, max(begin, end)) for begin, end in itertools.pairwise(bounds)]


@operation("Split", "ArraySplit", "Hsplit", "Vsplit", "Dsplit")
def split(call: LayerCall) -> list[GraphExpr]:
    """Parts along an axis."""
    value, kind = tensor(call), call.layer.kind
    rank = rank_of(value)
    fixed = {"Hsplit": 0 if rank == 1 else 1, "Vsplit": 0, "Dsplit": 2}
    axis = fixed[kind] if kind in fixed else call.axis(call.layer.option("axis", 0), rank)
    return _parts(call, value, axis, call.layer.option("indices_or_sections"), kind == "ArraySplit")


@operation("Unstack")
def unstack(call: LayerCall) -> list[GraphExpr]:
    """The slices along an axis."""
    value = tensor(call)
    axis = call.axis(call.layer.option("axis", 0), rank_of(value))
    return [call.builder.select(value, axis, place) for place in range(size_at(value, axis))]


# Repeating, turning


@operation("Tile")
def tile(call: LayerCall) -> GraphExpr:
    """The whole repeated along each dimension."""
    b, value = call.builder, tensor(call)
    repeats = wholes(call.layer.option("repeats", call.argument("repeats", 1)), "repeats")
    rank = max(rank_of(value), len(repeats))
    value = b.expand_dims(value, range(rank - rank_of(value)))
    return b.call("tile", value, repeats=(*(1,) * (rank - len(repeats)), *repeats))


@operation("Repeat")
def repeat(call: LayerCall) -> GraphExpr:
    """Each element several times."""
    b, value = call.builder, tensor(call)
    repeats = wholes(call.layer.option("repeats", call.argument("repeats", 1)), "repeats")
    described = call.layer.option("axis")
    value = b.flatten(value) if described is None else value
    axis = 0 if described is None else call.axis(described, rank_of(value))
    if len(repeats) == 1:
        return enlarged(b, value, axis, repeats[0])
    places = np.repeat(np.arange(len(repeats)), repeats)
    if len(repeats) != size_at(value, axis):
        raise UserError(f"{len(repeats)} repeats do not fit {size_at(value, axis)} elements")
    return b.call("take", value, b.constant(places, INT64), axis=axis)


@operation("Flip", "Fliplr", "Flipud")
def flip(call: LayerCall) -> GraphExpr:
    """In reverse along axes."""
    value, kind = tensor(call), call.layer.kind
    described: Any = {"Fliplr": 1, "Flipud": 0}.get(kind, call.layer.option("axis"))
    axes = list(range(rank_of(value))) if described is None else wholes(described, "axis")
    return call.builder.flip(value, [call.axis(axis, rank_of(value)) for axis in axes])


@operation("Rot90")
def rot90(call: LayerCall) -> GraphExpr:
    """A plane turned by right angles."""
    b, value = call.builder, tensor(call)
    axes = [call.axis(item, rank_of(value)) for item in wholes(call.layer.option("axes", (0, 1)), "axes")]
    turns = call.layer.integer("k", 1) % 4
    order = list(range(rank_of(value)))
    order[axes[0]], order[axes[1]] = order[axes[1]], order[axes[0]]
    if turns == 2:
        return b.flip(value, axes)
    if turns == 1:
        return b.transpose(b.flip(value, axes[1:]), order)
    return b.flip(b.transpose(value, order), axes[1:]) if turns == 3 else value


@operation("Roll")
def roll(call: LayerCall) -> GraphExpr:
    """Moved along axes, what leaves one end enters at the other."""
    b, value = call.builder, tensor(call)
    shifts, described = wholes(call.layer.option("shift"), "shift"), call.layer.option("axis")
    sizes = sizes_of(value)
    axes = [0] if described is None else [call.axis(item, len(sizes)) for item in wholes(described, "axis")]
    result = b.flatten(value) if described is None else value
    shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    for axis, amount in zip(axes, shifts, strict=True):
        size = size_at(result, axis)
        cut = (-amount) % size if size else 0
        parts = [b.slice_axis(result, axis, cut, size), b.slice_axis(result, axis, 0, cut)]
        result = b.concatenate(parts, axis) if cut else result
    return b.reshape(result, sizes)


@operation("Pad")
def pad(call: LayerCall) -> GraphExpr:
    """A border of a constant, or of what is inside."""
    b, value = call.builder, tensor(call)
    described = call.layer.option("pad_width")
    listed = described if isinstance(described, (list, tuple)) else [[described, described]]
    pairs = [wholes(item, "pad_width") for item in listed]
    pairs = [item if len(item) == 2 else item * 2 for item in pairs]
    pairs = pairs * rank_of(value) if len(pairs) == 1 else pairs
    before, after = (tuple(item[side] for item in pairs) for side in range(2))
    mode = call.layer.text("mode", "constant")
    fill = call.argument("constant_values", 1)
    if mode == "symmetric":
        return _mirrored(b, value, before, after)
    names = {"constant": "constant", "reflect": "reflect", "edge": "edge"}
    if mode not in names:
        raise UnsupportedError(f"padding in the mode {mode!r}", hint="one of constant, reflect, symmetric and edge")
    extra: dict[str, object] = {"value": float(fill)} if isinstance(fill, (int, float)) and mode == "constant" else {}
    return b.call("pad", value, before=before, after=after, mode=names[mode], **extra)


def _mirrored(b: KerasBuilder, value: GraphExpr, before: Sequence[int], after: Sequence[int]) -> GraphExpr:
    """The data mirrored at its border, the edge too."""
    for axis, (left, right) in enumerate(zip(before, after, strict=True)):
        if not left and not right:
            continue
        size = size_at(value, axis)
        places = np.arange(-left, size + right) % (2 * size)
        places = np.where(places < size, places, 2 * size - 1 - places)
        value = b.call("take", value, b.constant(places, INT64), axis=axis)
    return value


@operation("Meshgrid")
def meshgrid(call: LayerCall) -> list[GraphExpr]:
    """Coordinates of a grid."""
    b = call.builder
    values = [b.flatten(call.as_tensor(item)) for item in call.args if isinstance(item, Value)]
    swapped = call.layer.text("indexing", "xy") == "xy" and len(values) > 1
    axes = list(range(len(values)))
    if swapped:
        axes[0], axes[1] = 1, 0
    shape: list[Size] = [1] * len(values)
    for axis, value in zip(axes, values, strict=True):
        shape[axis] = sizes_of(value)[0]
    result = []
    for axis, value in zip(axes, values, strict=True):
        own: list[Size] = [1] * len(values)
        own[axis] = sizes_of(value)[0]
        result.append(b.broadcast_to(b.reshape(value, own), shape))
    return result


# Diagonals


def _positions(b: KerasBuilder, value: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """The number of the row and of the column of each element of matrices."""
    rows, columns = sizes_of(value)[-2:]
    return b.reshape(b.arange(rows), (rows, 1)), b.reshape(b.arange(columns), (1, columns))


@operation("Tril", "Triu")
def triangle(call: LayerCall) -> GraphExpr:
    """What lies below, or above, a diagonal."""
    b, value = call.builder, tensor(call)
    rows, columns = _positions(b, value)
    gap = b.subtract(columns, rows)
    name = "less_equal" if call.layer.kind == "Tril" else "greater_equal"
    kept = b.compare(name, gap, call.layer.integer("k", 0))
    return b.call("where", kept, value, b.scalar(0, dtype_of(value)))


def diagonal_of(b: KerasBuilder, value: GraphExpr, offset: int, first: int, second: int) -> GraphExpr:
    """A diagonal of two axes, as the last one."""
    rest = [axis for axis in range(rank_of(value)) if axis not in (first, second)]
    turned = b.transpose(value, [*rest, first, second])
    rows, columns = size_at(turned, len(rest)), size_at(turned, len(rest) + 1)
    start_row, start_column = max(-offset, 0), max(offset, 0)
    count = max(min(rows - start_row, columns - start_column), 0)
    flat = b.reshape(turned, (*sizes_of(turned)[:-2], rows * columns))
    places = (np.arange(count) + start_row) * columns + np.arange(count) + start_column
    return b.call("take", flat, b.constant(places, INT64), axis=len(rest))


def _axes_of_diagonal(call: LayerCall, value: GraphExpr) -> tuple[int, int, int]:
    options = call.layer
    first, second = (
        call.axis(options.option(name, default), rank_of(value)) for name, default in (("axis1", 0), ("axis2", 1))
    )
    return options.integer("offset", 0), first, second


@operation("Diagonal", "Trace")
def diagonal(call: LayerCall) -> GraphExpr:
    """A diagonal, or its sum."""
    b, value = call.builder, tensor(call)
    result = diagonal_of(b, value, *_axes_of_diagonal(call, value))
    if call.layer.kind == "Diagonal":
        return result
    kind = dtype_of(result)
    small = kind.is_bool or (kind.is_integer and kind.bits < 32)
    return b.reduce("sum", b.cast(result, INT32) if small else result, (rank_of(result) - 1,))


@operation("Diag", "Diagflat")
def diag(call: LayerCall) -> GraphExpr:
    """A matrix with a diagonal, or the diagonal of a matrix."""
    b, value = call.builder, tensor(call)
    offset = call.layer.integer("k", 0)
    if call.layer.kind == "Diagflat":
        value = b.flatten(value)
    if rank_of(value) == 2:
        return diagonal_of(b, value, offset, 0, 1)
    count = size_at(value, 0)
    size = count + abs(offset)
    if size * size > LARGEST_MADE:
        raise UnsupportedError(f"a diagonal matrix of {size} rows")
    before, after = max(offset, 0), max(-offset, 0)
    row = b.call("pad", value, before=(before,), after=(after,)) if offset else value
    rows, columns = b.reshape(b.arange(size), (size, 1)), b.reshape(b.arange(size), (1, size))
    on = b.compare("equal", b.subtract(columns, rows), offset)
    return b.call("where", on, b.broadcast_to(b.reshape(row, (1, size)), (size, size)), b.scalar(0, dtype_of(value)))


@operation("Diff")
def diff(call: LayerCall) -> GraphExpr:
    """Differences of neighbours along an axis."""
    b, value = call.builder, tensor(call)
    axis = call.axis(call.layer.option("axis", -1), rank_of(value))
    for _ in range(call.layer.integer("n", 1)):
        size = size_at(value, axis)
        later, earlier = b.slice_axis(value, axis, 1, size), b.slice_axis(value, axis, 0, size - 1)
        value = b.call("not_equal", later, earlier) if dtype_of(value).is_bool else b.subtract(later, earlier)
    return value


@operation("Size", "Ndim")
def count(call: LayerCall) -> GraphExpr:
    """The number of elements, or of dimensions."""
    b, value = call.builder, tensor(call)
    number = rank_of(value) if call.layer.kind == "Ndim" else product(sizes_of(value))
    return b.cast(b.scalar(multiply(number, 1), INT64), INT32)
