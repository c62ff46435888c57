"""Attention: the weights are computed anew on the way back, from queries and keys."""

from __future__ import annotations

import math

from tilewright.graph.gradient.expressions import (
    broadcast_to,
    compare,
    expand,
    matmul,
    multiply,
    reshape,
    sizes_of,
    sum_to,
    total,
    transpose,
    where,
)
from tilewright.graph.gradient.registry import Cotangents, reverse_rule
from tilewright.graph.gradient.rules.normalization import softmax_cotangent
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.attention import ANY_DIAGONAL, AttentionAttributes

_HEADS_FIRST = (0, 2, 1, 3)


def _repeated(item: GraphExpr, heads: Size) -> GraphExpr:
    """Keys or values with each head as often as heads of queries share it."""
    batch, shared, places, size = sizes_of(item)
    if heads == shared or not isinstance(heads, int) or not isinstance(shared, int):
        return item
    spread = broadcast_to(expand(item, (2,)), (batch, shared, heads // shared, places, size))
    return reshape(spread, (batch, heads, places, size))


def _summed(cotangent: GraphExpr, shared: Size, by_head: bool) -> GraphExpr:
    """What all heads of queries that share a head of keys or values give for it, in the order of its operand."""
    batch, heads, places, size = sizes_of(cotangent)
    if heads != shared and isinstance(heads, int) and isinstance(shared, int):
        cotangent = total(reshape(cotangent, (batch, shared, heads // shared, places, size)), (2,))
    return cotangent if by_head else transpose(cotangent, _HEADS_FIRST)


def _seen(attributes: AttentionAttributes, rows: Size, columns: Size) -> list[GraphExpr]:
    """Truth values of the diagonals that queries see, by their first and their last one; nothing where they see all."""
    key, bounds = make("arange", count=columns), []
    if attributes.first > -ANY_DIAGONAL:
        least = reshape(make("arange", count=rows, start=attributes.first), (rows, 1))
        bounds.append(compare("less_equal", least, key))
    if attributes.last < ANY_DIAGONAL:
        most = reshape(make("arange", count=rows, start=attributes.last), (rows, 1))
        bounds.append(compare("greater_equal", most, key))
    return bounds


@reverse_rule("nn.attention")
def attention(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The chain through weights @ value, softmax, and query @ key' * scale + mask."""
    assert isinstance(call.attributes, AttentionAttributes)
    scale, blind_is_zero = call.attributes.scale, call.attributes.blind_is_zero
    by_head = (False, call.attributes.keys_by_head, call.attributes.values_by_head)
    query, key, value = (
        item if first else transpose(item, _HEADS_FIRST) for item, first in zip(call.args[:3], by_head, strict=True)
    )
    shared = sizes_of(key)[1]
    key, value = (_repeated(item, sizes_of(query)[1]) for item in (key, value))
    mask = call.args[3] if len(call.args) > 3 else None
    given = transpose(cotangent, _HEADS_FIRST)
    scores = multiply(matmul(query, key, transpose_b=True), scale)
    if mask is not None:
        hides = mask.tensor_type.dtype.is_bool
        scores = where(mask, scores, -math.inf) if hides else make("add", scores, mask)
    for seen in _seen(call.attributes, *sizes_of(scores)[2:]):
        scores = where(seen, scores, -math.inf)
    weights: GraphExpr = make("nn.softmax", scores, axis=3)
    if blind_is_zero:
        largest = make("max", scores, axes=(3,), keepdims=True)
        weights = where(compare("equal", largest, -math.inf), 0, weights)
    of_scores = softmax_cotangent(weights, matmul(given, value, transpose_b=True), 3)
    of_products = multiply(of_scores, scale)
    results: list[GraphExpr | None] = [
        transpose(matmul(of_products, key), _HEADS_FIRST),
        _summed(matmul(of_products, query, transpose_a=True), shared, by_head[1]),
        _summed(matmul(weights, given, transpose_a=True), shared, by_head[2]),
    ]
    if mask is not None:
        results.append(None if mask.tensor_type.dtype.is_bool else sum_to(of_scores, mask))
    return results
