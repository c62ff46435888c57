"""Converters of operators that make, shape and move tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.builder import LARGEST_MADE, dtype_of, rank_of, shape_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.reader import data_type
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.expr import Constant, GraphExpr
from tilewright.ir.dtype import BOOL
from tilewright.support.errors import UnsupportedError, UserError


@converter("Identity")
def identity(node: NodeContext) -> GraphExpr:
    """Itself."""
    return node.input(0)


@converter("Dropout")
def dropout(node: NodeContext) -> list[GraphExpr | None]:
    """Nothing in inference; the mask, if asked for, is all true."""
    node.ignore("ratio", "seed")
    training = node.has_input(2) and node.constant(2, "training_mode").any()
    if training and (not node.has_input(1) or node.constant(1, "the ratio").any()):
        raise UnsupportedError("Dropout in training form", hint="export the model in evaluation mode")
    data = node.input(0)
    mask: GraphExpr | None = None
    if node.wants_output(1):
        mask = node.builder.broadcast_to(node.builder.constant(True, BOOL), shape_of(data))
        if node.opset < 10:
            mask = node.builder.cast(mask, dtype_of(data))
    return [data, mask]


@converter("Constant")
def constant(node: NodeContext) -> GraphExpr:
    """A value stored in one of several attributes."""
    builder = node.builder
    names = list(node.node.attributes)
    if len(names) != 1:
        raise UserError(f"Constant needs exactly one value, it has {', '.join(names) or 'none'}")
    match names[0]:
        case "value" | "sparse_value":
            stored = node.tensor(names[0])
            made = Constant(stored.array, stored.dtype)
            made.span = builder.span
            return made if stored.small is None else node.small_types.mark(made, stored.small)
        case "value_float":
            return builder.constant(node.number("value_float"), "float32")
        case "value_int":
            return builder.constant(node.integer("value_int"), "int64")
        case "value_floats":
            return builder.constant(node.floats("value_floats"), "float32")
        case "value_ints":
            return builder.constant(node.ints("value_ints"), "int64")
    raise UnsupportedError(f"Constant with {names[0]}: texts are not supported")


@converter("ConstantOfShape")
def constant_of_shape(node: NodeContext) -> GraphExpr:
    """One value repeated."""
    shape = node.constant_ints(0, "the shape")
    _check_shape(shape)
    value: GraphExpr = node.builder.constant(0.0, "float32")
    if node.has_attribute("value"):
        stored = node.tensor("value")
        if stored.array.size != 1:
            raise UserError(f"the value must be one number, it has shape {stored.array.shape}")
        if stored.small is not None:
            raise UnsupportedError(f"ConstantOfShape of {stored.small.name}")
        value = Constant(stored.array.reshape(()), stored.dtype)
    return node.builder.broadcast_to(value, shape)


def _check_shape(shape: Sequence[int]) -> None:
    if any(dim < 0 for dim in shape):
        raise UserError(f"{tuple(shape)} is not a shape: it has a negative dimension")


@converter("Range")
def range_(node: NodeContext) -> GraphExpr:
    """Numbers from start to limit, computed now."""
    start, limit, delta = (node.constant(index, what) for index, what in enumerate(("start", "limit", "delta")))
    step = delta.ravel()[0] if delta.size else 0
    if start.size != 1 or limit.size != 1 or delta.size != 1 or step == 0:
        raise UserError("start, limit and delta of Range must be numbers, and delta not 0")
    first, last = start.ravel()[0], limit.ravel()[0]
    span = (float(last) - float(first)) / float(step)
    count = max(0, math.ceil(span)) if math.isfinite(span) else LARGEST_MADE + 1
    if count > LARGEST_MADE:
        raise UnsupportedError(f"Range of {count} elements")
    return node.builder.constant((first + np.arange(count) * step).astype(start.dtype), dtype_of(node.input(0)))


@converter("EyeLike")
def eye_like(node: NodeContext) -> GraphExpr:
    """Ones on a diagonal."""
    data = node.input(0)
    if rank_of(data) != 2:
        raise UserError(f"EyeLike needs a matrix, it is {shape_of(data)}")
    rows, columns = shape_of(data)
    if rows * columns > LARGEST_MADE:
        raise UnsupportedError(f"EyeLike of shape {(rows, columns)}")
    dtype = data_type(node.integer("dtype"), "EyeLike") if node.has_attribute("dtype") else dtype_of(data)
    return node.builder.cast(node.builder.constant(np.eye(rows, columns, node.integer("k", 0), np.float32)), dtype)


@converter("Shape")
def shape(node: NodeContext) -> GraphExpr:
    """The shape (or a part of it): known now."""
    dims = shape_of(node.input(0))
    start, end = node.integer("start", 0), node.integer("end", len(dims))
    return node.builder.constant(np.array(dims, np.int64)[slice(*_part(start, end, len(dims)))])


def _part(start: int, end: int, rank: int) -> tuple[int, int]:
    bounds = [min(max(value + rank if value < 0 else value, 0), rank) for value in (start, end)]
    return bounds[0], max(bounds)


@converter("Size")
def size(node: NodeContext) -> GraphExpr:
    """The number of elements: known now."""
    return node.builder.constant(math.prod(shape_of(node.input(0))), "int64")


@converter("Reshape")
def reshape(node: NodeContext) -> GraphExpr:
    """0 copies a dimension (unless allowzero), -1 is what is left."""
    data = node.input(0)
    old, wanted = shape_of(data), list(node.constant_ints(1, "the shape"))
    if not node.flag("allowzero"):
        for axis, dim in enumerate(wanted):
            if dim == 0:
                if axis >= len(old):
                    raise UserError(f"the shape {tuple(wanted)} copies dimension {axis}, the data is {old}")
                wanted[axis] = old[axis]
    if wanted.count(-1) == 1:
        known = math.prod(dim for dim in wanted if dim != -1)
        if known <= 0 or math.prod(old) % known:
            raise UserError(f"cannot reshape {old} to {tuple(wanted)}")
        wanted[wanted.index(-1)] = math.prod(old) // known
    _check_shape(wanted)
    return node.builder.reshape(data, wanted)


@converter("Flatten")
def flatten(node: NodeContext) -> GraphExpr:
    """A matrix: dimensions before an axis, and from it on."""
    data = node.input(0)
    dims = shape_of(data)
    axis = node.integer("axis", 1)
    if not -len(dims) <= axis <= len(dims):
        raise UserError(f"axis {axis} is out of range for {len(dims)} dimensions")
    axis = axis + len(dims) if axis < 0 else axis
    return node.builder.reshape(data, (math.prod(dims[:axis]), math.prod(dims[axis:])))


def _given_axes(node: NodeContext) -> tuple[int, ...] | None:
    """Axes of Squeeze and Unsqueeze: an attribute, from opset 13 on an input."""
    if node.opset >= 13:
        return node.constant_ints(1, "the axes") if node.has_input(1) else None
    return node.ints("axes") if node.has_attribute("axes") else None


@converter("Squeeze")
def squeeze(node: NodeContext) -> GraphExpr:
    """Without some dimensions of 1, or without all of them."""
    data = node.input(0)
    dims = shape_of(data)
    given = _given_axes(node)
    axes = tuple(axis for axis, dim in enumerate(dims) if dim == 1) if given is None else node.axes(given, len(dims))
    for axis in axes:
        if dims[axis] != 1:
            raise UserError(f"dimension {axis} of {dims} is not 1: it cannot be squeezed")
    return node.builder.reshape(data, [dim for axis, dim in enumerate(dims) if axis not in axes])


@converter("Unsqueeze")
def unsqueeze(node: NodeContext) -> GraphExpr:
    """With new dimensions of 1, at places counted in the result."""
    data = node.input(0)
    given = _given_axes(node)
    if given is None:
        raise UserError("Unsqueeze needs axes")
    return node.builder.expand_dims(data, node.axes(given, rank_of(data) + len(given)))


@converter("Transpose")
def transpose(node: NodeContext) -> GraphExpr:
    """Dimensions in another order, reversed if none is given."""
    data = node.input(0)
    order = node.ints("perm", tuple(range(rank_of(data)))[::-1])
    if sorted(order) != list(range(rank_of(data))):
        raise UserError(f"perm {order} is no order of the dimensions of {shape_of(data)}")
    return node.builder.transpose(data, order)


@converter("Concat")
def concat(node: NodeContext) -> GraphExpr:
    """One after the other along an axis."""
    values = node.all_inputs()
    axis = node.axis(node.integer("axis"), rank_of(values[0]))
    return node.builder.concatenate(values, axis)


@converter("Split")
def split(node: NodeContext) -> list[GraphExpr]:
    """Parts of given sizes, or of equal ones (the last may be smaller)."""
    data = node.input(0)
    axis = node.axis(node.integer("axis", 0), rank_of(data))
    total = shape_of(data)[axis]
    count = len(node.node.outputs)
    if node.opset >= 13 and node.has_input(1):
        sizes = node.constant_ints(1, "the sizes")
        node.ignore("num_outputs")
    elif node.opset < 13 and node.has_attribute("split"):
        sizes = node.ints("split")
    else:
        if node.integer("num_outputs", count) != count:
            raise UserError(f"num_outputs is {node.integer('num_outputs')}, the node has {count} outputs")
        part = -(-total // count)
        if node.opset < 18 and part * count != total:
            raise UserError(f"dimension {axis} of size {total} does not split into {count} equal parts")
        sizes = tuple(max(0, min(part, total - index * part)) for index in range(count))
    if len(sizes) != len(node.node.outputs) or sum(sizes) != total:
        raise UserError(f"parts of {sizes} do not fit {len(node.node.outputs)} outputs of a dimension of {total}")
    if len(sizes) == 1:
        return [data]
    whole = node.call("split", data, sizes=sizes, axis=axis)
    return [node.builder.item(whole, index) for index in range(len(sizes))]


@converter("Slice", until=9)
def slice_by_attributes(node: NodeContext) -> GraphExpr:
    """Starts and ends as attributes."""
    data = node.input(0)
    starts, ends = node.ints("starts"), node.ints("ends")
    axes = node.ints("axes", tuple(range(len(starts))))
    return build_slice(node, data, starts, ends, axes, (1,) * len(starts))


@converter("Slice", since=10)
def slice_by_inputs(node: NodeContext) -> GraphExpr:
    """Starts, ends, axes and steps as inputs."""
    data = node.input(0)
    starts, ends = node.constant_ints(1, "starts"), node.constant_ints(2, "ends")
    axes = node.constant_ints(3, "axes") if node.has_input(3) else tuple(range(len(starts)))
    steps = node.constant_ints(4, "steps") if node.has_input(4) else (1,) * len(starts)
    return build_slice(node, data, starts, ends, axes, steps)


def build_slice(
    node: NodeContext,
    data: GraphExpr,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int],
) -> GraphExpr:
    """A slice with Python's meaning of bounds: negative ones count from the end, all are clamped."""
    dims = shape_of(data)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise UserError(f"starts {starts}, ends {ends}, axes {axes} and steps {steps} must have one length")
    begin, end, strides = [0] * len(dims), list(dims), [1] * len(dims)
    for axis, start, stop, step in zip(node.axes(axes, len(dims)), starts, ends, steps, strict=True):
        if step == 0:
            raise UserError("a step is 0")
        dim = dims[axis]
        first, last, _ = slice(start, stop, step).indices(dim)
        if (last - first) * step <= 0:
            # Nothing is left: any valid bounds that are equal will do.
            first, last, step = 0, 0, 1
        begin[axis], end[axis], strides[axis] = first, last, step
    if begin == [0] * len(dims) and end == list(dims) and strides == [1] * len(dims):
        return data
    return node.call("slice", data, begin=tuple(begin), end=tuple(end), strides=tuple(strides))


