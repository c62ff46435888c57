"""How a block's iterators (or its indices) depend on loops: which loops they tell apart, what they cover.

Linear forms answer for almost every program at once; forms with divisions (fused loops) go to the iterator maps of
`tilewright.arith.itermap`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.digits import joined_digits
from tilewright.arith.itermap import detect_iter_map
from tilewright.arith.linear import Linear
from tilewright.ir.build import add, all_of, ge, sub
from tilewright.ir.expr import (
    FALSE,
    LE,
    LT,
    ONE,
    TRUE,
    ZERO,
    Add,
    And,
    FloorDiv,
    FloorMod,
    Mul,
    PrimExpr,
    Range,
    Sub,
    Var,
    const_value,
)
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, substitute, transform
from tilewright.tir.analysis.index import ProgramIndex
from tilewright.tir.analysis.linear import expression, linear, linear_substituted, mentions
from tilewright.tir.analysis.regions import Box, iterator_forms, not_negative, within
from tilewright.tir.buffer import BufferRegion
from tilewright.tir.stmt import Block, For, IterKind, SeqStmt


def conjuncts(condition: PrimExpr) -> list[PrimExpr]:
    """The parts of a conjunction (none for TRUE)."""
    parts: list[PrimExpr] = []
    stack = [condition]
    while stack:
        item = stack.pop()
        if isinstance(item, And):
            stack.extend((item.b, item.a))
        elif item is not TRUE:
            parts.append(item)
    return parts


def _steps(form: Linear, loops: Sequence[For]) -> list[tuple[int, int | None, Var]] | None:
    """(|coefficient|, extent, loop) of the loops in a form, least step first; None if some sit in opaque terms."""
    varying = {loop.var: loop for loop in loops}
    steps: list[tuple[int, int | None, Var]] = []
    for term, coefficient in form.terms.items():
        if type(term) is Var:
            loop = varying.get(term)
            if loop is not None:
                steps.append((abs(coefficient), const_value(loop.extent), term))
        elif mentions(term, varying):
            return None
    # A loop of unknown extent comes after loops of the same step: only the outermost part may be unknown.
    steps.sort(key=lambda step: (step[0], step[1] is None))
    return steps


def form_tells_apart(form: Linear, width: int, target: For, loops: Sequence[For]) -> bool:
    """Whether [form, form + width) of different iterations of `target` are disjoint, whatever the other loops do."""
    steps = _steps(form, loops)
    if steps is None or all(var is not target.var for _, _, var in steps):
        return False
    reach: int | None = width - 1
    met = False
    for step, extent, var in steps:
        met = met or var is target.var
        if met and (reach is None or step <= reach):
            return False
        reach = None if reach is None or extent is None else reach + step * (extent - 1)
    return True


def region_tells_apart(
    block: Block, region: BufferRegion, target: For, loops: Sequence[For], outer: Sequence[For]
) -> bool:
    """Whether different iterations of a loop write disjoint parts.

    `loops` are the target and those inside it, `outer` those around it (they stand still).
    """
    if const_value(target.extent) in (0, 1) or _runs_once(block, target, (*outer, *loops)):
        return True
    forms = iterator_forms(block)
    for item in region.region:
        width = const_value(item.extent)
        form = linear_substituted(item.min, forms)
        if width is not None and form is not None and form_tells_apart(form, width, target, loops):
            return True
    values: dict[Var, PrimExpr] = {item.var: item.value for item in block.iters}
    points = [substitute(item.min, values) for item in region.region if const_value(item.extent) == 1]
    used = [point for point in points if mentions(point, {loop.var for loop in loops})]
    if not used or not any(mentions(point, {target.var}) for point in used):
        return False
    return _map_tells_apart(used, loops, outer, block.predicate)


def _runs_once(block: Block, target: For, loops: Sequence[For]) -> bool:
    """Whether a guard leaves a block at most the first iteration of a loop: more threads than there is work for."""
    guards = [item for item in conjuncts(block.predicate) if mentions(item, {target.var})]
    if not guards:
        return False
    later = Analyzer()
    for loop in loops:
        later.bind(loop.var, Range(loop.min, loop.extent))
    later.bind(target.var, Range(add(target.min, 1), sub(target.extent, 1)))
    return any(later.simplify(item) is FALSE for item in guards)


def _map_tells_apart(
    values: Sequence[PrimExpr], loops: Sequence[For], outer: Sequence[For], predicate: PrimExpr
) -> bool:
    """Whether an iterator map tells loops apart while the outer ones stand still.

    Loops that do not occur repeat the same values and do not matter here. A map that also tells the outer loops
    apart is often easier to see: fused and split again, they only make sense together.
    """
    known = _while_running([*outer, *loops])
    for loop in (*outer, *loops):
        known.bind(loop.var, Range(loop.min, loop.extent))
    values = joined_digits(values, conjuncts(predicate), known)
    forwards = _forwards(values, [*outer, *loops], known)
    if forwards is not None:
        # A guard would speak of other iterations then.
        values, predicate = forwards, TRUE
    # Of the loops between, those that tiles of neighbours (which overlap) are counted by stand still.
    for running in (loops, *([*outer[first:], *loops] for first in range(len(outer)))):
        domains = {
            loop.var: Range(loop.min, loop.extent)
            for loop in running
            if any(mentions(value, {loop.var}) for value in values)
        }
        iter_map = detect_iter_map(values, domains, predicate, _while_running(running))
        if iter_map is not None and iter_map.injective:
            return True
    return False


def _forwards(values: Sequence[PrimExpr], loops: Sequence[For], known: Analyzer) -> list[PrimExpr] | None:
    """Values whose digits count forwards, where some (`x`, `x % 4`) count backwards: they tell the same loops apart.

    A loop runs over the same numbers both ways, and so does a digit, whatever the others are; all there is of the loop
    must then be such digits.
    """
    sums = {loop.var: const_value(add(add(loop.min, loop.min), sub(loop.extent, 1))) for loop in loops}
    backwards: dict[PrimExpr, PrimExpr] = {}
    for value in values:
        for item in pre_order(value):
            if isinstance(item, (Add, Sub, Mul)):
                for term, coefficient in linear(item).terms.items():
                    if coefficient >= 0 or term in backwards:
                        continue
                    both = sums.get(term) if type(term) is Var else _last_digit(term, values, loops)
                    if both is not None:
                        backwards[term] = sub(both, term)
    if not backwards:
        return None

    def turned(item: Node) -> Node | None:
        return backwards.get(item) if isinstance(item, PrimExpr) else None

    return [known.simplify(transform(value, turned)) for value in values]


def _last_digit(term: PrimExpr, values: Sequence[PrimExpr], loops: Sequence[For]) -> int | None:
    """The largest value of a digit `x % n` of a loop, of which there are only whole digits: this, and those above."""
    if not isinstance(term, FloorMod) or type(term.a) is not Var:
        return None
    loop = next((item for item in loops if item.var is term.a), None)
    size, extent = const_value(term.b), None if loop is None else const_value(loop.extent)
    if loop is None or size is None or extent is None or loop.min is not ZERO or extent % size:
        return None

    def without_digits(item: Node) -> Node | None:
        is_higher = isinstance(item, FloorDiv) and item.a is term.a and (const_value(item.b) or 1) % size == 0
        return ZERO if item is term or is_higher else None

    rest = [transform(value, without_digits) for value in values]
    return None if any(mentions(value, {term.a}) for value in rest) else size - 1


def _while_running(loops: Iterable[For]) -> Analyzer:
    """What is known while loops run: no symbolic factor of their extents is zero (a loop over b * n runs: n >= 1)."""
    analyzer = Analyzer()
    seen: set[Var] = set()
    stack = [loop.extent for loop in loops]
    while stack:
        item = stack.pop()
        if isinstance(item, Mul):
            stack.extend((item.a, item.b))
        elif type(item) is Var and item not in seen:
            seen.add(item)
            analyzer.assume_always(ge(item, 1))
    return analyzer


def is_injective(block: Block, loops: Sequence[For], outer: Sequence[For] = ()) -> bool:
    """Whether different settings of loops give different iterator values, while outer loops stand still."""
    varying = [loop for loop in loops if const_value(loop.extent) not in (0, 1)]
    uses: dict[Var, int] = {loop.var: 0 for loop in varying}
    linear_enough = True
    for item in block.iters:
        form = linear(item.value)
        steps = _steps(form, varying)
        if steps is None:
            linear_enough = False
            break
        reach: int | None = 0
        for step, extent, var in steps:
            uses[var] += 1
            if reach is None or step <= reach:
                linear_enough = False
            reach = None if reach is None or extent is None else reach + step * (extent - 1)
    if linear_enough and all(count == 1 for count in uses.values()):
        return True
    domains = {loop.var: Range(loop.min, loop.extent) for loop in varying}
    values = [item.value for item in block.iters if mentions(item.value, domains)]
    if not all(any(mentions(value, {var}) for value in values) for var in domains):
        return False
    return _map_tells_apart(values, varying, outer, block.predicate)


def is_domain_guard(block: Block, condition: PrimExpr, analyzer: Analyzer) -> bool:
    """Whether a part of a block's predicate only keeps iterator values inside their domains."""
    form: Linear | None = None
    if isinstance(condition, LT):
        form = linear(condition.b).minus(linear(condition.a)).shifted(-1)
    elif isinstance(condition, LE):
        form = linear(condition.b).minus(linear(condition.a))
    if form is not None:
        for item in block.iters:
            value = linear(item.value)
            low = value.minus(linear(item.domain.min))
            high = linear(item.domain.min).plus(linear(item.domain.extent)).minus(value).shifted(-1)
            for known in (low, high):
                rest = form.minus(known)
                if not rest.terms and rest.constant >= 0:
                    return True
    return analyzer.prove(condition)


