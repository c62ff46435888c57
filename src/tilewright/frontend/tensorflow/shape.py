"""Converters of operators that make, shape, join and cut tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core import blocks, shapes
from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.core.loops import reverse
from tilewright.frontend.core.slices import Masks, mirror_pad, sliced, strided_slice
from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.registry import converter
from tilewright.frontend.tensorflow.values import Value
from tilewright.graph.ir.dimensions import Size, as_dims, different, modulo, product, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError


def each_part(node: NodeContext, index: int, convert: str) -> Value | None:
    """What a converter gives for each part of a complex input; None if it is a tensor."""
    value = node.value(index)
    if not isinstance(value, Complex):
        return None
    results: list[GraphExpr] = []
    for part in value.parts:
        values = [part if at == index else item for at, item in enumerate(node.values)]
        made = _PARTWISE[convert](NodeContext(node.node, values, node.builder, node.scope))
        assert isinstance(made, GraphExpr)
        results.append(made)
    return Complex(results[0], results[1])


@converter("Reshape")
def reshape(node: NodeContext) -> Value:
    """To a shape that is an input; -1 is what is left over."""
    return each_part(node, 0, "Reshape") or shapes.reshaped(node)


@converter("Squeeze")
def squeeze(node: NodeContext) -> Value:
    """Without dimensions of 1: those that are named, or all."""
    found = each_part(node, 0, "Squeeze")
    if found is not None:
        return found
    sizes = sizes_of(node.input(0))
    axes = {node.axis(item, len(sizes)) for item in node.integers("squeeze_dims")}
    if not axes:
        axes = {at for at, size in enumerate(sizes) if isinstance(size, int) and size == 1}
    for at in axes:
        if isinstance(sizes[at], int) and sizes[at] != 1:
            raise UserError(f"dimension {at} of {sizes_text(sizes)} is not 1")
    return node.builder.reshape(node.input(0), [size for at, size in enumerate(sizes) if at not in axes])


@converter("ExpandDims")
def expand_dims(node: NodeContext) -> Value:
    """A new dimension of 1 at a place that is an input."""
    found = each_part(node, 0, "ExpandDims")
    if found is not None:
        return found
    data = node.input(0)
    return node.builder.expand_dims(data, (node.axis(node.constant_int(1, "the axis"), rank_of(data) + 1),))


@converter("Transpose", "ConjugateTranspose")
def transpose(node: NodeContext) -> Value:
    """Dimensions in an order that is an input."""
    found = each_part(node, 0, "Transpose")
    if isinstance(found, Complex) and node.operator == "ConjugateTranspose":
        return Complex(found.real, node.call("negative", found.imaginary))
    if found is not None:
        return found
    data = node.input(0)
    order = tuple(node.axis(item, rank_of(data)) for item in node.constant_ints(1, "the order"))
    if sorted(order) != list(range(rank_of(data))):
        raise UserError(f"{order} is no order of {rank_of(data)} dimensions")
    return node.builder.transpose(data, order)


@converter("InvertPermutation")
def invert_permutation(node: NodeContext) -> GraphExpr:
    """The order that undoes an order."""
    order = np.array(node.constant_ints(0, "the order"))
    if sorted(order.tolist()) != list(range(len(order))):
        raise UserError(f"{order.tolist()} is no order")
    return node.builder.constant(np.argsort(order), dtype_of(node.input(0)))


@converter("Shape")
def shape(node: NodeContext) -> GraphExpr:
    """The sizes of a tensor."""
    return _shape_of(node, node.value(0))


@converter("ShapeN")
def shape_of_each(node: NodeContext) -> Sequence[GraphExpr]:
    """The sizes of each tensor."""
    return [_shape_of(node, value) for value in node.values]


def _shape_of(node: NodeContext, value: Value) -> GraphExpr:
    data = value.real if isinstance(value, Complex) else value
    if not isinstance(data, GraphExpr):
        raise UnsupportedError(f"{node.operator} of what is no tensor")
    return node.builder.cast(node.builder.shape_tensor(sizes_of(data)), node.dtype("out_type", 3))


@converter("Rank")
def rank(node: NodeContext) -> GraphExpr:
    """The number of dimensions."""
    return node.builder.constant(rank_of(node.input(0)), "int32")


@converter("Size")
def size(node: NodeContext) -> GraphExpr:
    """The number of elements."""
    count = node.builder.shape_tensor([product(sizes_of(node.input(0)))])
    return node.builder.cast(node.builder.reshape(count, ()), node.dtype("out_type", 3))


@converter("ConcatV2", "Concat", "ConcatOffset")
def concat(node: NodeContext) -> Value | Sequence[Value]:
    """Tensors one after the other along an axis that is the last input (in the older form the first)."""
    if node.operator == "ConcatOffset":
        return _offsets(node)
    last = len(node.values) - 1
    place = last if node.operator == "ConcatV2" else 0
    chosen = [at for at in range(last + 1) if at != place]
    axis = node.constant_int(place, "the axis")
    if any(isinstance(node.value(at), Complex) for at in chosen):
        pairs = [node.value(at) for at in chosen]
        parts = [[pair.parts[side] for pair in pairs if isinstance(pair, Complex)] for side in (0, 1)]
        axis = node.axis(axis, rank_of(parts[0][0]))
        return Complex(*(node.builder.concatenate(part, axis) for part in parts))
    values = [node.input(at) for at in chosen]
    return node.builder.concatenate(values, node.axis(axis, rank_of(values[0])))


def _offsets(node: NodeContext) -> Sequence[Value]:
    """Where each of several parts begins in what they make together."""
    axis = node.constant_int(0, "the axis")
    parts = [node.constant(at, "a shape") for at in range(1, len(node.values))]
    results: list[Value] = []
    start = 0
    for part in parts:
        place = np.zeros_like(part)
        place[axis] = start
        start += int(part[axis])
        results.append(node.builder.constant(place, "int32"))
    return results


@converter("ParallelConcat")
def parallel_concat(node: NodeContext) -> GraphExpr:
    """Tensors one after the other along the first axis."""
    return node.builder.concatenate(node.all_inputs(), 0)


@converter("Pack")
def pack(node: NodeContext) -> Value:
    """Tensors along a new axis."""
    if any(isinstance(value, Complex) for value in node.values):
        pairs = [value for value in node.values if isinstance(value, Complex)]
        axis = node.axis(node.integer("axis"), rank_of(pairs[0].real) + 1)
        return Complex(*(node.builder.stack([pair.parts[side] for pair in pairs], axis) for side in (0, 1)))
    values = [node.input(at) for at in range(len(node.values))]
    return node.builder.stack(values, node.axis(node.integer("axis"), rank_of(values[0]) + 1))


@converter("Unpack")
def unpack(node: NodeContext) -> Sequence[GraphExpr]:
    """The slices of an axis, without it."""
    data = node.input(0)
    return shapes.slices_along(node, data, node.axis(node.integer("axis"), rank_of(data)), node.integer("num"))


@converter("Split")
def split(node: NodeContext) -> Sequence[GraphExpr]:
    """Equal parts along an axis, which comes first."""
    data = node.input(1)
    axis = node.axis(node.constant_int(0, "the axis"), rank_of(data))
    return shapes.split_evenly(node, data, axis, node.integer("num_split"))


@converter("SplitV")
def split_by_sizes(node: NodeContext) -> Sequence[GraphExpr]:
    """Parts of given sizes along an axis; -1 is what is left over."""
    data = node.input(0)
    return shapes.split_by_sizes(node, data, node.axis(node.constant_int(2, "the axis"), rank_of(data)), 1)


@converter("SpaceToDepth", "DepthToSpace")
def blocks_of_pixels(node: NodeContext) -> GraphExpr:
    """Blocks of pixels as channels, and back."""
    layout, block, b = node.text("data_format", "NHWC"), node.integer("block_size"), node.builder
    convert = blocks.space_to_depth if node.operator == "SpaceToDepth" else blocks.depth_to_space
    if layout == "NHWC":
        return convert(node, block)
    if layout != "NCHW":
        raise UnsupportedError(f"{node.operator} in the layout {layout}")
    last = NodeContext(node.node, [b.transpose(node.input(0), (0, 2, 3, 1))], b, node.scope)
    return b.transpose(convert(last, block), (0, 3, 1, 2))


@converter("SpaceToBatchND")
def space_to_batch(node: NodeContext) -> GraphExpr:
    """Blocks of places, after padding, as images of their own."""
    return blocks.space_to_batch(node)


@converter("BatchToSpaceND")
def batch_to_space(node: NodeContext) -> GraphExpr:
    """Images as blocks of places of larger ones, whose borders are cut off."""
    return blocks.batch_to_space(node)


@converter("BroadcastTo")
def broadcast_to(node: NodeContext) -> GraphExpr:
    """Repeated to fill a shape."""
    return shapes.broadcast(node)


@converter("BroadcastArgs")
def broadcast_args(node: NodeContext) -> GraphExpr:
    """The shape to which tensors of two shapes broadcast."""
    b, dtype = node.builder, dtype_of(node.input(0))
    first, second = node.sizes(0, "a shape"), node.sizes(1, "a shape")
    if first is None or second is None:
        raise UnsupportedError("BroadcastArgs of shapes that are data")
    count = max(len(first), len(second))
    result: list[Size] = []
    for x, y in zip(_filled(first, count), _filled(second, count), strict=True):
        if different(x, y) and 1 not in (x, y):
            raise UserError(f"shapes {sizes_text(first)} and {sizes_text(second)} do not broadcast")
        result.append(y if isinstance(x, int) and x == 1 else x)
    return b.cast(b.shape_tensor(result), dtype)


def _filled(sizes: Sequence[Size], count: int) -> list[Size]:
    return [1] * (count - len(sizes)) + list(sizes)


@converter("Tile")
def tile(node: NodeContext) -> GraphExpr:
    """Repeated along each dimension."""
    return shapes.tiled(node)


@converter("Fill")
def fill(node: NodeContext) -> GraphExpr:
    """One value in a shape."""
    return node.builder.broadcast_to(node.builder.reshape(node.input(1), ()), shapes.shape_input(node, 0))


@converter("ZerosLike", "OnesLike")
def filled_like(node: NodeContext) -> Value:
    """Zeros or ones in the shape of a tensor."""
    data = node.input(0)
    return node.builder.filled(0 if node.operator == "ZerosLike" else 1, sizes_of(data), dtype_of(data))


@converter("Empty")
def empty(node: NodeContext) -> GraphExpr:
    """A tensor of no particular elements: zeros."""
    return node.builder.filled(0, shapes.shape_input(node, 0), node.dtype("dtype"))


@converter("Range")
def range_(node: NodeContext) -> GraphExpr:
    """start, start + delta, ... before the limit."""
    return shapes.counted(node)


@converter("LinSpace")
def linspace(node: NodeContext) -> GraphExpr:
    """So many numbers at equal distances, with both ends."""
    b, start, stop = node.builder, node.input(0), node.input(1)
    count = node.constant_int(2, "the number")
    if count < 1:
        raise UserError(f"LinSpace of {count} numbers")
    if count == 1:
        return b.reshape(start, (1,))
    step = b.divide(b.subtract(stop, start), float(count - 1))
    places = b.cast(b.arange(count - 1), dtype_of(start))
    return b.concatenate([b.add(b.multiply(places, step), start), b.reshape(stop, (1,))], 0)


@converter("Slice")
def slice_(node: NodeContext) -> Value:
    """From places on, so many elements; -1 is all that follow."""
    return each_part(node, 0, "Slice") or sliced(node)


@converter("StridedSlice")
def slice_by_strides(node: NodeContext) -> Value:
    """Slices with numpy's meaning."""
    keys = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    masks = Masks(*(node.integer(f"{key}_mask") for key in keys))
    return each_part(node, 0, "StridedSlice") or strided_slice(node, masks)


