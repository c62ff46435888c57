"""Iteration ranges joined and divided: merge (two loops side by side become one), partition (one becomes several)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from tilewright.ir.build import const
from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.ir.visit import substitute
from tilewright.tir.analysis.bindings import region_tells_apart
from tilewright.tir.analysis.dependence import iteration_conflict, moved_flow_conflict
from tilewright.tir.analysis.index import ProgramIndex, child_statements
from tilewright.tir.analysis.linear import mentions
from tilewright.tir.schedule.loops import require_blocks, require_serial
from tilewright.tir.schedule.state import ScheduleState, substitute_loops, unique_name, with_children
from tilewright.tir.stmt import Block, BlockIter, For, IterKind, LetStmt, SeqStmt, Stmt, seq


def merge(state: ScheduleState, first: For, second: For) -> Var:
    """Run the bodies of two loops in one; with them, the loops around them that the other has not.

    for i in 8: A(i)            for i in 8:
    for j in 8: B(j)     ->         A(i)
                                    B(i)

    for i in 8: for j in 4: A(i, j)            for i in 8: for j in 4:
    for p in 8: for q in 4: B(p, q)     ->         A(i, j)                   merge(j, q)
                                                   B(i, j)

    Step i of the second loop then runs before the later steps of the first: it must read nothing that those write, and
    write nothing that they touch.
    """
    what = "merge"
    nests = [_own_nest(state, loop, other) for loop, other in ((first, second), (second, first))]
    if len(nests[0]) != len(nests[1]):
        state.fail(
            f"{what}: loop {first.var.name} is {len(nests[0])} loops deep beside the {len(nests[1])} of loop "
            f"{second.var.name}",
            second,
            "merge loops at the same depth below what is around both",
        )
    trial = state if len(nests[0]) == 1 else state.copy()
    result = first.var
    for above, below in zip(*nests, strict=True):
        result = _merge_neighbours(trial, trial.index.loops[above.var], trial.index.loops[below.var])
    if trial is not state:
        state.adopt(trial)
        state.commit(trial.func)
    return result


def _own_nest(state: ScheduleState, loop: For, other: For) -> list[For]:
    """The loops from the outermost that is not around another loop down to a loop; nothing else stands in them."""
    index = state.index
    if index.is_under(other, loop) or loop is other:
        state.fail(f"merge: loop {other.var.name} is loop {loop.var.name} or inside it", other)
    nest = [
        loop,
        *(item for item in index.ancestors(loop) if isinstance(item, For) and not index.is_under(other, item)),
    ]
    nest.reverse()
    for outer, inner in pairwise(nest):
        if outer.body is not inner:
            state.fail(
                f"merge: loop {outer.var.name} has more inside than loop {inner.var.name}",
                outer,
                "merge the outer loops first, then the inner ones",
            )
    return nest


def _merge_neighbours(state: ScheduleState, first: For, second: For) -> Var:
    what = "merge"
    index = state.index
    for loop in (first, second):
        require_serial(state, loop, what)
        require_blocks(state, loop, what)
    parent = index.parent(first)
    siblings = parent.stmts if isinstance(parent, SeqStmt) else ()
    place = next((n for n, stmt in enumerate(siblings) if stmt is first), -1)
    if place < 0 or place + 1 >= len(siblings) or siblings[place + 1] is not second:
        state.fail(
            f"{what}: loop {second.var.name} does not stand right after loop {first.var.name}",
            second,
            "give the loops in program order, with nothing between them",
        )
    same = state.analyzer.prove_equal(first.extent, second.extent)
    if not same or not state.analyzer.prove_equal(first.min, second.min):
        state.fail(f"{what}: loops {first.var.name} and {second.var.name} have different ranges", second)
    moved = substitute_loops(second.body, {second.var: first.var}, state.analyzer.simplify)
    joined = first.replace(body=seq(first.body, moved), annotations={**second.annotations, **first.annotations})
    assert isinstance(parent, SeqStmt)
    kept = [stmt for stmt in parent.stmts if stmt is not second]
    kept[place] = joined
    candidate = state.index_of(state.edited({parent: seq(*kept)}))
    _check_merged(state, candidate, first, second)
    state.commit_index(candidate)
    return first.var


def _check_merged(state: ScheduleState, candidate: ProgramIndex, first: For, second: For) -> None:
    index = state.index
    early, late = index.blocks_under(first), index.blocks_under(second)
    joined = candidate.loops[first.var]
    if iteration_conflict(candidate, joined, state.analyzer, private=True) is None:
        for block in late:
            conflict = moved_flow_conflict(index, candidate, block.name, state.analyzer)
            # Iterations may be independent because each has its own copy of a buffer now: before, there was one.
            if conflict is not None and not _written_apart(candidate, joined, block):
                state.fail(f"merge: {conflict.reason}", block)
        return
    read = {id(region.buffer) for block in late for region in block.reads}
    for block in early:
        reduces = any(item.kind is IterKind.REDUCE and mentions(item.value, {first.var}) for item in block.iters)
        if reduces and any(id(region.buffer) in read for region in block.writes):
            state.fail(
                f"merge: the reduction of block {block.name} is not finished in one step of loop {first.var.name}",
                block,
                "merge loops outside its reduction loops",
            )
    touched = {id(region.buffer) for block in early for region in (*block.reads, *block.writes)}
    for block in late:
        for region in block.writes:
            if id(region.buffer) in touched:
                state.fail(
                    f"merge: block {block.name} writes {region.buffer.name}, which later steps of loop "
                    f"{first.var.name} may still touch",
                    block,
                )
        conflict = moved_flow_conflict(index, candidate, block.name, state.analyzer)
        if conflict is not None:
            state.fail(f"merge: {conflict.reason}", block)


def _written_apart(index: ProgramIndex, loop: For, reader: Block) -> bool:
    """Whether, of all that a block reads, different iterations of a loop write different elements."""
    read = {id(region.buffer) for region in reader.reads}
    for writer in index.blocks_under(loop):
        loops = [loop, *index.loops_between(loop, writer)]
        for region in writer.writes:
            apart = region_tells_apart(writer, region, loop, loops, index.loops_above(loop))
            if writer.name != reader.name and id(region.buffer) in read and not apart:
                return False
    return True


def partition(state: ScheduleState, loop: For, points: Sequence[int]) -> list[Var]:
    """Divide a loop's range at points, one loop for each part.

    for i in 10: B(i)      ->      for i in 8: B(i)
                                   for i in range(8, 10): B_1(i)

    The order of the iterations stays. The blocks of the later parts are copies with names of their own.
    """
    what = "partition"
    require_serial(state, loop, what)
    start, extent = const_value(loop.min), const_value(loop.extent)
    if start is None or extent is None:
        state.fail(f"{what}: the range of loop {loop.var.name} is not constant", loop)
    cuts = [start, *points, start + extent]
    if not points or any(a >= b for a, b in pairwise(cuts)):
        state.fail(
            f"{what}: {list(points)} do not divide the range [{start}, {start + extent}) of loop {loop.var.name}",
            loop,
            "give increasing points inside the range",
        )
    taken = set(state.index.blocks)
    parts: list[Stmt] = []
    variables: list[Var] = []
    names: list[tuple[str, str]] = []
    for number, (low, high) in enumerate(pairwise(cuts)):
        part = loop.replace(min=const(low), extent=const(high - low))
        if number:
            copier = _Copier(state, taken)
            var = Var(loop.var.name)
            body = copier.stmt(loop.body, {loop.var: var})
            part = part.replace(var=var, body=body)
            names.extend(copier.names)
        parts.append(part)
        variables.append(part.var)
    for block in _blocks(loop):
        state.mark_partial(block.name)
    for new, _ in names:
        state.mark_partial(new)
    state.replace(loop, seq(*parts))
    return variables


def _blocks(stmt: Stmt) -> list[Block]:
    blocks = [stmt] if isinstance(stmt, Block) else []
    for child in child_statements(stmt):
        blocks.extend(_blocks(child))
    return blocks


class _Copier:
    """Copies statements so that loops, blocks and iterators of the copy are its own."""

    def __init__(self, state: ScheduleState, taken: set[str]) -> None:
        self._state = state
        self._taken = taken
        self.names: list[tuple[str, str]] = []

    def stmt(self, item: Stmt, mapping: Mapping[Var, PrimExpr]) -> Stmt:
        """A copy of a statement with variables replaced."""
        if isinstance(item, For):
            var = Var(item.var.name)
            low, extent = substitute(item.min, mapping), substitute(item.extent, mapping)
            return item.replace(var=var, min=low, extent=extent, body=self.stmt(item.body, {**mapping, item.var: var}))
        if isinstance(item, Block):
            return self._block(item, mapping)
        if isinstance(item, LetStmt):
            var = Var(item.var.name, item.var.dtype)
            value = substitute(item.value, mapping)
            return item.replace(var=var, value=value, body=self.stmt(item.body, {**mapping, item.var: var}))
        children = child_statements(item)
        if not children:
            return substitute(item, mapping)
        changed = with_children(item, [self.stmt(child, mapping) for child in children])
        assert changed is not None
        return changed if isinstance(item, SeqStmt) else _with_condition(changed, mapping)

    def _block(self, block: Block, mapping: Mapping[Var, PrimExpr]) -> Block:
        if block.allocations:
            self._state.fail(f"partition: block {block.name} has buffers of its own", block)
        name = unique_name(f"{block.name}_1", self._taken)
        self._taken.add(name)
        self.names.append((name, block.name))
        inside = dict(mapping)
        iters: list[BlockIter] = []
        for item in block.iters:
            var = Var(item.var.name, item.var.dtype)
            iters.append(BlockIter(var, item.domain, item.kind, substitute(item.value, mapping)))
            inside[item.var] = var
        return block.replace(
            name=name,
            iters=tuple(iters),
            reads=tuple(substitute(region, inside) for region in block.reads),
            writes=tuple(substitute(region, inside) for region in block.writes),
            body=self.stmt(block.body, inside),
            init=None if block.init is None else self.stmt(block.init, inside),
            predicate=substitute(block.predicate, mapping),
        )


def _with_condition(stmt: Stmt, mapping: Mapping[Var, PrimExpr]) -> Stmt:
    condition = getattr(stmt, "condition", None)
    return stmt if condition is None else stmt.replace(condition=substitute(condition, mapping))
