"""Running sums and products: in blocks of blocks everywhere, step by step on CPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.expr import ExprLike, PrimExpr, Var, const_value
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, extern, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.buffer import Buffer
from tilewright.tir.stmt import For, LoopKind, Stmt, seq
from tilewright.topi.reduce import Reducer, accumulator_type
from tilewright.topi.registry import compute_of, compute_on_cpus
from tilewright.topi.statements import at_once, memory, parts_of, put, repeat, with_memory

Join = Callable[[ExprLike, ExprLike], PrimExpr]

_BLOCK = 16
"""Elements of a block of cumulative sums: each element sums its block, and blocks are sums of sixteen in turn."""


class _Cumulative:
    """Sums or products of all elements up to each, along an axis: in blocks, and blocks of blocks.

    Before:  y[i] = sum(x[k] for k <= i)                                          (n * n / 2 additions)
    After:   total[b] = sum of block b;  base[b] = sum(total[c] for c < b);  y[i] = base[i // 16] + sum within the block
    """

    def __init__(self, axis: int, reverse: bool, reducer: Reducer, join: Join, neutral: int) -> None:
        self.axis = axis
        self.reverse = reverse
        self.reducer = reducer
        self.join = join
        self.neutral = neutral

    def _at(self, i: tuple[ExprLike, ...], place: ExprLike) -> tuple[ExprLike, ...]:
        return (*i[: self.axis], place, *i[self.axis + 1 :])

    def _inside(self, source: PrimExpr, position: PrimExpr, exclusive: bool) -> PrimExpr:
        """Whether an element counts at a position."""
        first, second = (position, source) if self.reverse else (source, position)
        return build.lt(first, second) if exclusive else build.le(first, second)

    def whole(self, x: Tensor, exclusive: bool) -> Tensor:
        """Every element sums all before it."""
        k = reduce_axis((0, x.shape[self.axis]), "k")
        neutral = const(self.neutral, x.dtype)

        def element(*i: ExprLike) -> PrimExpr:
            inside = self._inside(k.as_prim_expr(), build.as_expr(i[self.axis]), exclusive)
            return self.reducer(build.select(inside, x[self._at(i, k)], neutral), [k])

        return compute(x.shape, element, "cumulative")

    def blocked(self, x: Tensor, exclusive: bool, levels: int) -> Tensor:
        """Every element sums its block, and what the blocks before it sum up to."""
        size = x.shape[self.axis]
        if levels == 0:
            return self.whole(x, exclusive)
        neutral = const(self.neutral, x.dtype)
        k, within = reduce_axis((0, _BLOCK), "k"), reduce_axis((0, _BLOCK), "k")

        def total(*i: ExprLike) -> PrimExpr:
            source = build.as_expr(i[self.axis]) * _BLOCK + k
            return self.reducer(build.select(build.lt(source, size), x[self._at(i, source)], neutral), [k])

        shape = list(x.shape)
        shape[self.axis] = (size + (_BLOCK - 1)) // _BLOCK
        base = self.blocked(compute(tuple(shape), total, "cumulative_block"), True, levels - 1)

        def part(*i: ExprLike) -> PrimExpr:
            position = build.as_expr(i[self.axis])
            source = position // _BLOCK * _BLOCK + within
            inside = build.logical_and(self._inside(source, position, exclusive), build.lt(source, size))
            return self.reducer(build.select(inside, x[self._at(i, source)], neutral), [within])

        parts = compute(x.shape, part, "cumulative_part")

        def element(*i: ExprLike) -> PrimExpr:
            return self.join(parts[i], base[self._at(i, build.as_expr(i[self.axis]) // _BLOCK)])

        return compute(x.shape, element, "cumulative")


def _cumulative(inputs: list[Tensor], attributes: Any, reducer: Reducer, join: Join, neutral: int) -> Tensor:
    (x,) = inputs
    wide = accumulator_type(x.dtype)
    values = x if wide is x.dtype else compute(x.shape, lambda *i: cast(x[i], wide), "cumulative_in")
    size = const_value(x.shape[attributes.axis])
    levels = 2
    if size is not None:
        levels = 0
        while size > 2 * _BLOCK:
            size, levels = -(-size // _BLOCK), levels + 1
    sums = _Cumulative(attributes.axis, attributes.reverse, reducer, join, neutral)
    total = sums.blocked(values, attributes.exclusive, levels)
    return total if wide is x.dtype else compute(total.shape, lambda *i: cast(total[i], x.dtype), "cumulative_out")


@compute_of("cumsum")
def _cumsum(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    return _cumulative(inputs, attributes, reduction.sum, build.add, 0)


@compute_of("cumprod")
def _cumprod(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    return _cumulative(inputs, attributes, reduction.prod, build.mul, 1)


_LANES = 64
"""Sums side by side, where the axis is not the last one."""
_TOGETHER = 4
"""Rows that are summed up at the same time: each addition waits for the one before it."""


@dataclass(frozen=True)
class _Scan:
    """A running sum step by step: each element is the one before it and one more."""

    source: Buffer
    target: Buffer
    sizes: list[int]
    axis: int
    reverse: bool
    exclusive: bool
    join: Join
    neutral: int
    sums: Buffer

    def scanned(self) -> Stmt:
        """Along the last axis some rows at a time; along others, elements of the axes after it in vectors."""
        before, after = prod(self.sizes[: self.axis]), prod(self.sizes[self.axis + 1 :])
        if after == 1:
            steps = _in_parts(before, _TOGETHER, self._rows)
        else:
            steps = [repeat(before, lambda r: seq(*_in_parts(after, _LANES, partial(self._columns, r))), "r")]
        return with_memory("cumulative_rows", [self.sums], [self.source], [self.target], *steps)

    def _at(self, row: PrimExpr, step: PrimExpr, column: PrimExpr) -> tuple[PrimExpr, ...]:
        """The indices of an element: of the axes before, along the axis, of the axes after."""
        place = build.sub(self.sizes[self.axis] - 1, step) if self.reverse else step
        return (*parts_of(row, self.sizes[: self.axis]), place, *parts_of(column, self.sizes[self.axis + 1 :]))

    def _step(self, lane: PrimExpr, place: tuple[PrimExpr, ...]) -> Stmt:
        """One element more in a sum."""
        add = put(self.sums, lane, self.join(self.sums[lane], cast(self.source[place], self.sums.dtype)))
        write = put(self.target, place, cast(self.sums[lane], self.target.dtype))
        return seq(write, add) if self.exclusive else seq(add, write)

    def _start(self, lane: PrimExpr) -> Stmt:
        return put(self.sums, lane, const(self.neutral, self.sums.dtype))

    def _rows(self, begin: PrimExpr, count: int) -> Stmt:
        """Some rows at a time."""

        def unrolled(step: Var) -> Stmt:
            lane = Var("lane")
            body = self._step(lane, self._at(begin + lane, step, const(0)))
            return For(lane, const(0), const(count), LoopKind.UNROLLED, body)

        return seq(repeat(count, self._start, "lane"), repeat(self.sizes[self.axis], unrolled, "k"))

    def _columns(self, row: Var, begin: PrimExpr, count: int) -> Stmt:
        """Some columns of a row of the axes before at a time."""

        def vector(step: Var) -> Stmt:
            return at_once(count, lambda lane: self._step(lane, self._at(row, step, begin + lane)))

        return seq(at_once(count, self._start), repeat(self.sizes[self.axis], vector, "k"))


def _in_parts(count: int, together: int, part: Callable[[PrimExpr, int], Stmt]) -> list[Stmt]:
    """Parts of so many, and what is left."""
    whole, rest = divmod(count, together)
    parts = [repeat(whole, lambda n: part(n * together, together), "n")] if whole else []
    return [*parts, *([part(const(whole * together), rest)] if rest else [])]


def _step_by_step(inputs: list[Tensor], attributes: Any, join: Join, neutral: int) -> Tensor | None:
    (x,) = inputs
    sizes = [size for size in map(const_value, x.shape) if size is not None]
    if len(sizes) < x.ndim or 0 in sizes:
        return None
    axis = attributes.axis

    def statement(sources: list[Buffer], results: list[Buffer]) -> Stmt:
        together = _TOGETHER if prod(sizes[axis + 1 :]) == 1 else _LANES
        sums = memory("sums", together, accumulator_type(x.dtype))
        order = (axis, attributes.reverse, attributes.exclusive)
        return _Scan(sources[0], results[0], sizes, *order, join, neutral, sums).scanned()

    scanned = extern(x.shape, [x], statement, "cumulative", x.dtype)
    assert isinstance(scanned, Tensor)
    return scanned


@compute_on_cpus("cumsum")
def _cumsum_on_cpus(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    return _step_by_step(inputs, attributes, build.add, 0)


@compute_on_cpus("cumprod")
def _cumprod_on_cpus(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    return _step_by_step(inputs, attributes, build.mul, 1)