@converter("Pad", until=10)
def pad_by_attributes(node: NodeContext) -> GraphExpr:
    """Amounts and value as attributes."""
    data = node.input(0)
    axes = tuple(range(rank_of(data)))
    return build_pad(node, data, node.ints("pads"), axes, node.text("mode", "constant"), node.number("value", 0.0))


@converter("Pad", since=11)
def pad_by_inputs(node: NodeContext) -> GraphExpr:
    """Amounts, value and axes as inputs."""
    data = node.input(0)
    pads = node.constant_ints(1, "the amounts")
    value = 0.0
    if node.has_input(2):
        stored = node.constant(2, "the value")
        if stored.size != 1:
            raise UserError(f"the value must be one number, it has shape {stored.shape}")
        value = float(stored.ravel()[0])
    rank = rank_of(data)
    axes = node.axes(node.constant_ints(3, "the axes"), rank) if node.has_input(3) else tuple(range(rank))
    return build_pad(node, data, pads, axes, node.text("mode", "constant"), value)


def build_pad(
    node: NodeContext, data: GraphExpr, pads: Sequence[int], axes: Sequence[int], mode: str, value: float
) -> GraphExpr:
    """Padding of some axes; negative amounts cut off."""
    dims = shape_of(data)
    if len(pads) != 2 * len(axes):
        raise UserError(f"pads must have {2 * len(axes)} entries, it is {tuple(pads)}")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise UserError(f"unknown padding mode {mode!r}", hint="one of constant, reflect, edge, wrap")
    before, after = [0] * len(dims), [0] * len(dims)
    for index, axis in enumerate(axes):
        before[axis], after[axis] = pads[index], pads[index + len(axes)]
    if mode != "constant":
        # Cutting first would change what is mirrored or wrapped: pad with what is positive, then cut.
        result = _pad_by_index(node, data, before, after, mode)
    else:
        cut_before, cut_after = [max(0, -item) for item in before], [max(0, -item) for item in after]
        starts = [min(cut, dim) for cut, dim in zip(cut_before, dims, strict=True)]
        ends = [max(start, dim - cut) for start, dim, cut in zip(starts, dims, cut_after, strict=True)]
        result = build_slice(node, data, starts, ends, range(len(dims)), [1] * len(dims))
        grown_before, grown_after = [max(0, item) for item in before], [max(0, item) for item in after]
        if any(grown_before) or any(grown_after):
            result = node.call("pad", result, before=tuple(grown_before), after=tuple(grown_after), value=value)
    return result


