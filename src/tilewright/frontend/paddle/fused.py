"""Converters of operators that are several in one: dense layers, attention."""

from __future__ import annotations

import math

from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.elementwise import matrix_product
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError

_ACTIVATIONS = {"relu": "nn.relu", "sigmoid": "sigmoid", "tanh": "tanh", "gelu": "nn.gelu"}


def _activated(node: NodeContext, value: GraphExpr, name: str) -> GraphExpr:
    if name in ("", "none", "identity"):
        return value
    if name not in _ACTIVATIONS:
        raise UnsupportedError(f"{node.node.kind} with the activation {name!r}")
    return node.call(_ACTIVATIONS[name], value)


@converter("fc", inputs="Input W Bias")
def dense(node: NodeContext) -> GraphExpr:
    """A dense layer over the dimensions from one on."""
    b, x, weight = node.builder, node.input(0), node.input(1)
    rows = node.integer("in_num_col_dims", default=1)
    sizes = sizes_of(x)
    flat = b.reshape(x, (product(sizes[:rows]), product(sizes[rows:])))
    value = node.call("matmul", flat, weight)
    if node.has_input(2):
        value = b.add(value, b.flatten(node.input(2)))
    value = b.reshape(value, (*sizes[:rows], size_at(weight, 1)))
    return _activated(node, value, node.text("activation_type", default=""))


@converter("fused_gemm_epilogue", "linear", "linear_v2", inputs="X Y Bias")
def linear(node: NodeContext) -> GraphExpr:
    """A matrix product, a bias and an activation."""
    value = matrix_product(node, node.input(0), node.input(1), node.flag("trans_x"), node.flag("trans_y"))
    if node.has_input(2):
        value = node.builder.add(value, node.input(2))
    return _activated(node, value, node.text("activation", default="none"))


@converter("flash_attn", inputs="q k v fixed_seed_offset attn_mask", outputs="out")
def flash_attention(node: NodeContext) -> GraphExpr:
    """Attention of (batch, places, heads, size)."""
    b = node.builder
    query, key, value = (b.transpose(node.input(at), (0, 2, 1, 3)) for at in range(3))
    scores = b.call("matmul", query, key, transpose_b=True)
    scores = b.multiply(scores, 1 / math.sqrt(size_at(query, 3)))
    if node.has_input(4):
        scores = b.add(scores, node.input(4))
    if node.flag("causal"):
        rows, columns = size_at(scores, 2), size_at(scores, 3)
        down, across = b.reshape(b.arange(rows), (rows, 1)), b.arange(columns)
        hidden = b.call("greater", across, b.add(down, columns - rows))
        scores = b.where(hidden, b.scalar(-math.inf, scores.tensor_type.dtype), scores)
    mixed = b.call("matmul", b.call("nn.softmax", scores, axis=3), value)
    return b.transpose(mixed, (0, 2, 1, 3))


@converter("fused_softmax_mask_upper_triangle")
def causal_softmax(node: NodeContext) -> GraphExpr:
    """The softmax of scores, of which those behind the diagonal do not count."""
    b, x = node.builder, node.input(0)
    rows, columns = size_at(x, 2), size_at(x, 3)
    hidden = b.call("greater", b.arange(columns), b.reshape(b.arange(rows), (rows, 1)))
    return b.call("nn.softmax", b.where(hidden, b.scalar(-math.inf, x.tensor_type.dtype), x), axis=rank_of(x) - 1)


@converter("fused_softmax_mask", inputs="X Mask")
def masked_softmax(node: NodeContext) -> GraphExpr:
    """The softmax of scores with a mask added."""
    return node.call("nn.softmax", node.builder.add(node.input(0), node.input(1)), axis=rank_of(node.input(0)) - 1)
