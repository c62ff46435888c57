"""Transposes as CPUs compute them: squares of elements change rows for columns in registers.

A square of 8 x 8 is read in rows of the source and written in rows of the result. In between its elements take their
new places in three steps, each of which puts the elements with even numbers before those with odd ones: the number of
an element is its row and its column, three bits each, and three such steps exchange them. A vector is two of the step
before, shuffled; gathering elements from memory takes as many reads as there are elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from tilewright.ir.build import const
from tilewright.ir.expr import PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.target.target import LINE_BYTES
from tilewright.te.language import extern_rows
from tilewright.te.tensor import PlaceholderOp, Tensor
from tilewright.tir.buffer import Buffer
from tilewright.tir.stmt import Stmt, seq
from tilewright.topi.registry import compute_on_cpus, result_shape
from tilewright.topi.statements import at_once, memory, parts_of, put, repeat, with_memory

_SIDES: Final = {8: 16, 16: 8, 32: 8}
"""The side of a square by the bits of an element: as many as vectors of all processors hold, or twice as many."""
_WIDEST: Final = 32
_FAR_BYTES: Final = 1 << 19
"""From here on memory is what takes time; squares as large as lines of the cache, which schedules make, are better."""


@dataclass(frozen=True)
class _Crossing:
    """Two groups of axes of a result: along `written` it lies in memory, along `read` its source does."""

    read: tuple[int, ...]
    written: tuple[int, ...]


@compute_on_cpus("transpose")
def _transpose(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    (x,) = inputs
    axes = tuple(attributes.axes)
    shape = [const_value(dim) for dim in result_shape(result)]
    sizes = [size for size in shape if size is not None]
    side = _SIDES.get(x.dtype.bits)
    alone = isinstance(x.op, PlaceholderOp) and not x.dtype.is_bool
    if side is None or not alone or len(sizes) < len(shape):
        return None
    crossing = _crossing(axes)
    if crossing is None:
        return None
    across, along = (prod(sizes[axis] for axis in group) for group in (crossing.read, crossing.written))
    far = x.dtype.bits == _WIDEST and prod(sizes) * x.dtype.itemsize >= _FAR_BYTES
    if min(across, along) < side or far:
        return None

    def statement(sources: list[Buffer], results: list[Buffer], at: tuple[PrimExpr, ...]) -> Stmt:
        return _Squares(sources[0], results[0], at, axes, crossing, sizes, side).transposed()

    inside = (*crossing.read, *crossing.written)
    return extern_rows((result_shape(result),), inside, [x], statement, "transpose", (x.dtype,))[0]


@dataclass(frozen=True)
class _Squares:
    """A transpose square by square; `at` are the indices of axes that are in neither group."""

    source: Buffer
    target: Buffer
    at: tuple[PrimExpr, ...]
    axes: tuple[int, ...]
    crossing: _Crossing
    sizes: list[int]
    side: int

    def transposed(self) -> Stmt:
        """All squares, each through vectors of its own for every step of the shuffle."""
        side, dtype = self.side, self.source.dtype
        across, along = (
            prod(self.sizes[axis] for axis in group) for group in (self.crossing.read, self.crossing.written)
        )
        steps = [memory(f"step{n}", side * side, dtype) for n in range(side.bit_length())]
        line = max(1, LINE_BYTES // (side * dtype.itemsize)) * side

        def square(b: PrimExpr, c: PrimExpr) -> Stmt:
            return self._square(steps, b, c)

        lines = _in_squares(along, line, side, lambda c, count: _rows(across, side, c, count, square))
        return with_memory("transposed", steps, [self.source], [self.target], lines)

    def _place(self, b: PrimExpr, c: PrimExpr) -> tuple[PrimExpr, ...]:
        """The indices in the result of a place along both groups."""
        indices = list(self.at)
        for group, index in ((self.crossing.read, b), (self.crossing.written, c)):
            for axis, part in zip(group, parts_of(index, [self.sizes[axis] for axis in group]), strict=True):
                indices[axis] = part
        return tuple(indices)

    def _loaded(self, b: PrimExpr, c: PrimExpr) -> PrimExpr:
        """The element of the source for a place in the result."""
        place = self._place(b, c)
        return self.source[tuple(place[self.axes.index(axis)] for axis in range(len(self.axes)))]

    def _square(self, steps: list[Buffer], b: PrimExpr, c: PrimExpr) -> Stmt:
        """One square of the result, from its place along both groups on."""
        side = self.side

        def read(row: int) -> Stmt:
            return at_once(side, lambda lane: put(steps[0], lane + row * side, self._loaded(b + lane, c + row)))

        def shuffled(number: int, start: int) -> Stmt:
            """A vector of the next step: every second element of the one before."""
            first = 2 * start % (side * side) + 2 * start // (side * side)
            return at_once(side, lambda lane: put(steps[number + 1], lane + start, steps[number][lane * 2 + first]))

        def written(row: int) -> Stmt:
            return at_once(
                side, lambda lane: put(self.target, self._place(b + row, c + lane), steps[-1][lane + row * side])
            )

        return seq(
            *(read(row) for row in range(side)),
            *(shuffled(n, start) for n in range(side.bit_length() - 1) for start in range(0, side * side, side)),
            *(written(row) for row in range(side)),
        )


def _crossing(axes: tuple[int, ...]) -> _Crossing | None:
    """The groups of axes of a transpose that memory is walked along; None if both are the same."""
    groups: list[list[int]] = []
    for place, axis in enumerate(axes):
        if groups and axis == axes[place - 1] + 1:
            groups[-1].append(place)
        else:
            groups.append([place])
    read = next((group for group in groups if axes[group[-1]] == len(axes) - 1), None)
    if read is None or read is groups[-1]:
        return None
    return _Crossing(tuple(read), tuple(groups[-1]))


def _in_squares(extent: int, step: int, side: int, part: Callable[[PrimExpr, int], Stmt]) -> Stmt:
    """Statements for parts of a step each, of whole squares; the last square ends where the extent does."""
    whole, rest = divmod(extent, step)
    parts = [repeat(whole, lambda n: part(n * step, step), "line")] if whole else []
    while rest > 0:
        parts.append(part(const(min(extent - rest, extent - side)), side))
        rest -= side
    return seq(*parts)


def _rows(extent: int, side: int, c: PrimExpr, count: int, square: Callable[[PrimExpr, PrimExpr], Stmt]) -> Stmt:
    """Squares of some columns, all along the other group: lines of the result are written as a whole."""

    def squares(b: PrimExpr, _: int) -> Stmt:
        return seq(*(square(b, c + start) for start in range(0, count, side)))

    return _in_squares(extent, side, side, squares)
