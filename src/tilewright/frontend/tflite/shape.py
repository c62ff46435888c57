"""Converters of operators that shape and join tensors."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core import blocks, shapes
from tilewright.frontend.core.activations import activated
from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.fixed_point import bounds_of, finished, rounded_away, same_levels
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UnsupportedError, UserError


@converter("RESHAPE", "STABLEHLO_RESHAPE")
def reshape(node: NodeContext) -> GraphExpr:
    """To a shape that is an input or an option; -1 is what is left over."""
    data = node.input(0)
    wanted: tuple[Size, ...]
    if node.node.name == "STABLEHLO_RESHAPE":
        dims = node.output_tensor().dims
        if dims is None or None in dims:
            raise UnsupportedError("STABLEHLO_RESHAPE to a shape that is not known")
        wanted = tuple(size for size in dims if size is not None)
    elif node.has_input(1):
        return shapes.reshaped(node)
    else:
        wanted = tuple(int(item) for item in node.option("new_shape", ()))
    return node.builder.reshape(data, shapes.completed(sizes_of(data), wanted))


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
    data = node.input(0)
    return shapes.slices_along(node, data, node.axis(node.integer("axis"), rank_of(data)), len(node.node.outputs))


@converter("SPLIT")
def split(node: NodeContext) -> list[GraphExpr]:
    """Equal parts along an axis, which comes first."""
    data = node.input(1)
    axis = node.axis(node.constant_int(0, "the axis"), rank_of(data))
    return shapes.split_evenly(node, data, axis, len(node.node.outputs))


@converter("SPLIT_V")
def split_by_sizes(node: NodeContext) -> list[GraphExpr]:
    """Parts of given sizes along an axis; -1 is what is left over."""
    data = node.input(0)
    return shapes.split_by_sizes(node, data, node.axis(node.constant_int(2, "the axis"), rank_of(data)), 1)


@converter("SPACE_TO_DEPTH")
def space_to_depth(node: NodeContext) -> GraphExpr:
    """Blocks of pixels as channels."""
    return blocks.space_to_depth(node, node.integer("block_size"))


@converter("DEPTH_TO_SPACE")
def depth_to_space(node: NodeContext) -> GraphExpr:
    """Channels as blocks of pixels."""
    return blocks.depth_to_space(node, node.integer("block_size"))


@converter("SPACE_TO_BATCH_ND")
def space_to_batch(node: NodeContext) -> GraphExpr:
    """Blocks of places, after padding, as images of their own."""
    return blocks.space_to_batch(node, float(node.levels(0).zero) if node.is_quantized() else 0.0)


@converter("BATCH_TO_SPACE_ND")
def batch_to_space(node: NodeContext) -> GraphExpr:
    """Images as blocks of places of larger ones, whose borders are cut off."""
    return blocks.batch_to_space(node)


@converter("BROADCAST_TO")
def broadcast_to(node: NodeContext) -> GraphExpr:
    """Repeated to fill a shape."""
    return shapes.broadcast(node)


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
    return shapes.tiled(node)


@converter("DENSIFY")
def densify(node: NodeContext) -> GraphExpr:
    """A constant that was stored without its zeros: it is whole already."""
    return node.input(0)
