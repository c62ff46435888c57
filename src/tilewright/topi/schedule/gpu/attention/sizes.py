"""What an attention is: its stages and operands, its sizes, and the tile that a block of threads has at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Final

from tilewright.graph.ops.attention import ANY_DIAGONAL, Diagonals
from tilewright.ir.expr import PrimExpr, const_value
from tilewright.ir.visit import find_all, substitute, uses_any
from tilewright.tir.annotations import DIAGONALS
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.stmt import Block

LEAST_TILE: Final = 8
"""A number of queries that all tiles are multiples of."""
Stages = dict[str, Block]
"""The blocks of an attention by name (`topi/attention.py`)."""


def mask_of(stages: Stages) -> BufferLoad | None:
    """How the scores of an attention read its mask, in terms of their iterators."""
    products = stages["attention_products"].writes[0].buffer
    reads = find_all(stages["attention_scores"].body, BufferLoad)
    return next((load for load in reads if load.buffer is not products), None)


def operands_of(stages: Stages) -> tuple[Buffer, Buffer, Buffer]:
    """The queries, keys and values of an attention, which may be the same."""
    transposed = stages["attention_keys"].writes[0].buffer
    loads = find_all(stages["attention_products"].body, BufferLoad)
    sums = stages["attention_products"].writes[0].buffer
    query = next(load.buffer for load in loads if load.buffer is not transposed and load.buffer is not sums)
    key, value = (stages[f"attention_{name}"].reads[0].buffer for name in ("keys", "values"))
    return query, key, value


def element_of(stages: Stages, name: str, *place: PrimExpr) -> PrimExpr:
    """An element of the keys or values, by sequence, head, place and number."""
    stage = stages[f"attention_{name}"]
    sequence, head, *last = (item.var for item in stage.iters)
    row, element = reversed(last) if name == "keys" else last
    (load,) = find_all(stage.body, BufferLoad)
    return substitute(load, dict(zip((sequence, head, row, element), place, strict=True)))


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """The sizes of an attention."""

    batch: int
    heads: int
    """Heads, of which each is as many heads of queries as are packed together."""
    queries: int
    """Queries of one of them: of each place, those of all its heads, one after the other."""
    keys: int
    depth: int
    """Elements of a query and of a key."""
    width: int
    """Elements of a value."""
    mask_bytes: int = 0
    """Bytes of an element of the mask, if there is one."""
    masks_rows: bool = False
    """Whether queries have masks of their own."""
    packed: int = 1
    """Heads of queries that are rows of one tile, because they share keys and values."""
    sharing: int = 1
    """Heads (so packed) that share a head of keys and values."""
    diagonals: Diagonals | None = None
    """Those of the keys that queries see, unless they see all."""

    @staticmethod
    def of(stages: Stages) -> AttentionSizes | None:
        """The sizes of an attention; None where some are symbolic or zero."""
        iters = (*stages["attention_products"].iters, stages["attention"].iters[-1])
        extents = [const_value(item.domain.extent) or 0 for item in iters]
        if 0 in extents:
            return None
        batch, heads, places, keys, depth, width = extents
        shared = const_value(stages["attention_keys"].writes[0].buffer.shape[1]) or heads
        # Tiles hold the queries of whole places.
        packed = gcd(heads // shared, LEAST_TILE)
        sharing = heads // shared // packed
        seen = DIAGONALS.of(stages["attention_products"])
        sizes = AttentionSizes(
            batch, heads // packed, places * packed, keys, depth, width, packed=packed, sharing=sharing, diagonals=seen
        )
        mask = mask_of(stages)
        if mask is None:
            return sizes
        _, head, row, _ = (item.var for item in stages["attention_scores"].iters)
        rows = [*([row] if places > 1 else []), *([head] if packed > 1 else [])]
        by_row = any(uses_any(index, rows) for index in mask.indices)
        return replace(sizes, mask_bytes=mask.dtype.itemsize, masks_rows=by_row)

    @property
    def seen_keys(self) -> int:
        """The keys that a query sees, on the average."""
        first, last = self.diagonals or (-ANY_DIAGONAL, ANY_DIAGONAL)
        if last >= ANY_DIAGONAL:
            return self.keys
        return self.keys // 2 if first <= -ANY_DIAGONAL else min(self.keys, last - first + 1)

    def place(self, head: PrimExpr, query: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """The head and the place of a query, by its head (packed) and its number there."""
        if self.packed == 1:
            return head, query
        return head * self.packed + query % self.packed, query // self.packed

    def shared_head(self, head: PrimExpr) -> PrimExpr:
        """The head of keys and values that a head (packed) reads."""
        return head if self.sharing == 1 else head // self.sharing

    def mask_tile_bytes(self, queries: int, keys: int) -> int:
        """Bytes of the mask of a tile."""
        return self.mask_bytes * keys * (queries if self.masks_rows else 1)


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """What a block of threads has at a time; elements of queries and values padded to what products take."""

    queries: int
    keys: int
    depth: int
    width: int
    row_threads: int
    """Threads that share a row of scores."""
    key_run: int
    """Neighbouring keys that one of them has."""
    value_run: int
    """Neighbouring results that one of them has."""
    holds_queries: bool
    """Whether queries stay in registers, and need no shared memory."""
    first_depth: int = 0
    """Elements of queries and keys whose product begins the sums; if 0, the sums begin as zeros."""
    slices: int = 1
    """Groups of threads that each have a part of the keys (split-K)."""
    interleaved: int = 0
    """If not 0: of so many keys the even ones come first in the second product, which has steps in that order."""
    parts: int = 1
    """Blocks of threads that each have a part of the keys (flash decoding); another kernel merges their results."""
    sequence_turns: int = 1
    """Sequences of which a block of threads has a tile of queries, one after the other, and of each so many heads."""
    head_turns: int = 1

    @property
    def divides_rows(self) -> bool:
        """Whether threads divide once for a row, of which they have many elements; where slices or parts are merged,
        they have a few."""
        return self.slices == 1 and self.parts == 1

    def key(self, place: PrimExpr) -> PrimExpr:
        """The key at a place in the order of the second product."""
        if self.interleaved == 0:
            return place
        half = self.interleaved // 2
        return place // self.interleaved * self.interleaved + place % half * 2 + place % self.interleaved // half

    @property
    def key_span(self) -> int:
        """Keys after which the first thread of a row comes again."""
        return self.row_threads * self.key_run


def round_up(size: int, step: int) -> int:
    """A size, padded to a multiple of a step."""
    return -(-size // step) * step
