"""Converters of operators that make, shape and move tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from tilewright.frontend.core.builder import (
    LARGEST_MADE,
    dtype_of,
    evaluate,
    is_plain,
    of_known_length,
    rank_of,
    size_at,
    sizes_of,
)
from tilewright.frontend.core.forks import Fork, Side
from tilewright.frontend.core.ranks import MOST_RANK
from tilewright.frontend.core.symbolic_values import partial_value, symbolic_value
from tilewright.frontend.onnx.axes import by_data, insert_axes, remove_axes
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.reader import data_type
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.dimensions import (
    Size,
    Sizes,
    acts_as_one,
    as_dims,
    at_least,
    broadcast,
    ceil_divide,
    constants,
    different,
    divide_exactly,
    maximum,
    minimum,
    product,
    remaining_size,
    subtract,
)
from tilewright.graph.ir.expr import Constant, GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.graph.ops.common import size_text, sizes_text
from tilewright.ir.dtype import BOOL, FLOAT32
from tilewright.support.errors import UnsupportedError, UserError


@converter("Identity")
def identity(node: NodeContext) -> GraphExpr:
    """Itself."""
    return node.input(0)


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
            return made
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
    value: GraphExpr = node.builder.constant(0.0, "float32")
    if node.has_attribute("value"):
        stored = node.tensor("value")
        if stored.array.size != 1:
            raise UserError(f"the value must be one number, it has shape {stored.array.shape}")
        value = Constant(stored.array.reshape(()), stored.dtype)
    return expand_by_input(node, value, 0)


def check_shape(shape: Sequence[Size]) -> None:
    """Refuse shapes that certainly have a negative dimension."""
    if any(not isinstance(dim, bool) and at_least(-1, dim) for dim in shape):
        raise UserError(f"{sizes_text(shape)} is not a shape: it has a negative dimension")


def known_or_named(node: NodeContext, index: int, what: str) -> list[Size]:
    """The entries of an input that is a shape; a new symbol for each that only a run knows."""
    entries = partial_value(of_known_length(node.input(index), MOST_RANK))
    if entries is None:
        raise UserError(f"{what} of {node.node.op_type} must be a list")
    return [node.symbol(str(axis)) if size is None else size for axis, size in enumerate(entries)]


def expand_by_input(node: NodeContext, data: GraphExpr, index: int) -> GraphExpr:
    """The data broadcast with a shape that is an input, in both directions."""
    wanted = node.sizes(index, "the shape")
    old = sizes_of(data)
    if wanted is not None:
        check_shape(wanted)
        rank = max(len(old), len(wanted))
        left, right = ((1,) * (rank - len(sizes)) + tuple(sizes) for sizes in (old, wanted))
        try:
            # Where it is not certain that sizes broadcast they are taken for equal, which is checked.
            pairs = [(broadcast(a, b), a if acts_as_one(b) else b) for a, b in zip(left, right, strict=True)]
        except UserError as error:
            raise UserError(f"{sizes_text(old)} does not broadcast with {sizes_text(wanted)}") from error
        return node.builder.broadcast_to(data, [likely if found is None else found for found, likely in pairs])
    named = known_or_named(node, index, "the shape")
    named = [*old[: max(0, len(old) - len(named))], *named]
    offset = len(named) - len(old)
    for axis, size in enumerate(old):
        if size != 1 and isinstance(size, int):
            named[axis + offset] = size
    return node.call("shape.broadcast", data, node.input(index), dims=as_dims(named))


@converter("Range")
def range_(node: NodeContext) -> GraphExpr:
    """Numbers from start to limit: computed now, of symbolic length, or when the model runs."""
    builder, dtype = node.builder, dtype_of(node.input(0))
    values = [evaluate(node.input(index)) for index in range(3)]
    if all(value is not None for value in values):
        return _known_range(node, [value for value in values if value is not None])
    if dtype.is_integer:
        bounds = [symbolic_value(node.input(index)) for index in range(3)]
        found = [part.reshape(-1)[0] for part in bounds if part is not None and part.size == 1]
        if len(found) == 3 and isinstance(found[2], int) and found[2] != 0:
            start, limit, step = found
            distance = subtract(limit, start) if step > 0 else subtract(start, limit)
            return builder.arange(maximum(ceil_divide(distance, abs(step)), 0), start, step, dtype)
    exact = dtype if is_plain(dtype) else FLOAT32
    scalars = [builder.cast(builder.reshape(node.input(index), ()), exact) for index in range(3)]
    return builder.cast(node.call("shape.range", *scalars, dims=(node.symbol(),)), dtype)


def _known_range(node: NodeContext, values: Sequence[Array]) -> GraphExpr:
    start, limit, delta = values
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
        raise UserError(f"EyeLike needs a matrix, it is {sizes_text(sizes_of(data))}")
    rows, columns = sizes_of(data)
    k = node.integer("k", 0)
    dtype = data_type(node.integer("dtype"), "EyeLike") if node.has_attribute("dtype") else dtype_of(data)
    if not isinstance(rows, int) or not isinstance(columns, int):
        return node.builder.cast(diagonal(node, rows, columns, node.builder.constant(k, "int64"), "equal"), dtype)
    if rows * columns > LARGEST_MADE:
        raise UnsupportedError(f"EyeLike of shape {(rows, columns)}")
    return node.builder.cast(node.builder.constant(np.eye(rows, columns, k, np.float32)), dtype)


def diagonal(node: NodeContext, rows: Size, columns: Size, k: GraphExpr, comparison: str) -> GraphExpr:
    """Where column - row compares so with k, for matrices whose size is symbolic."""
    builder = node.builder
    row = builder.expand_dims(builder.arange(rows), (1,))
    column = builder.expand_dims(builder.arange(columns), (0,))
    return node.call(comparison, node.call("subtract", column, row), k)


@converter("Shape")
def shape(node: NodeContext) -> GraphExpr:
    """The shape (or a part of it): known now."""
    dims = sizes_of(node.input(0))
    start, end = node.integer("start", 0), node.integer("end", len(dims))
    return node.builder.shape_tensor(dims[slice(*_part(start, end, len(dims)))])


def _part(start: int, end: int, rank: int) -> tuple[int, int]:
    bounds = [min(max(value + rank if value < 0 else value, 0), rank) for value in (start, end)]
    return bounds[0], max(bounds)


@converter("Size")
def size(node: NodeContext) -> GraphExpr:
    """The number of elements: known now."""
    return node.builder.reshape(node.builder.shape_tensor([product(sizes_of(node.input(0)))]), ())


@converter("Reshape")
def reshape(node: NodeContext) -> GraphExpr:
    """0 copies a dimension (unless allowzero), -1 is what is left."""
    data = node.input(0)
    old, copy_zeros = sizes_of(data), not node.flag("allowzero")
    found = node.sizes(1, "the shape")
    wanted: list[Size] = known_or_named(node, 1, "the shape") if found is None else list(found)
    if copy_zeros:
        for axis, dim in enumerate(wanted):
            if isinstance(dim, int) and dim == 0:
                if axis >= len(old):
                    raise UserError(
                        f"the shape {sizes_text(wanted)} copies dimension {axis}, the data is {sizes_text(old)}"
                    )
                wanted[axis] = old[axis]
    left = [axis for axis, dim in enumerate(wanted) if isinstance(dim, int) and dim == -1]
    if len(left) == 1:
        rest = remaining_size(old, [dim for axis, dim in enumerate(wanted) if axis != left[0]])
        if rest is None and constants((*old, *wanted)) is not None:
            raise UserError(f"cannot reshape {sizes_text(old)} to {sizes_text(wanted)}")
        if rest is None and found is not None:
            # What is left is not certain to be whole: the division is checked when the model runs.
            wanted[left[0]] = node.symbol(str(left[0]))
            shape = node.builder.shape_tensor([-1 if axis == left[0] else dim for axis, dim in enumerate(wanted)])
            return node.call("shape.reshape", data, shape, dims=as_dims(wanted))
        wanted[left[0]] = node.symbol(str(left[0])) if rest is None else rest
    check_shape(wanted)
    if found is None:
        return node.call("shape.reshape", data, node.input(1), dims=as_dims(wanted), copy_zeros=copy_zeros)
    return node.builder.reshape(data, wanted)


@converter("Flatten")
def flatten(node: NodeContext) -> GraphExpr:
    """A matrix: dimensions before an axis, and from it on."""
    data = node.input(0)
    dims = sizes_of(data)
    axis = node.integer("axis", 1)
    if not -len(dims) <= axis <= len(dims):
        raise UserError(f"axis {axis} is out of range for {len(dims)} dimensions")
    axis = axis + len(dims) if axis < 0 else axis
    return node.builder.reshape(data, (product(dims[:axis]), product(dims[axis:])))


def _given_axes(node: NodeContext) -> tuple[int, ...] | None:
    """Axes of Squeeze and Unsqueeze: an attribute, from opset 13 on an input."""
    if node.opset >= 13:
        return node.constant_ints(1, "the axes") if node.has_input(1) else None
    return node.ints("axes") if node.has_attribute("axes") else None


@converter("Squeeze")
def squeeze(node: NodeContext) -> GraphExpr:
    """Without some dimensions of 1, or without all of them."""
    data = node.input(0)
    if by_data(node, 1):
        return remove_axes(node, data, node.input(1))
    dims = sizes_of(data)
    given = _given_axes(node)
    if given is None and any(_may_be_one(dim) for dim in dims):
        raise Fork(_squeezed(node, data))
    axes = tuple(axis for axis, dim in enumerate(dims) if dim == 1) if given is None else node.axes(given, len(dims))
    for axis in axes:
        if isinstance(dims[axis], int) and dims[axis] != 1:
            raise UserError(f"dimension {axis} of {sizes_text(dims)} is not 1: it cannot be squeezed")
    return node.builder.reshape(data, [dim for axis, dim in enumerate(dims) if axis not in axes])


def _may_be_one(dim: Size) -> bool:
    """Whether only a run knows if a size is 1."""
    return not isinstance(dim, int) and not different(dim, 1)


def _squeezed(node: NodeContext, data: GraphExpr) -> list[Side]:
    """A side for every choice of open sizes that are 1, those of more sizes first: the first that holds is meant."""
    builder, dims = node.builder, sizes_of(data)
    places = [axis for axis, dim in enumerate(dims) if _may_be_one(dim)]

    def without(ones: Sequence[int]) -> Callable[[], list[GraphExpr]]:
        known = [1 if axis in ones else dim for axis, dim in enumerate(dims)]
        return lambda: [builder.reshape(builder.match(data, known), [dim for dim in known if dim != 1])]

    sides: list[Side] = []
    for count in range(len(places), 0, -1):
        for ones in itertools.combinations(places, count):
            sizes = builder.shape_tensor([dims[axis] for axis in ones])
            is_one = node.call("equal", sizes, builder.constant(1, "int64"))
            sides.append(Side(node.call("all", is_one, axes=(0,), keepdims=False), without(ones)))
    return [*sides, Side(None, without(()))]


@converter("Unsqueeze")
def unsqueeze(node: NodeContext) -> GraphExpr:
    """With new dimensions of 1, at places counted in the result."""
    data = node.input(0)
    if by_data(node, 1):
        return insert_axes(node, data, node.input(1))
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
        raise UserError(f"perm {order} is no order of the dimensions of {sizes_text(sizes_of(data))}")
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
    total = sizes_of(data)[axis]
    count = len(node.node.outputs)
    sizes: Sizes
    if node.opset >= 13 and node.has_input(1):
        node.ignore("num_outputs")
        found = node.sizes(1, "the sizes")
        if found is None:
            named = known_or_named(node, 1, "the sizes")
            whole = node.call("shape.split", data, node.input(1), dims=as_dims(named), axis=axis)
            return [node.builder.item(whole, index) for index in range(len(named))]
        sizes = found
    elif node.opset < 13 and node.has_attribute("split"):
        sizes = node.ints("split")
    else:
        sizes = _equal_parts(node, total, axis)
    if len(sizes) != count or different(product([1, sum(sizes)]), total):
        raise UserError(f"parts of {sizes_text(sizes)} do not fit {count} outputs of a dimension of {size_text(total)}")
    if len(sizes) == 1:
        return [data]
    data = node.builder.match(data, [sum(sizes) if at == axis else size for at, size in enumerate(sizes_of(data))])
    whole = node.call("split", data, sizes=sizes, axis=axis)
    return [node.builder.item(whole, index) for index in range(len(sizes))]


def _equal_parts(node: NodeContext, total: Size, axis: int) -> Sizes:
    count = len(node.node.outputs)
    if node.integer("num_outputs", count) != count:
        raise UserError(f"num_outputs is {node.integer('num_outputs')}, the node has {count} outputs")
    if not isinstance(total, int):
        part: Size = ceil_divide(total, count)
        if node.opset < 18:
            exact = divide_exactly(total, count)
            return ((part if exact is None else exact),) * count
        return tuple(maximum(minimum(part, subtract(total, part * index)), 0) for index in range(count))
    size = -(-total // count)
    if node.opset < 18 and size * count != total:
        raise UserError(f"dimension {axis} of size {total} does not split into {count} equal parts")
    return tuple(max(0, min(size, total - index * size)) for index in range(count))


@converter("DepthToSpace")
def depth_to_space(node: NodeContext) -> GraphExpr:
    """Channels spread over blocks of pixels."""
    data = node.input(0)
    block, mode = node.integer("blocksize"), node.text("mode", "DCR")
    dims = sizes_of(data)
    if len(dims) != 4 or block < 1 or size_at(data, 1) % (block * block) or mode not in ("DCR", "CRD"):
        text = sizes_text(dims)
        raise UserError(f"DepthToSpace with blocks of {block} in mode {mode} does not fit data of shape {text}")
    n, c, h, w = dims
    rest = c // (block * block)
    split_shape: Sizes
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
    dims = sizes_of(data)
    fits = len(dims) == 4 and block > 0 and not any(different(dim % block, 0) for dim in dims[2:])
    if not fits or mode not in ("DCR", "CRD"):
        raise UserError(f"SpaceToDepth with blocks of {block} does not fit data of shape {sizes_text(dims)}")
    n, c, h, w = dims
    value = node.builder.reshape(data, (n, c, h // block, block, w // block, block))
    value = node.builder.transpose(value, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return node.builder.reshape(value, (n, c * block * block, h // block, w // block))


@converter("Trilu")
def triangle(node: NodeContext) -> GraphExpr:
    """The upper or lower triangle, the rest 0."""
    data = node.input(0)
    dims = sizes_of(data)
    if len(dims) < 2:
        raise UserError(f"Trilu needs matrices, the data is {sizes_text(dims)}")
    rows, columns = dims[-2:]
    upper = node.flag("upper", True)
    known = evaluate(node.input(1)) if node.has_input(1) else np.zeros((), np.int64)
    if known is not None and isinstance(rows, int) and isinstance(columns, int):
        if rows * columns > LARGEST_MADE:
            raise UnsupportedError(f"Trilu of matrices of shape {(rows, columns)}")
        ones = np.ones((rows, columns), bool)
        k = max(-rows - columns, min(rows + columns, int(known.ravel()[0])))
        keep: GraphExpr = node.builder.constant(np.triu(ones, k) if upper else np.tril(ones, k), BOOL)
    else:
        place = node.builder.constant(0, "int64") if not node.has_input(1) else node.builder.reshape(node.input(1), ())
        keep = diagonal(node, rows, columns, place, "greater_equal" if upper else "less_equal")
    if dtype_of(data).is_bool:
        return node.call("logical_and", data, keep)
    return node.call("where", keep, data, node.builder.constant_like(0, data))
