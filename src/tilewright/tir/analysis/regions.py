"""The part of a buffer that a block touches while some of its loops run and the others stand still."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.linear import Linear
from tilewright.arith.region import touched
from tilewright.ir.build import const
from tilewright.ir.expr import PrimExpr, Range, Var, const_value
from tilewright.ir.visit import substitute
from tilewright.tir.analysis.linear import expression, linear, linear_substituted, mentions
from tilewright.tir.buffer import BufferRegion
from tilewright.tir.stmt import Block, For

Box = tuple[Range | None, ...]
"""One range a dimension; None where nothing is known."""


def iterator_forms(block: Block) -> dict[Var, Linear]:
    """The linear form of the value of each iterator of a block."""
    return {item.var: linear(item.value) for item in block.iters}


def spread(form: Linear, loops: Sequence[For]) -> Range | None:
    """The range that a linear form covers while loops run: a superset; None where it is not linear in them."""
    low = Linear(dict(form.terms), form.constant)
    reach = 0
    for loop in loops:
        coefficient = low.terms.pop(loop.var, 0)
        if coefficient == 0:
            continue
        extent, start = const_value(loop.extent), const_value(loop.min)
        if extent is None or start is None:
            return None
        low.constant += coefficient * start + min(0, coefficient * (extent - 1))
        reach += abs(coefficient) * max(0, extent - 1)
    varying = {loop.var for loop in loops}
    if any(type(term) is not Var and mentions(term, varying) for term in low.terms):
        return None
    return Range(expression(low), const(reach + 1))


def relax(
    block: Block, regions: Iterable[BufferRegion], loops: Sequence[For], analyzer: Analyzer
) -> list[tuple[BufferRegion, Box]]:
    """Each region of a block with the box it covers while `loops` (around the block) run: always a superset."""
    forms = iterator_forms(block)
    return [(region, _relax_region(block, region, loops, forms, analyzer)) for region in regions]


def _relax_region(
    block: Block, region: BufferRegion, loops: Sequence[For], forms: dict[Var, Linear], analyzer: Analyzer
) -> Box:
    result: list[Range | None] = []
    for item in region.region:
        extent = const_value(item.extent)
        form = linear_substituted(item.min, forms)
        quick = None if form is None or extent is None else spread(form, loops)
        if quick is not None and extent is not None:
            reach = const_value(quick.extent)
            assert reach is not None
            result.append(Range(quick.min, const(reach + extent - 1)))
        else:
            result.append(_relax_slowly(block, item, loops, analyzer))
    return tuple(result)


def _relax_slowly(block: Block, item: Range, loops: Sequence[For], analyzer: Analyzer) -> Range | None:
    values: dict[Var, PrimExpr] = {entry.var: entry.value for entry in block.iters}
    low, extent = substitute(item.min, values), substitute(item.extent, values)
    # Whoever moves a block asks before and after, about the same loops.
    key = ("relax", low, extent, *((loop.var, loop.min, loop.extent) for loop in loops))
    if key not in analyzer.answers:
        analyzer.answers[key] = _touched_range(low, extent, loops, analyzer)
    return cast("Range | None", analyzer.answers[key])


def _touched_range(low: PrimExpr, extent: PrimExpr, loops: Sequence[For], analyzer: Analyzer) -> Range | None:
    domains = {loop.var: Range(loop.min, loop.extent) for loop in loops}
    if mentions(extent, domains):
        return None
    box = touched((low,), domains, analyzer)[0]
    if box is None:
        return None
    return Range(box.min, analyzer.simplify(box.extent + extent - 1))


def within(inner: Range | None, outer: Range | None, analyzer: Analyzer) -> bool:
    """Whether a range is certainly inside another."""
    if inner is None or outer is None:
        return False
    below = linear(inner.min).minus(linear(outer.min))
    above = linear(outer.min).plus(linear(outer.extent)).minus(linear(inner.min)).minus(linear(inner.extent))
    return not_negative(below, analyzer) and not_negative(above, analyzer)


def not_negative(form: Linear, analyzer: Analyzer) -> bool:
    """Whether a form is certainly at least zero."""
    if not form.terms:
        return form.constant >= 0
    if analyzer.quick_lower(form) >= 0:
        return True
    return analyzer.prove(const(0) <= expression(form))


def hull(boxes: Sequence[Box], analyzer: Analyzer) -> Box:
    """A box that contains all the boxes (exact where differences are constant)."""
    result = list(boxes[0])
    for box in boxes[1:]:
        for dimension, item in enumerate(box):
            result[dimension] = _hull_range(result[dimension], item, analyzer)
    return tuple(result)


def _hull_range(a: Range | None, b: Range | None, analyzer: Analyzer) -> Range | None:
    if a is None or b is None:
        return None
    if within(b, a, analyzer):
        return a
    if within(a, b, analyzer):
        return b
    distance = linear(b.min).minus(linear(a.min))
    extent_a, extent_b = const_value(a.extent), const_value(b.extent)
    if distance.terms or extent_a is None or extent_b is None:
        return None
    low = min(0, distance.constant)
    high = max(extent_a, distance.constant + extent_b)
    return Range(expression(linear(a.min).shifted(low)), const(high - low))


def joined(regions: Sequence[BufferRegion]) -> BufferRegion | None:
    """Points side by side in one dimension as one region: B[2 * v] and B[2 * v + 1] are B[2 * v : 2 * v + 2].

    None where they leave gaps, or differ by more than constants.
    """
    first = regions[0]
    if len(regions) == 1:
        return first
    offsets: set[tuple[int, ...]] = set()
    for region in regions:
        pairs = list(zip(region.region, first.region, strict=True))
        distances = [linear(a.min).minus(linear(b.min)) for a, b in pairs]
        if any(item.terms for item in distances) or any(const_value(part.extent) != 1 for part in region.region):
            return None
        offsets.add(tuple(item.constant for item in distances))
    moving = [n for n in range(len(first.region)) if any(offset[n] for offset in offsets)]
    places = sorted(offset[moving[0]] for offset in offsets)
    if len(moving) != 1 or places != list(range(places[0], places[0] + len(places))):
        return None
    low = first.region[moving[0]].min + places[0]
    parts = list(first.region)
    parts[moving[0]] = Range(low, const(len(places)))
    return BufferRegion(first.buffer, tuple(parts))
