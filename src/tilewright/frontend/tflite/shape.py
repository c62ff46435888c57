"""Converters of operators that shape and join tensors."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.activations import activated
from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.fixed_point import bounds_of, finished, rounded_away, same_levels
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.dimensions import Size, as_dims, floor_divide, product, same, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UnsupportedError, UserError


@converter("RESHAPE", "STABLEHLO_RESHAPE")
def reshape(node: NodeContext) -> GraphExpr:
    """To a shape that is an input or an option; -1 is what is left over."""
    data = node.input(0)
    wanted: tuple[Size, ...] | None
    if node.node.name == "STABLEHLO_RESHAPE":
        dims = node.output_tensor().dims
        if dims is None or None in dims:
            raise UnsupportedError("STABLEHLO_RESHAPE to a shape that is not known")
        wanted = tuple(size for size in dims if size is not None)
    elif node.has_input(1):
        wanted = node.sizes(1, "the shape")
        if wanted is None:
            return _by_data(node, data)
    else:
        wanted = tuple(int(item) for item in node.option("new_shape", ()))
    return node.builder.reshape(data, completed(sizes_of(data), wanted))


def completed(sizes: tuple[Size, ...], wanted: tuple[Size, ...]) -> list[Size]:
    """A shape with what is left over in the place of -1."""
    result = list(wanted)
    places = [at for at, size in enumerate(result) if isinstance(size, int) and size == -1]
    if len(places) > 1 or any(isinstance(size, int) and size < -1 for size in result):
        raise UserError(f"{sizes_text(wanted)} is no shape")
    if places:
        rest = product([size for at, size in enumerate(result) if at != places[0]])
        if isinstance(rest, int) and rest == 0:
            raise UserError(f"what is left over in {sizes_text(wanted)} is not known")
        result[places[0]] = floor_divide(product(sizes), rest)
    return result


def _by_data(node: NodeContext, data: GraphExpr) -> GraphExpr:
    length = sizes_of(node.input(1))[0]
    if not isinstance(length, int):
        raise UnsupportedError("RESHAPE to a number of dimensions that only a run knows")
    dims = [node.symbol(str(at)) for at in range(length)]
    return node.call("shape.reshape", data, node.builder.cast(node.input(1), "int64"), dims=as_dims(dims))


@converter("SQUEEZE")
def squeeze(node: NodeContext) -> GraphExpr:
    """Without dimensions of 1: those that are named, or all."""
    data, pair = node.input(0), node.pair(0)
    sizes = sizes_of(data)[: rank_of(data) - len(pair)]
    axes = {node.axis(int(item), len(sizes)) for item in node.option("squeeze_dims", ())}
    if not axes:
        axes = {at for at, size in enumerate(sizes) if isinstance(size, int) and size == 1}
    for at in axes:
        if isinstance(sizes[at], int) and sizes[at] != 1:
            raise UserError(f"dimension {at} of {sizes_text(sizes)} is not 1")
    return node.builder.reshape(data, [*(size for at, size in enumerate(sizes) if at not in axes), *pair])


@converter("EXPAND_DIMS")
def expand_dims(node: NodeContext) -> GraphExpr:
    """A new dimension of 1 at a place that is an input."""
    data = node.input(0)
    axis = node.axis(node.constant_int(1, "the axis"), rank_of(data) - len(node.pair(0)) + 1)
    return node.builder.expand_dims(data, (axis,))


@converter("TRANSPOSE", "STABLEHLO_TRANSPOSE")
def transpose(node: NodeContext) -> GraphExpr:
    """Dimensions in an order that is an input or an option."""
    data = node.input(0)
    if node.node.name == "TRANSPOSE":
        order = node.constant_ints(1, "the order")
    else:
        order = tuple(int(item) for item in node.option("permutation", ()))
    order = tuple(node.axis(item, rank_of(data)) for item in order)
    if sorted(order) != list(range(rank_of(data))):
        raise UserError(f"{order} is no order of {rank_of(data)} dimensions")
    return node.builder.transpose(data, order)


@converter("SHAPE")
def shape(node: NodeContext) -> GraphExpr:
    """The sizes of a tensor."""
    return node.builder.cast(node.builder.shape_tensor(sizes_of(node.input(0))), node.output_dtype())


@converter("RANK")
def rank(node: NodeContext) -> GraphExpr:
    """The number of dimensions."""
    return node.builder.constant(rank_of(node.input(0)), node.output_dtype())


@converter("CONCATENATION", "STABLEHLO_CONCATENATE")
def concatenation(node: NodeContext) -> GraphExpr:
    """Tensors one after the other along an axis; quantised ones in the levels of the result."""
    values = node.all_inputs()
    key = "axis" if node.node.name == "CONCATENATION" else "dimension"
    axis = node.axis(node.integer(key), rank_of(values[0]))
    if node.is_quantized():
        values = [_in_levels(node, value, index) for index, value in enumerate(values)]
        joined = node.builder.concatenate(values, axis)
        if node.activation == "NONE":
            return joined
        to = node.output_dtype()
        return finished(node.builder, joined, 0, bounds_of(node.activation, node.output_levels(), to), to)
    return activated(node.builder, node.builder.concatenate(values, axis), node.activation)


def _in_levels(node: NodeContext, value: GraphExpr, index: int) -> GraphExpr:
    """Integers of an input as those of the result, by a float32 product, halves away from zero."""
    levels, result, to = node.levels(index), node.output_levels(), node.output_dtype()
    if same_levels([levels, result]):
        return value
    builder = node.builder
    scale = np.float32(levels.scales[0]) * (np.float32(1) / np.float32(result.scales[0]))
    offset = -np.float32(levels.zero) * scale
    numbers = node.call("multiply", builder.cast(value, FLOAT32), builder.constant(scale, FLOAT32))
    rounded = rounded_away(builder, node.call("add", numbers, builder.constant(offset, FLOAT32)))
    return finished(builder, rounded, result.zero, (to.min_value(), to.max_value()), to)


@converter("PACK")
def pack(node: NodeContext) -> GraphExpr:
    """Tensors along a new axis."""
    values = node.all_inputs()
    axis = node.axis(node.integer("axis"), rank_of(values[0]) + 1)
    return node.builder.concatenate([node.builder.expand_dims(value, (axis,)) for value in values], axis)


@converter("UNPACK")
def unpack(node: NodeContext) -> list[GraphExpr]:
    """The slices of an axis, without it."""
    data, builder = node.input(0), node.builder
    sizes = sizes_of(data)
    axis = node.axis(node.integer("axis"), len(sizes))
    count = len(node.node.outputs)
    if isinstance(sizes[axis], int) and sizes[axis] != count:
        raise UserError(f"{count} results of a dimension of {sizes[axis]}")
    rest = [size for at, size in enumerate(sizes) if at != axis]
    return [builder.reshape(builder.slice_axis(data, axis, at, at + 1), rest) for at in range(count)]


@converter("SPLIT")
def split(node: NodeContext) -> list[GraphExpr]:
    """Equal parts along an axis, which comes first."""
    data, count = node.input(1), len(node.node.outputs)
    axis = node.axis(node.constant_int(0, "the axis"), rank_of(data))
    size = sizes_of(data)[axis]
    if isinstance(size, int) and size % count:
        raise UserError(f"{size} elements do not make {count} equal parts")
    return _parts(node, data, axis, [floor_divide(size, count)] * count)


@converter("SPLIT_V")
def split_by_sizes(node: NodeContext) -> list[GraphExpr]:
    """Parts of given sizes along an axis; -1 is what is left over."""
    data = node.input(0)
    axis = node.axis(node.constant_int(2, "the axis"), rank_of(data))
    wanted = node.sizes(1, "the sizes")
    if wanted is None:
        raise UnsupportedError("SPLIT_V into sizes that only a run knows")
    sizes = list(wanted)
    open_places = [at for at, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if len(open_places) == 1:
        rest = sizes_of(data)[axis]
        for at, size in enumerate(sizes):
            rest = rest if at == open_places[0] else subtract(rest, size)
        sizes[open_places[0]] = rest
    return _parts(node, data, axis, sizes)


def _parts(node: NodeContext, data: GraphExpr, axis: int, sizes: list[Size]) -> list[GraphExpr]:
    if len(sizes) == 1:
        return [data]
    whole = node.call("split", data, sizes=tuple(sizes), axis=axis)
    return [node.builder.item(whole, at) for at in range(len(sizes))]


@converter("SPACE_TO_DEPTH")
def space_to_depth(node: NodeContext) -> GraphExpr:
    """Blocks of pixels as channels."""
    data, builder, block = node.input(0), node.builder, node.integer("block_size")
    batch, height, width, channels = _image(node, data, block)
    if any(isinstance(size, int) and size % block for size in (height, width)):
        raise UserError(f"blocks of {block} do not fit data of shape {sizes_text(sizes_of(data))}")
    rows, columns = floor_divide(height, block), floor_divide(width, block)
    parts = builder.reshape(data, (batch, rows, block, columns, block, channels))
    turned = builder.transpose(parts, (0, 1, 3, 2, 4, 5))
    return builder.reshape(turned, (batch, rows, columns, product((channels, block * block))))


@converter("DEPTH_TO_SPACE")
def depth_to_space(node: NodeContext) -> GraphExpr:
    """Channels as blocks of pixels."""
    data, builder, block = node.input(0), node.builder, node.integer("block_size")
    batch, height, width, channels = _image(node, data, block)
    depth = floor_divide(channels, block * block)
    if not same(product((depth, block * block)), channels):
        raise UserError(f"blocks of {block} do not fit data of shape {sizes_text(sizes_of(data))}")
    parts = builder.reshape(data, (batch, height, width, block, block, depth))
    turned = builder.transpose(parts, (0, 1, 3, 2, 4, 5))
    return builder.reshape(turned, (batch, product((height, block)), product((width, block)), depth))


def _image(node: NodeContext, data: GraphExpr, block: int) -> tuple[Size, ...]:
    sizes = sizes_of(data)
    if len(sizes) != 4 or block < 1:
        raise UserError(f"{node.node.name} in blocks of {block} of data of shape {sizes_text(sizes)}")
    return sizes


@converter("SPACE_TO_BATCH_ND")
def space_to_batch(node: NodeContext) -> GraphExpr:
    """Blocks of places, after padding, as images of their own."""
    data, builder = node.input(0), node.builder
    blocks = node.constant_ints(1, "the blocks")
    pads = node.constant(2, "the padding").reshape(-1, 2)
    count = len(blocks)
    if len(pads) != count or count > rank_of(data) - 1 or min(blocks, default=0) < 1:
        raise UserError(f"blocks {blocks} do not fit data of {rank_of(data)} dimensions")
    rest = rank_of(data) - 1 - count
    before = (0, *(int(item) for item in pads[:, 0]), *(0,) * rest)
    after = (0, *(int(item) for item in pads[:, 1]), *(0,) * rest)
    zero = float(node.levels(0).zero) if node.is_quantized() else 0.0
    if any(before) or any(after):
        data = node.call("pad", data, before=before, after=after, value=zero)
    sizes = sizes_of(data)
    shape: list[Size] = [sizes[0]]
    for size, block in zip(sizes[1 : 1 + count], blocks, strict=True):
        if isinstance(size, int) and size % block:
            raise UserError(f"blocks {blocks} do not fit data of shape {sizes_text(sizes)}")
        shape += [floor_divide(size, block), block]
    parts = builder.reshape(data, (*shape, *sizes[1 + count :]))
    inner = [2 + 2 * at for at in range(count)]
    order = (*inner, 0, *(at - 1 for at in inner), *range(1 + 2 * count, 1 + 2 * count + rest))
    turned = sizes_of(builder.transpose(parts, order))
    batch = product(turned[: count + 1])
    return builder.reshape(builder.transpose(parts, order), (batch, *turned[count + 1 :]))


@converter("BATCH_TO_SPACE_ND")
def batch_to_space(node: NodeContext) -> GraphExpr:
    """Images as blocks of places of larger ones, whose borders are cut off."""
    data, builder = node.input(0), node.builder
    blocks = node.constant_ints(1, "the blocks")
    crops = node.constant(2, "what is cut off").reshape(-1, 2)
    count, sizes = len(blocks), sizes_of(data)
    total = int(np.prod(blocks))
    fits = len(crops) == count <= len(sizes) - 1 and min(blocks, default=0) >= 1
    if not fits or (isinstance(sizes[0], int) and sizes[0] % total):
        raise UserError(f"blocks {blocks} do not fit data of shape {sizes_text(sizes)}")
    batch = floor_divide(sizes[0], total)
    parts = builder.reshape(data, (*blocks, batch, *sizes[1:]))
    order = [count]
    for at in range(count):
        order += [count + 1 + at, at]
    order += range(2 * count + 1, count + len(sizes))
    turned = builder.transpose(parts, order)
    spaces = [product((size, block)) for size, block in zip(sizes[1 : 1 + count], blocks, strict=True)]
    result = builder.reshape(turned, (batch, *spaces, *sizes[1 + count :]))
    for axis, (first, last) in enumerate(crops.tolist(), 1):
        result = builder.slice_axis(result, axis, int(first), subtract(sizes_of(result)[axis], int(last)))
    return result


@converter("BROADCAST_TO")
def broadcast_to(node: NodeContext) -> GraphExpr:
    """Repeated to fill a shape."""
    wanted = node.sizes(1, "the shape")
    if wanted is None:
        length = sizes_of(node.input(1))[0]
        if not isinstance(length, int):
            raise UnsupportedError("BROADCAST_TO a number of dimensions that only a run knows")
        dims = [node.symbol(str(at)) for at in range(length)]
        return node.call(
            "shape.broadcast", node.input(0), node.builder.cast(node.input(1), "int64"), dims=as_dims(dims)
        )
    return node.builder.broadcast_to(node.input(0), wanted)


@converter("STABLEHLO_BROADCAST_IN_DIM")
def broadcast_in_dim(node: NodeContext) -> GraphExpr:
    """Dimensions at places of the result, the others repeated."""
    data, dims = node.input(0), node.output_tensor().dims
    places = node.constant_ints(1, "the places") if node.has_input(1) else node.option("broadcast_dimensions", ())
    if dims is None or None in dims:
        raise UnsupportedError("STABLEHLO_BROADCAST_IN_DIM to a shape that is not known")
    wanted = [size for size in dims if size is not None]
    shape: list[Size] = [1] * len(wanted)
    for place, size in zip(places, sizes_of(data), strict=True):
        shape[int(place)] = size
    return node.builder.broadcast_to(node.builder.reshape(data, shape), wanted)


@converter("BROADCAST_ARGS")
def broadcast_args(node: NodeContext) -> GraphExpr:
    """The shape to which tensors of two shapes broadcast."""
    a, b = node.constant_ints(0, "a shape"), node.constant_ints(1, "a shape")
    return node.builder.constant(np.broadcast_shapes(a, b), dtype_of(node.input(0)))


@converter("TILE")
def tile(node: NodeContext) -> GraphExpr:
    """Repeated along each dimension."""
    data, repeats = node.input(0), node.sizes(1, "the repeats")
    if repeats is None:
        dims = [node.symbol(str(axis)) for axis in range(rank_of(data))]
        return node.call("shape.tile", data, node.builder.cast(node.input(1), "int64"), dims=as_dims(dims))
    if all(isinstance(count, int) and count == 1 for count in repeats):
        return data
    return node.call("tile", data, repeats=repeats)


@converter("DENSIFY")
def densify(node: NodeContext) -> GraphExpr:
    """A constant that was stored without its zeros: it is whole already."""
    return node.input(0)
