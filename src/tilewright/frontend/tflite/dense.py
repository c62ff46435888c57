"""Converters of matrix products: FULLY_CONNECTED, BATCH_MATMUL, EMBEDDING_LOOKUP's kin are elsewhere."""

from __future__ import annotations

from tilewright.frontend.core.activations import activated
from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.hybrid import hybrid_product
from tilewright.frontend.tflite.quantized_products import quantized_dense, quantized_matmul
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.dimensions import Size, floor_divide, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError


@converter("FULLY_CONNECTED")
def fully_connected(node: NodeContext) -> GraphExpr:
    """x @ w' + bias, with an activation; the data is taken as rows as long as those of w."""
    data, weight, bias = node.input(0), node.input(1), node.optional(2)
    if node.integer("weights_format"):
        raise UnsupportedError("FULLY_CONNECTED with shuffled weights", hint="convert the model again")
    if rank_of(weight) != 2:
        raise UserError(f"FULLY_CONNECTED needs weights of 2 dimensions, they have {rank_of(weight)}")
    depth, units = size_at(weight, 1), size_at(weight, 0)
    before = sizes_of(data)
    shape: tuple[Size, ...] = (*before[:-1], depth)
    if not before or before[-1] != depth or (not node.flag("keep_num_dims") and len(before) != 2):
        shape = (floor_divide(product(before), depth), depth)
    rows = node.builder.reshape(data, shape)
    if dtype_of(data).is_float and node.is_quantized(1):
        result = hybrid_product(node, rows, weight)
    elif node.is_quantized(0):
        return quantized_dense(node, rows, weight, bias)
    else:
        result = node.call("matmul", rows, weight, transpose_b=True)
    if bias is not None:
        result = node.call("add", result, node.builder.reshape(bias, (units,)))
    return activated(node.builder, result, node.activation)


@converter("BATCH_MATMUL")
def batch_matmul(node: NodeContext) -> GraphExpr:
    """Products of matrices, whose dimensions before broadcast."""
    a, b = node.input(0), node.input(1)
    transposes = {"transpose_a": node.flag("adj_x"), "transpose_b": node.flag("adj_y")}
    if dtype_of(a).is_float and node.is_quantized(1):
        return hybrid_product(node, a, b, **transposes)
    if node.is_quantized(0):
        return quantized_matmul(node, a, b, **transposes)
    return node.call("matmul", a, b, **transposes)