def _pad_by_index(
    node: NodeContext, data: GraphExpr, before: Sequence[int], after: Sequence[int], mode: str
) -> GraphExpr:
    """Reflect and edge where the operator does it; otherwise elements chosen along each axis."""
    dims = shape_of(data)
    positive = all(item >= 0 for item in (*before, *after))
    room = all(
        dim > max(low, high) if mode == "reflect" else dim > 0
        for dim, low, high in zip(dims, before, after, strict=True)
        if low or high
    )
    if mode in ("reflect", "edge") and positive and room:
        if not any(before) and not any(after):
            return data
        return node.call("pad", data, before=tuple(before), after=tuple(after), mode=mode)
    result = data
    for axis, (dim, low, high) in enumerate(zip(dims, before, after, strict=True)):
        if not low and not high:
            continue
        if dim == 0 or dim + max(0, low) + max(0, high) > LARGEST_MADE:
            raise UserError(f"cannot pad dimension {axis} of size {dim} by {low} and {high}")
        order = np.arange(dim)
        grown = (max(0, low), max(0, high))
        if mode == "reflect":
            places = np.pad(order, grown, mode="reflect")
        elif mode == "edge":
            places = np.pad(order, grown, mode="edge")
        else:
            places = np.pad(order, grown, mode="wrap")
        places = places[max(0, -low) : len(places) - max(0, -high)]
        result = node.call("take", result, node.builder.constant(places, "int64"), axis=axis)
    return result