def _amounts(node: NodeContext) -> tuple[list[Size], list[Size]] | None:
    """Padding before and after each dimension, by input 1; None if only a run knows it."""
    found = symbolic_value(node.input(1))
    if found is None:
        known = evaluate(node.input(1))
        return None if known is None else (known[:, 0].tolist(), known[:, 1].tolist())
    return list(found.reshape(-1, 2)[:, 0]), list(found.reshape(-1, 2)[:, 1])


@converter("Pad", "PadV2")
def pad(node: NodeContext) -> GraphExpr:
    """Elements of one value added around the data."""
    b, data, amounts = node.builder, node.input(0), _amounts(node)
    value = node.constant(2, "the value").item() if node.operator == "PadV2" else 0
    if amounts is None:
        flat = b.reshape(b.transpose(b.cast(node.input(1), INT64), (1, 0)), (2 * rank_of(data),))
        dims = [node.symbol(str(at)) for at in range(rank_of(data))]
        given = b.cast(b.constant(value, dtype_of(data)), dtype_of(data))
        return node.call("shape.pad", data, flat, given, dims=as_dims(dims), axes=tuple(range(rank_of(data))))
    before, after = amounts
    if len(before) != rank_of(data):
        raise UserError(f"{len(before)} amounts of padding for data of {rank_of(data)} dimensions")
    if all(isinstance(item, int) and item == 0 for item in (*before, *after)):
        return data
    if any(isinstance(item, int) and item < 0 for item in (*before, *after)):
        raise UserError(f"padding by {sizes_text((*before, *after))} is negative")
    return node.call("pad", data, before=tuple(before), after=tuple(after), value=float(value))