def exact_box(
    block: Block,
    region: BufferRegion,
    loops: Sequence[For],
    analyzer: Analyzer,
    given: Iterable[PrimExpr] = (),
) -> Box | None:
    """The box that a block certainly touches, in full, while loops run (as far as its iterators' domains reach).

    `given` are conditions known to hold: the guards of whoever wants to know.
    None when that cannot be told: indices with holes, loops shared by dimensions, predicates that cut more than
    the domains do.
    """
    box = _linear_box(block, region, loops, analyzer, given)
    return _mapped_box(block, region, loops, analyzer, given) if box is None else box


def _linear_box(
    block: Block, region: BufferRegion, loops: Sequence[For], analyzer: Analyzer, given: Iterable[PrimExpr]
) -> Box | None:
    forms = iterator_forms(block)
    used: set[Var] = set()
    result: list[Range] = []
    for item in region.region:
        form = linear_substituted(item.min, forms)
        box = None if form is None else _dense(form, item.extent, loops, used, analyzer)
        if box is None:
            return None
        result.append(box)
    parts = [part for part in conjuncts(block.predicate) if all(part is not known for known in given)]
    if not all(is_domain_guard(block, part, analyzer) for part in parts):
        return None
    return tuple(result)


def _mapped_box(
    block: Block, region: BufferRegion, loops: Sequence[For], analyzer: Analyzer, given: Iterable[PrimExpr]
) -> Box | None:
    """The box of indices that split and fuse loops, told by their iterator map."""
    if not all(const_value(item.extent) == 1 for item in region.region):
        return None
    values: dict[Var, PrimExpr] = {item.var: item.value for item in block.iters}
    points = [substitute(item.min, values) for item in region.region]
    domains = {
        loop.var: Range(loop.min, loop.extent) for loop in loops if any(mentions(point, {loop.var}) for point in points)
    }
    parts = [part for part in conjuncts(block.predicate) if all(part is not known for known in given)]
    # The box is meant as far as domains reach: what only keeps to them does not cut it.
    parts = [part for part in parts if not is_domain_guard(block, part, analyzer)]
    iter_map = detect_iter_map(points, domains, all_of(parts), analyzer)
    ranges = None if iter_map is None else iter_map.ranges()
    return None if ranges is None else tuple(ranges)


