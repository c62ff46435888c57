"""Attention as stages that a schedule computes for a few queries at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.graph.ops.attention import ANY_DIAGONAL
from tilewright.ir import build, intrinsics
from tilewright.ir.build import cast, const
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, DIAGONALS, Anchor
from tilewright.topi.elementwise import broadcast_index
from tilewright.topi.reduce import accumulator_type
from tilewright.topi.registry import compute_of, result_shape


def _group(heads: PrimExpr, shared: PrimExpr) -> Callable[[ExprLike], ExprLike]:
    """The head of keys and values that a head of queries reads."""
    mine, theirs = const_value(heads), const_value(shared)
    if mine == theirs or mine is None or theirs is None:
        return lambda head: head
    return lambda head: build.floordiv(head, const(mine // theirs))


def _element(operand: Tensor, by_head: bool) -> Callable[..., PrimExpr]:
    """An element of keys or values by sequence, head, place and number, in whatever order they lie."""
    return (lambda b, h, j, e: operand[b, h, j, e]) if by_head else (lambda b, h, j, e: operand[b, j, h, e])


def _diagonals(attributes: Any) -> dict[str, object]:
    """The note for schedules that skip keys which no query sees."""
    return {} if attributes.sees_all else DIAGONALS.entry((attributes.first, attributes.last))


def _scoring(products: Tensor, masks: list[Tensor], attributes: Any) -> Callable[..., PrimExpr]:
    """Scores by their places: scaled products, with a mask if there is one, of the diagonals that queries see."""
    wide, shape = products.dtype, products.shape
    hidden = const(-math.inf, wide)

    def masked(*i: ExprLike) -> PrimExpr:
        score = products[i] * const(attributes.scale, wide)
        if not masks:
            return score
        mask = masks[0][broadcast_index(masks[0], shape, i)]
        return build.select(mask, score, hidden) if mask.dtype.is_bool else score + cast(mask, wide)

    def score(b: ExprLike, h: ExprLike, i: ExprLike, c: ExprLike) -> PrimExpr:
        bounds = []
        if attributes.first > -ANY_DIAGONAL:
            bounds.append(build.le(build.add(i, const(attributes.first)), c))
        if attributes.last < ANY_DIAGONAL:
            bounds.append(build.le(c, build.add(i, const(attributes.last))))
        return build.select(build.all_of(bounds), masked(b, h, i, c), hidden) if bounds else masked(b, h, i, c)

    return score


@compute_of("nn.attention")
def _attention(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    """Keys of a head are transposed so that scores of neighbouring keys are a vector; values of a head lie together."""
    query, key, value = inputs[:3]
    batch, rows, heads, depth = query.shape
    columns, shared = (key.shape[2], key.shape[1]) if attributes.keys_by_head else (key.shape[1], key.shape[2])
    width = value.shape[3]
    wide = accumulator_type(query.dtype)
    group = _group(heads, shared)

    key_at, value_at = _element(key, attributes.keys_by_head), _element(value, attributes.values_by_head)
    keys = compute((batch, shared, depth, columns), lambda b, h, d, j: key_at(b, h, j, d), "attention_keys")
    values = compute((batch, shared, columns, width), value_at, "attention_values")
    d, j = reduce_axis((0, depth), "d"), reduce_axis((0, columns), "j")
    top, total_axis = reduce_axis((0, columns), "j"), reduce_axis((0, columns), "j")
    shape = (batch, heads, rows, columns)
    # Stages keep their names, which the texts of kernels contain: powers are exponentials, mixed the weighted values.
    products = compute(
        shape,
        lambda b, h, i, c: reduction.sum(cast(query[b, i, h, d], wide) * cast(keys[b, group(h), d, c], wide), [d]),
        "attention_products",
        ANCHOR.entry(Anchor.ATTENTION) | _diagonals(attributes),
    )

    scores = compute(shape, _scoring(products, inputs[3:], attributes), "attention_scores")
    row_max = compute(shape[:3], lambda b, h, i: reduction.max(scores[b, h, i, top], [top]), "attention_max")
    exponentials = compute(
        shape, lambda b, h, i, c: intrinsics.exp(scores[b, h, i, c] - row_max[b, h, i]), "attention_powers"
    )
    total = compute(
        shape[:3], lambda b, h, i: reduction.sum(exponentials[b, h, i, total_axis], [total_axis]), "attention_total"
    )
    zero = const(0.0, wide)

    def inverse(*i: ExprLike) -> PrimExpr:
        # The sum of a query that sees any key is at least 1.
        return build.select(build.eq(total[i], zero), zero, const(1.0, wide) / total[i])

    factor = compute(shape[:3], inverse, "attention_factor")
    weighted_values = compute(
        (batch, heads, rows, width),
        lambda b, h, i, e: reduction.sum(exponentials[b, h, i, j] * cast(values[b, group(h), j, e], wide), [j]),
        "attention_mixed",
    )

    def element(b: ExprLike, i: ExprLike, h: ExprLike, e: ExprLike) -> PrimExpr:
        weighted = weighted_values[b, h, i, e] * factor[b, h, i]
        if attributes.blind_is_zero:
            weighted = build.select(build.eq(row_max[b, h, i], const(-math.inf, wide)), zero, weighted)
        return cast(weighted, query.dtype)

    return compute(result_shape(result), element, "attention")
