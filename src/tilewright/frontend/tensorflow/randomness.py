"""Converters of random numbers: others than TensorFlow draws."""

from __future__ import annotations

from tilewright.frontend.core.randomness import categories, draw_key, normal, uniform
from tilewright.frontend.core.shapes import shape_input
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.registry import converter
from tilewright.graph.ir.expr import GraphExpr


def _seed(node: NodeContext) -> float | None:
    seed = node.integer("seed") * 31 + node.integer("seed2")
    return float(seed % (1 << 24)) if seed else None


@converter("RandomUniform", "RandomStandardNormal")
def random_numbers(node: NodeContext) -> GraphExpr:
    """Random numbers in a shape: others than TensorFlow draws."""
    draw = uniform if node.operator == "RandomUniform" else normal
    drawn = draw(node.builder, draw_key(node.builder, _seed(node)), shape_input(node, 0))
    return node.builder.cast(drawn, node.dtype("dtype", 1))


@converter("RandomUniformInt")
def random_integers(node: NodeContext) -> GraphExpr:
    """Random whole numbers between bounds that are inputs."""
    b = node.builder
    low, high = (b.cast(node.input(at), "float32") for at in (1, 2))
    drawn = uniform(b, draw_key(b, _seed(node)), shape_input(node, 0))
    spread = node.call("floor", b.multiply(drawn, b.subtract(high, low)))
    return b.add(b.cast(spread, node.dtype("Tout", 3)), node.input(1))


@converter("Multinomial")
def multinomial(node: NodeContext) -> GraphExpr:
    """Classes drawn by their unnormalised logarithms of probabilities, so many for each row."""
    count = node.size(1, "the number of draws")
    drawn = categories(node.builder, draw_key(node.builder, _seed(node)), node.input(0), count)
    return node.builder.cast(drawn, node.dtype("output_dtype", 9))