@converter("MirrorPad")
def mirrored(node: NodeContext) -> GraphExpr:
    """The data mirrored at its borders, without the border (REFLECT) or with it (SYMMETRIC)."""
    mode = node.text("mode").lower()
    if mode not in ("reflect", "symmetric"):
        raise UserError(f"MirrorPad in the mode {mode!r}")
    return mirror_pad(node, mode)


@converter("ReverseV2", "Reverse")
def reverse_axes(node: NodeContext) -> GraphExpr:
    """In the other direction along axes that are an input."""
    data = node.input(0)
    if node.operator == "Reverse":
        axes = tuple(np.flatnonzero(node.constant(1, "the axes")).tolist())
    else:
        axes = node.constant_ints(1, "the axes")
    for axis in axes:
        data = reverse(node.builder, data, node.axis(axis, rank_of(data)))
    return data


@converter("Roll")
def roll(node: NodeContext) -> GraphExpr:
    """Moved along axes; what goes out at one end comes in at the other."""
    b, data = node.builder, node.input(0)
    moves, axes = node.constant_ints(1, "the moves"), node.constant_ints(2, "the axes")
    for move, axis in zip(moves, axes, strict=True):
        at = node.axis(axis, rank_of(data))
        length = sizes_of(data)[at]
        if isinstance(length, int) and length == 0:
            continue
        cut = modulo(subtract(length, move), length)
        if not isinstance(cut, int) or cut:
            data = b.concatenate([b.slice_axis(data, at, cut, length), b.slice_axis(data, at, 0, cut)], at)
    return data


