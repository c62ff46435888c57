"""Converters of layers that move data, and of those that make it larger or smaller."""

from __future__ import annotations

import itertools

from tilewright.frontend.caffe.layer import Layer, converter
from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.core.layers import cropped, flattened, repeated, shuffled_channels
from tilewright.frontend.core.resampling import linear_at, number
from tilewright.graph.ir.dimensions import Size, add, divide_exactly, floor_divide, maximum, multiply, product, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UnsupportedError, UserError


@converter("Split")
def split(layer: Layer) -> list[GraphExpr]:
    """The same for each top."""
    return [layer.input(0)] * layer.tops


@converter("Silence")
def silence(layer: Layer) -> list[GraphExpr]:
    """Nothing."""
    return []


@converter("Parameter")
def parameter(layer: Layer) -> GraphExpr:
    """Weights as data."""
    return layer.blob(0, [int(size) for size in layer.options("parameter").shape.dim])


@converter("Concat")
def concat(layer: Layer) -> GraphExpr:
    """One after the other along an axis."""
    options, values = layer.options("concat"), layer.all_inputs()
    chosen = int(options.concat_dim) if options.HasField("concat_dim") else options.axis
    return layer.b.concatenate(values, layer.axis(chosen, rank_of(values[0])))


@converter("Slice")
def slices(layer: Layer) -> list[GraphExpr]:
    """Parts along an axis: between points, or of equal size."""
    options, data = layer.options("slice"), layer.input(0)
    axis = layer.axis(int(options.slice_dim) if options.HasField("slice_dim") else options.axis, rank_of(data))
    size, count = size_at(data, axis), layer.tops
    if options.slice_point:
        points = [0, *(int(point) for point in options.slice_point), size]
    else:
        if count < 1 or size % count:
            raise UserError(f"{size} elements along axis {axis} cannot be cut into {count} equal parts")
        points = list(range(0, size + 1, size // count))
    if len(points) != count + 1 or any(low >= high for low, high in itertools.pairwise(points)):
        raise UserError(f"the points {points[1:-1]} do not cut {size} elements into {count} parts")
    return [layer.b.slice_axis(data, axis, low, high) for low, high in itertools.pairwise(points)]


@converter("Crop")
def crop(layer: Layer) -> GraphExpr:
    """The first bottom cut to the size of the second, from an axis on."""
    options, data, other = layer.options("crop"), layer.input(0), layer.input(1)
    rank = rank_of(data)
    axis = layer.axis(options.axis, rank)
    offsets = [int(offset) for offset in options.offset] or [0]
    if len(offsets) not in (1, rank - axis) or rank_of(other) != rank:
        raise UserError(f"{len(offsets)} offsets do not fit {rank - axis} axes")
    offsets = offsets * (rank - axis) if len(offsets) == 1 else offsets
    sizes = (*sizes_of(data)[:axis], *sizes_of(other)[axis:])
    return cropped(layer.b, data, (*(0,) * axis, *offsets), sizes)


@converter("Flatten")
def flatten(layer: Layer) -> GraphExpr:
    """Some axes as one."""
    options, data = layer.options("flatten"), layer.input(0)
    axis, end = (layer.axis(at, rank_of(data)) for at in (options.axis, options.end_axis))
    if end < axis:
        raise UserError(f"axes {axis} to {end} cannot be made one")
    return flattened(layer.b, data, axis, end)


@converter("Reshape")
def reshape(layer: Layer) -> GraphExpr:
    """Other sizes for some axes: 0 keeps one, -1 is what is left."""
    options, data = layer.options("reshape"), layer.input(0)
    old = sizes_of(data)
    axis = options.axis if options.axis >= 0 else len(old) + options.axis + 1
    end = len(old) if options.num_axes == -1 else axis + options.num_axes
    if not 0 <= axis <= end <= len(old):
        raise UserError(f"axes {axis} to {end} are not within {len(old)} dimensions")
    wanted: list[Size] = []
    for at, size in enumerate(int(size) for size in options.shape.dim):
        if size == 0 and axis + at >= len(old):
            raise UserError(f"dimension {axis + at} is kept, of {len(old)}")
        wanted.append(old[axis + at] if size == 0 else size)
    sizes: list[Size] = [*old[:axis], *wanted, *old[end:]]
    open_places = [at for at, size in enumerate(sizes) if isinstance(size, int) and size < 0]
    if len(open_places) > 1:
        raise UserError(f"several dimensions of {sizes_text(wanted)} are open")
    if open_places:
        known = product([size for at, size in enumerate(sizes) if at != open_places[0]])
        rest = divide_exactly(product(old), known)
        if rest is None:
            raise UserError(f"data of shape {sizes_text(old)} cannot have the shape {sizes_text(wanted)}")
        sizes[open_places[0]] = rest
    return layer.b.reshape(data, sizes)


@converter("Permute")
def permute(layer: Layer) -> GraphExpr:
    """Axes in another order; those that are not named follow."""
    rank = rank_of(layer.input(0))
    order = [int(at) for at in layer.options("permute").order]
    order += [at for at in range(rank) if at not in order]
    if sorted(order) != list(range(rank)):
        raise UserError(f"{order} is no order of {rank} dimensions")
    return layer.b.transpose(layer.input(0), order)


@converter("Tile")
def tile(layer: Layer) -> GraphExpr:
    """Copies along an axis."""
    options, data = layer.options("tile"), layer.input(0)
    axis, copies = layer.axis(options.axis, rank_of(data)), int(options.tiles)
    if copies < 1:
        raise UserError(f"{copies} copies")
    repeats = tuple(copies if at == axis else 1 for at in range(rank_of(data)))
    return layer.call("tile", data, repeats=repeats)


@converter("ShuffleChannel")
def shuffle_channel(layer: Layer) -> GraphExpr:
    """Channels of groups by turns."""
    return shuffled_channels(layer.b, layer.input(0), int(layer.options("shuffle_channel").group))


@converter("Upsample")
def upsample(layer: Layer) -> GraphExpr:
    """Each element several times."""
    if layer.has_input(1):
        raise UnsupportedError("Upsample at the places of maxima (two bottoms)")
    options = layer.options("upsample")
    factors = (options.scale_h or options.scale, options.scale_w or options.scale)
    if min(factors) < 1 or rank_of(layer.input(0)) != 4:
        raise UserError(f"Upsample of data of {rank_of(layer.input(0))} dimensions by {factors}")
    return repeated(layer.b, layer.input(0), factors)


@converter("Interp")
def interp(layer: Layer) -> GraphExpr:
    """Values between neighbours, corners on corners."""
    options, data, b = layer.options("interp"), layer.input(0), layer.b
    if rank_of(data) != 4 or options.pad_beg > 0 or options.pad_end > 0:
        raise UserError(f"Interp of data of {rank_of(data)} dimensions, with padding that adds")
    for axis, given in ((2, options.height), (3, options.width)):
        data = b.slice_axis(data, axis, -options.pad_beg, add(sizes_of(data)[axis], options.pad_end))
        size = sizes_of(data)[axis]
        wanted = _interp_size(layer, size, given, axis)
        steps = b.cast(b.arange(wanted), FLOAT32)
        last, wide = (number(b, maximum(subtract(length, 1), low)) for length, low in ((size, 0), (wanted, 1)))
        data = linear_at(b, data, axis, b.multiply(steps, b.divide(last, wide)))
    return data


def _interp_size(layer: Layer, size: Size, given: int, axis: int) -> Size:
    options = layer.options("interp")
    if layer.has_input(1):
        return sizes_of(layer.input(1))[axis]
    if given > 0:
        return int(given)
    if min(options.shrink_factor, options.zoom_factor) < 1:
        raise UserError(f"Interp by {options.zoom_factor} / {options.shrink_factor}")
    shrunk = add(floor_divide(subtract(size, 1), options.shrink_factor), 1)
    return add(shrunk, multiply(subtract(shrunk, 1), options.zoom_factor - 1))
