"""Ensembles of decision trees: a row walks down several trees at once.

A step down a tree waits for three loads, each of which needs the one before; steps of other trees fill the time. Trees
of a group take as many steps as the deepest of them, for leaves lead to themselves.
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
from tilewright.te.language import extern_rows
from tilewright.te.tensor import Tensor
from tilewright.tir.buffer import Buffer
from tilewright.tir.stmt import Stmt, seq
from tilewright.topi.registry import compute_of, result_shape
from tilewright.topi.statements import let, memory, put, repeat, with_memory

_TOGETHER = 8
"""Trees that a row walks down at once."""

_JOIN: dict[str, Callable[[PrimExpr, PrimExpr], PrimExpr]] = {
    "sum": build.add,
    "min": build.minimum,
    "max": build.maximum,
}


@compute_of("trees.forest")
def _forest(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (rows, targets) = result_shape(result)
    trees, width = const_value(inputs[5].shape[0]), const_value(targets)
    if trees is None or width is None:
        raise CompilerBug("the tables of a forest are not of known sizes")
    dtype = inputs[4].dtype
    start = {"sum": const(0, dtype), "min": reduction.max_value(dtype), "max": reduction.min_value(dtype)}

    def statement(sources: list[Buffer], results: list[Buffer], place: tuple[PrimExpr, ...]) -> Stmt:
        at, total = memory("at", _TOGETHER, sources[3].dtype), memory("total", int(width), dtype)
        walk = _Walk(sources, place[0], at, total, _JOIN[attributes.aggregate])
        whole = int(trees) // _TOGETHER
        steps = [repeat(targets, lambda target: put(total, target, start[attributes.aggregate]), "target")]
        if whole:
            steps.append(repeat(whole, lambda group: walk.group(group * _TOGETHER, _TOGETHER), "group"))
        if rest := int(trees) % _TOGETHER:
            steps.append(walk.group(const(whole * _TOGETHER), rest))
        steps.append(repeat(targets, lambda target: put(results[0], (place[0], target), total[target]), "target"))
        return with_memory("trees", [at, total], sources, results, *steps)

    return extern_rows(((rows, targets),), 1, inputs, statement, "forest", (dtype,))[0]


class _Walk:
    """The way of one row down the trees."""

    def __init__(
        self,
        sources: list[Buffer],
        row: PrimExpr,
        at: Buffer,
        total: Buffer,
        join: Callable[[PrimExpr, PrimExpr], PrimExpr],
    ) -> None:
        self.row, self.at, self.total, self.join = row, at, total, join
        self.data, self.features, self.thresholds, self.branches, self.leaves, self.roots, self.depths = sources[:7]
        self.missing = sources[7] if len(sources) > 7 else None

    def group(self, first: PrimExpr, count: int) -> Stmt:
        """Some trees, as deep as the deepest of them."""
        deepest: PrimExpr = cast(self.depths[first], INDEX)
        for lane in range(1, count):
            deepest = build.maximum(deepest, cast(self.depths[first + lane], INDEX))
        steps = let(deepest, lambda depth: repeat(depth, lambda _: self._steps(count), "step"), "depth")
        begin = [put(self.at, lane, self.roots[first + lane]) for lane in range(count)]
        return seq(*begin, steps, *(self._add(lane) for lane in range(count)))

    def _steps(self, count: int) -> Stmt:
        return seq(*(self._step(lane) for lane in range(count)))

    def _step(self, lane: int) -> Stmt:
        """One step down one tree."""

        def test(node: Var) -> Stmt:
            value = self.data[self.row, cast(self.features[node], INDEX)]
            return let(value, lambda found: put(self.at, lane, self._branch(node, found)), "found")

        return let(cast(self.at[lane], INDEX), test, "node")

    def _branch(self, node: Var, value: Var) -> PrimExpr:
        holds = build.le(value, self.thresholds[node])
        if self.missing is not None:
            holds = build.logical_or(holds, build.logical_and(build.ne(value, value), self.missing[node]))
        return self.branches[node, cast(holds, INDEX)]

    def _add(self, lane: int) -> Stmt:
        """What a leaf says about every target."""

        def each(leaf: Var) -> Stmt:
            def join(target: Var) -> Stmt:
                return put(self.total, target, self.join(self.total[target], self.leaves[leaf, target]))

            return repeat(self.leaves.shape[1], join, "target")

        return let(cast(self.at[lane], INDEX), each, "leaf")
