"""Online softmax: an attention whose keys come in tiles, so that no score outlives its tile.

for sequence, head, tile of queries:
    running_max = -inf;  running_sum = 0;  accumulator = 0
    for tile of keys:
        scores = queries * keys;  new_max = max(running_max, scores)
        exponentials = 2^(factor * (scores - new_max));  rescale = 2^(factor * (running_max - new_max))
        running_max = new_max;  running_sum = running_sum * rescale + sum of exponentials
        accumulator = accumulator * rescale + exponentials * values
    attention = accumulator / running_sum

It computes what the stages of `topi/attention.py` compute, but for the rounding of exponentials to the type of the
values, which products on tensor cores need: an equivalent (`tir/equivalents.py`), not a rearrangement. Keys that are
not there have scores of -inf, elements that are not there are zeros.

Names in kernels: `largest` is the running maximum, `total` the running sum, `mixed` the accumulator, `powers` the
exponentials and `rounded` the same as an operand, `own` the maximum of one thread and `top` that of its row, `shrink`
the factor of the rescaling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import reduce
from typing import Final

from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import ZERO, FloatImm, Mul, PrimExpr, Select
from tilewright.ir.node import Node
from tilewright.ir.visit import find_all, substitute, transform
from tilewright.support.errors import UserError
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.equivalents import Equivalent, Parameters, declare_equivalent
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.stmt import Block, BufferStore, For, IterKind, LoopKind, Stmt, seq
from tilewright.topi.schedule.gpu.attention.blocks import (
    MINUS_INFINITY,
    ZERO_FLOAT,
    AttentionBlocks,
    Axis,
    exp2,
    inverse_of,
    unless_masked,
)
from tilewright.topi.schedule.gpu.attention.parts import merge_parts
from tilewright.topi.schedule.gpu.attention.sizes import (
    AttentionSizes,
    AttentionTile,
    Stages,
    element_of,
    mask_of,
    operands_of,
)
from tilewright.topi.schedule.gpu.attention.small import small_attention

TOLERANCES: Final = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 4e-6}
"""How far results may be from those of the plain stages, by the type of the operands."""


def use_online_softmax(sch: Schedule, tile: AttentionTile) -> list[BlockHandle]:
    """Put the program with keys in tiles in the place of an attention's stages; gives its blocks."""
    stages = sch.blocks()
    query, _, _ = operands_of({handle.name: sch.block(handle) for handle in stages})
    return sch.replace_by_equivalent(
        *stages, equivalent=ONLINE_SOFTMAX, tolerance=TOLERANCES[query.dtype.name], parameters=asdict(tile)
    )


def _build(func: PrimFunc, parameters: Parameters) -> PrimFunc:
    """The program of an attention, by the fields of an `AttentionTile`."""
    stages = {block.name: block for block in find_all(func.root, Block)}
    sizes = AttentionSizes.of(stages) if {"attention", "attention_products"} <= stages.keys() else None
    if sizes is None:
        raise UserError("only attentions of known sizes have this form")
    return OnlineSoftmax(func, stages, sizes, AttentionTile(**parameters)).program()  # type: ignore[arg-type]


ONLINE_SOFTMAX: Final = declare_equivalent(
    Equivalent(
        "online_softmax", "keys in tiles, with a running maximum and sum", _build, small_attention, is_tested=True
    )
)


