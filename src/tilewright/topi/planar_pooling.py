"""Pools of planes (channels before rows and columns) as CPUs compute them: down the columns, then along the line.

For each line of results the rows of its windows become one line of maxima or sums, in vectors along the columns, which
lies in the first cache level between its padding; the windows of that line are then combined in vectors of results.
Nothing is tested in the inner loops, and a window of 5 x 5 takes ten steps an element instead of twenty-five.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce as fold
from typing import Any, Final

from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.expr import ExprLike, PrimExpr, Var, const_value
from tilewright.ir.types import Type
from tilewright.te.language import extern_rows
from tilewright.te.reduction import min_value
from tilewright.te.tensor import Tensor
from tilewright.tir.buffer import Buffer
from tilewright.tir.stmt import Stmt, seq
from tilewright.topi.pooling import misses_data
from tilewright.topi.reduce import mean_type
from tilewright.topi.registry import compute_on_cpus, result_shape
from tilewright.topi.statements import at_once, in_vectors, memory, put, repeat, when, with_memory

_MOST_TERMS: Final = 9
"""Rows or columns of a window that are combined in one expression; of larger windows one after the other."""

_LINES_BYTES: Final = 1 << 13
"""Memory of lines: a part of the first cache level."""

Join = Callable[[ExprLike, ExprLike], PrimExpr]


@dataclass(frozen=True)
class _Pool:
    """A pool of planes of known sizes: what combines elements, in which type, and what changes nothing."""

    attributes: Any
    rows: int
    columns: int
    result_rows: int
    result_columns: int
    join: Join
    wide: DataType
    neutral: PrimExpr

    @property
    def line(self) -> int:
        """The length of a line with its padding, and with what windows reach beyond it."""
        a = self.attributes
        reach = (self.result_columns - 1) * a.strides[1] + (a.kernel[1] - 1) * a.dilation[1] + 1
        return max(self.columns + int(a.padding[1]) + int(a.padding[3]), int(reach))

    @property
    def lines_together(self) -> int:
        """Lines that are made before the first of them is read."""
        return max(1, min(self.result_rows, _LINES_BYTES // (self.line * self.wide.itemsize)))


@compute_on_cpus("nn.max_pool2d")
def _max_pool2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    (x,) = inputs
    pool = _planar(x, attributes, result, build.maximum, x.dtype, min_value(x.dtype))
    return None if pool is None else _pooled(x, pool, result, "max_pool2d")


@compute_on_cpus("nn.avg_pool2d")
def _avg_pool2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    (x,) = inputs
    wide = mean_type(x.dtype)
    pool = _planar(x, attributes, result, build.add, wide, const(0, wide)) if wide is FLOAT32 else None
    return None if pool is None else _pooled(x, pool, result, "avg_pool2d")


def _planar(x: Tensor, attributes: Any, result: Type, join: Join, wide: DataType, neutral: PrimExpr) -> _Pool | None:
    """The pool of planes of known sizes that an operator is; None if it is another."""
    sizes = [const_value(dim) for dim in (*x.shape, *result_shape(result))]
    known = [size for size in sizes if size]
    if attributes.layout != "NCHW" or len(known) < len(sizes):
        return None
    return _Pool(attributes, known[2], known[3], known[6], known[7], join, wide, neutral)


def _pooled(x: Tensor, pool: _Pool, result: Type, name: str) -> Tensor:
    def statement(sources: list[Buffer], results: list[Buffer], at: tuple[PrimExpr, ...]) -> Stmt:
        return _Plane(pool, sources[0], results[0], at[:2], mean=name == "avg_pool2d").statement()

    return extern_rows((result_shape(result),), (2, 3), [x], statement, name, (x.dtype,))[0]


class _Plane:
    """All results of one plane: its statements, and the memory between them."""

    def __init__(self, pool: _Pool, source: Buffer, target: Buffer, at: tuple[PrimExpr, ...], *, mean: bool) -> None:
        self.pool, self.source, self.target, self.at, self.mean = pool, source, target, at, mean
        self.lines = memory("lines", pool.line * pool.lines_together, pool.wide)
        self.sums = memory("sums", pool.result_columns, pool.wide)
        self.parts = memory("parts", pool.result_columns, pool.wide)

    def statement(self) -> Stmt:
        """Lines of results, as many at a time as there is memory for."""
        pool = self.pool
        together = pool.lines_together
        before = repeat(pool.line * together, lambda x: put(self.lines, x, pool.neutral), "x")
        counts = []
        if self.mean:
            counts.append(repeat(pool.result_columns, lambda x: put(self.parts, x, _part(pool, x, 1)), "x"))
        whole, rest = divmod(pool.result_rows, together)
        blocks = [repeat(whole, lambda n: self._block(n * together, together), "block")]
        if rest:
            blocks.append(self._block(const(whole * together), rest))
        wide_window = pool.attributes.kernel[1] > _MOST_TERMS
        own = [self.lines, *([self.sums] if wide_window else []), *([self.parts] if self.mean else [])]
        return with_memory("pooled_plane", own, [self.source], [self.target], before, *counts, *blocks)

    def _block(self, begin: PrimExpr, count: int) -> Stmt:
        """Some lines of results: vectors are read back when others have been stored in between."""
        return seq(
            repeat(count, lambda n: self._collected(begin + n, n), "line"),
            repeat(count, lambda n: self._combined(begin + n, n), "line"),
        )

    def _collected(self, y: PrimExpr, number: PrimExpr) -> Stmt:
        """The line of the rows of one line of results: at once where they all lie in the plane, else one by one."""
        pool, a = self.pool, self.pool.attributes
        kernel, dilation, low = a.kernel[0], a.dilation[0], a.padding[0]
        first = y * a.strides[0] - low
        start = number * pool.line + a.padding[1]
        one_by_one = self._row_by_row(first, start)
        # A window that is higher than the plane never lies in it.
        if kernel > _MOST_TERMS or (kernel - 1) * dilation >= pool.rows:
            return one_by_one

        def value(column: PrimExpr) -> PrimExpr:
            return fold(pool.join, [self._element(first + step * dilation, column) for step in range(kernel)])

        reach = first + (kernel - 1) * dilation
        inside = build.logical_and(build.le(0, first), build.lt(reach, pool.rows))
        padded = low > 0 or (pool.result_rows - 1) * a.strides[0] - low + (kernel - 1) * dilation >= pool.rows
        quick = in_vectors(pool.columns, _each_in_line(start, lambda x, place: put(self.lines, place, value(x))))
        return when(inside, quick, one_by_one) if padded else quick

    def _row_by_row(self, first: PrimExpr, start: PrimExpr) -> Stmt:
        """A line, from those rows of a window that lie in the plane."""
        pool, a = self.pool, self.pool.attributes

        def step(tap: PrimExpr) -> Stmt:
            row = first + tap * a.dilation[0]

            def joined(x: PrimExpr, place: PrimExpr) -> Stmt:
                return put(self.lines, place, pool.join(self.lines[place], self._element(row, x)))

            return when(
                build.logical_and(build.le(0, row), build.lt(row, pool.rows)),
                in_vectors(pool.columns, _each_in_line(start, joined), again=False),
            )

        blank = _each_in_line(start, lambda _, place: put(self.lines, place, pool.neutral))
        return seq(in_vectors(pool.columns, blank), repeat(a.kernel[0], step, "row"))

    def _combined(self, y: PrimExpr, number: PrimExpr) -> Stmt:
        """The results of a line, from the line of its rows."""
        pool, a = self.pool, self.pool.attributes

        def window(x: PrimExpr, tap: ExprLike) -> PrimExpr:
            return self.lines[number * pool.line + x * a.strides[1] + build.mul(tap, a.dilation[1])]

        if a.kernel[1] <= _MOST_TERMS:

            def value(x: PrimExpr) -> PrimExpr:
                return fold(pool.join, [window(x, tap) for tap in range(a.kernel[1])])

            return in_vectors(pool.result_columns, _each(lambda x: self._finished(y, x, value(x))))

        def step(tap: Var) -> Stmt:
            joined = _each(lambda x: put(self.sums, x, pool.join(self.sums[x], window(x, tap))))
            return in_vectors(pool.result_columns, joined, again=False)

        return seq(
            in_vectors(pool.result_columns, _each(lambda x: put(self.sums, x, pool.neutral))),
            repeat(a.kernel[1], step, "column"),
            in_vectors(pool.result_columns, _each(lambda x: self._finished(y, x, self.sums[x]))),
        )

    def _finished(self, y: PrimExpr, x: PrimExpr, value: PrimExpr) -> Stmt:
        if self.mean:
            value = value * self.parts[x] * _part(self.pool, y, 0)
        return put(self.target, (*self.at, y, x), cast(value, self.target.dtype))

    def _element(self, row: PrimExpr, column: PrimExpr) -> PrimExpr:
        return cast(self.source[(*self.at, row, column)], self.pool.wide)


def _each(statement: Callable[[PrimExpr], Stmt]) -> Callable[[PrimExpr, int], Stmt]:
    """The statements of some elements that begin somewhere, all at once."""
    return lambda begin, count: at_once(count, lambda lane: statement(begin + lane))


def _each_in_line(start: PrimExpr, statement: Callable[[PrimExpr, PrimExpr], Stmt]) -> Callable[[PrimExpr, int], Stmt]:
    """The same of elements that are also told their places in a line that starts somewhere."""
    return lambda begin, count: at_once(count, lambda lane: statement(begin + lane, start + begin + lane))


def _part(pool: _Pool, index: PrimExpr, axis: int) -> PrimExpr:
    """One over the number of elements that count along an axis of a window."""
    a = pool.attributes
    size = pool.columns if axis else pool.rows
    kernel, stride, step = a.kernel[axis], a.strides[axis], a.dilation[axis]
    low, high = a.padding[axis], a.padding[axis + 2]
    if a.count_include_pad or not (low or high):
        return const(1.0 / kernel, pool.wide)
    start = index * stride - low
    skipped = build.maximum(build.floordiv(const(step - 1) - start, step), 0)
    reached = build.minimum(build.floordiv(build.sub(size + step - 1, start), step), kernel)
    least = 1 if misses_data(a) else 0
    return const(1.0, pool.wide) / cast(build.maximum(reached - skipped, least), pool.wide)