@converter("Expand")
def expand(node: NodeContext) -> GraphExpr:
    """Broadcast with a shape, in both directions."""
    data = node.input(0)
    wanted = node.constant_ints(1, "the shape")
    _check_shape(wanted)
    try:
        result = np.broadcast_shapes(shape_of(data), wanted)
    except ValueError as error:
        raise UserError(f"{shape_of(data)} does not broadcast with {wanted}") from error
    return node.builder.broadcast_to(data, result)


@converter("Tile")
def tile(node: NodeContext) -> GraphExpr:
    """Repeated along each dimension."""
    data = node.input(0)
    repeats = node.constant_ints(1, "the repeats")
    if all(count == 1 for count in repeats) and len(repeats) == rank_of(data):
        return data
    return node.call("tile", data, repeats=repeats)


@converter("DepthToSpace")
def depth_to_space(node: NodeContext) -> GraphExpr:
    """Channels spread over blocks of pixels."""
    data = node.input(0)
    block, mode = node.integer("blocksize"), node.text("mode", "DCR")
    dims = shape_of(data)
    if len(dims) != 4 or block < 1 or dims[1] % (block * block) or mode not in ("DCR", "CRD"):
        raise UserError(f"DepthToSpace with blocks of {block} in mode {mode} does not fit data of shape {dims}")
    n, c, h, w = dims
    rest = c // (block * block)
    if mode == "DCR":
        split_shape, order = (n, block, block, rest, h, w), (0, 3, 4, 1, 5, 2)
    else:
        split_shape, order = (n, rest, block, block, h, w), (0, 1, 4, 2, 5, 3)
    value = node.builder.transpose(node.builder.reshape(data, split_shape), order)
    return node.builder.reshape(value, (n, rest, h * block, w * block))


