"""Boxes of integers: what index expressions touch while loops run, and unions, intersections and covers of boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.interval_set import IntervalEvaluator
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.expr import ONE, TRUE, PrimExpr, Range, Var
from tilewright.support.errors import CompilerBug

Box = tuple[Range, ...]
"""One range a dimension."""


def touched(
    indices: Sequence[PrimExpr],
    domains: Mapping[Var, Range],
    analyzer: Analyzer,
    predicate: PrimExpr = TRUE,
) -> list[Range | None]:
    """The range of each index while the variables of `domains` run and all others stay fixed.

        touched([i*8 + j, k], {j: [0, 8)}, ...)  ->  [i*8, i*8 + 8), [k, k + 1)

    Minimum and extent are simplified expressions of the remaining variables. The ranges hold every point touched
    where the predicate is true; for sums of independent variables they are exact. None: not known (an index that is
    read from memory).
    """
    with analyzer.scope():
        for var, value in domains.items():
            if var not in analyzer.ranges and var not in analyzer.values:
                analyzer.bind(var, value)
        evaluator = IntervalEvaluator(domains, analyzer, predicate)
        return [_touched(evaluator, index) for index in indices]


def _touched(evaluator: IntervalEvaluator, index: PrimExpr) -> Range | None:
    if not evaluator.moves(index):
        return Range(evaluator.analyzer.simplify(index), ONE)
    low, high = evaluator.evaluate(index)
    if low is None or high is None:
        return None
    extent = evaluator.analyzer.simplify(high - low + 1)
    return Range(evaluator.analyzer.simplify(low), extent)


def end(value: Range) -> PrimExpr:
    """The first integer after a range."""
    return build.add(value.min, value.extent)


def union_range(ranges: Sequence[Range], analyzer: Analyzer) -> Range:
    """The least range that holds all of some ranges (none of them empty)."""
    if not ranges:
        raise CompilerBug("the union of no ranges")
    low, high = ranges[0].min, end(ranges[0])
    for item in ranges[1:]:
        low = build.minimum(low, item.min)
        high = build.maximum(high, end(item))
    return Range(analyzer.simplify(low), analyzer.simplify(high - low))


def union(boxes: Sequence[Box], analyzer: Analyzer) -> Box:
    """The least box that holds all of some boxes (none of them empty)."""
    if len({len(box) for box in boxes}) != 1:
        raise CompilerBug("the union of no boxes, or of boxes of different dimensions")
    return tuple(union_range(ranges, analyzer) for ranges in zip(*boxes, strict=True))


def intersect(a: Box, b: Box, analyzer: Analyzer) -> Box:
    """The box of the points in both; an extent is 0 where they do not meet."""
    result = []
    for x, y in zip(a, b, strict=True):
        low = analyzer.simplify(build.maximum(x.min, y.min))
        high = build.minimum(end(x), end(y))
        result.append(Range(low, analyzer.simplify(build.maximum(high - low, 0))))
    return tuple(result)


def covers(a: Box, b: Box, analyzer: Analyzer) -> bool:
    """Whether box a certainly holds every point of box b."""
    return len(a) == len(b) and all(covers_range(x, y, analyzer) for x, y in zip(a, b, strict=True))


def covers_range(a: Range, b: Range, analyzer: Analyzer) -> bool:
    """Whether range a certainly holds every integer of range b."""
    if a.min is b.min and a.extent is b.extent:
        return True
    if analyzer.prove(build.le(b.extent, 0)):
        return True
    return analyzer.prove(build.le(a.min, b.min)) and analyzer.prove(build.le(end(b), end(a)))


def disjoint(a: Box, b: Box, analyzer: Analyzer) -> bool:
    """Whether two boxes certainly share no point."""
    return any(
        analyzer.prove(build.le(end(x), y.min)) or analyzer.prove(build.le(end(y), x.min))
        for x, y in zip(a, b, strict=True)
    )


def same(a: Box, b: Box, analyzer: Analyzer) -> bool:
    """Whether two boxes are certainly the same."""
    return len(a) == len(b) and all(
        analyzer.prove(e.EQ(x.min, y.min)) and analyzer.prove(e.EQ(x.extent, y.extent))
        for x, y in zip(a, b, strict=True)
    )


def simplified(box: Sequence[Range], analyzer: Analyzer) -> Box:
    """A box with its expressions simplified."""
    return tuple(Range(analyzer.simplify(item.min), analyzer.simplify(item.extent)) for item in box)
