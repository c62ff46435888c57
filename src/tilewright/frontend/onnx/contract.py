"""Converters of matrix products."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, sizes_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.support.errors import UserError


@converter("MatMul")
def matmul(node: NodeContext) -> GraphExpr:
    """The product as numpy has it: vectors count as a row or a column."""
    return build_matmul(node, node.input(0), node.input(1))


def build_matmul(node: NodeContext, a: GraphExpr, b: GraphExpr) -> GraphExpr:
    """numpy's matmul of two values."""
    builder = node.builder
    shape_a, shape_b = sizes_of(a), sizes_of(b)
    if not shape_a or not shape_b:
        raise UserError("a matrix product needs inputs of at least one dimension")
    if len(shape_a) > 1 and len(shape_b) > 1:
        return node.call("matmul", a, b)
    left = builder.reshape(a, (1, *shape_a)) if len(shape_a) == 1 else a
    right = builder.reshape(b, (*shape_b, 1)) if len(shape_b) == 1 else b
    result = node.call("matmul", left, right)
    shape = list(sizes_of(result))
    if len(shape_b) == 1:
        del shape[-1]
    if len(shape_a) == 1:
        del shape[-1 if len(shape_b) == 1 else -2]
    return builder.reshape(result, shape)


@converter("Gemm")
def gemm(node: NodeContext) -> GraphExpr:
    """alpha * a @ b + beta * c."""
    a, b = node.input(0), node.input(1)
    if rank_of(a) != 2 or rank_of(b) != 2:
        raise UserError(f"Gemm multiplies matrices, its inputs are {shape_of(a)} and {shape_of(b)}")
    transpose_a, transpose_b = node.flag("transA"), node.flag("transB")
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    result = node.call("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    if alpha != 1.0:
        result = _scaled(node, result, alpha)
    c = node.optional(2)
    if c is None or beta == 0.0:
        return result
    if beta != 1.0:
        c = _scaled(node, c, beta)
    result = node.builder.fitting(result, c)
    shape = sizes_of(result)
    total = node.call("add", result, c)
    if sizes_of(total) != shape:
        texts = sizes_text(sizes_of(c)), sizes_text(shape)
        raise UserError(f"the third input {texts[0]} does not broadcast to the product {texts[1]}")
    return total


def _scaled(node: NodeContext, value: GraphExpr, factor: float) -> GraphExpr:
    if dtype_of(value).is_integer:
        wide = node.call("multiply", node.builder.cast(value, "float64"), node.builder.constant(factor, "float64"))
        return node.builder.cast(wide, dtype_of(value))
    return node.call("multiply", value, node.builder.constant_like(factor, value))
