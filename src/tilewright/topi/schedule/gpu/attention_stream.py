"""Attention whose keys come in tiles: the program in which no score outlives its tile, for schedules to divide.

for sequence, head, tile of queries:
    largest = -inf;  total = 0;  mixed = 0
    for tile of keys:
        scores = queries * keys;  top = max(largest, scores)
        powers = 2^(factor * (scores - top));  shrink = 2^(factor * (largest - top));  largest = top
        total = total * shrink + sum of powers;  mixed = mixed * shrink + powers * values
    attention = mixed / total

It computes what the stages of `topi/attention.py` compute, but for the rounding of powers to the type of the values,
which products on tensor cores need. What all of a row share is held in parts, by the threads that have the row's
scores: of four parts with runs of two columns each, the second has columns 2 and 3 of every eight. Queries, keys and
elements of a head are padded to whole tiles: keys that are not there have scores of -inf, elements are zeros.

Several slices may each have a part of every tile of keys, and all queries of a block. Until they are merged, they are
heads of their own: slice s of head h is number h * slices + s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.expr import ZERO, FloatImm, Mul, PrimExpr, Range, Var
from tilewright.ir.node import Node
from tilewright.ir.visit import find_all, substitute, transform
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.buffer import Buffer, BufferLoad, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.machine import machine_call
from tilewright.tir.row_instructions import POWER_OF_TWO
from tilewright.tir.stmt import Block, BlockIter, BufferStore, For, IterKind, LoopKind, Stmt, seq
from tilewright.topi.schedule.gpu.attention_tile import AttentionSizes, AttentionTile, whole

_LEAST = const(-math.inf, FLOAT32)
_NOTHING = const(0.0, FLOAT32)
Axis = tuple[int, IterKind, PrimExpr]
"""An iterator of a stage: its extent, its kind, and its value in terms of loops."""


Stages = dict[str, Block]
"""The blocks of an attention by name."""


def mask_of(stages: Stages) -> BufferLoad | None:
    """How the scores of an attention read its mask, in terms of their iterators."""
    products = stages["attention_products"].writes[0].buffer
    reads = find_all(stages["attention_scores"].body, BufferLoad)
    return next((load for load in reads if load.buffer is not products), None)


def operands_of(stages: Stages) -> tuple[Buffer, Buffer, Buffer]:
    """The queries, keys and values of an attention, which may be the same."""
    turned = stages["attention_keys"].writes[0].buffer
    loads = find_all(stages["attention_products"].body, BufferLoad)
    sums = stages["attention_products"].writes[0].buffer
    query = next(load.buffer for load in loads if load.buffer is not turned and load.buffer is not sums)
    key, value = (stages[f"attention_{name}"].reads[0].buffer for name in ("keys", "values"))
    return query, key, value


def streamed_attention(func: PrimFunc, stages: Stages, sizes: AttentionSizes, tile: AttentionTile) -> PrimFunc:
    """The same function with keys in tiles."""
    return _Streamed(func, stages, sizes, tile).program()


class _Streamed:
    """The program of one attention, being built."""

    def __init__(self, func: PrimFunc, stages: Stages, sizes: AttentionSizes, tile: AttentionTile) -> None:
        self.func, self.stages, self.sizes, self.tile = func, stages, sizes, tile
        self.query, self.key, self.value = operands_of(stages)
        self.result = stages["attention"].writes[0].buffer
        self.rows, self.all_keys = whole(sizes.queries, tile.queries), whole(sizes.keys, tile.keys * tile.slices)
        self.columns = self.all_keys // tile.slices
        """Keys of a slice."""
        self.tiles = self.columns // tile.keys
        self.sequence, self.head = Var("sequence"), Var("head")
        self.row_tile, self.key_tile = Var("row_tile"), Var("key_tile")
        self.made: list[Buffer] = []
        self.mask = mask_of(stages)
        self.mask_shared: Buffer | None = None
        self.scores_of, self.factor = self._scores()

    # ---------------------------------------------------------------- pieces

    def _buffer(
        self, name: str, shape: tuple[int, ...], scope: str = "local", dtype: DataType = FLOAT32, sliced: bool = True
    ) -> Buffer:
        """A buffer with a place for each sequence, head and slice."""
        heads = self.sizes.heads * (self.tile.slices if sliced else 1)
        buffer = make_buffer(name, (self.sizes.batch, heads, *shape), dtype, scope)
        self.made.append(buffer)
        return buffer

    def _head(self, sliced: PrimExpr) -> PrimExpr:
        """The head of a slice."""
        return sliced if self.tile.slices == 1 else sliced // self.tile.slices

    def _of_all(self, sliced: PrimExpr, key: PrimExpr) -> PrimExpr:
        """The number among all keys of a key of a slice."""
        if self.tile.slices == 1:
            return key
        count = self.tile.keys
        return (key // count * self.tile.slices + sliced % self.tile.slices) * count + key % count

    def _row(self, loop: PrimExpr) -> Axis:
        return self.rows, IterKind.SPATIAL, self.row_tile * self.tile.queries + loop

    def _key(self, loop: PrimExpr, kind: IterKind = IterKind.SPATIAL) -> Axis:
        return self.columns, kind, self.key_tile * self.tile.keys + loop

    def _any_key(self, loop: PrimExpr) -> Axis:
        """A key of any slice."""
        return self.all_keys, IterKind.SPATIAL, self.key_tile * (self.tile.keys * self.tile.slices) + loop

    def _step(self, kind: IterKind = IterKind.SPATIAL) -> Axis:
        """The tile of keys."""
        return self.tiles, kind, self.key_tile

    def _stage(
        self,
        name: str,
        loops: Sequence[int],
        axes: Callable[..., Sequence[Axis]],
        store: Callable[..., BufferStore],
        init: Callable[..., BufferStore] | None = None,
        predicate: Callable[..., PrimExpr] | None = None,
        sliced: bool = True,
    ) -> Stmt:
        """Loops around one block: `axes` from loops to iterators, the rest from iterators (sequence, head, ...)."""
        running = [Var(f"{name}_{letter}") for letter in "ijkl"[: len(loops)]]
        heads, head, slices = self.sizes.heads, self.head, self.tile.slices
        slice_loop = Var(f"{name}_slice") if sliced and slices > 1 else None
        outer: list[Axis] = [
            (self.sizes.batch, IterKind.SPATIAL, self.sequence),
            (heads, IterKind.SPATIAL, head)
            if slice_loop is None
            else (heads * slices, IterKind.SPATIAL, head * slices + slice_loop),
        ]
        iters = tuple(
            BlockIter(Var(f"v{number}"), Range(ZERO, const(extent)), kind, value)
            for number, (extent, kind, value) in enumerate([*outer, *axes(*running)])
        )
        places = [item.var for item in iters]
        guard = const(True) if predicate is None else substitute(predicate(*places), {i.var: i.value for i in iters})
        block = Block(f"attention_{name}", iters, (), (), store(*places), init(*places) if init else None, guard)
        result: Stmt = with_detected_accesses(block)
        for var, extent in reversed(list(zip(running, loops, strict=True))):
            result = For(var, ZERO, const(extent), LoopKind.SERIAL, result)
        return result if slice_loop is None else For(slice_loop, ZERO, const(slices), LoopKind.SERIAL, result)

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

    def _guarded(self, value: PrimExpr, other: PrimExpr, *limits: tuple[PrimExpr, int, int]) -> PrimExpr:
        """A value where places are within limits; each limit comes with what it is padded to."""
        conditions = [build.lt(place, const(size)) for place, size, padded in limits if size < padded]
        return build.select(build.all_of(conditions), value, other) if conditions else value

    # ---------------------------------------------------------------- stages

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

    def _each(
        self, buffer: Buffer, value: Callable[..., PrimExpr], extent: int, *, steps: bool = False, name: str = ""
    ) -> Stmt:
        """What belongs to each row and part, or to each row and element: (b, h, i, part), and the step of keys."""

        def axes(i: PrimExpr, part: PrimExpr) -> Sequence[Axis]:
            step = [self._step()] if steps else []
            return [*step, self._row(i), (extent, IterKind.SPATIAL, part)]

        def store(*place: PrimExpr) -> BufferStore:
            return BufferStore(buffer, place, value(*place))

        return self._stage(name or buffer.name, [self.tile.queries, extent], axes, store)

    def _update(self, name: str, buffer: Buffer, extent: int, value: Callable[..., PrimExpr]) -> Stmt:
        """A change in place of what belongs to each row and part, or element, with each step of keys."""

        def axes(i: PrimExpr, part: PrimExpr) -> Sequence[Axis]:
            return [self._row(i), (extent, IterKind.SPATIAL, part), self._step(IterKind.REDUCE)]

        def store(b: PrimExpr, h: PrimExpr, i: PrimExpr, part: PrimExpr, step: PrimExpr) -> BufferStore:
            return BufferStore(buffer, (b, h, i, part), value(buffer[b, h, i, part], b, h, step, i, part))

        return self._stage(name, [self.tile.queries, extent], axes, store)

    def _product(
        self,
        name: str,
        sums: Buffer,
        columns: tuple[int, Callable[[PrimExpr], Axis]],
        steps: tuple[int, Callable[[PrimExpr], Axis]],
        operands: Callable[..., tuple[PrimExpr, PrimExpr]],
        starts: bool = False,
    ) -> Stmt:
        """Sums of products; they must be zeros before, or what is added to, unless it starts them."""

        def init(b: PrimExpr, h: PrimExpr, i: PrimExpr, j: PrimExpr, k: PrimExpr) -> BufferStore:
            return BufferStore(sums, (b, h, i, j), _NOTHING)

        def store(b: PrimExpr, h: PrimExpr, i: PrimExpr, j: PrimExpr, k: PrimExpr) -> BufferStore:
            left, right = operands(b, h, i, j, k)
            return BufferStore(sums, (b, h, i, j), sums[b, h, i, j] + cast(left, FLOAT32) * cast(right, FLOAT32))

        def axes(i: PrimExpr, j: PrimExpr, k: PrimExpr) -> Sequence[Axis]:
            return [self._row(i), columns[1](j), steps[1](k)]

        return self._stage(name, [self.tile.queries, columns[0], steps[0]], axes, store, init if starts else None)

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
            start = self._cells("products_start", products, lambda *place: _NOTHING)
        else:
            start = part("products_start", 0, tile.first_steps, True)
        rest = part("products", tile.first_steps, tile.depth, False) if tile.first_steps < tile.depth else None
        return [start] if rest is None else [start, rest]

    def _over_columns(
        self, name: str, buffer: Buffer, value: Callable[[PrimExpr, PrimExpr], PrimExpr], source: Buffer, *, steps: bool
    ) -> Stmt:
        """What each part combines of its columns of a tile, with what is there before."""
        parts, span, run = self.tile.parts, self.tile.span, self.tile.run
        runs = self.tile.keys // span

        def axes(i: PrimExpr, part: PrimExpr, number: PrimExpr, element: PrimExpr) -> Sequence[Axis]:
            return [
                self._row(i),
                (parts, IterKind.SPATIAL, part),
                (self.columns // span, IterKind.REDUCE, self.key_tile * runs + number),
                (run, IterKind.REDUCE, element),
                *([self._step()] if steps else []),
            ]

        def store(
            b: PrimExpr, h: PrimExpr, i: PrimExpr, part: PrimExpr, number: PrimExpr, element: PrimExpr, *step: PrimExpr
        ) -> BufferStore:
            place = (b, h, *step, i, part)
            return BufferStore(
                buffer, place, value(buffer[place], source[b, h, i, number * span + part * run + element])
            )

        return self._stage(name, [self.tile.queries, parts, runs, run], axes, store)

    def _combined(self, buffer: Buffer, held: Buffer, largest: bool, *, steps: bool) -> Stmt:
        """What the parts of a row hold, combined: each part gets it."""
        parts = self.tile.parts

        def axes(i: PrimExpr, part: PrimExpr, other: PrimExpr) -> Sequence[Axis]:
            places = [self._row(i), (parts, IterKind.SPATIAL, part), (parts, IterKind.REDUCE, other)]
            return [*places, self._step()] if steps else places

        def store(
            b: PrimExpr, h: PrimExpr, i: PrimExpr, part: PrimExpr, other: PrimExpr, *step: PrimExpr
        ) -> BufferStore:
            old, more = buffer[(b, h, *step, i, part)], held[(b, h, *step, i, other)]
            return BufferStore(buffer, (b, h, *step, i, part), build.maximum(old, more) if largest else old + more)

        def init(
            b: PrimExpr, h: PrimExpr, i: PrimExpr, part: PrimExpr, other: PrimExpr, *step: PrimExpr
        ) -> BufferStore:
            return BufferStore(buffer, (b, h, *step, i, part), _LEAST if largest else _NOTHING)

        return self._stage(buffer.name, [self.tile.queries, parts, parts], axes, store, init)

    # ---------------------------------------------------------------- the whole

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
            self._each(
                shift, lambda *place: _finite(top[place], top[place] * factor, _NOTHING), tile.parts, steps=True
            ),
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
            self._each(largest, lambda *place: _LEAST, tile.parts, name="largest_start"),
            self._each(total, lambda *place: _NOTHING, tile.parts, name="total_start"),
            self._each(mixed, lambda *place: _NOTHING, tile.width, name="mixed_start"),
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

    def _score_stage(self, products: Buffer) -> tuple[Buffer, list[Stmt]]:
        """Scores, and the stage that makes them of products; no stage where they are the same."""
        if self.scores_of is None and self.sizes.keys == self.all_keys:
            return products, []
        scores = self._buffer("scores", (self.rows, self.columns))

        def value(b: PrimExpr, h: PrimExpr, i: PrimExpr, j: PrimExpr) -> PrimExpr:
            score: PrimExpr = products[b, h, i, j]
            if self.scores_of is not None:
                score = self.scores_of(score, b, h, i, j)
            return self._guarded(score, _LEAST, (self._of_all(h, j), self.sizes.keys, self.all_keys))

        return scores, [self._cells("scores", scores, value)]

    def _part(self, element: PrimExpr) -> PrimExpr:
        """Which of the parts of a row has an element of its result."""
        return element % (self.tile.parts * self.tile.width_run) // self.tile.width_run

    def _cells(self, name: str, buffer: Buffer, value: Callable[..., PrimExpr]) -> Stmt:
        """A value for each query and key of a tile."""

        def axes(i: PrimExpr, j: PrimExpr) -> Sequence[Axis]:
            return [self._row(i), self._key(j)]

        def store(*place: PrimExpr) -> BufferStore:
            return BufferStore(buffer, place, value(*place))

        return self._stage(name, [self.tile.queries, self.tile.keys], axes, store)

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
            return _power(largest[place] * factor - _finite(best[place], best[place] * factor, _NOTHING))

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
        blind = _NOTHING if seen else const(math.nan, FLOAT32)

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
    return build.select(build.eq(largest, _LEAST), blind, value)