class OnlineSoftmax(AttentionBlocks):
    """The program of one attention, being built."""

    def __init__(self, func: PrimFunc, stages: Stages, sizes: AttentionSizes, tile: AttentionTile) -> None:
        super().__init__(sizes, tile)
        self.func, self.stages = func, stages
        query, key, value = operands_of(stages)
        self.result = stages["attention"].writes[0].buffer
        self.mask = mask_of(stages)
        self.mask_shared: Buffer | None = None
        self.score_of, exponent_factor, self.leaves_products = self._scoring()
        self.factor = const(exponent_factor, FLOAT32)
        rows, columns, depth, width = self.rows, self.columns, (sizes.depth, tile.depth), (sizes.width, tile.width)
        where = ("queries_held", "local") if tile.holds_queries else ("queries_shared", "shared")
        self.queries, self.copy_queries = self._copy(*where, query, depth)
        self.keys, self.copy_keys = self._copy("keys_shared", "shared", key, depth)
        self.values, self.copy_values = self._copy("values_shared", "shared", value, width)
        self.running_max = self._buffer("largest", (rows, tile.row_threads))
        self.running_sum = self._buffer("total", (rows, tile.row_threads))
        self.accumulator = self._buffer("mixed", (rows, tile.width))
        self.products = self._buffer("products", (rows, columns))
        self.exponentials = self._buffer("powers", (rows, columns))
        self.copy_mask = self._copy_mask()
        self.scores, self.compute_scores = self._score_stage()
        self.rounded = self._buffer("rounded", (rows, columns), "local", query.dtype)
        by_tile = (self.tiles, rows, tile.row_threads)
        self.thread_max = self._buffer("own", by_tile)
        self.new_max = self._buffer("top", by_tile)
        self.shift = self._buffer("shift", by_tile)
        self.rescale = self._buffer("shrink", by_tile)
        self.row_sum = self._buffer("sums", (rows, tile.row_threads))
        if tile.divides_rows:
            self.inverse = self._buffer("inverse", (rows, tile.row_threads))
        if tile.parts > 1:
            self.part_max = self._buffer("part_max", (rows, tile.row_threads), "global", sliced=False)
            self.part_sum = self._buffer("part_sum", (rows, tile.row_threads), "global", sliced=False)
            self.part_values = self._buffer("part_values", (rows, tile.width), "global", sliced=False)

    def program(self) -> PrimFunc:
        """The program: one nest of loops over sequences, heads and tiles of queries."""
        tile = self.tile
        over_keys = seq(
            self.copy_keys,
            self.copy_values,
            *self.copy_mask,
            *self._multiply_keys(),
            *self.compute_scores,
            *self._update_max(),
            self._exponentiate(),
            *self._accumulate(),
        )
        body: Stmt = seq(
            self.copy_queries,
            self._per_row(self.running_max, lambda *place: MINUS_INFINITY, tile.row_threads, name="largest_start"),
            self._per_row(self.running_sum, lambda *place: ZERO_FLOAT, tile.row_threads, name="total_start"),
            self._per_row(self.accumulator, lambda *place: ZERO_FLOAT, tile.width, name="mixed_start"),
            For(self.key_tile, *self._seen_tiles(), LoopKind.SERIAL, over_keys),
            self._all_reduce(self.row_sum, self.running_sum, is_max=False, by_tile=False),
            *(self._merge_slices() if tile.slices > 1 else self._output()),
        )
        for var, extent in reversed(self.loops):
            body = For(var, ZERO, const(extent), LoopKind.SERIAL, body)
        if tile.parts > 1:
            body = seq(body, merge_parts(self))
        return self.func.replace(body=self.func.root.replace(body=body, allocations=tuple(self.buffers)))

    # ---------------------------------------------------------------- operands

    def _copy(self, name: str, scope: str, source: Buffer, elements: tuple[int, int]) -> tuple[Buffer, Stmt]:
        """A tile of an operand, near its use."""
        size, padded = elements
        is_query = name.startswith("queries")
        places = self.rows if is_query else self.part_keys
        sliced = is_query and scope == "local"
        buffer = self._buffer(name, (places, padded), scope, source.dtype, sliced)

        def store(b: PrimExpr, h: PrimExpr, i: PrimExpr, d: PrimExpr) -> BufferStore:
            part = self._head(h) if sliced else h
            whole = self._whole_head(part)
            if is_query:
                limit: tuple[PrimExpr, int, int] = (i, self.sizes.queries, self.rows)
                head, row = self.sizes.place(whole, i)
                element: PrimExpr = source[b, row, head, d]
            else:
                limit = self._key_limit(part, self.tile.key(i) if name == "values_shared" else i)
                shared = self.sizes.shared_head(whole)
                element = element_of(self.stages, name.removesuffix("_shared"), b, shared, limit[0], d)
            value = self._inside(element, const(0.0, source.dtype), limit, (d, size, padded))
            return BufferStore(buffer, (b, h, i, d), value)

        def axes(i: PrimExpr, d: PrimExpr) -> Sequence[Axis]:
            return [self._row(i) if is_query else self._any_key(i), (padded, IterKind.SPATIAL, d)]

        count = self.tile.queries if is_query else self.tile.keys * self.tile.slices
        return buffer, self._stage(name, [count, padded], axes, store, sliced=sliced)

    def _copy_mask(self) -> list[Stmt]:
        """The mask of a tile, in shared memory: it comes with the keys."""
        mask, by_row = self.mask, self.sizes.masks_rows
        if mask is None:
            return []
        rows, count = (self.rows, self.tile.queries) if by_row else (1, 1)
        buffer = self._buffer("mask_shared", (rows, self.part_keys), "shared", mask.buffer.dtype, sliced=False)
        self.mask_shared = buffer
        iters = self.stages["attention_scores"].iters

        def axes(i: PrimExpr, j: PrimExpr) -> Sequence[Axis]:
            return [self._row(i) if by_row else (1, IterKind.SPATIAL, i), self._any_key(j)]

        def store(b: PrimExpr, h: PrimExpr, i: PrimExpr, j: PrimExpr) -> BufferStore:
            places = (b, *self.sizes.place(self._whole_head(h), i), self._of_all(h, j))
            value = substitute(mask, {item.var: at for item, at in zip(iters, places, strict=True)})
            limits = [self._key_limit(h, j), (i, self.sizes.queries, rows)]
            other = const(0, mask.dtype) if not mask.dtype.is_float else const(0.0, mask.dtype)
            return BufferStore(buffer, (b, h, i, j), self._inside(value, other, *limits))

        return [self._stage("mask_shared", [count, self.tile.keys * self.tile.slices], axes, store, sliced=False)]

    # ---------------------------------------------------------------- scores

    def _multiply_keys(self) -> list[Stmt]:
        """The products of queries and keys: their start, and the rest."""
        tile, products = self.tile, self.products

        def part(name: str, first: int, end: int, starts: bool) -> Stmt:
            def steps(d: PrimExpr) -> Axis:
                return end - first, IterKind.REDUCE, d

            def operands(b: PrimExpr, h: PrimExpr, i: PrimExpr, j: PrimExpr, d: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
                return self.queries[b, h, i, d + first], self.keys[b, self._head(h), self._of_part(h, j), d + first]

            return self._matmul(name, products, (tile.keys, self._key), (end - first, steps), operands, starts)

        if tile.first_depth == 0:
            start = self._per_score("products_start", products, lambda *place: ZERO_FLOAT)
        else:
            start = part("products_start", 0, tile.first_depth, True)
        if tile.first_depth == tile.depth:
            return [start]
        return [start, part("products", tile.first_depth, tile.depth, False)]

    def _scoring(self) -> tuple[Callable[..., PrimExpr] | None, float, bool]:
        """Scores as a function of a product and its place (None: the product), and their factor in the exponent; and
        whether they are products, but for keys that are left out.

        A multiplication by a positive number alone does not change which score is the largest: it is left to the
        exponent.
        """
        block = self.stages["attention_scores"]
        assert isinstance(block.body, BufferStore)
        value = block.body.value
        products = self.stages["attention_products"].writes[0].buffer
        seen: PrimExpr | None = None
        if isinstance(value, Select) and not find_all(value.condition, BufferLoad):
            seen, value = value.condition, value.a
        places = [item.var for item in block.iters]

        def shown(score: PrimExpr, *place: PrimExpr) -> PrimExpr:
            """A score, or minus infinity where its key lies on no diagonal that the query sees."""
            b, h, i, j = place
            of_all = self._of_all(self._head(h), self._of_part(h, j))
            at = (b, *self.sizes.place(self._whole_head(self._head(h)), i), of_all)
            if seen is None:
                return score
            return build.select(substitute(seen, dict(zip(places, at, strict=True))), score, MINUS_INFINITY)

        alone = None if seen is None else shown
        match value:
            case Mul(a=BufferLoad(buffer=source), b=FloatImm(value=scale)) if source is products and scale > 0:
                return alone, scale / math.log(2), True
            case BufferLoad(buffer=source) if source is products:
                return alone, 1 / math.log(2), True

        def score(product: PrimExpr, *place: PrimExpr) -> PrimExpr:
            b, h, i, j = place

            def visit(item: Node) -> Node | None:
                if not isinstance(item, BufferLoad):
                    return None
                if item.buffer is products:
                    return product
                assert self.mask is not None and self.mask_shared is not None and item.buffer is self.mask.buffer
                return self.mask_shared[b, self._head(h), i if self.sizes.masks_rows else ZERO, self._of_part(h, j)]

            return shown(transform(value, visit), *place)

        return score, 1 / math.log(2), False

    def _score_stage(self) -> tuple[Buffer, list[Stmt]]:
        """Scores, and the stage that makes them of products; no stage where they are the same.

        Where they are the same but for keys that a query does not see, these are left out in place, in tiles that have
        some.
        """
        if self.score_of is None and self.sizes.keys == self.part_keys * self.tile.parts:
            return self.products, []

        def value(b: PrimExpr, h: PrimExpr, i: PrimExpr, j: PrimExpr) -> PrimExpr:
            score: PrimExpr = self.products[b, h, i, j]
            if self.score_of is not None:
                score = self.score_of(score, b, h, i, j)
            return self._inside(score, MINUS_INFINITY, self._key_limit(self._head(h), self._of_part(h, j)))

        if self.tile.parts == 1 and self.leaves_products:
            return self.products, [self._per_score("hidden", self.products, value, self._hides_keys())]
        scores = self._buffer("scores", (self.rows, self.columns))
        return scores, [self._per_score("scores", scores, value)]

    # ---------------------------------------------------------------- softmax

    def _update_max(self) -> list[Stmt]:
        """The maximum of each row with the keys of a tile, and by how much what came before shrinks."""
        running_max, new_max, threads = self.running_max, self.new_max, self.tile.row_threads

        def before(b: PrimExpr, h: PrimExpr, step: PrimExpr, i: PrimExpr, thread: PrimExpr) -> PrimExpr:
            return running_max[b, h, i, thread]

        def shift(*place: PrimExpr) -> PrimExpr:
            return unless_masked(new_max[place], new_max[place] * self.factor, ZERO_FLOAT)

        def rescale(*place: PrimExpr) -> PrimExpr:
            return exp2(before(*place) * self.factor - self.shift[place])

        return [
            self._per_row(self.thread_max, before, threads, by_tile=True, name="own_start"),
            self._reduce_columns("own", self.thread_max, build.maximum, self.scores, by_tile=True),
            self._all_reduce(new_max, self.thread_max, is_max=True, by_tile=True),
            self._per_row(self.shift, shift, threads, by_tile=True),
            self._per_row(self.rescale, rescale, threads, by_tile=True),
            self._update("largest", running_max, threads, lambda old, *place: build.maximum(old, new_max[place])),
        ]

    def _exponentiate(self) -> Stmt:
        """The exponentials of scores."""
        tile = self.tile

        def exponential(b: PrimExpr, h: PrimExpr, i: PrimExpr, j: PrimExpr) -> PrimExpr:
            step = build.floordiv(j, const(tile.keys))
            shift = self.shift[b, h, step, i, j % tile.key_span // tile.key_run]
            return exp2(self.scores[b, h, i, j] * self.factor - shift)

        return self._per_score("powers", self.exponentials, exponential)

    def _round(self) -> Stmt:
        """The exponentials in the type of the values."""

        def rounded(b: PrimExpr, h: PrimExpr, i: PrimExpr, j: PrimExpr) -> PrimExpr:
            return cast(self.exponentials[b, h, i, self.tile.key(j)], self.rounded.dtype)

        return self._per_score("rounded", self.rounded, rounded)

    def _accumulate(self) -> list[Stmt]:
        """The running sum and the accumulator: rescaled, and what a tile of keys adds to them."""
        tile, rescale = self.tile, self.rescale

        def rescaled(old: PrimExpr, *place: PrimExpr) -> PrimExpr:
            return old * rescale[place]

        def rescaled_element(
            old: PrimExpr, b: PrimExpr, h: PrimExpr, step: PrimExpr, i: PrimExpr, e: PrimExpr
        ) -> PrimExpr:
            return old * rescale[b, h, step, i, self._thread_of(e)]

        def operands(b: PrimExpr, h: PrimExpr, i: PrimExpr, e: PrimExpr, j: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
            return self.rounded[b, h, i, j], self.values[b, self._head(h), self._of_part(h, j), e]

        return [
            self._update("total_shrunk", self.running_sum, tile.row_threads, rescaled),
            self._reduce_columns("total_own", self.running_sum, build.add, self.exponentials, by_tile=False),
            self._update("mixed_shrunk", self.accumulator, tile.width, rescaled_element),
            # The last thing before the product: the one of the tile before may still read what it overwrites.
            self._round(),
            self._matmul(
                "mixed",
                self.accumulator,
                (tile.width, lambda e: (tile.width, IterKind.SPATIAL, e)),
                (tile.keys, lambda j: self._key(j, IterKind.REDUCE)),
                operands,
            ),
        ]

    # ---------------------------------------------------------------- results

    def _merge_slices(self) -> list[Stmt]:
        """What slices have summed up, rescaled to the largest score of all of them, and added."""
        rows, threads, slices = self.rows, self.tile.row_threads, self.tile.slices
        slice_max = self._buffer("peaks_shared", (rows, threads), "shared")
        slice_sum = self._buffer("portions_shared", (rows, threads), "shared")
        rescaled = self._buffer("mixed_shared", (rows, self.tile.width), "shared")
        overall_max, weight = (self._buffer(name, (rows, threads)) for name in ("best", "weight"))

        def over_slices(buffer: Buffer, b: PrimExpr, head: PrimExpr, *place: PrimExpr) -> list[PrimExpr]:
            return [buffer[(b, head * slices + number, *place)] for number in range(slices)]

        def largest(b: PrimExpr, h: PrimExpr, *place: PrimExpr) -> PrimExpr:
            return reduce(build.maximum, over_slices(slice_max, b, self._head(h), *place))

        def weight_of(*place: PrimExpr) -> PrimExpr:
            shift = unless_masked(overall_max[place], overall_max[place] * self.factor, ZERO_FLOAT)
            return exp2(self.running_max[place] * self.factor - shift)

        def weighted(b: PrimExpr, h: PrimExpr, i: PrimExpr, e: PrimExpr) -> PrimExpr:
            return self.accumulator[b, h, i, e] * weight[b, h, i, self._thread_of(e)]

        def total(b: PrimExpr, h: PrimExpr, *place: PrimExpr) -> PrimExpr:
            return reduce(build.add, over_slices(slice_sum, b, h, *place))

        def overall(b: PrimExpr, h: PrimExpr, *place: PrimExpr) -> PrimExpr:
            return reduce(build.maximum, over_slices(slice_max, b, h, *place))

        def element(b: PrimExpr, h: PrimExpr, *place: PrimExpr) -> PrimExpr:
            return reduce(build.add, over_slices(rescaled, b, h, *place))

        return [
            self._per_row(slice_max, lambda *place: self.running_max[place], threads),
            self._per_row(overall_max, largest, threads),
            self._per_row(weight, weight_of, threads),
            self._per_row(slice_sum, lambda *place: self.row_sum[place] * weight[place], threads),
            self._per_row(rescaled, weighted, self.tile.width),
            *self._results(element, total, overall, lambda e: ZERO),
        ]

    def _output(self) -> list[Stmt]:
        def element(*place: PrimExpr) -> PrimExpr:
            return self.accumulator[place]

        def total(*place: PrimExpr) -> PrimExpr:
            return self.row_sum[place]

        def largest(*place: PrimExpr) -> PrimExpr:
            return self.running_max[place]

        results = self._results(element, total, largest, self._thread_of)
        if not self.tile.divides_rows:
            return results
        return [self._per_row(self.inverse, lambda *place: inverse_of(total(*place)), self.tile.row_threads), *results]

    def _results(
        self,
        element: Callable[..., PrimExpr],
        total: Callable[..., PrimExpr],
        largest: Callable[..., PrimExpr],
        thread: Callable[[PrimExpr], PrimExpr],
    ) -> list[Stmt]:
        """The result, or what a part leaves of it, by the accumulator's elements and the sums and maxima of rows.

        `thread` has the number of the thread whose sum and maximum belong to an element.
        """

        def store(b: PrimExpr, h: PrimExpr, i: PrimExpr, e: PrimExpr) -> BufferStore:
            if self.tile.parts > 1:
                return BufferStore(self.part_values, (b, h, i, e), element(b, h, i, e))
            row = (b, h, i, thread(e))
            inverse = self.inverse[row] if self.tile.divides_rows else inverse_of(total(*row))
            return self.store_result(b, h, i, e, element(b, h, i, e), inverse, largest(*row))

        def axes(i: PrimExpr, e: PrimExpr) -> Sequence[Axis]:
            return [self._row(i), (self.tile.width, IterKind.SPATIAL, e)]

        limits = [(2, self.sizes.queries, self.rows), (3, self.sizes.width, self.tile.width)]
        padded = [(number, size) for number, size, whole in limits if size < whole]

        def predicate(*place: PrimExpr) -> PrimExpr:
            return build.all_of([build.lt(place[number], const(size)) for number, size in padded])

        loops = [self.tile.queries, self.tile.width]
        result = self._stage("result", loops, axes, store, None, predicate, sliced=False)
        if self.tile.parts == 1:
            return [result]
        threads = self.tile.row_threads
        return [
            self._per_row(self.part_max, largest, threads, sliced=False),
            self._per_row(self.part_sum, total, threads, sliced=False),
            result,
        ]

    def store_result(self, b: PrimExpr, h: PrimExpr, i: PrimExpr, e: PrimExpr, *found: PrimExpr) -> BufferStore:
        """An element of the result, by that of the accumulator, what it is multiplied with, and the largest score."""
        accumulator, inverse, largest = found
        loads = find_all(self.stages["attention"].body, BufferLoad)
        is_zero = any(load.buffer.name == "attention_max" for load in loads)
        all_masked = ZERO_FLOAT if is_zero else const(math.nan, FLOAT32)
        value = unless_masked(largest, accumulator * inverse, all_masked)
        head, place = self.sizes.place(h, i)
        return BufferStore(self.result, (b, place, head, e), cast(value, self.result.dtype))
