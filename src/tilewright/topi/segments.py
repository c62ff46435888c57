"""Sums of rows that are data: the gradient of a lookup.

Devices bring the updates of a row together first, by sorting places; then the first of a row's updates adds all of them
up, in their order, and rows of the result are copies of such sums, or zeros. Where there are few rows, each looks for
its updates instead. CPUs add one update after the other.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INDEX, INT32
from tilewright.ir.expr import ExprLike, PrimExpr, Var, const_value
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, extern, extern_rows, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.buffer import Buffer
from tilewright.tir.stmt import Stmt, seq
from tilewright.topi.reduce import accumulator_type
from tilewright.topi.registry import compute_of, compute_on_cpus, result_shape
from tilewright.topi.scatter import inside, nest
from tilewright.topi.sorting import Ranks
from tilewright.topi.statements import let, memory, put, repeat, when, with_memory


@compute_of("segment_sum")
def _segment_sum(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    updates, segments = inputs
    shape = result_shape(result)
    known = [const_value(size) for size in (*shape, updates.shape[0])]
    sizes = [size for size in known if size]
    if len(sizes) < len(known) or prod(sizes[:-1]) <= 2 * sizes[-1]:
        return _looked_for(updates, segments, shape)
    return _Sorted(updates, segments, shape).sums()


def _looked_for(updates: Tensor, segments: Tensor, shape: tuple[PrimExpr, ...]) -> Tensor:
    """Every element of the result looks for the updates of its row."""
    update = reduce_axis((0, segments.shape[0]), "u")
    wide = accumulator_type(updates.dtype)

    def total(*i: ExprLike) -> PrimExpr:
        named = build.eq(cast(segments[update], INDEX), i[0])
        value = cast(updates[(update, *i[1:])], wide)
        return reduction.sum(build.select(named, value, const(0, wide)), [update])

    sums = compute(shape, total, "segment_sum")
    if wide is updates.dtype:
        return sums
    return compute(sums.shape, lambda *i: cast(sums[i], updates.dtype), "narrowed")


class _Sorted:
    """Sums of updates that lie by their rows, the earlier ones of a row first."""

    def __init__(self, updates: Tensor, segments: Tensor, shape: tuple[PrimExpr, ...]) -> None:
        self.updates, self.shape = updates, shape
        count, rows = const_value(segments.shape[0]), const_value(shape[0])
        assert count is not None and rows is not None
        self.count, self.rows = int(count), int(rows)

        def place(u: ExprLike) -> PrimExpr:
            named = cast(segments[u], INDEX)
            return build.select(build.all_of(inside(named, shape[0])), named, const(self.rows, INDEX))

        self.places = compute(segments.shape, place, "segment_place")
        """The row of each update; those outside the result have one row behind it."""
        self.order = Ranks(0, largest=False).best(self.places, segments.shape[0], self.count, self.count)
        self.sorted = compute(segments.shape, lambda p: self.places[self._update(self.order[p])], "segment_sorted")

    def _update(self, place: PrimExpr) -> PrimExpr:
        """The number of an update, which it is by construction; the bounds say so to whoever reads the program."""
        return build.maximum(build.minimum(place, self.count - 1), 0)

    def sums(self) -> Tensor:
        """The result: for each row the sum that its first update has, or zeros."""
        starts = self._starts()
        totals = self._totals(starts)
        dtype = self.updates.dtype

        def row(*i: ExprLike) -> PrimExpr:
            start, end = starts[i[0], 0], starts[build.as_expr(i[0]) + 1, 0]
            total = totals[(self._update(cast(start, INDEX)), 0, *i[1:])]
            return build.select(build.lt(start, end), cast(total, dtype), const(0, dtype))

        return compute(self.shape, row, "segment_sum")

    def _starts(self) -> Tensor:
        """How many updates are of earlier rows, for each row and the one behind the result: by halving."""

        def statement(sources: list[Buffer], results: list[Buffer], place: tuple[PrimExpr, ...]) -> Stmt:
            low, high = memory("low", 1, INDEX), memory("high", 1, INDEX)

            def step(half: Var) -> Stmt:
                is_earlier = build.lt(sources[0][self._update(half)], place[0])
                return when(is_earlier, put(low, 0, half + 1), put(high, 0, half))

            def halve(_: Var) -> Stmt:
                return when(build.lt(low[0], high[0]), let((low[0] + high[0]) // 2, step, "half"))

            begin = [put(low, 0, 0), put(high, 0, self.count)]
            steps = repeat(self.count.bit_length(), halve, "step")
            return with_memory(
                "halving", [low, high], sources, results, *begin, steps, put(results[0], place, cast(low[0], INT32))
            )

        shape = (const(self.rows + 1), const(1))
        return extern_rows((shape,), 1, [self.sorted], statement, "segment_start", (INT32,))[0]

    def _totals(self, starts: Tensor) -> Tensor:
        """The sum of a row, where the first of its updates is; nothing reads what is elsewhere."""
        wide = accumulator_type(self.updates.dtype)

        def statement(sources: list[Buffer], results: list[Buffer], place: tuple[PrimExpr, ...]) -> Stmt:
            updates, order, sorted_places, start = sources
            total = memory("total", 1, wide)

            def add(u: PrimExpr) -> Stmt:
                value = updates[(self._update(order[self._update(u)]), *place[2:])]
                return put(total, 0, total[0] + cast(value, wide))

            def count_of(row: Var) -> Stmt:
                is_first = build.logical_and(build.lt(row, self.rows), build.eq(cast(start[row, 0], INDEX), place[0]))
                behind = build.minimum(row + 1, self.rows)
                count = build.select(is_first, cast(start[behind, 0] - start[row, 0], INDEX), const(0, INDEX))
                return let(count, lambda n: repeat(n, lambda k: add(place[0] + k), "k"), "count")

            row = build.maximum(build.minimum(sorted_places[place[0]], self.rows), 0)
            sums = let(row, count_of, "row")
            return with_memory(
                "total",
                [total],
                sources,
                results,
                put(total, 0, const(0, wide)),
                sums,
                put(results[0], place, total[0]),
            )

        shape = (const(self.count), const(1), *self.shape[1:])
        sources = [self.updates, self.order, self.sorted, starts]
        return extern_rows((shape,), 1, sources, statement, "segment_total", (wide,))[0]


@compute_on_cpus("segment_sum")
def _segment_sum_in_order(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    dtype = inputs[0].dtype
    if accumulator_type(dtype) is not dtype:
        return None

    def statement(sources: list[Buffer], results: list[Buffer]) -> Stmt:
        updates, segments = sources
        (target,) = results

        def added(u: PrimExpr, place: Var) -> Stmt:
            row = nest(target.shape[1:], lambda i: put(target, (place, *i), target[(place, *i)] + updates[(u, *i)]))
            return row if attributes.inside else when(build.all_of(inside(place, target.shape[0])), row)

        return seq(
            nest(target.shape, lambda i: put(target, i, const(0, dtype))),
            repeat(segments.shape[0], lambda u: let(cast(segments[u], INDEX), lambda at: added(u, at), "place"), "u"),
        )

    found = extern(result_shape(result), inputs, statement, "segment_sum", dtype)
    assert isinstance(found, Tensor)
    return found
