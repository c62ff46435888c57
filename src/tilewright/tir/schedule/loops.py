"""Loop transformations: split, fuse, reorder, add_unit_loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod
from operator import or_

from tilewright.ir.build import add, const, floordiv, floormod, le, lt, maximum, mul, sub
from tilewright.ir.expr import ONE, ZERO, PrimExpr, Range, Var, const_value, is_const_int
from tilewright.tir.analysis.bindings import is_injective
from tilewright.tir.analysis.dependence import covered, iteration_conflict
from tilewright.tir.analysis.empty_reductions import empty_init, may_be_empty, reductions
from tilewright.tir.analysis.index import ProgramIndex
from tilewright.tir.analysis.linear import mentions
from tilewright.tir.annotations import ZIGZAG
from tilewright.tir.schedule.state import ScheduleState, guard, substitute_loops
from tilewright.tir.stmt import Block, For, IterKind, LoopKind


def require_serial(state: ScheduleState, loop: For, what: str) -> None:
    """A loop that is already parallel, vectorized, ... is not taken apart."""
    if loop.kind is not LoopKind.SERIAL:
        state.fail(
            f"{what}: loop {loop.var.name} is {loop.kind.value}",
            loop,
            f"{what} loops before choosing how they run",
        )


def require_blocks(state: ScheduleState, loop: For, what: str) -> None:
    """Dependences are known between blocks only."""
    scope = state.index.scope(loop)
    if any(state.index.is_under(stmt, loop) for stmt in scope.loose):
        state.fail(
            f"{what}: statements under loop {loop.var.name} stand outside any block",
            loop,
            "put each statement in a block: only blocks say what they read and write",
        )


def split(state: ScheduleState, loop: For, factors: Sequence[int | PrimExpr | None]) -> list[Var]:
    """for i in 100: B(i)  ->  for i_0 in 7: for i_1 in 16: B(i_0 * 16 + i_1) where i_0 * 16 + i_1 < 100.

    One factor may be None: it is what the others leave. The guard appears only where it is not always true. Factors may
    be expressions of the function's symbols: for i in n * m  ->  for i_0 in n: for i_1 in m.
    """
    require_serial(state, loop, "split")
    numbers = [factor for factor in factors if not isinstance(factor, PrimExpr)]
    if len(numbers) == len(factors):
        extents = _constant_extents(state, loop, numbers)
    else:
        extents = _symbolic_extents(state, loop, factors)
    if len(factors) == 1:
        return [loop.var]
    names = [Var(f"{loop.var.name}_{n}") for n in range(len(factors))]
    for var, length in zip(names, extents, strict=True):
        state.learn(var, Range(ZERO, length))
    value: PrimExpr = ZERO
    for var, length in zip(names, extents, strict=True):
        value = add(mul(value, length), ZERO if is_const_int(length, 1) else var)
    condition = state.analyzer.simplify(lt(value, loop.extent))
    body = substitute_loops(loop.body, {loop.var: add(loop.min, value)}, state.analyzer.simplify)
    if not is_const_int(condition, 1) and not state.analyzer.prove(condition):
        body = guard(body, condition)
    for place in range(len(names) - 1, -1, -1):
        notes = loop.annotations if place == 0 else {}
        body = For(names[place], ZERO, extents[place], LoopKind.SERIAL, body, None, notes)
    state.replace(loop, body)
    return names


def _constant_extents(state: ScheduleState, loop: For, factors: Sequence[int | None]) -> list[PrimExpr]:
    known = [factor for factor in factors if factor is not None]
    extents: list[PrimExpr] = [const(1 if factor is None else factor) for factor in factors]
    total = prod(known)
    extent = const_value(loop.extent)
    if len(known) < len(factors):
        missing = factors.index(None)
        extents[missing] = state.analyzer.simplify(floordiv(add(loop.extent, const(total - 1)), const(total)))
    elif extent is None:
        state.fail(
            f"split: the extent of loop {loop.var.name} is not constant",
            loop,
            "leave one factor to be computed, e.g. factors=[None, 8]",
        )
    elif total < extent:
        state.fail(
            f"split: the factors {list(factors)} make {total} iterations, loop {loop.var.name} has {extent}",
            loop,
            "use larger factors, or leave one to be computed with None",
        )
    return extents


def _symbolic_extents(state: ScheduleState, loop: For, factors: Sequence[int | PrimExpr | None]) -> list[PrimExpr]:
    """Extents that are expressions: at least 1 where another one is computed by dividing by them."""
    analyzer = state.analyzer
    with analyzer.scope():
        for dim in dict.fromkeys(dim for buffer in state.func.buffers for dim in buffer.shape):
            if isinstance(dim, Var):
                analyzer.assume_always(le(ZERO, dim))
        known: list[PrimExpr] = []
        for factor in factors:
            if factor is None:
                continue
            size = const(factor) if isinstance(factor, int) else factor
            if None in factors and not analyzer.prove(le(ONE, size)):
                size = maximum(size, ONE)
            elif not analyzer.prove(le(ZERO, size)):
                state.fail("split: a factor may be negative", loop, "use dimensions, which are not")
            known.append(size)
        total: PrimExpr = ONE
        for size in known:
            total = mul(total, size)
        if None not in factors and not analyzer.prove(le(loop.extent, total)):
            state.fail(
                f"split: the factors do not certainly make as many iterations as loop {loop.var.name} has",
                loop,
                "leave one to be computed with None",
            )
        rest = analyzer.simplify(floordiv(add(loop.extent, sub(total, ONE)), total))
    queue = iter(known)
    return [rest if factor is None else next(queue) for factor in factors]


def fuse(state: ScheduleState, loops: Sequence[For]) -> Var:
    """for i in 4: for j in 8: B(i, j)  ->  for i_j in 32: B(i_j // 8, i_j % 8).

    Parallel loops make a parallel one: iterations that differ in either index are independent.
    """
    kind = LoopKind.PARALLEL if _all_parallel(loops) else LoopKind.SERIAL
    for outer, inner in pairwise(loops):
        if outer.body is not inner:
            state.fail(
                f"fuse: loop {inner.var.name} is not directly inside loop {outer.var.name}",
                inner,
                "give directly nested loops, outermost first",
            )
    for place, loop in enumerate(loops):
        if kind is LoopKind.SERIAL:
            require_serial(state, loop, "fuse")
        if ZIGZAG.of(loop) and len(loops) > 1:
            # The steps that it is fused with would run backwards too.
            state.fail(f"fuse: loop {loop.var.name} runs back and forth (zigzag)", loop, "choose how loops run last")
        above = [outer.var for outer in loops[:place]]
        if mentions(loop.extent, above) or mentions(loop.min, above):
            state.fail(f"fuse: the range of loop {loop.var.name} depends on an outer one of the loops", loop)
    if len(loops) == 1:
        return loops[0].var
    fused = Var("_".join(loop.var.name for loop in loops))
    total: PrimExpr = ONE
    for loop in loops:
        total = mul(total, loop.extent)
    total = state.analyzer.simplify(total)
    state.learn(fused, Range(ZERO, total))
    mapping: dict[Var, PrimExpr] = {}
    below: PrimExpr = ONE
    for place in range(len(loops) - 1, -1, -1):
        loop = loops[place]
        value = floordiv(fused, below)
        if place > 0:
            value = floormod(value, loop.extent)
        mapping[loop.var] = state.analyzer.simplify(add(loop.min, value))
        below = mul(below, loop.extent)
    body = substitute_loops(loops[-1].body, mapping, state.analyzer.simplify)
    notes = {key: value for loop in reversed(loops) for key, value in loop.annotations.items()}
    whole = For(fused, ZERO, total, kind, body, None, notes)
    _check_inits(state, whole)
    state.replace(loops[0], whole)
    return fused


def _check_inits(state: ScheduleState, fused: For) -> None:
    """A fused loop over elements and steps does not run at all where there are no steps: nothing would initialise."""
    for block, path in reductions(fused):
        if may_be_empty(block, path) and isinstance(empty_init(block, path), str):
            state.fail(
                f"fuse: the reduction of block {block.name} may be over nothing, and then no iteration of the fused "
                "loop would run its init",
                state.index.blocks.get(block.name),
                "fuse loops over elements and loops over steps apart, or decompose_reduction first",
            )


def _all_parallel(loops: Sequence[For]) -> bool:
    """Whether loops are parallel; a loop of one iteration may be serial among them."""
    parallel = [loop.kind is LoopKind.PARALLEL for loop in loops]
    unit = [loop.kind is LoopKind.SERIAL and is_const_int(loop.extent, 1) for loop in loops]
    return any(parallel) and all(map(or_, parallel, unit))


def _chain(state: ScheduleState, loops: Sequence[For]) -> list[For]:
    """The loops from the outermost to the innermost of a set, all directly nested."""
    index = state.index
    chosen = {id(loop) for loop in loops}
    top = min(loops, key=index.position)
    chain: list[For] = []
    count = 0
    item = top
    while True:
        chain.append(item)
        count += id(item) in chosen
        if count == len(chosen):
            return chain
        if not isinstance(item.body, For):
            missing = next(loop for loop in loops if all(loop is not seen for seen in chain))
            state.fail(
                f"reorder: loop {missing.var.name} is not nested with loop {top.var.name} without anything between",
                missing,
                "reorder loops of one nest; move other blocks out (compute_at) or decompose reductions afterwards",
            )
        item = item.body


def reorder(state: ScheduleState, loops: Sequence[For]) -> None:
    """for i: for j: B  ->  for j: for i: B. The loops take, in the given order, the places they have now."""
    if len({id(loop) for loop in loops}) != len(loops):
        state.fail("reorder: a loop is given twice", loops[0])
    chain = _chain(state, loops)
    chosen = {id(loop) for loop in loops}
    queue = iter(loops)
    order = [next(queue) if id(loop) in chosen else loop for loop in chain]
    if all(a is b for a, b in zip(order, chain, strict=True)):
        return
    inside: set[Var] = set()
    for loop in reversed(order):
        inside.add(loop.var)
        if mentions(loop.extent, inside) or mentions(loop.min, inside):
            state.fail(f"reorder: the range of loop {loop.var.name} depends on a loop that would be inside it", loop)
    _check_order(state, chain, order)
    body = chain[-1].body
    for loop in reversed(order):
        body = loop.replace(body=body)
    candidate = state.index_of(state.edited({chain[0]: body}))
    check_kinds(state, candidate, [loop.var for loop in order], "reorder")
    state.commit_index(candidate)


def check_kinds(state: ScheduleState, candidate: ProgramIndex, loops: Iterable[Var], what: str) -> None:
    """Loops that already run in parallel must keep independent iterations in a changed program."""
    for var in loops:
        loop = candidate.loops[var]
        if loop.kind in (LoopKind.SERIAL, LoopKind.UNROLLED, LoopKind.THREAD) and not ZIGZAG.of(loop):
            continue
        conflict = iteration_conflict(candidate, loop, state.analyzer, loop.kind is not LoopKind.VECTORIZED)
        if conflict is not None:
            state.fail(
                f"{what}: loop {var.name} is {loop.kind.value}, and then {conflict.reason}",
                state.index.loops.get(var),
                "choose how loops run last",
            )


def _check_order(state: ScheduleState, chain: Sequence[For], order: Sequence[For]) -> None:
    """Whether the iterations of a nest may run in another order."""
    index = state.index
    top, bottom = chain[0], chain[-1]
    require_blocks(state, top, "reorder")
    names = {loop.var for loop in chain}
    blocks = index.blocks_under(bottom)
    for block in blocks:
        reduces = False
        for item in block.iters:
            if item.kind is IterKind.SPATIAL or not mentions(item.value, names):
                continue
            if item.kind is IterKind.OPAQUE:
                state.fail(
                    f"reorder: block {block.name} promises nothing about the order of its iterator {item.var.name}",
                    block,
                )
            reduces = True
        if reduces and block.init is not None:
            loops = [*chain, *index.loops_between(bottom, block)]
            if not is_injective(block, loops, index.loops_above(top)):
                state.fail(f"reorder: some instances of the reduction block {block.name} may run more than once", block)
            _check_first(state, block, loops, [*order, *index.loops_between(bottom, block)])
    _check_flow(state, bottom, blocks)


def _check_first(state: ScheduleState, block: Block, before: Sequence[For], after: Sequence[For]) -> None:
    """The instance that initialises must stay the first of its element.

    It is when no loop serves spatial and reduce iterators at once. Loops fused over both keep their order, together
    with all that share iterators with them.
    """
    uses = {
        loop.var: {item.var for item in block.iters if mentions(item.value, {loop.var})}
        for loop in before
        if const_value(loop.extent) != 1
    }
    reducing = {item.var for item in block.iters if item.kind is IterKind.REDUCE}
    linked = {var for var, iters in uses.items() if iters & reducing and iters - reducing}
    grown = bool(linked)
    while grown:
        shared = set().union(*(uses[var] for var in linked))
        more = {var for var, iters in uses.items() if iters & shared}
        grown = more != linked
        linked = more
    if [loop.var for loop in before if loop.var in linked] != [loop.var for loop in after if loop.var in linked]:
        state.fail(
            f"reorder: the first step of the reduction of block {block.name} would no longer come first: a loop runs "
            "through elements and steps at once",
            block,
            "split such a loop apart before reordering, or decompose the reduction first",
        )


def _check_flow(state: ScheduleState, bottom: For, blocks: Sequence[Block]) -> None:
    if len(blocks) < 2:
        return
    index = state.index
    for reader in blocks:
        for buffer in dict.fromkeys(region.buffer for region in reader.reads):
            for writer in blocks:
                if writer is reader or all(region.buffer is not buffer for region in writer.writes):
                    continue
                first = index.position(writer) < index.position(reader)
                if not first or not covered(index, writer, reader, buffer, bottom, state.analyzer):
                    state.fail(
                        f"reorder: block {reader.name} may read elements of {buffer.name} that block {writer.name} "
                        "writes in another iteration",
                        reader,
                    )


def add_unit_loop(state: ScheduleState, target: For | Block) -> Var:
    """B  ->  for u in 1: B."""
    if isinstance(target, Block) and target is state.index.root:
        state.fail("add_unit_loop: the root block has no loops", target)
    var = Var("u")
    state.replace(target, For(var, ZERO, ONE, LoopKind.SERIAL, target))
    return var
