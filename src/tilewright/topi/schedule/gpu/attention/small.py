"""A small attention of the same structure as a large one: what verification of the online softmax interprets."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import gcd
from typing import Final

from tilewright.ir.expr import Var
from tilewright.ir.visit import find_all
from tilewright.tir.equivalents import Parameters
from tilewright.tir.function import PrimFunc
from tilewright.tir.resize import resized
from tilewright.tir.stmt import Block
from tilewright.topi.schedule.gpu.attention.sizes import AttentionSizes, AttentionTile, operands_of

_MOST_KEYS: Final = 16
"""Keys of a small tile."""
_QUERIES: Final = 4
"""Queries of a small tile, where they divide all queries."""
_ODD_QUERIES: Final = (3, 5, 7)
"""Queries of a small tile that leaves some over: the first that does."""


def small_attention(func: PrimFunc, parameters: Parameters) -> tuple[PrimFunc, Parameters]:
    """An attention that is padded where another one is, with two tiles of what that one has several tiles of.

    Operands may be one buffer, so that as many queries as keys, and values as long as keys, always fit.
    """
    stages = {block.name: block for block in find_all(func.root, Block)}
    sizes, tile = AttentionSizes.of(stages), AttentionTile(**parameters)  # type: ignore[arg-type]
    assert sizes is not None
    keys = min(tile.keys, _MOST_KEYS)
    keys_of_all, parts = tile.keys * tile.slices * tile.parts, min(tile.parts, 2)
    tiles = 2 if sizes.keys > keys_of_all else 1
    columns = keys * tile.slices * parts * tiles - (_QUERIES if sizes.keys % keys_of_all else 0)
    options = _ODD_QUERIES if sizes.queries % tile.queries else (_QUERIES,)
    queries = next(count for count in options if count == options[-1] or columns % count)
    has_one_buffer = len(set(operands_of(stages))) < 3
    rows = columns if has_one_buffer else min(columns, 2 * queries - (queries != _QUERIES))
    padded_width = tile.row_threads * tile.value_run
    width = padded_width - (sizes.width < tile.width)
    depth = width + (sizes.depth < tile.depth)
    first = depth if tile.first_depth == tile.depth else depth // 2 if tile.first_depth else 0
    batch, shared = min(sizes.batch, 2), min(sizes.heads // sizes.sharing, 2)
    values: dict[Var, int] = {}
    heads = shared * sizes.sharing * sizes.packed
    of_queries = (batch, heads, -(-rows // sizes.packed), columns, width)
    of_keys = (batch, shared, width, columns)
    for name, counts in (("products", of_queries), ("keys", of_keys), ("values", (batch, shared))):
        for item, size in zip(stages[f"attention_{name}"].iters, counts, strict=False):
            assert isinstance(item.value, Var)
            values[item.value] = size
    last = stages["attention"].iters[-1].value
    assert isinstance(last, Var)
    small = replace(tile, queries=queries, keys=keys, depth=depth, width=padded_width, first_depth=first, parts=parts)
    turns = gcd(tile.sequence_turns, batch), gcd(tile.head_turns, heads // sizes.packed)
    small = replace(small, sequence_turns=turns[0], head_turns=turns[1])
    return resized(func, {**values, last: width}), asdict(small)
