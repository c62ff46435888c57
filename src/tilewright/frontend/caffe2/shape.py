"""Converters of operators that move data."""

from __future__ import annotations

import itertools

from tilewright.frontend.caffe2.node import Node, converter
from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.core.layers import flattened
from tilewright.graph.ir.dimensions import Size, product, remaining_size, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError


@converter("Flatten")
def flatten(node: Node) -> GraphExpr:
    """The axes before one, and those from it on, as one each."""
    data = node.input(0)
    axis = node.integer("axis", 1)
    if not 0 <= axis <= rank_of(data):
        raise UserError(f"axis {axis} is out of range for {rank_of(data)} dimensions")
    sizes = sizes_of(data)
    return node.b.reshape(data, (product(sizes[:axis]), product(sizes[axis:])))


@converter("FlattenToVec")
def flatten_all(node: Node) -> GraphExpr:
    """All elements in a row."""
    return flattened(node.b, node.input(0), 0)


@converter("Reshape")
def reshape(node: Node) -> list[GraphExpr]:
    """Another shape, an argument or an input: 0 keeps a size, -1 is what is left; and the shape before."""
    data = node.input(0)
    old = sizes_of(data)
    wanted: list[Size]
    if node.has_input(1):
        known = node.sizes(1, "the shape")
        if known is None:
            raise UnsupportedError("a shape that only a run knows", hint="save the net with the shape as an argument")
        wanted = list(known)
    else:
        wanted = list(node.ints("shape"))
    for at, size in enumerate(wanted):
        if size == 0:
            if at >= len(old):
                raise UserError(f"dimension {at} is kept, of {len(old)}")
            wanted[at] = old[at]
    places = [at for at, size in enumerate(wanted) if isinstance(size, int) and size < 0]
    if len(places) > 1:
        raise UserError(f"several dimensions of {sizes_text(wanted)} are open")
    if places:
        rest = remaining_size(old, [size for at, size in enumerate(wanted) if at != places[0]])
        if rest is None:
            raise UserError(f"data of shape {sizes_text(old)} cannot have the shape {sizes_text(wanted)}")
        wanted[places[0]] = rest
    return [node.b.reshape(data, wanted), node.b.shape_tensor(old)]


@converter("ResizeLike")
def resize_like(node: Node) -> GraphExpr:
    """The shape of another tensor."""
    return node.b.reshape(node.input(0), sizes_of(node.input(1)))


@converter("Transpose", "NCHW2NHWC", "NHWC2NCHW")
def transpose(node: Node) -> GraphExpr:
    """Axes in another order."""
    rank = rank_of(node.input(0))
    orders = {"NCHW2NHWC": (0, *range(2, rank), 1), "NHWC2NCHW": (0, rank - 1, *range(1, rank - 1))}
    order = orders.get(node.kind) or node.ints("axes") or tuple(reversed(range(rank)))
    if sorted(order) != list(range(rank)):
        raise UserError(f"{order} is no order of {rank} dimensions")
    return node.b.transpose(node.input(0), order)


@converter("Squeeze")
def squeeze(node: Node) -> GraphExpr:
    """Without axes of 1."""
    sizes = sizes_of(node.input(0))
    axes = {node.axis(axis, len(sizes)) for axis in node.ints("dims")}
    if any(sizes[at] != 1 for at in axes):
        raise UserError(f"axes {sorted(axes)} of data of shape {sizes_text(sizes)} are not all 1")
    return node.b.reshape(node.input(0), [size for at, size in enumerate(sizes) if at not in axes])


@converter("ExpandDims")
def expand_dims(node: Node) -> GraphExpr:
    """New axes of 1."""
    dims = node.ints("dims")
    rank = rank_of(node.input(0)) + len(set(dims))
    return node.b.expand_dims(node.input(0), sorted({node.axis(axis, rank) for axis in dims}))


@converter("Concat", "DepthConcat", "Append")
def concat(node: Node) -> list[GraphExpr]:
    """One after the other along an axis (the channels'), or along a new one; and how long each is."""
    values, b = node.all_inputs(), node.b
    rank, is_new = rank_of(values[0]), node.flag("add_axis")
    default = rank - 1 if node.channels_last else 1
    axis = node.axis(node.integer("axis", default), rank + is_new)
    if is_new:
        values = [b.expand_dims(value, (axis,)) for value in values]
    lengths = [sizes_of(value)[axis] for value in values]
    return [b.concatenate(values, axis), b.cast(b.shape_tensor(lengths), "int32")]


@converter("Split")
def split(node: Node) -> list[GraphExpr]:
    """Parts along an axis: of lengths that are given, or equal ones."""
    data, count = node.input(0), node.outputs
    rank = rank_of(data)
    axis = node.axis(node.integer("axis", rank - 1 if node.channels_last else 1), rank)
    size = size_at(data, axis)
    lengths = list(node.ints("split"))
    if node.has_input(1):
        lengths = [int(item) for item in node.constant(1, "the lengths").ravel()]
    if not lengths:
        if count < 1 or size % count:
            raise UserError(f"{size} elements cannot be cut into {count} equal parts")
        lengths = [size // count] * count
    if sum(lengths) != size or len(lengths) != count:
        raise UserError(f"parts of {lengths} elements are not {count} parts of {size}")
    points = [0, *itertools.accumulate(lengths)]
    return [node.b.slice_axis(data, axis, low, high) for low, high in itertools.pairwise(points)]


@converter("Slice")
def slices(node: Node) -> GraphExpr:
    """From places up to others along all axes; negative ones count from behind the end."""
    data = node.input(0)
    starts, ends = node.ints("starts"), node.ints("ends")
    if node.has_input(2):
        starts, ends = (tuple(int(item) for item in node.constant(at, "the places").ravel()) for at in (1, 2))
    if not len(starts) == len(ends) <= rank_of(data):
        raise UserError(f"a part from {starts} to {ends} of {rank_of(data)} dimensions")
    value = data
    for axis, (start, end) in enumerate(zip(starts, ends, strict=True)):
        size = sizes_of(data)[axis]
        low, high = (at if at >= 0 else subtract(size, -1 - at) for at in (start, end))
        value = node.b.slice_axis(value, axis, low, high)
    return value


@converter("Tile")
def tile(node: Node) -> GraphExpr:
    """Copies along an axis."""
    data, copies = node.input(0), node.integer("tiles", 1)
    axis = node.axis(node.integer("axis", 0), rank_of(data))
    if copies < 1 or node.has_input(1):
        raise UnsupportedError(f"{copies} copies, or a number of copies that is data")
    return node.call("tile", data, repeats=tuple(copies if at == axis else 1 for at in range(rank_of(data))))


@converter("Gather", "BatchGather")
def gather(node: Node) -> GraphExpr:
    """Slices along an axis by index."""
    data, b = node.input(0), node.b
    axis = 1 if node.kind == "BatchGather" else node.axis(node.integer("axis", 0), rank_of(data))
    places = checked_index(b, b.cast(node.input(1), INT64), [sizes_of(data)[axis]], [axis], negative=False)
    return node.call("take", data, places, axis=axis)


@converter("Shape")
def shape(node: Node) -> GraphExpr:
    """The sizes, or some of them."""
    sizes = sizes_of(node.input(0))
    chosen = [sizes[node.axis(axis, len(sizes))] for axis in node.ints("axes")] or list(sizes)
    return node.b.shape_tensor(chosen)
