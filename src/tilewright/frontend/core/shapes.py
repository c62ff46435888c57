"""Shapes that are inputs of an operator, parts along an axis, and ranges: shared by importers."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.core.builder import LARGEST_MADE, dtype_of, evaluate, rank_of, sizes_of
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.graph.ir.dimensions import Size, as_dims, floor_divide, product, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.support.errors import UnsupportedError, UserError


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


def reshaped(node: NodeInputs) -> GraphExpr:
    """Input 0 under the shape that is input 1; -1 is what is left over."""
    data, wanted = node.input(0), node.sizes(1, "the shape")
    if wanted is not None:
        return node.builder.reshape(data, completed(sizes_of(data), wanted))
    length = sizes_of(node.input(1))[0]
    if not isinstance(length, int):
        raise UnsupportedError(f"{node.operator} to a number of dimensions that only a run knows")
    dims = [node.symbol(str(at)) for at in range(length)]
    return node.call("shape.reshape", data, node.builder.cast(node.input(1), "int64"), dims=as_dims(dims))


def shape_input(node: NodeInputs, index: int) -> list[Size]:
    """A shape that is an input; sizes that only a run knows are symbols."""
    known = node.sizes(index, "the shape")
    if known is not None:
        return list(known)
    value = node.input(index)
    (count,) = sizes_of(value)
    if not isinstance(count, int):
        raise UnsupportedError(f"{node.operator} of a number of dimensions that only a run knows")
    items = [node.builder.reshape(node.builder.slice_axis(value, 0, at, at + 1), ()) for at in range(count)]
    return [node.computed_size(item, str(at)) for at, item in enumerate(items)]


def broadcast(node: NodeInputs) -> GraphExpr:
    """Input 0 repeated to fill the shape that is input 1."""
    wanted = node.sizes(1, "the shape")
    if wanted is None:
        length = sizes_of(node.input(1))[0]
        if not isinstance(length, int):
            raise UnsupportedError(f"{node.operator} a number of dimensions that only a run knows")
        dims = [node.symbol(str(at)) for at in range(length)]
        return node.call(
            "shape.broadcast", node.input(0), node.builder.cast(node.input(1), "int64"), dims=as_dims(dims)
        )
    return node.builder.broadcast_to(node.input(0), wanted)


def tiled(node: NodeInputs) -> GraphExpr:
    """Input 0 repeated along each dimension, as often as input 1 says."""
    data, repeats = node.input(0), node.sizes(1, "the repeats")
    if repeats is None:
        dims = [node.symbol(str(axis)) for axis in range(rank_of(data))]
        return node.call("shape.tile", data, node.builder.cast(node.input(1), "int64"), dims=as_dims(dims))
    if all(isinstance(count, int) and count == 1 for count in repeats):
        return data
    return node.call("tile", data, repeats=repeats)


def split_evenly(node: NodeInputs, data: GraphExpr, axis: int, count: int) -> list[GraphExpr]:
    """Equal parts along an axis."""
    size = sizes_of(data)[axis]
    if count < 1 or (isinstance(size, int) and size % count):
        raise UserError(f"{size} elements do not make {count} equal parts")
    return _parts(node, data, axis, [floor_divide(size, count)] * count)


def split_by_sizes(node: NodeInputs, data: GraphExpr, axis: int, index: int) -> list[GraphExpr]:
    """Parts along an axis of sizes that are an input; -1 is what is left over."""
    wanted = node.sizes(index, "the sizes")
    if wanted is None:
        raise UnsupportedError(f"{node.operator} into sizes that only a run knows")
    sizes = list(wanted)
    open_places = [at for at, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if len(open_places) == 1:
        rest = sizes_of(data)[axis]
        for at, size in enumerate(sizes):
            rest = rest if at == open_places[0] else subtract(rest, size)
        sizes[open_places[0]] = rest
    return _parts(node, data, axis, sizes)


def _parts(node: NodeInputs, data: GraphExpr, axis: int, sizes: list[Size]) -> list[GraphExpr]:
    if len(sizes) == 1:
        return [data]
    whole = node.call("split", data, sizes=tuple(sizes), axis=axis)
    return [node.builder.item(whole, at) for at in range(len(sizes))]


def slices_along(node: NodeInputs, data: GraphExpr, axis: int, count: int) -> list[GraphExpr]:
    """The slices of an axis, without it."""
    builder, sizes = node.builder, sizes_of(data)
    if isinstance(sizes[axis], int) and sizes[axis] != count:
        raise UserError(f"{count} results of a dimension of {sizes[axis]}")
    rest = [size for at, size in enumerate(sizes) if at != axis]
    return [builder.reshape(builder.slice_axis(data, axis, at, at + 1), rest) for at in range(count)]


def counted(node: NodeInputs) -> GraphExpr:
    """start, start + delta, ... before the limit: the inputs 0 to 2."""
    values = [node.builder.reshape(node.input(at), ()) for at in range(3)]
    known = [evaluate(value) for value in values]
    dtype = dtype_of(values[0])
    numbers = [item for item in known if item is not None]
    if len(numbers) == 3:
        start, limit, delta = (item.item() for item in numbers)
        if delta == 0:
            raise UserError(f"the step of {node.operator} is 0")
        if not math.isfinite((limit - start) / delta) or (limit - start) / delta > LARGEST_MADE:
            raise UserError(f"{node.operator} from {start} to {limit} by {delta} is too long")
        count = max(0, math.ceil((limit - start) / delta))
        return node.builder.constant(start + delta * np.arange(count), dtype)
    sizes = [symbolic_value(value) for value in values]
    start, limit, delta = known[0], sizes[1], known[2]
    counts_up = start is not None and delta is not None and int(start) == 0 and int(delta) == 1
    if limit is not None and counts_up and dtype.is_integer:
        return node.builder.arange(limit.reshape(-1)[0], dtype=dtype)
    return node.call("shape.range", *values, dims=as_dims([node.symbol("count")]))
