"""Converters of normalisations."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.activations import activated
from tilewright.frontend.core.builder import rank_of, sizes_of
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.reciprocals import quantized_length
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


@converter("L2_NORMALIZATION")
def l2_normalization(node: NodeContext) -> GraphExpr:
    """x divided by the root of the sum of squares along the last axis."""
    if node.is_quantized():
        return quantized_length(node)
    data, call = node.input(0), node.call
    axis = rank_of(data) - 1
    total = call("sum", call("multiply", data, data), axes=(axis,), keepdims=True)
    norm = call("maximum", call("sqrt", total), node.builder.constant_like(float(np.float32(1e-6)), data))
    return activated(node.builder, call("divide", data, norm), node.activation)


@converter("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(node: NodeContext) -> GraphExpr:
    """x / (bias + alpha * sum of the squares of neighbouring channels) ** beta."""
    data, call, builder = node.input(0), node.call, node.builder
    radius, shape = node.integer("radius"), sizes_of(data)
    if radius < 0 or len(shape) < 1:
        raise UserError(f"LOCAL_RESPONSE_NORMALIZATION over {radius} neighbours")
    size = 2 * radius + 1
    square = builder.reshape(call("multiply", data, data), (1, product(shape[:-1]), shape[-1], 1))
    mean = call("nn.avg_pool2d", square, kernel=(size, 1), padding=(radius, 0, radius, 0), count_include_pad=True)
    total = builder.reshape(mean, shape)
    factor = builder.constant_like(float(np.float32(node.number("alpha")) * np.float32(size)), total)
    base = call("add", call("multiply", total, factor), builder.constant_like(node.number("bias"), total))
    return call("divide", data, call("power", base, builder.constant_like(node.number("beta"), base)))
