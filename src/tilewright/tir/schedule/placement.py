"""Making loops for a block at a new place: which instances are needed there, and the nest that runs just those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.linear import Linear
from tilewright.ir.build import add, all_of, le, lt
from tilewright.ir.expr import ZERO, FloorDiv, FloorMod, PrimExpr, Range, Var, const_value, is_const_int
from tilewright.tir.analysis.linear import expression, linear, mentions
from tilewright.tir.analysis.regions import Box, hull, within
from tilewright.tir.buffer import Buffer, BufferRegion, loads_in
from tilewright.tir.schedule.inverse import instances_touching, single_iterator
from tilewright.tir.schedule.state import ScheduleState, with_value
from tilewright.tir.stmt import Block, BlockIter, For, LoopKind, Stmt


def solve_region(block: Block, region: BufferRegion, box: Box, analyzer: Analyzer) -> dict[Var, Range]:
    """The ranges of iterators that hold all instances whose region touches a box; those not solved are left out.

    An index `v + c` determines v; the indices `v // c` and `v % c` of a divided axis do so together. Regions that join,
    split or turn iterators round are inverted as a whole.
    """
    solved = _solve_plainly(block, region, box)
    used = [item.var for item in block.iters if any(mentions(part.min, {item.var}) for part in region.region)]
    if all(var in solved for var in used):
        return solved
    return {**instances_touching(block, region, box, analyzer), **solved}


def _solve_plainly(block: Block, region: BufferRegion, box: Box) -> dict[Var, Range]:
    """The iterators that stand alone in an index, or are divided by a constant in two."""
    iters = {item.var: item for item in block.iters}
    solved: dict[Var, Range] = {}
    divided: dict[Var, tuple[int, Range]] = {}
    repeated: set[Var] = set()
    for item, wanted in zip(region.region, box, strict=True):
        point = is_const_int(item.extent, 1)
        single = single_iterator(item.min, iters) if point else None
        parts = _divided(item.min, iters) if point else None
        if single is not None:
            iterator, offset = single
            if iterator.var in solved:
                repeated.add(iterator.var)
            if wanted is not None:
                solved[iterator.var] = Range(expression(linear(wanted.min).shifted(-offset)), wanted.extent)
        elif parts is not None:
            var, divisor, quotient = parts
            if divided.get(var, (divisor,))[0] != divisor:
                repeated.add(var)
            elif quotient and wanted is not None:
                low = expression(linear(wanted.min).scaled(divisor))
                divided[var] = (divisor, Range(low, expression(linear(wanted.extent).scaled(divisor))))
        else:
            repeated.update(var for var in iters if mentions(item.min, {var}))
    for var, (_, value) in divided.items():
        if var in solved:
            repeated.add(var)
        solved[var] = value
    return {var: value for var, value in solved.items() if var not in repeated}


def _divided(index: PrimExpr, iters: Mapping[Var, BlockIter]) -> tuple[Var, int, bool] | None:
    """The iterator, the divisor and whether it is the quotient, when an index is `iterator // c` or `iterator % c`."""
    if not isinstance(index, (FloorDiv, FloorMod)) or type(index.a) is not Var or index.a not in iters:
        return None
    divisor = const_value(index.b)
    if divisor is None or divisor < 1:
        return None
    return index.a, divisor, isinstance(index, FloorDiv)


def needed_instances(state: ScheduleState, block: Block, boxes: Mapping[Buffer, Box]) -> dict[Var, Range]:
    """The ranges of a producer's iterators that together write at least the given boxes."""
    ranges: dict[Var, list[Range]] = {}
    writes = [region for region in block.writes if region.buffer in boxes]
    for region in writes:
        solved = solve_region(block, region, boxes[region.buffer], state.analyzer)
        for var, value in solved.items():
            ranges.setdefault(var, []).append(value)
    result: dict[Var, Range] = {}
    for var, found in ranges.items():
        # An iterator that one of several written regions leaves open must run over its whole domain.
        if len(found) == len(writes):
            joined = hull([(item,) for item in found], state.analyzer)[0]
            if joined is not None:
                result[var] = joined
    return result


def known_ranges(needed: Mapping[Var, Range], users: Sequence[Block]) -> dict[Var, Range]:
    """Ranges that exist wherever a nest may run.

    A range that is read from memory exists only where its users run: beside guarded users it is not used, and the
    iterator runs over its whole domain.
    """
    if all(is_const_int(user.predicate, 1) for user in users):
        return dict(needed)
    return {var: value for var, value in needed.items() if not any(map(loads_in, (value.min, value.extent)))}


def build_nest(
    state: ScheduleState, block: Block, needed: Mapping[Var, Range], preserve_unit_loops: bool = False
) -> Stmt:
    """Loops around a block that run the needed ranges of its iterators and the whole domain of the others.

    A range that may leave its iterator's domain is guarded.
    """
    loops: list[tuple[Var, PrimExpr]] = []
    guards: list[PrimExpr] = []
    iters: list[BlockIter] = []
    analyzer = state.analyzer
    for item in block.iters:
        place = _clip(state, item, needed.get(item.var))
        if is_const_int(place.extent, 1) and not preserve_unit_loops:
            value = place.min
        else:
            var = Var(_loop_name(item.var))
            state.learn(var, Range(ZERO, place.extent))
            loops.append((var, place.extent))
            value = add(place.min, var)
        iters.append(with_value(item, value.astype(item.var.dtype)))
        if place.min is not item.domain.min or place.extent is not item.domain.extent:
            end = linear(item.domain.min).plus(linear(item.domain.extent))
            for condition in (le(item.domain.min, value), lt(value, expression(end))):
                simpler = analyzer.simplify(condition)
                if not is_const_int(simpler, 1) and not analyzer.prove(simpler):
                    guards.append(simpler)
    result: Stmt = block.replace(iters=tuple(iters), predicate=all_of(guards))
    for var, extent in reversed(loops):
        result = For(var, ZERO, extent, LoopKind.SERIAL, result)
    return result


def _clip(state: ScheduleState, item: BlockIter, needed: Range | None) -> Range:
    """What of an iterator's domain to visit: all of it where the needed part is no smaller."""
    domain = item.domain
    if needed is None or within(domain, needed, state.analyzer):
        return domain
    have, want = const_value(domain.extent), const_value(needed.extent)
    if have is not None and want is not None and want >= have:
        return domain
    return Range(state.analyzer.simplify(needed.min), state.analyzer.simplify(needed.extent))


def _loop_name(iterator: Var) -> str:
    name = iterator.name
    return name[2:] if name.startswith("v_") and len(name) > 2 else f"{name}_loop" if name else "ax"


def total_range(region: BufferRegion, dimension: int, block: Block) -> Range | None:
    """The range of a dimension that a block touches over its whole domain, where one iterator makes it."""
    item = region.region[dimension]
    if not is_const_int(item.extent, 1):
        return None
    iters = {entry.var: entry for entry in block.iters}
    single = single_iterator(item.min, iters)
    if single is None:
        return None
    iterator, offset = single
    low: Linear = linear(iterator.domain.min).shifted(offset)
    return Range(expression(low), iterator.domain.extent)


def body_statements(loop: For | Block) -> Sequence[Stmt]:
    """The statements in a loop's (or block's) body, one by one."""
    body = loop.body
    return getattr(body, "stmts", (body,))
