"""Converters of operators that make tensors."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, sizes_of
from tilewright.frontend.core.randomness import categories, draw_key, normal, uniform
from tilewright.frontend.core.shapes import counted, shape_input
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError


@converter("FILL")
def fill(node: NodeContext) -> GraphExpr:
    """One value in a shape."""
    return node.builder.broadcast_to(node.builder.reshape(node.input(1), ()), shape_input(node, 0))


@converter("ZEROS_LIKE")
def zeros_like(node: NodeContext) -> GraphExpr:
    """Zeros in the shape of a tensor."""
    data = node.input(0)
    return node.builder.filled(0, sizes_of(data), dtype_of(data))


@converter("RANGE")
def range_(node: NodeContext) -> GraphExpr:
    """start, start + delta, ... before the limit."""
    return counted(node)


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
    """Random numbers in a shape."""
    draw = uniform if node.node.name == "RANDOM_UNIFORM" else normal
    drawn = draw(node.builder, draw_key(node.builder, _seed(node)), shape_input(node, 0))
    return node.builder.cast(drawn, node.output_dtype())


@converter("MULTINOMIAL")
def multinomial(node: NodeContext) -> GraphExpr:
    """Classes drawn by their unnormalised logarithms of probabilities, so many for each row."""
    count = node.size(1, "the number of draws")
    drawn = categories(node.builder, draw_key(node.builder, _seed(node)), node.input(0), count)
    return node.builder.cast(drawn, node.output_dtype())