@converter("EnsureShape")
def ensure_shape(node: NodeContext) -> GraphExpr:
    """A tensor whose shape is said; sizes that are known from it are used."""
    data, dims = node.input(0), node.dims("shape")
    if dims is None:
        return data
    sizes = sizes_of(data)
    if len(sizes) != len(dims):
        raise UserError(f"a tensor of shape {sizes_text(sizes)} has not {len(dims)} dimensions")
    return node.builder.match(data, [size if dim is None else dim for size, dim in zip(sizes, dims, strict=True)])


@converter("UpperBound", "LowerBound")
def bound(node: NodeContext) -> GraphExpr:
    """Where values belong in sorted rows: behind (upper) or before (lower) those that are equal."""
    b, rows, values = node.builder, node.input(0), node.input(1)
    name = "less_equal" if node.operator == "UpperBound" else "less"
    smaller = node.call(name, b.expand_dims(rows, (1,)), b.expand_dims(values, (2,)))
    return node.call("sum", b.cast(smaller, node.dtype("out_type", 3)), axes=(2,))


@converter("ListDiff", outputs=("out", "idx"))
def list_difference(node: NodeContext) -> Sequence[GraphExpr]:
    """The elements of one list that are not in another, and where they are."""
    x, y = evaluate(node.input(0)), evaluate(node.input(1))
    if x is None or y is None:
        raise UnsupportedError("ListDiff of lists that are data")
    kept = np.flatnonzero(~np.isin(x, y))
    dtype = node.dtype("out_idx", 3)
    return [node.builder.constant(x[kept], dtype_of(node.input(0))), node.builder.constant(kept, dtype)]


_PARTWISE = {
    "Reshape": reshape,
    "Squeeze": squeeze,
    "ExpandDims": expand_dims,
    "Transpose": transpose,
    "Slice": slice_,
    "StridedSlice": slice_by_strides,
}
