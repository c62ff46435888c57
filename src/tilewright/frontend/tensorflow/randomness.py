"""Converters of random numbers, which the host draws: others than TensorFlow does."""

from __future__ import annotations

from tilewright.frontend.core.builder import sizes_of
from tilewright.frontend.core.shapes import shape_input
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.registry import converter
from tilewright.graph.ir.dimensions import as_dims
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64


def _seed(node: NodeContext) -> float | None:
    seed = node.integer("seed") * 31 + node.integer("seed2")
    return float(seed % (1 << 24)) if seed else None


@converter("RandomUniform", "RandomStandardNormal")
def random_numbers(node: NodeContext) -> GraphExpr:
    """Random numbers in a shape, which the host draws: others than TensorFlow draws."""
    shape = shape_input(node, 0)
    drawn = node.call(
        "random.uniform" if node.operator == "RandomUniform" else "random.normal",
        node.builder.cast(node.builder.shape_tensor(shape), INT64),
        dims=as_dims(shape),
        draw=next(node.builder.numbers),
        seed=_seed(node),
    )
    return node.builder.cast(drawn, node.dtype("dtype", 1))


@converter("RandomUniformInt")
def random_integers(node: NodeContext) -> GraphExpr:
    """Random whole numbers between bounds that are inputs."""
    b, shape = node.builder, shape_input(node, 0)
    low, high = (b.cast(node.input(at), "float32") for at in (1, 2))
    drawn = node.call(
        "random.uniform",
        b.cast(b.shape_tensor(shape), INT64),
        dims=as_dims(shape),
        draw=next(b.numbers),
        seed=_seed(node),
    )
    spread = node.call("floor", b.multiply(drawn, b.subtract(high, low)))
    return b.add(b.cast(spread, node.dtype("Tout", 3)), node.input(1))


@converter("Multinomial")
def multinomial(node: NodeContext) -> GraphExpr:
    """Classes drawn by their unnormalised logarithms of probabilities, so many for each row."""
    count = node.size(1, "the number of draws")
    drawn = node.call(
        "random.categories",
        node.input(0),
        node.builder.shape_tensor([count]),
        dims=as_dims([sizes_of(node.input(0))[0], count]),
        draw=next(node.builder.numbers),
        seed=_seed(node),
    )
    return node.builder.cast(drawn, node.dtype("output_dtype", 9))
