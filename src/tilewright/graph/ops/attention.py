"""Attention: how much each query takes of each value is the softmax of its products with the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import (
    Dim,
    agree,
    broadcast_shapes,
    constant_dim,
    require_float,
    require_rank,
    same_dtype,
    shape_text,
    tensors,
)
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

_NAMES = ("query", "key", "value", "mask")
ANY_DIAGONAL: Final = 1 << 30
"""A distance that no key has from a query."""
Diagonals = tuple[int, int]
"""Which keys queries see: query i sees key j where j - i is from the first number to the last."""


@node()
class AttentionAttributes(Attributes):
    """What products of queries and keys are multiplied by; whether queries that see no key give 0 instead of NaN.

    `keys_by_head`, `values_by_head`: heads come before places, as caches have them. Query i sees the keys from
    i + `first` to i + `last`: causal attention has `last=0`, and a window of n keys `first=1 - n` as well.
    """

    scale: float = 1.0
    blind_is_zero: bool = False
    keys_by_head: bool = False
    values_by_head: bool = False
    first: int = -ANY_DIAGONAL
    last: int = ANY_DIAGONAL

    @property
    def sees_all(self) -> bool:
        """Whether every query sees every key, but for a mask."""
        return self.first == -ANY_DIAGONAL and self.last == ANY_DIAGONAL


def _attention(args: list[Array], attributes: AttentionAttributes) -> Array:
    query, key, value = (array.astype(np.float64) for array in args[:3])
    key = key.swapaxes(1, 2) if attributes.keys_by_head else key
    value = value.swapaxes(1, 2) if attributes.values_by_head else value
    with np.errstate(all="ignore"):
        key, value = (np.repeat(array, query.shape[2] // max(array.shape[2], 1), axis=2) for array in (key, value))
        scores = np.einsum("bihd,bjhd->bhij", query, key) * attributes.scale
        if len(args) > 3:
            hides = args[3].dtype == np.bool_
            scores = np.where(args[3], scores, -np.inf) if hides else scores + args[3].astype(np.float64)
        if not attributes.sees_all:
            distance = np.arange(scores.shape[3]) - np.arange(scores.shape[2])[:, np.newaxis]
            seen = (attributes.first <= distance) & (distance <= attributes.last)
            scores = np.where(seen, scores, -np.inf)
        largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - largest)
        weights = weights / weights.sum(axis=-1, keepdims=True)
        if attributes.blind_is_zero:
            weights = np.where(largest == -np.inf, 0, weights)
        return np.asarray(np.einsum("bhij,bjhe->bihe", weights, value), args[0].dtype)


def _places_and_heads(shape: Sequence[Dim], by_head: bool) -> tuple[Dim, Dim]:
    return (shape[2], shape[1]) if by_head else (shape[1], shape[2])


def _check_groups(heads: Dim, shared: Dim) -> None:
    """An error unless each head of keys has as many heads of queries."""
    mine, theirs = constant_dim(heads), constant_dim(shared)
    if mine is None or theirs is None:
        agree(heads, shared, "heads of the query, and of the key")
    elif mine != theirs and (theirs == 0 or mine % theirs):
        raise UserError(
            f"{mine} heads of queries cannot share {theirs} heads of keys",
            hint="the number of heads of queries is a multiple of that of keys",
        )


@operator(
    "nn.attention",
    inputs=_NAMES,
    kind=FusionKind.OPAQUE,
    reference=_attention,
    attributes=AttentionAttributes,
    optional=1,
)
def attention(types: Types, attributes: AttentionAttributes) -> Type:
    """softmax(query @ key' * scale + mask) @ value for each head.

    Queries are (batch, places, heads, size), keys and values likewise for places of their own. These may have fewer
    heads (grouped queries): as many heads of queries in a row read one of theirs; and they may be (batch, heads,
    places, size). The mask broadcasts to (batch, heads,
    places of queries, places of keys): numbers are added, truth values hide keys where they are false. Query i sees
    keys i + first to i + last.
    """
    inputs = tensors(types, _NAMES[: len(types)])
    added = [item for n, item in enumerate(inputs) if n < 3 or not item.dtype.is_bool]
    dtype = same_dtype(added, _NAMES[: len(added)])
    require_float(dtype)
    query, key, value = inputs[:3]
    if query.shape is None or key.shape is None or value.shape is None:
        return TensorType((None,) * 4, dtype)
    for item, name in ((query.shape, "query"), (key.shape, "key"), (value.shape, "value")):
        require_rank(item, 4, name)
        agree(query.shape[0], item[0], f"the batch of the query, and of the {name}")
    keys, heads = _places_and_heads(key.shape, attributes.keys_by_head)
    values, others = _places_and_heads(value.shape, attributes.values_by_head)
    agree(heads, others, "heads of the key, and of the value")
    _check_groups(query.shape[2], heads)
    agree(query.shape[3], key.shape[3], "sizes of a query, and of a key")
    agree(keys, values, "numbers of keys, and of values")
    if len(inputs) > 3:
        scores = (query.shape[0], query.shape[2], query.shape[1], keys)
        mask = inputs[3].shape
        merged = broadcast_shapes([scores, mask])
        if merged is not None and (len(merged) > 4 or any(a is not b for a, b in zip(merged, scores, strict=True))):
            raise UserError(f"the mask {shape_text(mask)} does not fit the scores {shape_text(scores)}")
    return TensorType((*query.shape[:3], value.shape[3]), dtype)
