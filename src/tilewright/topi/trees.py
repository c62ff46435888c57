"""Ensembles of decision trees: a row walks down several trees at once.

A step down a tree waits for three loads, each of which needs the one before; steps of other trees fill the time. Trees
of a group take as many steps as the deepest of them, for leaves lead to themselves.

The tables of a few trees fit in the nearest cache, those of all of them seldom do: on CPUs a block of rows walks down
one group of trees before it comes to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.ir.types import Type
from tilewright.support.errors import CompilerBug
from tilewright.te import reduction
from tilewright.te.language import compute, extern_rows
from tilewright.te.tensor import Tensor
from tilewright.tir.buffer import Buffer
from tilewright.tir.stmt import Stmt, seq
from tilewright.topi.registry import compute_of, compute_on_cpus, result_shape
from tilewright.topi.statements import let, memory, put, repeat, with_memory

_TOGETHER = 8
"""Trees that a row walks down at once."""
_BLOCK = 64
"""Rows that walk down a group of trees, on CPUs, before they come to the next."""
_LEAST_BLOCKS = 8
"""Fewer blocks than this may leave threads without work: blocks have fewer rows then."""

_JOIN: dict[str, Callable[[PrimExpr, PrimExpr], PrimExpr]] = {
    "sum": build.add,
    "min": build.minimum,
    "max": build.maximum,
}


@compute_of("trees.forest")
def _forest(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    """A row at a time."""

    def statement(sources: list[Buffer], results: list[Buffer], place: tuple[PrimExpr, ...]) -> Stmt:
        walk = _Walk(sources, results[0], attributes.aggregate)
        return walk.statement(lambda each: each((place[0],), place[0]))

    return extern_rows((result_shape(result),), 1, inputs, statement, "forest", (inputs[4].dtype,))[0]


@compute_on_cpus("trees.forest")
def _forest_on_cpus(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    """A block of rows at a time; the last may have fewer."""
    (rows, targets) = result_shape(result)
    known = const_value(rows)
    block = _BLOCK if known is None else min(_BLOCK, int(known) // _LEAST_BLOCKS)
    if block <= 1:
        return None

    def statement(sources: list[Buffer], results: list[Buffer], place: tuple[PrimExpr, ...]) -> Stmt:
        first = place[0] * block
        count = build.minimum(rows - first, const(block))
        walk = _Walk(sources, results[0], attributes.aggregate)
        return walk.statement(lambda each: repeat(count, lambda row: each((place[0], row), first + row), "row"))

    shape = (build.floordiv(rows + (block - 1), block), const(block), targets)
    sums = extern_rows((shape,), (1, 2), inputs, statement, "forest", (inputs[4].dtype,))[0]
    return compute((rows, targets), lambda row, target: sums[row // block, row % block, target], "rows")


_Each = Callable[[tuple[PrimExpr, ...], PrimExpr], Stmt]
"""What one row does: the place of its totals in the result, and its place in the data."""


class _Walk:
    """The way of rows down the trees."""

    def __init__(self, sources: list[Buffer], total: Buffer, aggregate: str) -> None:
        self.sources, self.total, self.aggregate = sources, total, aggregate
        self.data, self.features, self.thresholds, self.branches, self.leaves, self.roots, self.depths = sources[:7]
        self.missing = sources[7] if len(sources) > 7 else None
        self.at = memory("at", _TOGETHER, self.branches.dtype)

    def statement(self, rows: Callable[[_Each], Stmt]) -> Stmt:
        """All trees, group after group; `rows` says of which rows."""
        trees = const_value(self.roots.shape[0])
        if trees is None:
            raise CompilerBug("the tables of a forest are not of known sizes")
        whole, rest = divmod(int(trees), _TOGETHER)

        def group(first: PrimExpr, count: int) -> Stmt:
            return rows(lambda place, row: self._group(first, count, place, row))

        steps = [rows(lambda place, _: self._begin(place))]
        if whole:
            steps.append(repeat(whole, lambda number: group(number * _TOGETHER, _TOGETHER), "group"))
        if rest:
            steps.append(group(const(whole * _TOGETHER), rest))
        return with_memory("trees", [self.at], [*self.sources, self.total], [self.total], *steps)

    def _begin(self, place: tuple[PrimExpr, ...]) -> Stmt:
        dtype = self.leaves.dtype
        start = {"sum": const(0, dtype), "min": reduction.max_value(dtype), "max": reduction.min_value(dtype)}
        begin = start[self.aggregate]
        return repeat(self.leaves.shape[1], lambda target: put(self.total, (*place, target), begin), "target")

    def _group(self, first: PrimExpr, count: int, place: tuple[PrimExpr, ...], row: PrimExpr) -> Stmt:
        """Some trees, as deep as the deepest of them."""
        deepest: PrimExpr = cast(self.depths[first], INDEX)
        for lane in range(1, count):
            deepest = build.maximum(deepest, cast(self.depths[first + lane], INDEX))

        def step(_: Var) -> Stmt:
            return seq(*(self._step(lane, row) for lane in range(count)))

        begin = [put(self.at, lane, self.roots[first + lane]) for lane in range(count)]
        steps = let(deepest, lambda depth: repeat(depth, step, "step"), "depth")
        return seq(*begin, steps, *(self._add(lane, place) for lane in range(count)))

    def _step(self, lane: int, row: PrimExpr) -> Stmt:
        """One step down one tree."""

        def test(node: Var) -> Stmt:
            value = self.data[row, cast(self.features[node], INDEX)]
            return let(value, lambda found: put(self.at, lane, self._branch(node, found)), "found")

        return let(cast(self.at[lane], INDEX), test, "node")

    def _branch(self, node: Var, value: Var) -> PrimExpr:
        holds = build.le(value, self.thresholds[node])
        if self.missing is not None:
            holds = build.logical_or(holds, build.logical_and(build.ne(value, value), self.missing[node]))
        return self.branches[node, cast(holds, INDEX)]

    def _add(self, lane: int, place: tuple[PrimExpr, ...]) -> Stmt:
        """What a leaf says about every target."""

        def each(leaf: Var) -> Stmt:
            def join(target: Var) -> Stmt:
                at = (*place, target)
                return put(self.total, at, _JOIN[self.aggregate](self.total[at], self.leaves[leaf, target]))

            return repeat(self.leaves.shape[1], join, "target")

        return let(cast(self.at[lane], INDEX), each, "leaf")
