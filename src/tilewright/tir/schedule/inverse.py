"""Accesses turned round: which instance of a block it is that reads or writes an element of a buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.itermap import IterSum, detect_iter_map, inverse
from tilewright.arith.region import touched
from tilewright.ir.build import const, eq, floordiv, le, lt
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import TRUE, PrimExpr, Range, Var, const_value
from tilewright.ir.visit import substitute
from tilewright.tir.analysis.bindings import exact_box
from tilewright.tir.analysis.linear import expression, linear
from tilewright.tir.analysis.regions import Box, relax
from tilewright.tir.buffer import BufferRegion
from tilewright.tir.schedule.state import with_value
from tilewright.tir.stmt import Block, BlockIter, For, LoopKind


def single_iterator(index: PrimExpr, iters: Mapping[Var, BlockIter]) -> tuple[BlockIter, int] | None:
    """The iterator and the constant when an index is `iterator + constant`."""
    form = linear(index)
    if len(form.terms) != 1:
        return None
    ((term, coefficient),) = form.terms.items()
    if coefficient != 1 or type(term) is not Var or term not in iters:
        return None
    return iters[term], form.constant


@dataclass(frozen=True, slots=True)
class AccessInverse:
    """A block's iterators in terms of the element that it accesses, and the elements that it accesses at all.

    `elements` stand for the indices of the element. With a `box`, the block accesses all the elements of it and no
    others; without, just those for which the iterators, put into `indices`, give the element back. Index n is always
    its base and a multiple of its step: `steps[n]` is (base, step).
    """

    elements: tuple[Var, ...]
    indices: tuple[PrimExpr, ...]
    values: dict[Var, PrimExpr]
    iters: tuple[BlockIter, ...]
    box: tuple[Range, ...] | None
    steps: tuple[tuple[PrimExpr, int], ...]

    def at(self, place: Sequence[PrimExpr]) -> dict[Var, PrimExpr]:
        """The iterators of the instance that accesses an element."""
        mapping: dict[Var, PrimExpr] = dict(zip(self.elements, place, strict=True))
        return {var: substitute(value, mapping).astype(var.dtype) for var, value in self.values.items()}

    def conditions(self, place: Sequence[PrimExpr]) -> list[PrimExpr]:
        """What holds for the indices of an element just where some instance accesses it."""
        if self.box is not None:
            return [part for index, item in zip(place, self.box, strict=True) for part in inside(index, item)]
        instance = self.at(place)
        result = [part for item in self.iters for part in inside(instance[item.var], item.domain)]
        again = (substitute(index, instance) for index in self.indices)
        return [*result, *(eq(a, b) for a, b in zip(again, place, strict=True))]


def inside(index: PrimExpr, domain: Range) -> list[PrimExpr]:
    """That an index lies in a range."""
    end = linear(domain.min).plus(linear(domain.extent))
    return [le(domain.min, index), lt(index, expression(end))]


def invert_access(block: Block, indices: Sequence[PrimExpr], analyzer: Analyzer) -> AccessInverse | None:
    """The inverse of an access at one point in terms of a block's iterators; None if it is not one to one.

    Sums of iterators with steps, divided and split iterators (i * 16 + j, i // 4, i % 4), iterators that run backwards
    (9 - i), in any dimensions.
    """
    elements = tuple(Var(f"e{n}", INDEX) for n in range(len(indices)))
    turned = _backwards(block.iters, indices)
    forward = [substitute(index, turned) for index in indices]
    domains = {item.var: item.domain for item in block.iters}
    iter_map = detect_iter_map(forward, domains, analyzer=analyzer)
    values = None if iter_map is None else inverse(iter_map, elements, gaps=True)
    if iter_map is None or values is None:
        return None
    for var, value in turned.items():
        values[var] = substitute(value, {var: values[var]})
    ranges = iter_map.ranges()
    box = None if ranges is None else tuple(ranges)
    return AccessInverse(elements, tuple(indices), values, block.iters, box, tuple(map(_step, iter_map.indices)))


def _step(index: IterSum) -> tuple[PrimExpr, int]:
    """The base of an index and what its distance from it is always a multiple of."""
    scales = [split.scale if isinstance(split.scale, int) else 1 for split in index.splits]
    return index.base, gcd(*scales) or 1


def instances_touching(block: Block, region: BufferRegion, box: Box, analyzer: Analyzer) -> dict[Var, Range]:
    """The ranges of iterators that hold all instances whose region touches a box; nothing where that is not known.

        region [v * 4, v * 4 + 4), box [i * 16, i * 16 + 16)      ->      v in [i * 4, i * 4 + 4)

    Iterators whose ranges are not known are left out.
    """
    widths = [const_value(item.extent) for item in region.region]
    inverted = invert_access(block, [item.min for item in region.region], analyzer)
    if inverted is None or None in widths:
        return {}
    domains: dict[Var, Range] = {}
    places: list[PrimExpr] = []
    for number, (width, part) in enumerate(zip(widths, box, strict=True)):
        base, step = inverted.steps[number]
        whole = None if inverted.box is None else inverted.box[number]
        wanted = part or whole
        if wanted is None or width is None:
            return {}
        count = Var(f"q{number}", INDEX)
        first = floordiv(wanted.min - base + (step - width), const(step))
        last = floordiv(wanted.min + wanted.extent - base - 1, const(step))
        domains[count] = Range(analyzer.simplify(first), analyzer.simplify(last - first + 1))
        places.append(base + count * step)
    result: dict[Var, Range] = {}
    with analyzer.scope():
        for count, domain in domains.items():
            analyzer.bind(count, domain)
        # (i * 16 + q) % 32 is i % 2 * 16 + q while q < 16: then its range is told.
        values = {var: analyzer.simplify(value) for var, value in inverted.at(places).items()}
    for var, span in zip(values, touched(list(values.values()), domains, analyzer), strict=True):
        extent = None if span is None else _bounded(span.extent, analyzer)
        if span is not None and extent is not None:
            result[var] = Range(span.min, extent)
    return result


def _bounded(extent: PrimExpr, analyzer: Analyzer) -> PrimExpr | None:
    """A constant extent that is certainly enough."""
    if const_value(extent) is not None:
        return extent
    upper = analyzer.bounds(extent).upper
    return None if upper is None else const(max(0, upper))


def _backwards(iters: Iterable[BlockIter], indices: Sequence[PrimExpr]) -> dict[Var, PrimExpr]:
    """For the iterators that indices count down with: the iterator as one that they count up with."""
    forms = [linear(index) for index in indices]
    result: dict[Var, PrimExpr] = {}
    for item in iters:
        if any(form.terms.get(item.var, 0) < 0 for form in forms):
            last = linear(item.domain.min).scaled(2).plus(linear(item.domain.extent)).shifted(-1)
            result[item.var] = expression(last.minus(linear(item.var)))
    return result


def whole_box(block: Block, region: BufferRegion, analyzer: Analyzer) -> Box | None:
    """Exactly what a block touches of a buffer by a region, over the whole domains of its iterators."""
    iters = {item.var: item for item in block.iters}
    used: set[Var] = set()
    quick: list[Range] = []
    for item in region.region:
        single = single_iterator(item.min, iters) if const_value(item.extent) == 1 else None
        if const_value(item.min) is not None:
            quick.append(item)
            continue
        if single is None or single[0].var in used:
            break
        used.add(single[0].var)
        quick.append(Range(expression(linear(single[0].domain.min).shifted(single[1])), single[0].domain.extent))
    else:
        return tuple(quick)
    free, loops = _freed(block)
    with analyzer.scope():
        for entry in block.iters:
            analyzer.bind(entry.var, entry.domain)
        return exact_box(free, region, loops, analyzer)


def relax_whole(block: Block, region: BufferRegion, analyzer: Analyzer) -> Box:
    """At least what a block touches of a buffer by a region, over the whole domains of its iterators."""
    free, loops = _freed(block)
    return relax(free, [region], loops, analyzer)[0][1]


def _freed(block: Block) -> tuple[Block, list[For]]:
    """A block whose iterators are loops of their own over the whole domains."""
    free = block.replace(iters=tuple(with_value(item, item.var) for item in block.iters), predicate=TRUE)
    return free, [For(item.var, item.domain.min, item.domain.extent, LoopKind.SERIAL, block) for item in block.iters]