@converter("SpaceToDepth")
def space_to_depth(node: NodeContext) -> GraphExpr:
    """Blocks of pixels stacked as channels."""
    data = node.input(0)
    block = node.integer("blocksize")
    mode = node.text("mode", "DCR")
    dims = shape_of(data)
    if len(dims) != 4 or block < 1 or dims[2] % block or dims[3] % block or mode not in ("DCR", "CRD"):
        raise UserError(f"SpaceToDepth with blocks of {block} does not fit data of shape {dims}")
    n, c, h, w = dims
    value = node.builder.reshape(data, (n, c, h // block, block, w // block, block))
    value = node.builder.transpose(value, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return node.builder.reshape(value, (n, c * block * block, h // block, w // block))


@converter("Trilu")
def triangle(node: NodeContext) -> GraphExpr:
    """The upper or lower triangle, the rest 0."""
    data = node.input(0)
    dims = shape_of(data)
    if len(dims) < 2:
        raise UserError(f"Trilu needs matrices, the data is {dims}")
    k = int(node.constant(1, "k").ravel()[0]) if node.has_input(1) else 0
    rows, columns = dims[-2:]
    if rows * columns > LARGEST_MADE:
        raise UnsupportedError(f"Trilu of matrices of shape {(rows, columns)}")
    ones = np.ones((rows, columns), bool)
    k = max(-rows - columns, min(rows + columns, k))
    keep = np.triu(ones, k) if node.flag("upper", True) else np.tril(ones, k)
    if dtype_of(data).is_bool:
        return node.call("logical_and", data, node.builder.constant(keep, BOOL))
    return node.call("where", node.builder.constant(keep, BOOL), data, node.builder.constant_like(0, data))
