"""Converters of `com.microsoft`: attention in onnxruntime's forms, and rotary position embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.contrib_fused import DOMAIN
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.dimensions import Size, Sizes, add, multiply, same, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import size_text, sizes_text
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError

_LOWEST = float(np.finfo(np.float32).min)
"""Added to scores of what must not be seen at all."""


@dataclass(frozen=True)
class Scores:
    """How scores become weights."""

    scale: float
    bias: Sequence[GraphExpr] = ()
    """Added to the scores, one after the other."""
    softcap: float = 0.0


def dims_of(node: NodeContext, value: GraphExpr, rank: int) -> Sizes:
    """The dimensions of a value that must have so many."""
    if rank_of(value) != rank:
        raise UserError(f"{node.node.op_type} needs {rank} dimensions here, there are {rank_of(value)}")
    return sizes_of(value)


def split_heads(node: NodeContext, value: GraphExpr, heads: int) -> GraphExpr:
    """(batch, length, heads * size) -> (batch, heads, length, size)."""
    (batch, length, _), width = dims_of(node, value, 3), size_at(value, 2)
    if heads < 1 or width % heads:
        raise UserError(f"a width of {width} does not divide into {heads} heads")
    parts = node.builder.reshape(value, (batch, length, heads, width // heads))
    return node.builder.transpose(parts, (0, 2, 1, 3))


def join_heads(node: NodeContext, value: GraphExpr) -> GraphExpr:
    """(batch, heads, length, size) -> (batch, length, heads * size)."""
    batch, heads, length, size = dims_of(node, value, 4)
    return node.builder.reshape(node.builder.transpose(value, (0, 2, 1, 3)), (batch, length, multiply(heads, size)))


def attend(node: NodeContext, query: GraphExpr, key: GraphExpr, value: GraphExpr, how: Scores) -> GraphExpr:
    """softmax(query @ key' * scale + bias) @ value, head by head; the heads of the result are joined."""
    scores = node.call("matmul", query, key, transpose_b=True)
    scores = node.call("multiply", scores, node.builder.constant_like(how.scale, scores))
    if how.softcap:
        cap = node.builder.constant_like(how.softcap, scores)
        scores = node.call("multiply", node.call("tanh", node.call("divide", scores, cap)), cap)
    for item in how.bias:
        scores = node.call("add", scores, node.builder.cast(item, dtype_of(scores)))
    weights = node.call("nn.softmax", scores, axis=rank_of(scores) - 1)
    return join_heads(node, node.call("matmul", weights, value))


def causal_bias(node: NodeContext, length: Size, total: Size, like: GraphExpr, window: int = -1) -> GraphExpr:
    """What keeps queries (the last ones of all places) from seeing later keys, or keys before their window."""
    rows = node.builder.reshape(node.builder.arange(length, subtract(total, length)), (length, 1))
    columns = node.builder.arange(total)
    hidden = node.call("greater", columns, rows)
    if window > 0:
        distance = node.call("subtract", rows, columns)
        before = node.call("greater_equal", distance, node.builder.constant(window, INT64))
        hidden = node.call("logical_or", hidden, before)
    return _filled(node, hidden, _lowest(like), like)


def _lowest(like: GraphExpr) -> float:
    return -65504.0 if dtype_of(like).bits == 16 else _LOWEST


def _filled(node: NodeContext, hidden: GraphExpr, value: float, like: GraphExpr) -> GraphExpr:
    fill = node.builder.constant_like(value, like)
    return node.call("where", hidden, fill, node.builder.constant_like(0, like))


def _mask_bias(node: NodeContext, mask: GraphExpr, batch: Size, total: Size, like: GraphExpr, fill: float) -> GraphExpr:
    """A mask in any of its forms as a bias of the scores (batch, heads, length, total)."""
    builder = node.builder
    shape = sizes_of(mask)
    if len(shape) == 1:
        twice = same(shape[0], multiply(batch, 2))
        if not twice and not same(shape[0], batch):
            raise UnsupportedError(
                f"{node.node.op_type} with a mask of shape {sizes_text(shape)} for a batch of {size_text(batch)}"
            )
        columns = builder.arange(total)
        ends = builder.reshape(builder.cast(builder.slice_axis(mask, 0, 0, batch), INT64), (batch, 1, 1, 1))
        hidden = node.call("greater_equal", columns, ends)
        if twice:
            starts = builder.cast(builder.slice_axis(mask, 0, batch, shape[0]), INT64)
            starts = builder.reshape(starts, (batch, 1, 1, 1))
            hidden = node.call("logical_or", hidden, node.call("less", columns, starts))
        return _filled(node, hidden, fill, like)
    if len(shape) == 2:
        mask = builder.reshape(mask, (shape[0], 1, 1, shape[1]))
    elif len(shape) == 3:
        mask = builder.reshape(mask, (shape[0], 1, *shape[1:]))
    else:
        raise UnsupportedError(f"{node.node.op_type} with a mask of {len(shape)} dimensions")
    hidden = node.call("equal", mask, builder.constant_like(0, mask))
    return _filled(node, hidden, fill, like)


def _refuse(node: NodeContext, *inputs: tuple[int, str]) -> None:
    for index, what in inputs:
        if node.has_input(index):
            raise UnsupportedError(f"{node.node.op_type} with {what} (input number {index + 1})")


@converter("Attention", domain=DOMAIN)
def attention(node: NodeContext) -> list[GraphExpr | None]:
    """Self-attention with the projections of queries, keys and values inside."""
    data, heads = node.input(0), node.integer("num_heads")
    if node.flag("do_rotary") or node.flag("past_present_share_buffer"):
        raise UnsupportedError("Attention with rotary embedding inside, or with a shared buffer")
    node.ignore("rotary_embedding_dim")
    _refuse(node, (6, "a length of the past"))
    builder = node.builder
    batch, length, _ = dims_of(node, data, 3)
    projected = node.call("matmul", data, node.input(1))
    if node.has_input(2):
        projected = node.call("add", projected, node.input(2))
    width = size_at(projected, 2)
    sizes = node.ints("qkv_hidden_sizes", (width // 3,) * 3)
    if len(sizes) != 3 or sum(sizes) != width:
        raise UserError(f"qkv_hidden_sizes {sizes} do not add up to {width}")
    begins = (0, sizes[0], sizes[0] + sizes[1])
    parts = [builder.slice_axis(projected, 2, begin, begin + size) for begin, size in zip(begins, sizes, strict=True)]
    query, key, value = (split_heads(node, part, heads) for part in parts)
    if node.has_input(4):
        old = [builder.slice_axis(node.input(4), 0, at, at + 1) for at in (0, 1)]
        key, value = (
            builder.concatenate([builder.reshape(past, dims_of(node, past, 5)[1:]), new], 2)
            for past, new in zip(old, (key, value), strict=True)
        )
    total = sizes_of(key)[2]
    fill = node.number("mask_filter_value", -10000.0)
    bias: list[GraphExpr] = []
    if node.has_input(3):
        bias.append(_mask_bias(node, node.input(3), batch, total, query, fill))
    if node.flag("unidirectional"):
        bias.append(causal_bias(node, length, total, query))
    if node.has_input(5):
        bias.append(node.input(5))
    size = sizes[0] // heads
    scale = node.number("scale", 0.0) or 1 / math.sqrt(size)
    present: GraphExpr | None = None
    if node.wants_output(1):
        if sizes[1] != sizes[2]:
            raise UnsupportedError("Attention whose keys and values differ in size, with a present state")
        present = builder.concatenate([builder.expand_dims(item, (0,)) for item in (key, value)], 0)
    return [attend(node, query, key, value, Scores(scale, bias)), present]


@converter("MultiHeadAttention", domain=DOMAIN)
def multi_head_attention(node: NodeContext) -> list[GraphExpr | None]:
    """Attention between given queries, keys and values."""
    heads = node.integer("num_heads")
    _refuse(node, (8, "a length of the past"), (9, "an indirection of the cache"))
    if node.wants_output(3):
        raise UnsupportedError("MultiHeadAttention with the scores as an output")
    if not node.has_input(1) or not node.has_input(2) or rank_of(node.input(0)) != 3:
        raise UnsupportedError("MultiHeadAttention of packed queries, keys and values")
    builder = node.builder
    parts = [node.input(at) for at in range(3)]
    if any(rank_of(part) not in (3, 4) for part in parts):
        raise UnsupportedError("MultiHeadAttention of packed keys and values")
    if node.has_input(3):
        begin = 0
        for at, part in enumerate(parts):
            width = size_at(part, 2) if rank_of(part) == 3 else size_at(part, 1) * size_at(part, 3)
            if rank_of(part) == 3:
                parts[at] = node.call("add", part, builder.slice_axis(node.input(3), 0, begin, begin + width))
            begin += width
    query, key, value = (part if rank_of(part) == 4 else split_heads(node, part, heads) for part in parts)
    if node.has_input(6) and node.has_input(7):
        key = builder.concatenate([node.input(6), key], 2)
        value = builder.concatenate([node.input(7), value], 2)
    (batch, _, length, _), size = sizes_of(query), size_at(query, 3)
    total = sizes_of(key)[2]
    fill = node.number("mask_filter_value", -10000.0)
    bias: list[GraphExpr] = []
    if node.has_input(4):
        bias.append(_mask_bias(node, node.input(4), batch, total, query, fill))
    if node.flag("unidirectional"):
        bias.append(causal_bias(node, length, total, query))
    if node.has_input(5):
        bias.append(node.input(5))
    scale = node.number("scale", 0.0) or 1 / math.sqrt(size)
    return [attend(node, query, key, value, Scores(scale, bias)), key, value]


@converter("GroupQueryAttention", domain=DOMAIN)
def group_query_attention(node: NodeContext) -> list[GraphExpr | None]:
    """Causal attention where several heads of queries share one of keys and values.

    The past must hold nothing but real entries: the new ones come right after it, for every sequence of the batch.
    """
    heads, shared = node.integer("num_heads"), node.integer("kv_num_heads")
    _refuse(node, (10, "a bias"), (11, "sinks"), (12, "a scale of the keys"), (13, "a scale of the values"),
            (14, "a norm of the queries"), (15, "a norm of the keys"))  # fmt: skip
    if node.flag("smooth_softmax") or node.integer("qk_output", 0) or not node.flag("causal", True):
        raise UnsupportedError("GroupQueryAttention with smooth_softmax, qk_output or causal=0")
    node.ignore("kv_cache_bit_width", "k_quant_type", "v_quant_type", "qk_norm_epsilon", "sliding_window_cache")
    if heads < 1 or shared < 1 or heads % shared:
        raise UserError(f"{heads} heads do not share {shared}")
    builder = node.builder
    query = node.input(0)
    if node.has_input(1) and node.has_input(2):
        key, value = node.input(1), node.input(2)
    else:
        dims_of(node, query, 3)
        width = size_at(query, 2)
        size = width // (heads + 2 * shared)
        ends = (0, heads * size, (heads + shared) * size, width)
        query, key, value = (builder.slice_axis(query, 2, ends[at], ends[at + 1]) for at in range(3))
    query = split_heads(node, query, heads)
    key, value = split_heads(node, key, shared), split_heads(node, value, shared)
    (batch, _, length, _), size = sizes_of(query), size_at(query, 3)
    before: Size = dims_of(node, node.input(3), 4)[2] if node.has_input(3) else 0
    if node.flag("do_rotary"):
        places = node.input(9) if node.has_input(9) else builder.reshape(builder.arange(length, before), (1, length))
        rotary = _rotary_tables(node, node.input(7), node.input(8), places)
        interleaved = node.flag("rotary_interleaved")
        query, key = (rotate(node, item, *rotary, interleaved=interleaved) for item in (query, key))
    node.ignore("rotary_interleaved")
    if node.has_input(3) and before != 0:
        key, value = builder.concatenate([node.input(3), key], 2), builder.concatenate([node.input(4), value], 2)
    total = add(before, length)
    bias = [causal_bias(node, length, total, query, node.integer("local_window_size", -1))]
    ends_of = builder.reshape(builder.cast(node.input(5), INT64), (batch, 1, 1, 1))
    hidden = node.call("greater", builder.arange(total), ends_of)
    if length == 1 or before != 0:
        bias.append(_filled(node, hidden, _lowest(query), query))
    scale = node.number("scale", 0.0) or 1 / math.sqrt(size)
    how = Scores(scale, bias, node.number("softcap", 0.0))
    wide_key, wide_value = (_repeat_heads(node, item, heads // shared) for item in (key, value))
    return [attend(node, query, wide_key, wide_value, how), key, value]


def _repeat_heads(node: NodeContext, value: GraphExpr, times: int) -> GraphExpr:
    if times == 1:
        return value
    batch, heads, length, size = sizes_of(value)
    wide = node.builder.reshape(value, (batch, heads, 1, length, size))
    wide = node.builder.broadcast_to(wide, (batch, heads, times, length, size))
    return node.builder.reshape(wide, (batch, multiply(heads, times), length, size))


def _rotary_tables(
    node: NodeContext, cosines: GraphExpr, sines: GraphExpr, places: GraphExpr
) -> tuple[GraphExpr, GraphExpr]:
    """The rows of the tables at some places (batch, length), ready for (batch, heads, length, half)."""
    inside = checked_index(node.builder, places, [sizes_of(cosines)[0]], [0], negative=False)
    tables = (node.call("take", table, inside, axis=0) for table in (cosines, sines))
    cosine, sine = (node.builder.expand_dims(item, (1,)) for item in tables)
    return cosine, sine


def rotate(node: NodeContext, value: GraphExpr, cosine: GraphExpr, sine: GraphExpr, *, interleaved: bool) -> GraphExpr:
    """Pairs of the first numbers of each head turned by their angles; the rest stays."""
    builder = node.builder
    batch, heads, length, _ = dims_of(node, value, 4)
    size, half = size_at(value, 3), size_at(cosine, -1)
    if 2 * half > size:
        raise UserError(f"tables of {half} angles do not fit heads of {size}")
    turned = builder.slice_axis(value, 3, 0, 2 * half)
    if interleaved:
        pairs = builder.reshape(turned, (batch, heads, length, half, 2))
        first, second = (
            builder.reshape(builder.slice_axis(pairs, 4, at, at + 1), (batch, heads, length, half)) for at in (0, 1)
        )
    else:
        first, second = builder.slice_axis(turned, 3, 0, half), builder.slice_axis(turned, 3, half, 2 * half)
    a = node.call("subtract", node.call("multiply", first, cosine), node.call("multiply", second, sine))
    b = node.call("add", node.call("multiply", first, sine), node.call("multiply", second, cosine))
    if interleaved:
        both = builder.concatenate([builder.expand_dims(a, (4,)), builder.expand_dims(b, (4,))], 4)
        result = builder.reshape(both, (batch, heads, length, 2 * half))
    else:
        result = builder.concatenate([a, b], 3)
    if 2 * half == size:
        return result
    return builder.concatenate([result, builder.slice_axis(value, 3, 2 * half, size)], 3)


@converter("RotaryEmbedding", domain=DOMAIN)
def rotary_embedding(node: NodeContext) -> GraphExpr:
    """Positions as rotations of pairs of numbers."""
    data, places = node.input(0), node.input(1)
    heads, part = node.integer("num_heads", 0), node.integer("rotary_embedding_dim", 0)
    if node.flag("is_packed_batching") or node.number("scale", 1.0) != 1.0:
        raise UnsupportedError("RotaryEmbedding of packed batches, or with a scale")
    cosines, sines = node.input(2), node.input(3)
    joined = rank_of(data) == 3
    if joined:
        if not heads:
            if part:
                raise UserError("RotaryEmbedding of a part of each head needs num_heads")
            heads = size_at(data, 2) // max(1, 2 * size_at(cosines, -1))
        data = split_heads(node, data, heads)
    length = dims_of(node, data, 4)[2]
    if rank_of(places) == 2:
        rows = places
    else:
        first = node.builder.cast(node.builder.reshape(places, (1, 1)), INT64)
        rows = node.call("add", first, node.builder.reshape(node.builder.arange(length), (1, length)))
    rotary = _rotary_tables(node, cosines, sines, rows)
    result = rotate(node, data, *rotary, interleaved=node.flag("interleaved"))
    return join_heads(node, result) if joined else result
