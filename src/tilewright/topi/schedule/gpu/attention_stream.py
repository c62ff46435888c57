"""Attention whose keys come in tiles: the program in which no score outlives its tile, for schedules to divide.

for sequence, head, tile of queries:
    largest = -inf;  total = 0;  mixed = 0
    for tile of keys:
        scores = queries * keys;  top = max(largest, scores)
        powers = 2^(factor * (scores - top));  shrink = 2^(factor * (largest - top));  largest = top
        total = total * shrink + sum of powers;  mixed = mixed * shrink + powers * values
    attention = mixed / total

It computes what the stages of `topi/attention.py` compute, but for the rounding of powers to the type of the values,
which products on tensor cores need. Keys that are not there have scores of -inf, elements that are not there are zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import ZERO, FloatImm, Mul, PrimExpr
from tilewright.ir.node import Node
from tilewright.ir.visit import find_all, substitute, transform
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.machine import machine_call
from tilewright.tir.row_instructions import POWER_OF_TWO
from tilewright.tir.stmt import BufferStore, For, IterKind, LoopKind, Stmt, seq
from tilewright.topi.schedule.gpu.attention_operands import Stages, mask_of, operands_of
from tilewright.topi.schedule.gpu.attention_stages import LEAST, NOTHING, AttentionStages, Axis
from tilewright.topi.schedule.gpu.attention_tile import AttentionSizes, AttentionTile


def streamed_attention(func: PrimFunc, stages: Stages, sizes: AttentionSizes, tile: AttentionTile) -> PrimFunc:
    """The same function with keys in tiles."""
    return _Streamed(func, stages, sizes, tile).program()


class _Streamed(AttentionStages):
    """The program of one attention, being built."""

    def __init__(self, func: PrimFunc, stages: Stages, sizes: AttentionSizes, tile: AttentionTile) -> None:
        super().__init__(sizes, tile)
        self.func, self.stages = func, stages
        self.query, self.key, self.value = operands_of(stages)
        self.result = stages["attention"].writes[0].buffer
        self.mask = mask_of(stages)
        self.mask_shared: Buffer | None = None
        self.scores_of, self.factor = self._scores()

    def program(self) -> PrimFunc:
        """The program: one nest of loops over sequences, heads and tiles of queries."""
        sizes, tile, rows, columns = self.sizes, self.tile, self.rows, self.columns
        kind = self.query.dtype
        where = ("queries_held", "local") if tile.holds_queries else ("queries_shared", "shared")
        queries, copy_queries = self._copy(*where, self.query, (sizes.depth, tile.depth))
        keys, copy_keys = self._copy("keys_shared", "shared", self.key, (sizes.depth, tile.depth))
        values, copy_values = self._copy("values_shared", "shared", self.value, (sizes.width, tile.width))
        largest, total = (self._buffer(name, (rows, tile.parts)) for name in ("largest", "total"))
        mixed = self._buffer("mixed", (rows, tile.width))
        products, powers = (self._buffer(name, (rows, columns)) for name in ("products", "powers"))
        copy_mask = self._copy_mask()
        scores, score = self._score_stage(products)
        rounded = self._buffer("rounded", (rows, columns), "local", kind)
        by_step = (self.tiles, rows, tile.parts)
        own, top, shift, shrink = (self._buffer(name, by_step) for name in ("own", "top", "shift", "shrink"))
        factor = const(self.factor, FLOAT32)

        def powers_of(b: PrimExpr, h: PrimExpr, i: PrimExpr, j: PrimExpr) -> PrimExpr:
            step = build.floordiv(j, const(tile.keys))
            return _power(scores[b, h, i, j] * factor - shift[b, h, step, i, j % tile.span // tile.run])

        inside = [
            copy_keys,
            copy_values,
            *copy_mask,
            *self._products(products, queries, keys),
            *score,
            self._each(
                own, lambda b, h, step, i, part: largest[b, h, i, part], tile.parts, steps=True, name="own_start"
            ),
            self._over_columns("own", own, build.maximum, scores, steps=True),
            self._combined(top, own, True, steps=True),
            self._each(shift, lambda *place: _finite(top[place], top[place] * factor, NOTHING), tile.parts, steps=True),
            self._each(
                shrink,
                lambda b, h, step, i, part: _power(largest[b, h, i, part] * factor - shift[b, h, step, i, part]),
                tile.parts,
                steps=True,
            ),
            self._update("largest", largest, tile.parts, lambda old, *place: build.maximum(old, top[place])),
            self._cells("powers", powers, powers_of),
            self._cells("rounded", rounded, lambda b, h, i, j: cast(powers[b, h, i, tile.key(j)], kind)),
            self._update("total_shrunk", total, tile.parts, lambda old, *place: old * shrink[place]),
            self._over_columns("total_own", total, build.add, powers, steps=False),
            self._update(
                "mixed_shrunk",
                mixed,
                tile.width,
                lambda old, b, h, step, i, e: old * shrink[b, h, step, i, self._part(e)],
            ),
            self._product(
                "mixed",
                mixed,
                (tile.width, lambda e: (tile.width, IterKind.SPATIAL, e)),
                (tile.keys, lambda j: self._key(j, IterKind.REDUCE)),
                lambda b, h, i, e, j: (rounded[b, h, i, j], values[b, self._head(h), self._of_all(h, j), e]),
            ),
        ]
        stream = For(self.key_tile, ZERO, const(self.tiles), LoopKind.SERIAL, seq(*inside))
        sums = self._buffer("sums", (rows, tile.parts))
        body: Stmt = seq(
            copy_queries,
            self._each(largest, lambda *place: LEAST, tile.parts, name="largest_start"),
            self._each(total, lambda *place: NOTHING, tile.parts, name="total_start"),
            self._each(mixed, lambda *place: NOTHING, tile.width, name="mixed_start"),
            stream,
            self._combined(sums, total, False, steps=False),
            *(self._merged(mixed, sums, largest, factor) if tile.slices > 1 else [self._output(mixed, sums, largest)]),
        )
        for var, extent in (
            (self.row_tile, rows // tile.queries),
            (self.head, sizes.heads),
            (self.sequence, sizes.batch),
        ):
            body = For(var, ZERO, const(extent), LoopKind.SERIAL, body)
        root = self.func.root.replace(body=body, allocations=tuple(self.made))
        return self.func.replace(body=root)

    def _copy(self, name: str, scope: str, source: Buffer, elements: tuple[int, int]) -> tuple[Buffer, Stmt]:
        """A tile of an operand, near its use."""
        size, padded = elements
        is_query = name.startswith("queries")
        places, there = (self.rows, self.sizes.queries) if is_query else (self.all_keys, self.sizes.keys)
        sliced = is_query and scope == "local"
        made = self._buffer(name, (places, padded), scope, source.dtype, sliced)

        def store(b: PrimExpr, h: PrimExpr, i: PrimExpr, d: PrimExpr) -> BufferStore:
            row = self.tile.key(i) if name == "values_shared" else i
            limits = [(row, there, places), (d, size, padded)]
            head = self._head(h) if sliced else h
            value = self._guarded(source[b, row, head, d], const(0.0, source.dtype), *limits)
            return BufferStore(made, (b, h, i, d), value)

        def axes(i: PrimExpr, d: PrimExpr) -> Sequence[Axis]:
            return [self._row(i) if is_query else self._any_key(i), (padded, IterKind.SPATIAL, d)]

        count = self.tile.queries if is_query else self.tile.keys * self.tile.slices
        return made, self._stage(name, [count, padded], axes, store, sliced=sliced)

    def _copy_mask(self) -> list[Stmt]:
        """The mask of a tile, in shared memory: it comes with the keys."""
        mask, by_row = self.mask, self.sizes.masks_rows
        if mask is None:
            return []
        rows, count = (self.rows, self.tile.queries) if by_row else (1, 1)
        made = self._buffer("mask_shared", (rows, self.all_keys), "shared", mask.buffer.dtype, sliced=False)
        self.mask_shared = made
        iters = self.stages["attention_scores"].iters

        def axes(i: PrimExpr, j: PrimExpr) -> Sequence[Axis]:
            return [self._row(i) if by_row else (1, IterKind.SPATIAL, i), self._any_key(j)]

        def store(b: PrimExpr, h: PrimExpr, i: PrimExpr, j: PrimExpr) -> BufferStore:
            value = substitute(mask, {item.var: at for item, at in zip(iters, (b, h, i, j), strict=True)})
            limits = [(j, self.sizes.keys, self.all_keys), (i, self.sizes.queries, rows)]
            other = const(0, mask.dtype) if not mask.dtype.is_float else const(0.0, mask.dtype)
            return BufferStore(made, (b, h, i, j), self._guarded(value, other, *limits))

        return [self._stage("mask_shared", [count, self.tile.keys * self.tile.slices], axes, store, sliced=False)]

    def _products(self, products: Buffer, queries: Buffer, keys: Buffer) -> list[Stmt]:
        """The products of queries and keys: their start, and the rest."""
        tile = self.tile

        def operands(b: PrimExpr, h: PrimExpr, i: PrimExpr, j: PrimExpr, d: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
            return queries[b, h, i, d], keys[b, self._head(h), self._of_all(h, j), d]

        def part(name: str, first: int, end: int, starts: bool) -> Stmt:
            def steps(d: PrimExpr) -> Axis:
                return end - first, IterKind.REDUCE, d

            def shifted(b: PrimExpr, h: PrimExpr, i: PrimExpr, j: PrimExpr, d: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
                return operands(b, h, i, j, d + first)

            return self._product(name, products, (tile.keys, self._key), (end - first, steps), shifted, starts)

        if tile.first_steps == 0:
            start = self._cells("products_start", products, lambda *place: NOTHING)
        else:
            start = part("products_start", 0, tile.first_steps, True)
        rest = part("products", tile.first_steps, tile.depth, False) if tile.first_steps < tile.depth else None
        return [start] if rest is None else [start, rest]

    def _scores(self) -> tuple[Callable[..., PrimExpr] | None, float]:
        """Scores as a function of a product and its place (None: the product), and their factor in the exponent.

        A multiplication by a positive number alone does not change which score is the largest: it is left to the
        exponent.
        """
        block = self.stages["attention_scores"]
        assert isinstance(block.body, BufferStore)
        value = block.body.value
        products = self.stages["attention_products"].writes[0].buffer
        match value:
            case Mul(a=BufferLoad(buffer=source), b=FloatImm(value=scale)) if source is products and scale > 0:
                return None, scale / math.log(2)
            case BufferLoad(buffer=source) if source is products:
                return None, 1 / math.log(2)

        def scores(product: PrimExpr, *place: PrimExpr) -> PrimExpr:
            b, h, i, j = place

            def visit(item: Node) -> Node | None:
                if not isinstance(item, BufferLoad):
                    return None
                if item.buffer is products:
                    return product
                assert self.mask is not None and self.mask_shared is not None and item.buffer is self.mask.buffer
                return self.mask_shared[b, self._head(h), i if self.sizes.masks_rows else ZERO, self._of_all(h, j)]

            return transform(value, visit)

        return scores, 1 / math.log(2)

    def _score_stage(self, products: Buffer) -> tuple[Buffer, list[Stmt]]:
        """Scores, and the stage that makes them of products; no stage where they are the same."""
        if self.scores_of is None and self.sizes.keys == self.all_keys:
            return products, []
        scores = self._buffer("scores", (self.rows, self.columns))

        def value(b: PrimExpr, h: PrimExpr, i: PrimExpr, j: PrimExpr) -> PrimExpr:
            score: PrimExpr = products[b, h, i, j]
            if self.scores_of is not None:
                score = self.scores_of(score, b, h, i, j)
            return self._guarded(score, LEAST, (self._of_all(h, j), self.sizes.keys, self.all_keys))

        return scores, [self._cells("scores", scores, value)]

    def _merged(self, mixed: Buffer, sums: Buffer, largest: Buffer, factor: PrimExpr) -> list[Stmt]:
        """What slices have found, scaled to the largest score of all of them, and added up."""
        rows, parts, slices = self.rows, self.tile.parts, self.tile.slices
        peaks = self._buffer("peaks_shared", (rows, parts), "shared")
        portions = self._buffer("portions_shared", (rows, parts), "shared")
        scaled = self._buffer("mixed_shared", (rows, self.tile.width), "shared")
        best, weight = (self._buffer(name, (rows, parts)) for name in ("best", "weight"))

        def over_slices(buffer: Buffer, b: PrimExpr, head: PrimExpr, *place: PrimExpr) -> list[PrimExpr]:
            return [buffer[(b, head * slices + number, *place)] for number in range(slices)]

        def weight_of(*place: PrimExpr) -> PrimExpr:
            return _power(largest[place] * factor - _finite(best[place], best[place] * factor, NOTHING))

        def element(b: PrimExpr, h: PrimExpr, i: PrimExpr, e: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
            total, portion = (
                reduce(build.add, over_slices(*at)) for at in ((scaled, b, h, i, e), (portions, b, h, i, ZERO))
            )
            return total, portion, reduce(build.maximum, over_slices(peaks, b, h, i, ZERO))

        return [
            self._each(peaks, lambda *place: largest[place], parts),
            self._each(
                best,
                lambda b, h, *place: reduce(build.maximum, over_slices(peaks, b, self._head(h), *place)),
                parts,
            ),
            self._each(weight, weight_of, parts),
            self._each(portions, lambda *place: sums[place] * weight[place], parts),
            self._each(scaled, lambda b, h, i, e: mixed[b, h, i, e] * weight[b, h, i, self._part(e)], self.tile.width),
            self._result(element),
        ]

    def _output(self, mixed: Buffer, sums: Buffer, largest: Buffer) -> Stmt:
        def element(b: PrimExpr, h: PrimExpr, i: PrimExpr, e: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
            part = self._part(e)
            return mixed[b, h, i, e], sums[b, h, i, part], largest[b, h, i, part]

        return self._result(element)

    def _result(self, element: Callable[..., tuple[PrimExpr, PrimExpr, PrimExpr]]) -> Stmt:
        """The result, from sums of values, of powers, and the largest score."""
        result = self.result
        seen = any(load.buffer.name == "attention_max" for load in find_all(self.stages["attention"].body, BufferLoad))
        blind = NOTHING if seen else const(math.nan, FLOAT32)

        def store(b: PrimExpr, h: PrimExpr, i: PrimExpr, e: PrimExpr) -> BufferStore:
            mixed, total, largest = element(b, h, i, e)
            value = _finite(largest, mixed * (const(1.0, FLOAT32) / total), blind)
            return BufferStore(result, (b, i, h, e), cast(value, result.dtype))

        def axes(i: PrimExpr, e: PrimExpr) -> Sequence[Axis]:
            return [self._row(i), (self.tile.width, IterKind.SPATIAL, e)]

        limits = [(2, self.sizes.queries, self.rows), (3, self.sizes.width, self.tile.width)]
        wanted = [(number, size) for number, size, padded in limits if size < padded]

        def predicate(*place: PrimExpr) -> PrimExpr:
            return build.all_of([build.lt(place[number], const(size)) for number, size in wanted])

        loops = [self.tile.queries, self.tile.width]
        return self._stage("result", loops, axes, store, None, predicate, sliced=False)


def _power(exponent: PrimExpr) -> PrimExpr:
    return machine_call(POWER_OF_TWO, exponent)


def _finite(largest: PrimExpr, value: PrimExpr, blind: PrimExpr) -> PrimExpr:
    """A value, or another one for queries that have seen no key."""
    return build.select(build.eq(largest, LEAST), blind, value)
