"""Ranges of integers: what index expressions touch while loops run, and the union of ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.interval_set import IntervalEvaluator
from tilewright.ir import build
from tilewright.ir.expr import ONE, TRUE, PrimExpr, Range, Var
from tilewright.support.errors import CompilerBug


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
    key = (predicate, *[(var, value.min, value.extent) for var, value in domains.items()])
    known = analyzer.save().touched.setdefault(key, {})
    unknown = [index for index in indices if index not in known]
    if unknown:
        with analyzer.scope():
            for var, value in domains.items():
                if var not in analyzer.ranges and var not in analyzer.values:
                    analyzer.bind(var, value)
            evaluator = IntervalEvaluator(domains, analyzer, predicate)
            for index in unknown:
                known[index] = _touched(evaluator, index)
    return [known[index] for index in indices]


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
