"""Moving a block under a loop of its consumers (compute_at) or of its producers (reverse_compute_at)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tilewright.ir.expr import Range, Var, const_value
from tilewright.ir.visit import variables
from tilewright.tir.analysis.bindings import is_injective, region_tells_apart
from tilewright.tir.analysis.dependence import (
    Conflict,
    consumers,
    moved_flow_conflict,
    producers,
    reads_own_output,
)
from tilewright.tir.analysis.index import ProgramIndex
from tilewright.tir.analysis.linear import linear, mentions
from tilewright.tir.analysis.regions import Box, hull, joined, relax, within
from tilewright.tir.buffer import Buffer, BufferRegion
from tilewright.tir.schedule.inverse import relax_whole, whole_box
from tilewright.tir.schedule.loops import check_kinds
from tilewright.tir.schedule.placement import (
    body_statements,
    build_nest,
    known_ranges,
    needed_instances,
    solve_region,
    total_range,
)
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.schedule.updates import Update, update_kind
from tilewright.tir.stmt import Block, For, IterKind, Stmt, seq


def require_movable(
    state: ScheduleState,
    block: Block,
    what: str,
    kept: Sequence[For] | None = None,
    updated: Collection[Buffer] = (),
) -> None:
    """A block whose instances may run at another time: spatial and reduce iterators only, sole writer, no strings.

    Opaque iterators are fine whose loops are all among those `kept` around it: their order stays. Of the buffers
    `updated`, which the block updates in place, the caller takes care.
    """
    index = state.index
    if block is index.root:
        state.fail(f"{what}: the root block does not move", block)
    scope = index.scope(block)
    if scope.loose:
        state.fail(
            f"{what}: some statements of the scope stand outside any block",
            block,
            "put each statement in a block: only blocks say what they read and write",
        )
    moving = {loop.var for loop in index.loops_above(block)} - {loop.var for loop in kept or ()}
    for item in block.iters:
        if item.kind is IterKind.OPAQUE and (kept is None or mentions(item.value, moving)):
            state.fail(f"{what}: block {block.name} has the opaque iterator {item.var.name}: its order is fixed", block)
    for region in block.writes:
        others = [writer for writer in scope.writers_of(region.buffer) if writer is not block]
        if others and region.buffer not in updated:
            state.fail(
                f"{what}: {region.buffer.name} is written by block {others[0].name} too",
                block,
                f"{what} comes before decompose_reduction" if _is_update(block, others) else None,
            )
    if not updated and reads_own_output(block):
        state.fail(f"{what}: block {block.name} reads what it writes", block)
    if not state.is_regular(block.name):
        state.fail(
            f"{what}: the loops around block {block.name} do not visit exactly the domains of its iterators", block
        )


def _is_update(block: Block, others: Sequence[Block]) -> bool:
    return block.is_reduction or any(other.is_reduction for other in others)


def _require_place(state: ScheduleState, block: Block, loop: For, what: str) -> None:
    index = state.index
    if index.scope_block(loop) is not index.scope_block(block):
        state.fail(f"{what}: loop {loop.var.name} and block {block.name} are not in the same scope", loop)
    if index.is_under(block, loop):
        state.fail(f"{what}: block {block.name} is already under loop {loop.var.name}", block)


def _chosen_place(state: ScheduleState, block: Block, loop: For, choice: int, among: range, what: str) -> int:
    """The number of the statement of a loop's body that a block is put before: one of `among`, by itself or by its end.

    -1 is the last possible place, -2 the first.
    """
    if choice in (-1, -2):
        return among[-1] if choice == -1 else among[0]
    if choice not in among:
        state.fail(
            f"{what}: block {block.name} cannot stand at place {choice} of the body of loop {loop.var.name}",
            loop,
            f"places {among[0]} to {among[-1]} are after its producers and before its consumers; -1 is the last of "
            "them, -2 the first",
        )
    return choice


def _places(state: ScheduleState, block: Block, under: Sequence[Stmt]) -> range:
    """Where in a body a block can stand: after what it reads is written, before what it writes is read.

    What writes behind it, writes for later iterations of a loop around both.
    """
    index = state.index

    def holds(stmt: Stmt, blocks: Sequence[Block]) -> bool:
        return any(item is stmt or index.is_under(item, stmt) for item in blocks)

    place = index.position(block)
    sources, readers = producers(index, block), consumers(index, block)
    readers += [item for item in sources if index.position(item) > place]
    sources = [item for item in sources if index.position(item) < place]
    first = max((n + 1 for n, stmt in enumerate(under) if holds(stmt, sources)), default=0)
    last = min((n for n, stmt in enumerate(under) if holds(stmt, readers)), default=len(under))
    return range(first, max(first, last) + 1)


def compute_at(
    state: ScheduleState, block: Block, loop: For, preserve_unit_loops: bool = False, index: int | None = None
) -> None:
    """Compute, in each iteration of a loop, just the part of a producer that the consumers there read.

    for i in 64: B(i)                      for i_0 in 4:
    for i_0 in 4: for i_1 in 16:     ->        for i in 16: B(i_0 * 16 + i)
        C(i_0 * 16 + i_1)  # reads B           for i_1 in 16: C(i_0 * 16 + i_1)

    It stands before the first of the consumers, or at the place `index` of the loop's statements (-1: the last
    possible, -2: the first).
    """
    what = "compute_at"
    require_movable(state, block, what, state.index.loops_above(loop))
    _require_place(state, block, loop, what)
    program = state.index
    for region in block.writes:
        if state.is_parameter(region.buffer):
            state.fail(
                f"{what}: block {block.name} writes the output {region.buffer.name}, all of which must be computed",
                block,
                "move its producers under it, or use reverse_compute_at",
            )
    readers = consumers(program, block)
    if not readers:
        state.fail(f"{what}: nothing reads what block {block.name} writes", block)
    for reader in readers:
        if not program.is_under(reader, loop):
            state.fail(
                f"{what}: block {reader.name} reads {block.name} and is not under loop {loop.var.name}",
                reader,
                "move that consumer under the loop first, or choose a loop around all consumers",
            )
    boxes = _read_boxes(state, [region.buffer for region in block.writes], readers, loop)
    needed = known_ranges(needed_instances(state, block, boxes), readers)
    nest = build_nest(state, block, needed, preserve_unit_loops)
    under = list(body_statements(loop))
    if index is not None:
        place = _chosen_place(state, block, loop, index, _places(state, block, under), what)
    else:
        place = next(n for n, stmt in enumerate(under) if any(r is stmt or program.is_under(r, stmt) for r in readers))
    _move(state, block, loop, [*under[:place], nest, *under[place:]], [block.name, *(r.name for r in readers)], what)


def _read_boxes(
    state: ScheduleState, buffers: Sequence[Buffer], readers: Sequence[Block], loop: For
) -> dict[Buffer, Box]:
    """What blocks read of buffers in one iteration of a loop."""
    boxes: dict[Buffer, list[Box]] = {}
    for reader in readers:
        regions = [region for region in reader.reads if any(region.buffer is buffer for buffer in buffers)]
        for region, box in relax(reader, regions, state.index.loops_between(loop, reader), state.analyzer):
            boxes.setdefault(region.buffer, []).append(box)
    return {buffer: hull(found, state.analyzer) for buffer, found in boxes.items()}


def _move(
    state: ScheduleState, block: Block, loop: For, body: Sequence[Stmt], affected: Sequence[str], what: str
) -> None:
    """Take a block out of its place and give a loop a new body that has it; check the dependences of blocks."""
    candidate = state.index_of(state.edited({block: None, loop: loop.replace(body=seq(*body))}))
    for name in affected:
        conflict = moved_flow_conflict(state.index, candidate, name, state.analyzer)
        if conflict is not None:
            _fail_flow(state, conflict, what)
    above = [*candidate.loops_above(candidate.loops[loop.var]), loop]
    check_kinds(state, candidate, [item.var for item in above], what)
    state.commit_index(candidate)


def _fail_flow(state: ScheduleState, conflict: Conflict, what: str) -> None:
    state.fail(f"{what}: {conflict.reason}", state.index.blocks.get(conflict.block.name))


def reverse_compute_at(
    state: ScheduleState, block: Block, loop: For, preserve_unit_loops: bool = False, index: int | None = None
) -> None:
    """Run, in each iteration of a loop, the instances of a consumer whose input that iteration has produced.

    for i_0 in 4: for i_1 in 16:           for i_0 in 4:
        B(i_0 * 16 + i_1)            ->        for i_1 in 16: B(i_0 * 16 + i_1)
    for i in 64: C(i)  # reads B               for i in 16: C(i_0 * 16 + i)

    It stands after the last of the producers, or at the place `index` (as for compute_at). A block that updates a
    buffer in place moves too, where each of its instances still runs once, on what is not written again.
    """
    what = "reverse_compute_at"
    updated = _updated_in_place(state, block)
    require_movable(state, block, what, updated=updated)
    _require_place(state, block, loop, what)
    program = state.index
    sources = [item for item in producers(program, block) if program.is_under(item, loop)]
    if not sources:
        state.fail(f"{what}: no block under loop {loop.var.name} writes what block {block.name} reads", block)
    outer = {item.var for item in (*program.loops_above(loop), loop) if const_value(item.extent) != 1}
    for source in sources:
        if any(item.kind is IterKind.REDUCE and mentions(item.value, outer) for item in source.iters):
            state.fail(
                f"{what}: the reduction of block {source.name} is not finished in one iteration of loop "
                f"{loop.var.name}",
                source,
                "choose a loop outside its reduction loops",
            )
    under = list(body_statements(loop))
    if index is not None:
        last = _chosen_place(state, block, loop, index, _places(state, block, under), what) - 1
    else:
        last = max(n for n, stmt in enumerate(under) if any(s is stmt or program.is_under(s, stmt) for s in sources))
    readers = [item.name for item in consumers(program, block)]
    failure: Conflict | None = None
    for source in sources:
        for needed in _settled(state, source, block, loop):
            nest = build_nest(state, block, needed, preserve_unit_loops)
            body = seq(*under[: last + 1], nest, *under[last + 1 :])
            candidate = state.index_of(state.edited({block: None, loop: loop.replace(body=body)}))
            failure = _reverse_conflict(state, candidate, block, readers)
            failure = failure or _update_conflict(state, candidate, block.name, loop, updated)
            if failure is None:
                above = [*candidate.loops_above(candidate.loops[loop.var]), loop]
                check_kinds(state, candidate, [item.var for item in above], what)
                state.commit_index(candidate)
                return
    if failure is not None:
        _fail_flow(state, failure, what)
    state.fail(
        f"{what}: which instances of block {block.name} belong to an iteration of loop {loop.var.name} cannot be told",
        block,
        "it must read each dimension of what is computed there through one iterator, and within what is written",
    )


def _updated_in_place(state: ScheduleState, block: Block) -> list[Buffer]:
    """The buffers that a block updates in place, if that is all that it reads of what it writes."""
    kinds = {region.buffer: update_kind(state, block, region.buffer) for region in block.writes}
    if any(kind not in (Update.NOTHING, Update.BEFORE) for kind in kinds.values()):
        return []
    return [buffer for buffer, kind in kinds.items() if kind is Update.BEFORE]


def _update_conflict(
    state: ScheduleState, candidate: ProgramIndex, name: str, loop: For, updated: Sequence[Buffer]
) -> Conflict | None:
    """Whether a moved update may run twice, or what it has updated may be written again."""
    block = candidate.blocks[name]
    if updated and not is_injective(block, candidate.loops_above(block)):
        return Conflict(f"some instances of block {name} may update their element more than once", block)
    for buffer in updated:
        for writer in candidate.scope(block).writers_of(buffer):
            if writer is block or not candidate.common_loops(writer, block):
                continue
            loops = candidate.loops_above(writer)
            regions = [region for region in writer.writes if region.buffer is buffer]
            for depth, outer in enumerate(loops):
                shared = outer.var is loop.var or candidate.is_under(candidate.loops[loop.var], outer)
                apart = all(
                    region_tells_apart(writer, region, outer, loops[depth:], loops[:depth]) for region in regions
                )
                if shared and (not apart or reads_own_output(writer)):
                    return Conflict(
                        f"block {writer.name} may write elements of {buffer.name} again that block {name} has updated",
                        block,
                    )
    return None


def _settled(state: ScheduleState, source: Block, block: Block, loop: For) -> list[dict[Var, Range]]:
    """For each way to determine a consumer's iterators by what a producer writes in one iteration: their ranges.

    One read decides alone: then the iterations together run every instance, because together they write every
    element.
    """
    result: list[dict[Var, Range]] = []
    if not state.is_regular(source.name):
        # It writes a part only: its iterations do not run every instance.
        return result
    loops = state.index.loops_between(loop, source)
    for region, box in relax(source, _joined_writes(source), loops, state.analyzer):
        for read in block.reads:
            if read.buffer is not region.buffer:
                continue
            solved = solve_region(block, read, box, state.analyzer)
            if _reads_only_written(state, read, block, region, source, solved):
                result.append(solved)
    return result


def _joined_writes(block: Block) -> list[BufferRegion]:
    """What a block writes; parts of one buffer that lie side by side as one."""
    by_buffer: dict[Buffer, list[BufferRegion]] = {}
    for region in block.writes:
        by_buffer.setdefault(region.buffer, []).append(region)
    result: list[BufferRegion] = []
    for regions in by_buffer.values():
        together = joined(regions)
        result.extend(regions if together is None else [together])
    return result


def _reads_only_written(
    state: ScheduleState, read: BufferRegion, block: Block, write: BufferRegion, source: Block, solved: Iterable[Var]
) -> bool:
    """Whether, in every dimension that determines an iterator, all that is ever read is written."""
    analyzer = state.analyzer
    alone: set[Var] = set()
    for dimension, item in enumerate(read.region):
        needed = total_range(read, dimension, block)
        if needed is not None:
            alone.update(variables(item.min))
            if not within(needed, total_range(write, dimension, source), analyzer):
                break
    else:
        if alone.issuperset(solved):
            return True
    written_box = whole_box(source, write, analyzer)
    wanted_box = relax_whole(block, read, analyzer)
    return written_box is not None and all(
        within(needed, written, analyzer) for needed, written in zip(wanted_box, written_box, strict=True)
    )


def _reverse_conflict(
    state: ScheduleState, candidate: ProgramIndex, block: Block, readers: Sequence[str]
) -> Conflict | None:
    moved = candidate.blocks[block.name]
    loops = candidate.loops_above(moved)
    if moved.is_reduction and not _reduces_in_order(moved, loops):
        return Conflict(f"the reduction of block {block.name} would start over, or start in the middle", moved)
    for name in (block.name, *readers):
        conflict = moved_flow_conflict(state.index, candidate, name, state.analyzer)
        if conflict is not None:
            return conflict
    return None


def _reduces_in_order(block: Block, loops: Sequence[For]) -> bool:
    """Whether a moved reduction visits each instance once and the start of the reduction first."""
    names = {loop.var for loop in loops}
    for item in block.iters:
        if item.kind is IterKind.REDUCE:
            form = linear(item.value)
            if any(term in names and coefficient < 0 for term, coefficient in form.terms.items()):
                return False
            if any(type(term) is not Var and mentions(term, names) for term in form.terms):
                return False
    return is_injective(block, loops)
