"""Converters of operators that make tensors."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.core.builder import LARGEST_MADE, dtype_of, evaluate, sizes_of
from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.dimensions import Size, as_dims
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError


@converter("FILL")
def fill(node: NodeContext) -> GraphExpr:
    """One value in a shape."""
    return node.builder.broadcast_to(node.builder.reshape(node.input(1), ()), _shape(node, 0))


def _shape(node: NodeContext, index: int) -> list[Size]:
    """A shape that is an input; sizes that only a run knows are symbols."""
    known = node.sizes(index, "the shape")
    if known is not None:
        return list(known)
    value = node.input(index)
    (count,) = sizes_of(value)
    if not isinstance(count, int):
        raise UnsupportedError(f"{node.node.name} of a number of dimensions that only a run knows")
    items = [node.builder.reshape(node.builder.slice_axis(value, 0, at, at + 1), ()) for at in range(count)]
    return [node.computed_size(item, str(at)) for at, item in enumerate(items)]


@converter("ZEROS_LIKE")
def zeros_like(node: NodeContext) -> GraphExpr:
    """Zeros in the shape of a tensor."""
    data = node.input(0)
    return node.builder.filled(0, sizes_of(data), dtype_of(data))


@converter("RANGE")
def range_(node: NodeContext) -> GraphExpr:
    """start, start + delta, ... before the limit."""
    values = [node.builder.reshape(node.input(at), ()) for at in range(3)]
    known = [evaluate(value) for value in values]
    dtype = dtype_of(values[0])
    numbers = [item for item in known if item is not None]
    if len(numbers) == 3:
        start, limit, delta = (item.item() for item in numbers)
        if delta == 0:
            raise UserError("the step of RANGE is 0")
        if not math.isfinite((limit - start) / delta) or (limit - start) / delta > LARGEST_MADE:
            raise UserError(f"RANGE from {start} to {limit} by {delta} is too long")
        count = max(0, math.ceil((limit - start) / delta))
        return node.builder.constant(start + delta * np.arange(count), dtype)
    sizes = [symbolic_value(value) for value in values]
    start, limit, delta = known[0], sizes[1], known[2]
    counts_up = start is not None and delta is not None and int(start) == 0 and int(delta) == 1
    if limit is not None and counts_up and dtype.is_integer:
        return node.builder.arange(limit.reshape(-1)[0], dtype=dtype)
    return node.call("shape.range", *values, dims=as_dims([node.symbol("count")]))


@converter("STABLEHLO_IOTA")
def iota(node: NodeContext) -> GraphExpr:
    """Numbers along one dimension of the result."""
    dims, axis = node.output_tensor().dims, node.integer("iota_dimension")
    if dims is None or None in dims:
        raise UnsupportedError("STABLEHLO_IOTA of a shape that is not known")
    shape = [size for size in dims if size is not None]
    axis = node.axis(axis, len(shape))
    numbers = node.builder.cast(node.builder.arange(shape[axis]), node.output_dtype())
    row = node.builder.reshape(numbers, [size if at == axis else 1 for at, size in enumerate(shape)])
    return node.builder.broadcast_to(row, shape)


def _seed(node: NodeContext) -> int | None:
    """A seed, if the operator has one: runs with it draw the same numbers each time."""
    first, second = node.integer("seed"), node.integer("seed2")
    return (first * 1_000_003 + second) % (1 << 32) if first or second else None


@converter("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL")
def random_numbers(node: NodeContext) -> GraphExpr:
    """Random numbers in a shape, which the host draws."""
    shape = _shape(node, 0)
    name = "random.uniform" if node.node.name == "RANDOM_UNIFORM" else "random.normal"
    drawn = node.call(
        name,
        node.builder.cast(node.builder.shape_tensor(shape), INT64),
        dims=as_dims(shape),
        draw=next(node.builder.numbers),
        seed=_seed(node),
    )
    return node.builder.cast(drawn, node.output_dtype())


@converter("MULTINOMIAL")
def multinomial(node: NodeContext) -> GraphExpr:
    """Classes drawn by their unnormalised logarithms of probabilities, so many for each row."""
    count = node.size(1, "the number of draws")
    rows = sizes_of(node.input(0))[0]
    drawn = node.call(
        "random.categories",
        node.input(0),
        node.builder.shape_tensor([count]),
        dims=as_dims([rows, count]),
        draw=next(node.builder.numbers),
        seed=_seed(node),
    )
    return node.builder.cast(drawn, node.output_dtype())
