"""Converters of layers that move data."""

from __future__ import annotations

import itertools

from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.core.layers import cropped
from tilewright.frontend.ncnn.layer import UNSET, Layer, converter
from tilewright.graph.ir.dimensions import Size, remaining_size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.support.errors import UnsupportedError, UserError


@converter("Flatten")
def flatten(layer: Layer) -> GraphExpr:
    """All elements in a row."""
    return layer.b.flatten(layer.input(0))


@converter("Reshape")
def reshape(layer: Layer) -> GraphExpr:
    """Other sizes, across first: 0 keeps one, -1 is what is left."""
    data, old = layer.input(0), sizes_of(layer.input(0))
    if layer.integer(3) or isinstance(layer.spec.params.get(6), str):
        raise UnsupportedError("Reshape that exchanges axes, or to sizes that are computed")
    given = [layer.integer(key, UNSET) for key in (0, 1, 11, 2)]
    wanted: list[Size] = []
    for at, size in enumerate(item for item in given if item != UNSET):
        if size == 0 and at >= len(old):
            raise UserError(f"dimension {at} is kept, of {len(old)}")
        wanted.append(old[len(old) - 1 - at] if size == 0 else size)
    wanted.reverse()
    places = [at for at, size in enumerate(wanted) if isinstance(size, int) and size < 0]
    if len(places) > 1 or not wanted:
        raise UserError(f"the shape {sizes_text(wanted)}")
    if places:
        rest = remaining_size(old, [size for at, size in enumerate(wanted) if at != places[0]])
        if rest is None:
            raise UserError(f"data of shape {sizes_text(old)} cannot have the shape {sizes_text(wanted)}")
        wanted[places[0]] = rest
    return layer.b.reshape(data, wanted)


_ORDERS = {
    2: ((0, 1), (1, 0)),
    3: ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)),
}
"""Orders of axes by number."""


@converter("Permute")
def permute(layer: Layer) -> GraphExpr:
    """Axes in another order, which has a number."""
    rank, number = rank_of(layer.input(0)), layer.integer(0)
    if rank == 1:
        return layer.input(0)
    orders = _ORDERS.get(rank, tuple(itertools.permutations(range(rank))))
    if not 0 <= number < len(orders):
        raise UserError(f"the order number {number} of {rank} dimensions is not known")
    return layer.b.transpose(layer.input(0), orders[number])


@converter("Concat")
def concat(layer: Layer) -> GraphExpr:
    """One after the other along an axis."""
    values = layer.all_inputs()
    return layer.b.concatenate(values, layer.axis(layer.integer(0), rank_of(values[0])))


@converter("Slice")
def slices(layer: Layer) -> list[GraphExpr]:
    """Parts along an axis: of sizes, or from places on."""
    data, b = layer.input(0), layer.b
    axis = layer.axis(layer.integer(1), rank_of(data))
    size, sizes, places = size_at(data, axis), layer.ints(0), layer.ints(2)
    points = [0]
    if places:
        points += [place if place >= 0 else size + place for place in places]
        points.append(size)
    else:
        for at, part in enumerate(sizes):
            rest = size - points[-1]
            points.append(points[-1] + (rest // (len(sizes) - at) if part == UNSET else part))
    if len(points) != layer.tops + 1 or any(not 0 <= low <= high <= size for low, high in itertools.pairwise(points)):
        raise UserError(f"the points {points} do not cut {size} elements into {layer.tops} parts")
    return [b.slice_axis(data, axis, low, high) for low, high in itertools.pairwise(points)]


@converter("Crop")
def crop(layer: Layer) -> GraphExpr:
    """A part: between places along axes, or from offsets on, as large as is said or as the second bottom is."""
    data, rank = layer.input(0), rank_of(layer.input(0))
    sizes = sizes_of(data)
    if layer.floats(9):
        return _between(layer)
    offsets = _by_axis([layer.integer(key) for key in (2, 1, 0)], rank)
    ends = _by_axis([layer.integer(key) for key in (8, 7, 6)], rank)
    extents = _by_axis([layer.integer(key) for key in (5, 4, 3)], rank)
    wanted: list[Size] = []
    for axis, (offset, end, extent) in enumerate(zip(offsets, ends, extents, strict=True)):
        if layer.has_input(1):
            other = sizes_of(layer.input(1))
            own = len(other) - rank + axis
            wanted.append(other[own] if own >= 0 and (rank < 3 or axis > 0 or len(other) == rank) else sizes[axis])
        elif extent in (0, UNSET):
            wanted.append(size_at(data, axis) - offset - end)
        else:
            wanted.append(extent)
    return cropped(layer.b, data, offsets, wanted)


def _by_axis(values: list[int], rank: int) -> list[int]:
    """Numbers of channels, rows and columns for data of a rank."""
    if rank > 3:
        raise UnsupportedError("Crop of data of 4 dimensions")
    return values[3 - rank :]


def _between(layer: Layer) -> GraphExpr:
    data, value = layer.input(0), layer.input(0)
    starts, ends, axes = layer.ints(9), layer.ints(10), layer.ints(11) or list(range(len(layer.floats(9))))
    if not len(starts) == len(ends) == len(axes):
        raise UserError(f"parts from {starts} to {ends} along {axes}")
    for start, end, at in zip(starts, ends, axes, strict=True):
        axis = layer.axis(at, rank_of(data))
        size = size_at(data, axis)
        low = 0 if start == UNSET else max(0, start + size) if start < 0 else min(start, size)
        high = size if end == UNSET else max(0, end + size) if end < 0 else min(end, size)
        value = layer.b.slice_axis(value, axis, low, high)
    return value


@converter("Squeeze")
def squeeze(layer: Layer) -> GraphExpr:
    """Without axes of 1."""
    data, sizes = layer.input(0), sizes_of(layer.input(0))
    rank = len(sizes)
    if layer.floats(3):
        axes = {layer.axis(at, rank) for at in layer.ints(3)}
    else:
        named = [(rank - 1, 0), (rank - 2, 1), (0, 2)]
        axes = {axis for axis, key in named if layer.integer(key) and axis >= 0}
    kept = [size for at, size in enumerate(sizes) if at not in axes or size != 1]
    return layer.b.reshape(data, kept or [1])


@converter("ExpandDims")
def expand_dims(layer: Layer) -> GraphExpr:
    """New axes of 1."""
    axes = layer.ints(3)
    if not axes:
        raise UnsupportedError("ExpandDims of old files, without axes", hint="convert the model again")
    rank = rank_of(layer.input(0)) + len(axes)
    return layer.b.expand_dims(layer.input(0), sorted(layer.axis(at, rank) for at in axes))


@converter("Tile")
def tile(layer: Layer) -> GraphExpr:
    """Copies along an axis, or along all."""
    data, rank = layer.input(0), rank_of(layer.input(0))
    repeats = layer.ints(2)
    if not repeats:
        axis = layer.axis(layer.integer(0), rank)
        repeats = [layer.count(1, 1, 1) if at == axis else 1 for at in range(rank)]
    wide = max(rank, len(repeats))
    if min(repeats) < 1:
        raise UserError(f"{repeats} copies")
    value = layer.b.reshape(data, (*(1,) * (wide - rank), *sizes_of(data)))
    return layer.call("tile", value, repeats=(*(1,) * (wide - len(repeats)), *repeats))


@converter("Flip")
def flip(layer: Layer) -> GraphExpr:
    """The other way round along axes."""
    rank = rank_of(layer.input(0))
    return layer.b.flip(layer.input(0), [layer.axis(at, rank) for at in layer.ints(0)])
