"""Converters of attention as torch captures it for training, and of its gradient, which computes the weights again."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.matrices import product, turned
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.contract import attention, attention_scale, attention_scores, attention_weights
from tilewright.frontend.torch.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32


@converter("_scaled_dot_product_flash_attention_for_cpu")
def attention_for_training(
    b: TorchBuilder,
    query: GraphExpr,
    key: GraphExpr,
    value: GraphExpr,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: GraphExpr | None = None,
    scale: float | None = None,
) -> list[GraphExpr | None]:
    """Attention, and the logarithms of the sums of exponentials, if anything uses them."""
    result = attention(b, query, key, value, attn_mask, dropout_p, is_causal, scale)
    if not b.is_used(1):
        return [result, None]
    scores, _ = attention_scores(b, query, key, attn_mask, is_causal, scale)
    wide = b.cast(scores, FLOAT32) if dtype_of(scores).bits < 32 else scores
    last = (rank_of(wide) - 1,)
    top = b.reduce("max", wide, last, True)
    total = b.reduce("sum", b.call("exp", b.subtract(wide, top)), last)
    return [result, b.add(b.call("log", total), b.reshape(top, sizes_of(total)))]


@converter("tilewright::attention_gradient")
def attention_gradient(
    b: TorchBuilder,
    grad_output: GraphExpr,
    query: GraphExpr,
    key: GraphExpr,
    value: GraphExpr,
    output: GraphExpr,
    attn_mask: GraphExpr | None,
    is_causal: bool,
    scale: float | None,
) -> list[GraphExpr]:
    """The gradients for queries, keys and values."""
    if any(0 in sizes_of(item) for item in (query, key, value)):
        return [
            b.empty(sizes_of(item), dtype_of(item)) if 0 in sizes_of(item) else b.filled(0, sizes_of(item), b.dtype)
            for item in (query, key, value)
        ]
    weights = attention_weights(b, *attention_scores(b, query, key, attn_mask, is_causal, scale))
    of_weights = product(b, grad_output, value, transpose_b=True)
    total = b.reduce("sum", b.multiply(grad_output, output), (rank_of(output) - 1,), True)
    of_scores = b.multiply(weights, b.subtract(of_weights, total))
    of_scores = b.multiply(of_scores, attention_scale(query, scale))
    return [
        product(b, of_scores, key),
        product(b, turned(b, of_scores), query),
        product(b, turned(b, weights), grad_output),
    ]
