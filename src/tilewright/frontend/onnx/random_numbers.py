"""Converters of operators that draw random numbers, and of Dropout.

A node with a seed draws the same numbers in every run, one without draws anew in each.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.randomness import categories, draw_key
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.reader import data_type
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import BOOL, FLOAT32, DataType
from tilewright.support.errors import UserError


def _seed(node: NodeContext) -> float | None:
    if not node.has_attribute("seed"):
        return None
    return float(node.integer("seed")) if node.node.op_type == "Dropout" else node.number("seed")


def _draw(node: NodeContext, name: str, shape: Sequence[Size], **attributes: float) -> GraphExpr:
    """Numbers in a shape, as float32."""
    if 0 in shape:
        return node.builder.filled(0, shape, FLOAT32)
    return node.call(name, draw_key(node.builder, _seed(node)), shape=tuple(shape), **attributes)


def _distribution(node: NodeContext, shape: Sequence[Size], dtype: DataType) -> GraphExpr:
    if not dtype.is_float:
        raise UserError(f"{node.node.op_type} draws floats, not {dtype}")
    if node.node.op_type.startswith("RandomNormal"):
        mean, scale = node.number("mean", 0.0), node.number("scale", 1.0)
        return node.builder.cast(_draw(node, "random.normal", shape, mean=mean, scale=scale), dtype)
    low, high = node.number("low", 0.0), node.number("high", 1.0)
    return node.builder.cast(_draw(node, "random.uniform", shape, low=low, high=high), dtype)


@converter("RandomNormal", "RandomUniform")
def random(node: NodeContext) -> GraphExpr:
    """Numbers of a distribution in a given shape."""
    return _distribution(node, node.ints("shape"), data_type(node.integer("dtype", 1), node.node.op_type))


@converter("RandomNormalLike", "RandomUniformLike")
def random_like(node: NodeContext) -> GraphExpr:
    """Numbers of a distribution in the shape of the input, by default of its type."""
    data = node.input(0)
    dtype = data_type(node.integer("dtype"), node.node.op_type) if node.has_attribute("dtype") else dtype_of(data)
    return _distribution(node, sizes_of(data), dtype)


@converter("Bernoulli")
def bernoulli(node: NodeContext) -> GraphExpr:
    """1 as often as each element of the input says, else 0."""
    data = node.input(0)
    dtype = data_type(node.integer("dtype"), "Bernoulli") if node.has_attribute("dtype") else dtype_of(data)
    drawn = node.builder.cast(_draw(node, "random.uniform", sizes_of(data)), dtype_of(data))
    return node.builder.cast(node.call("less", drawn, data), dtype)


@converter("Multinomial")
def multinomial(node: NodeContext) -> GraphExpr:
    """Numbers of classes, drawn by the logarithms of their probabilities."""
    logits = node.input(0)
    if rank_of(logits) != 2:
        raise UserError(f"Multinomial needs a matrix of logits, it is {sizes_text(sizes_of(logits))}")
    count = node.integer("sample_size", 1)
    dtype = data_type(node.integer("dtype", 6), "Multinomial")
    drawn = categories(node.builder, draw_key(node.builder, _seed(node)), logits, count)
    return node.builder.cast(drawn, dtype)


@converter("Dropout")
def dropout(node: NodeContext) -> list[GraphExpr | None]:
    """Itself in inference, with a mask that is all true; in training some elements are 0, the others grow for them."""
    node.ignore("ratio", "seed")
    data = node.input(0)
    training = node.has_input(2) and node.chosen_flag(2, "training_mode")
    if not training:
        mask = node.builder.broadcast_to(node.builder.constant(True, BOOL), sizes_of(data))
        return [data, _mask(node, mask)]
    ratio = node.builder.constant(0.5, "float32")
    chance = node.builder.cast(node.builder.reshape(node.input(1), ()), "float32") if node.has_input(1) else ratio
    keep = node.call("greater_equal", _draw(node, "random.uniform", sizes_of(data)), chance)
    rest = node.call("subtract", node.builder.constant(1.0, "float32"), chance)
    grown = node.call("divide", data, node.builder.cast(rest, dtype_of(data)))
    return [node.call("where", keep, grown, node.builder.constant_like(0, data)), _mask(node, keep)]


def _mask(node: NodeContext, mask: GraphExpr) -> GraphExpr | None:
    if not node.wants_output(1):
        return None
    return mask if node.opset >= 10 else node.builder.cast(mask, dtype_of(node.input(0)))