def _dense(form: Linear, width: PrimExpr, loops: Sequence[For], used: set[Var], analyzer: Analyzer) -> Range | None:
    """The range a form fills without holes while loops run."""
    steps = _steps(form, loops)
    if steps is None:
        return None
    by_var = {loop.var: loop for loop in loops}
    reach = linear(width)
    low = form
    for step, extent, var in steps:
        coefficient = low.terms[var]
        low = Linear({term: factor for term, factor in low.terms.items() if term is not var}, low.constant)
        if extent == 1:
            low = low.plus(linear(by_var[var].min), coefficient)
            continue
        if var in used or not not_negative(reach.shifted(-step), analyzer):
            return None
        used.add(var)
        low = low.plus(linear(by_var[var].min), coefficient)
        if coefficient < 0:
            low = low.plus(linear(by_var[var].extent).shifted(-1), coefficient)
        reach = reach.plus(linear(by_var[var].extent).shifted(-1), step)
    return Range(expression(low), expression(reach))


def visits_domains(index: ProgramIndex, block: Block, analyzer: Analyzer) -> bool:
    """Whether the loops around a block visit exactly the domains of its iterators."""
    path = index.path(block)
    if not all(isinstance(item, (For, SeqStmt)) for item in path):
        return False
    loops = [item for item in path if isinstance(item, For)]
    if not all(is_domain_guard(block, part, analyzer) for part in conjuncts(block.predicate)):
        return False
    used: set[Var] = set()
    for item in block.iters:
        form = linear(item.value)
        if item.kind is IterKind.REDUCE and any(step < 0 for step in form.terms.values()):
            return False  # the init would come last
        box = _dense(form, ONE, loops, used, analyzer)
        if box is None or not within(item.domain, box, analyzer):
            return False
        if block.predicate is TRUE and not within(box, item.domain, analyzer):
            return False
    return True
