"""The greatest elements in order, step by step: what CPUs do instead of counting (`sorting.py`).

An element and its place are one whole number of 64 bits, its key: the greatest key comes first, and equal elements, NaN
and either zero need no thought after that. A few of many are kept in an ordered list, into which keys are put as they
come; most elements are not among the best so far, and blocks of them are passed over at once. Where many are wanted,
runs are ordered by counting and then merged. Columns that lie side by side have lists side by side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

from tilewright.ir import build, intrinsics
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import FLOAT32, INT32, INT64, DataType
from tilewright.ir.expr import ExprLike, PrimExpr, Var, const_value
from tilewright.ir.types import Type
from tilewright.te.language import extern_rows
from tilewright.te.tensor import Tensor
from tilewright.tir.buffer import Buffer
from tilewright.tir.stmt import Stmt, seq
from tilewright.topi.registry import compute_on_cpus, result_shape
from tilewright.topi.statements import at_once, combined, let, memory, put, repeat, when, with_memory

_KEYS: Final = 8
"""Keys of a vector."""
_LANES: Final = 16
_BLOCK: Final = 4 * _LANES
"""Elements that are passed over at once."""
_MOST_SIDE_BY_SIDE: Final = 16
"""Elements that are found of each of several neighbouring columns at the same time, at most."""
_LEAST_RUN: Final = 32
"""Elements of a run that is ordered by counting, at least; at most twice as many."""
_LAST, _FIRST = -(2**63), 2**63 - 1
"""Keys after and before all others."""


@dataclass(frozen=True)
class _Row:
    """One row of the data, and where its best go."""

    data: Buffer
    values: Buffer
    places: Buffer
    at: tuple[PrimExpr, ...]
    axis: int
    size: int
    wanted: int
    largest: bool

    def index(self, place: ExprLike) -> tuple[ExprLike, ...]:
        """The indices of a place in the row."""
        return (*self.at[: self.axis], place, *self.at[self.axis + 1 :])

    def element(self, place: ExprLike) -> PrimExpr:
        """An element of the data."""
        return self.data[self.index(place)]

    def key(self, value: PrimExpr, place: PrimExpr) -> PrimExpr:
        """An element as a number: the order of its value above, of its place below; what comes first is greater."""
        high = cast(_ordered(value), INT64)
        if not self.largest:
            high = const(-1, INT64) - high
        return high * const(2**32, INT64) + (const(2**32 - 1, INT64) - cast(place, INT64))

    def place(self, key: PrimExpr) -> PrimExpr:
        """The place of an element, from its key; in the row whatever the key is."""
        place = const(2**32 - 1, INT64) - build.floormod(key, const(2**32, INT64))
        return build.maximum(build.minimum(place, self.size - 1), 0)

    def may_come_before(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        """Whether a comes before b, in one comparison: NaN on either side counts too."""
        return build.logical_not(build.le(a, b) if self.largest else build.le(b, a))

    def results(self, keys: Buffer, start: int) -> Stmt:
        """The best, from their keys in order to where they are wanted."""

        def result(j: Var) -> Stmt:
            return let(
                self.place(keys[j + start]),
                lambda place: seq(
                    put(self.values, self.index(j), self.element(place)), put(self.places, self.index(j), place)
                ),
            )

        return repeat(self.wanted, result, "j")


def _ordered(value: PrimExpr) -> PrimExpr:
    """A whole number of at most 32 bits in the order of values: NaN is greater than all, zeros are equal."""
    if not value.dtype.is_float:
        signed = value.dtype.bits < 32 or value.dtype is INT32
        return value if signed else cast(value, INT64) - 2**31
    wide = cast(value, FLOAT32)
    bits = intrinsics.reinterpret(wide, INT32)
    # Negative numbers have their bits in the wrong order, but for the sign.
    in_order = build.select(build.lt(bits, 0), const(-(2**31), INT32) - bits - 1, bits)
    plain = build.select(build.eq(wide, const(0.0, FLOAT32)), const(0, INT32), in_order)
    return build.select(intrinsics.isnan(wide), const(2**31 - 1, INT32), plain)


def has_keys(dtype: DataType) -> bool:
    """Whether elements of a type fit in a key beside their place."""
    return dtype.bits <= 32 and (dtype.is_integer or dtype.is_float or dtype.is_bool) and dtype.lanes == 1


@compute_on_cpus("topk")
def _topk(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor] | None:
    (x,) = inputs
    axis, largest = attributes.axis, attributes.largest
    shape = result_shape(result)
    size, wanted = const_value(x.shape[axis]), const_value(shape[axis])
    if size is None or not wanted or not has_keys(x.dtype) or size >= 2**31:
        return None
    last = x.ndim - 1
    columns = const_value(x.shape[last])
    if axis != last and columns is not None and columns >= _KEYS and wanted <= _MOST_SIDE_BY_SIDE:

        def plane(sources: list[Buffer], results: list[Buffer], at: tuple[PrimExpr, ...]) -> Stmt:
            return _side_by_side(_Row(sources[0], results[0], results[1], at, axis, size, wanted, largest), columns)

        return list(extern_rows((shape, shape), (axis, last), [x], plane, "topk", (x.dtype, INT64)))
    keeps_list = is_list_better(size, wanted)

    def statement(sources: list[Buffer], results: list[Buffer], at: tuple[PrimExpr, ...]) -> Stmt:
        row = _Row(sources[0], results[0], results[1], at, axis, size, wanted, largest)
        return _KeptList(row).selected() if keeps_list else _merged_runs(row)

    return list(extern_rows((shape, shape), axis, [x], statement, "topk", (x.dtype, INT64)))


def is_list_better(size: int, wanted: int) -> bool:
    """Whether putting elements in an ordered list is less work than to order all: steps of both for random data."""
    put_in = wanted * (1 + math.log(size / wanted)) * (wanted / _KEYS + 8)
    return put_in <= 4 * size * max(1.0, math.log2(size / _LEAST_RUN))


class _KeptList:
    """The best so far in order. `kept[0]` stays before all others, so that every entry has one before it."""

    def __init__(self, row: _Row) -> None:
        self.row = row
        self.chunks = -(-row.wanted // _KEYS)
        self.kept, self.before = memory("kept", self.chunks * _KEYS + 1, INT64), memory("before", _KEYS, INT64)
        self.worst = memory("worst", 1, row.data.dtype)
        self.hits, self.total = memory("hits", _LANES, INT32), memory("total", 1, INT32)

    def selected(self) -> Stmt:
        """The first elements as they come, then blocks of others, most of which are passed over at once."""
        row, kept = self.row, self.kept
        rest = row.size - row.wanted
        blocks = rest // _BLOCK
        steps = [
            repeat(self.chunks * _KEYS, lambda j: put(kept, j + 1, const(_LAST, INT64)), "j"),
            put(kept, 0, const(_FIRST, INT64)),
            repeat(row.wanted, lambda place: let(row.key(row.element(place), place), self._insert, "key"), "p"),
            self._remember_worst(),
        ]
        if blocks:
            steps.append(repeat(blocks, lambda b: self._look(b * _BLOCK + row.wanted), "b"))
        if rest % _BLOCK:
            steps.append(repeat(rest % _BLOCK, self._consider, "p", row.wanted + blocks * _BLOCK))
        steps.append(row.results(kept, 1))
        own = [kept, self.before, self.worst, self.hits, self.total]
        return with_memory("topk_list", own, [row.data], [row.values, row.places], *steps)

    def _insert(self, key: PrimExpr) -> Stmt:
        """Put a key in: lesser ones move back by one, and the last falls out."""
        kept, before = self.kept, self.before

        def chunk(number: Var) -> Stmt:
            # From the end on, so that what moves is read before it is written.
            begin = (self.chunks - 1 - number) * _KEYS

            def moved(lane: Var) -> PrimExpr:
                return build.maximum(kept[begin + lane + 1], build.minimum(key, before[lane]))

            return seq(
                at_once(_KEYS, lambda lane: put(before, lane, kept[begin + lane])),
                at_once(_KEYS, lambda lane: put(kept, begin + lane + 1, moved(lane))),
            )

        return repeat(self.chunks, chunk, "chunk")

    def _remember_worst(self) -> Stmt:
        return put(self.worst, 0, self.row.element(self.row.place(self.kept[self.row.wanted])))

    def _consider(self, place: PrimExpr) -> Stmt:
        """One element, which may be among the best."""
        row = self.row

        def known(value: Var) -> Stmt:
            def keyed(key: Var) -> Stmt:
                return when(build.lt(self.kept[row.wanted], key), seq(self._insert(key), self._remember_worst()))

            return when(row.may_come_before(value, self.worst[0]), let(row.key(value, place), keyed, "key"))

        return let(row.element(place), known)

    def _look(self, begin: PrimExpr) -> Stmt:
        """A block of elements, one by one if any of them may be among the best."""

        def hit(lane: Var) -> PrimExpr:
            parts = [begin + n * _LANES + lane for n in range(_BLOCK // _LANES)]
            return build.any_of([self.row.may_come_before(self.row.element(place), self.worst[0]) for place in parts])

        return seq(
            at_once(_LANES, lambda lane: put(self.hits, lane, cast(hit(lane), INT32))),
            combined(self.total, self.hits, const(0, INT32), build.add),
            when(build.lt(0, self.total[0]), repeat(_BLOCK, lambda e: self._consider(begin + e), "e")),
        )


def _side_by_side(row: _Row, columns: int) -> Stmt:
    """A list for each of some neighbouring columns: every element passes through all lists, without a question."""
    kept = memory("kept", row.wanted * _KEYS, INT64)
    key, lesser = memory("key", _KEYS, INT64), memory("lesser", _KEYS, INT64)

    def part(begin: PrimExpr, count: int) -> Stmt:
        def column(lane: PrimExpr) -> _Row:
            return replace(row, at=(*row.at[:-1], begin + lane))

        def passed(place: Var) -> Stmt:
            def entry(lane: Var) -> Stmt:
                return put(key, lane, column(lane).key(column(lane).element(place), place))

            def level(number: int) -> list[Stmt]:
                start = number * _KEYS
                return [
                    at_once(count, lambda lane: put(lesser, lane, build.minimum(kept[start + lane], key[lane]))),
                    at_once(count, lambda lane: put(kept, start + lane, build.maximum(kept[start + lane], key[lane]))),
                    at_once(count, lambda lane: put(key, lane, lesser[lane])),
                ]

            return seq(at_once(count, entry), *(step for number in range(row.wanted) for step in level(number)))

        def written(number: int) -> Stmt:
            def result(lane: Var) -> Stmt:
                own = column(lane)
                place = own.place(kept[number * _KEYS + lane])
                where = own.index(const(number))
                return seq(put(row.values, where, own.element(place)), put(row.places, where, place))

            return at_once(count, result)

        def start(number: int) -> Stmt:
            return at_once(count, lambda lane: put(kept, number * _KEYS + lane, const(_LAST, INT64)))

        return seq(
            *(start(number) for number in range(row.wanted)),
            repeat(row.size, passed, "p"),
            *(written(number) for number in range(row.wanted)),
        )

    whole = columns // _KEYS
    parts = [repeat(whole, lambda n: part(n * _KEYS, _KEYS), "columns")]
    if columns % _KEYS:
        parts.append(part(const(columns - _KEYS), _KEYS))
    own = [kept, key, lesser]
    return with_memory("topk_columns", own, [row.data], [row.values, row.places], *parts)


def _merged_runs(row: _Row) -> Stmt:
    """All elements in order: runs by counting, then two and two runs merged until one is left."""
    levels = max(0, int(math.log2(max(1, row.size // _LEAST_RUN))))
    run = -(-row.size // 2**levels)
    run = -(-run // _KEYS) * _KEYS
    size = run * 2**levels
    keys, other = memory("keys", size, INT64), memory("other_keys", size, INT64)
    ranks = memory("ranks", run, INT64)
    heads = memory("heads", 4, INT64)
    steps = [repeat(row.size, lambda p: put(keys, p, row.key(row.element(p), p)), "p")]
    if size > row.size:
        steps.append(repeat(size - row.size, lambda p: put(keys, p, const(_LAST, INT64)), "p", row.size))
    steps.append(repeat(2**levels, lambda number: _counted(keys, other, ranks, number * run, run), "run"))
    source, target = other, keys
    for level in range(levels):
        width = run * 2**level
        pairs = 2 ** (levels - level - 1)
        # Of the last pair only what is wanted must be found.
        wanted = min(row.wanted, width) if pairs == 1 and row.wanted <= width else width
        steps.append(_merged(source, target, heads, width, wanted, pairs, both=wanted == width))
        source, target = target, source
    steps.append(row.results(source, 0))
    return with_memory("topk_runs", [keys, other, ranks, heads], [row.data], [row.values, row.places], *steps)


def _counted(source: Buffer, target: Buffer, ranks: Buffer, begin: PrimExpr, run: int) -> Stmt:
    """A run in order: every key goes where as many are before it as are greater. Those after the end are all equal."""

    def ahead(other: PrimExpr, mine: PrimExpr) -> PrimExpr:
        a, b = source[begin + other], source[begin + mine]
        tie = build.logical_and(build.eq(a, b), build.lt(other, mine))
        return cast(build.logical_or(build.lt(b, a), tie), INT64)

    def counted(other: Var) -> Stmt:
        def lanes(chunk: Var) -> Stmt:
            return at_once(_KEYS, lambda lane: _increased(ranks, chunk * _KEYS + lane, other))

        def _increased(buffer: Buffer, mine: PrimExpr, other: PrimExpr) -> Stmt:
            return put(buffer, mine, buffer[mine] + ahead(other, mine))

        return repeat(run // _KEYS, lanes, "chunk")

    def placed(mine: Var) -> Stmt:
        place = build.maximum(build.minimum(ranks[mine], run - 1), 0)
        return put(target, begin + place, source[begin + mine])

    return seq(
        repeat(run, lambda j: put(ranks, j, const(0, INT64)), "j"),
        repeat(run, counted, "other"),
        repeat(run, placed, "mine"),
    )


def _merged(source: Buffer, target: Buffer, heads: Buffer, width: int, wanted: int, pairs: int, *, both: bool) -> Stmt:
    """Runs of a width, two and two in one of twice the width: from the front, and at the same time from the back.

    In as many steps as a run is wide neither end of a run is passed, so nothing has to be tested.
    """

    def pair(number: Var) -> Stmt:
        begin = number * (2 * width)

        def inside(head: PrimExpr) -> PrimExpr:
            return build.maximum(build.minimum(head, 2 * width * pairs - 1), 0)

        def front(t: Var) -> Stmt:
            left, right = source[inside(heads[0])], source[inside(heads[1])]

            def taken(takes: Var) -> Stmt:
                return seq(
                    put(target, begin + t, build.maximum(left, right)),
                    put(heads, 0, heads[0] + (const(1, INT64) - takes)),
                    put(heads, 1, heads[1] + takes),
                )

            return let(cast(build.lt(left, right), INT64), taken, "takes")

        def back(t: Var) -> Stmt:
            left, right = source[inside(heads[2])], source[inside(heads[3])]

            def taken(takes: Var) -> Stmt:
                return seq(
                    put(target, begin + (2 * width - 1) - t, build.minimum(left, right)),
                    put(heads, 2, heads[2] - takes),
                    put(heads, 3, heads[3] - (const(1, INT64) - takes)),
                )

            return let(cast(build.lt(left, right), INT64), taken, "takes")

        return seq(
            put(heads, 0, begin),
            put(heads, 1, begin + width),
            put(heads, 2, begin + (width - 1)),
            put(heads, 3, begin + (2 * width - 1)),
            repeat(wanted, lambda t: seq(front(t), back(t)) if both else front(t), "t"),
        )

    return repeat(pairs, pair, "pair")
