"""Converters of whole attention layers, which torch's modules use for inference."""

from __future__ import annotations

import math

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.matrices import product
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.contract import linear
from tilewright.frontend.torch.normalization import layer_norm
from tilewright.frontend.torch.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError


def _self_attention(
    b: TorchBuilder,
    x: GraphExpr,
    heads: int,
    qkv_weight: GraphExpr,
    qkv_bias: GraphExpr,
    proj_weight: GraphExpr,
    proj_bias: GraphExpr,
    mask: GraphExpr | None,
    mask_type: int | None,
) -> tuple[GraphExpr, GraphExpr]:
    """Attention of a sequence to itself, and the weights of each head."""
    batch, length = sizes_of(x)[:2]
    width = size_at(x, 2)
    depth = width // heads
    joint = b.reshape(linear(b, x, qkv_weight, qkv_bias), (batch, length, 3, heads, depth))
    joint = b.transpose(joint, (2, 0, 3, 1, 4))
    query, key, value = (b.select(joint, 0, part) for part in range(3))
    scores = product(b, b.multiply(query, 1 / math.sqrt(depth)), key, transpose_b=True)
    if mask is not None:
        scores = _masked(b, scores, mask, mask_type)
    weights = b.call("nn.softmax", scores, axis=3)
    mixed = b.reshape(b.transpose(product(b, weights, value), (0, 2, 1, 3)), (batch, length, width))
    return linear(b, mixed, proj_weight, proj_bias), weights


def _masked(b: TorchBuilder, scores: GraphExpr, mask: GraphExpr, mask_type: int | None) -> GraphExpr:
    """Scores that a mask hides are minus infinity: of positions (0), of keys (1), or of everything (2)."""
    batch, _, _, length = sizes_of(scores)
    if mask_type == 1:
        mask = b.reshape(mask, (batch, 1, 1, length))
    elif rank_of(mask) == 3:
        mask = b.expand_dims(mask, (1,))
    if dtype_of(mask).is_bool:
        return b.where(mask, -math.inf, scores)
    return b.add(scores, b.cast(mask, dtype_of(scores)))


@converter("_native_multi_head_attention")
def multi_head_attention(
    b: TorchBuilder,
    query: GraphExpr,
    key: GraphExpr,
    value: GraphExpr,
    embed_dim: int,
    num_head: int,
    qkv_weight: GraphExpr,
    qkv_bias: GraphExpr,
    proj_weight: GraphExpr,
    proj_bias: GraphExpr,
    mask: GraphExpr | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[GraphExpr, GraphExpr]:
    """Attention of a sequence to itself."""
    if key is not query or value is not query:
        raise UnsupportedError("the fast path of attention between different sequences")
    parts = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    result, weights = _self_attention(b, query, num_head, *parts, mask, mask_type)
    if not need_weights:
        return result, b.empty((0,), dtype_of(query))
    return result, b.reduce("mean", weights, (1,)) if average_attn_weights else weights


@converter("_transformer_encoder_layer_fwd")
def transformer_encoder_layer(
    b: TorchBuilder,
    src: GraphExpr,
    embed_dim: int,
    num_heads: int,
    qkv_weight: GraphExpr,
    qkv_bias: GraphExpr,
    proj_weight: GraphExpr,
    proj_bias: GraphExpr,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: GraphExpr,
    norm_bias_1: GraphExpr,
    norm_weight_2: GraphExpr,
    norm_bias_2: GraphExpr,
    ffn_weight_1: GraphExpr,
    ffn_bias_1: GraphExpr,
    ffn_weight_2: GraphExpr,
    ffn_bias_2: GraphExpr,
    mask: GraphExpr | None = None,
    mask_type: int | None = None,
) -> GraphExpr:
    """A layer of an encoder: attention and two linear maps, each with a residual and a normalisation."""
    width = (embed_dim,)
    parts = (qkv_weight, qkv_bias, proj_weight, proj_bias)

    def attend(value: GraphExpr) -> GraphExpr:
        return _self_attention(b, value, num_heads, *parts, mask, mask_type)[0]

    def feed(value: GraphExpr) -> GraphExpr:
        inner = b.call("nn.gelu" if use_gelu else "nn.relu", linear(b, value, ffn_weight_1, ffn_bias_1))
        return linear(b, inner, ffn_weight_2, ffn_bias_2)

    def first(value: GraphExpr) -> GraphExpr:
        return layer_norm(b, value, width, norm_weight_1, norm_bias_1, eps)

    def second(value: GraphExpr) -> GraphExpr:
        return layer_norm(b, value, width, norm_weight_2, norm_bias_2, eps)

    if norm_first:
        middle = b.add(src, attend(first(src)))
        return b.add(middle, feed(second(middle)))
    middle = first(b.add(src, attend(src)))
    return second(b.add(middle, feed(middle)))
