"""Staging data in other memory: cache_read, cache_write, set_scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tilewright.ir.expr import Range, Var
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.analysis.bindings import exact_box
from tilewright.tir.analysis.dependence import apart, consumers, moved_flow_conflict
from tilewright.tir.analysis.regions import Box, hull, joined, relax
from tilewright.tir.buffer import Buffer, BufferLoad, BufferRegion
from tilewright.tir.schedule.inverse import whole_box
from tilewright.tir.schedule.loops import check_kinds
from tilewright.tir.schedule.placement import body_statements, build_nest, known_ranges
from tilewright.tir.schedule.state import ScheduleState, edit_tree, replace_buffers, with_allocations
from tilewright.tir.schedule.updates import Update, always_writes, update_kind, with_other_loads, with_other_stores
from tilewright.tir.stmt import Block, BlockIter, BufferStore, For, IterKind, Stmt, seq


def pick_buffer(
    state: ScheduleState, block: Block, regions: Sequence[BufferRegion], choice: int | str, what: str
) -> Buffer:
    """The buffer among a block's reads or writes, by its place (each buffer counted once) or its name."""
    buffers = list(dict.fromkeys(region.buffer for region in regions))
    names = ", ".join(buffer.name for buffer in buffers) or "none"
    if isinstance(choice, str):
        for buffer in buffers:
            if buffer.name == choice:
                return buffer
        state.fail(f"{what}: block {block.name} has no such buffer {choice!r}", block, f"it has: {names}")
    if not 0 <= choice < len(buffers):
        state.fail(f"{what}: block {block.name} has no buffer number {choice}", block, f"it has: {names}")
    return buffers[choice]


def copy_block(name: str, pairs: Sequence[tuple[Buffer, Buffer]], domains: Sequence[Range]) -> Block:
    """A block that copies a part of each of some buffers to another of the same shape, element by element."""
    iters = tuple(BlockIter(Var(f"v_ax{n}"), domain, IterKind.SPATIAL, domain.min) for n, domain in enumerate(domains))
    indices = tuple(item.var for item in iters)
    body = seq(*(BufferStore(target, indices, BufferLoad(source, indices)) for source, target in pairs))
    return with_detected_accesses(Block(name, iters, (), (), body))


def staged_buffer(state: ScheduleState, buffer: Buffer, scope: str) -> Buffer:
    """A buffer of another scope for a copy of one."""
    name = state.fresh_buffer_name(f"{buffer.name}_{scope.replace('.', '_')}")
    return Buffer(name, buffer.shape, buffer.dtype, scope)


def place_beside(
    state: ScheduleState, anchor: Block, others: Sequence[Block], inside: For | None = None
) -> tuple[For | Block, int]:
    """Where to put a statement beside `anchor` and clear of other blocks: the innermost loop (or the scope) around
    the anchor and any of the others, and the place in its body of the part that holds the anchor.

    It is in the loop `inside`, if given, which is around the anchor.
    """
    index = state.index
    where: For | Block = index.scope_block(anchor) if inside is None else inside
    depth = 0 if inside is None else len(index.loops_above(inside)) + 1
    for other in others:
        common = index.common_loops(anchor, other)
        if len(common) > depth:
            where, depth = common[-1], len(common)
    under = body_statements(where)
    number = next(n for n, stmt in enumerate(under) if stmt is anchor or index.is_under(anchor, stmt))
    return where, number


def finish_staging(
    state: ScheduleState,
    where: For | Block,
    number: int,
    nest: Stmt,
    edits: dict[Stmt, Stmt | None],
    staged: Sequence[Buffer],
    affected: Sequence[str],
    what: str,
    reads_for: Mapping[str, str] = MappingProxyType({}),
    proven: str | None = None,
    writes_for: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Edit blocks, put a statement into the body of `where`, allocate the new buffer; check the dependences.

    `reads_for` and `writes_for` say of new blocks in whose place they read and write. What block `proven` writes is
    known to be in order.
    """
    owner = where if isinstance(where, Block) else state.index.scope_block(where)
    first = state.index_of(state.edited(edits))
    place: For | Block = first.loops[where.var] if isinstance(where, For) else first.blocks[where.name]
    under = body_statements(place)
    changed = place.replace(body=seq(*under[:number], nest, *under[number:]))
    second = first.func.replace(body=edit_tree(first, {place: changed}))
    candidate = state.index_of(with_allocations(second, owner.name, staged))
    for name in affected:
        before = [reads_for[name]] if name in reads_for else []
        conflict = moved_flow_conflict(state.index, candidate, name, state.analyzer, before, proven, writes_for)
        if conflict is not None:
            state.fail(f"{what}: {conflict.reason}", state.index.blocks.get(conflict.block.name))
    around = [] if isinstance(where, Block) else [*state.index.loops_above(where), where]
    check_kinds(state, candidate, [loop.var for loop in around], what)
    state.commit_index(candidate)


def cache_read(state: ScheduleState, block: Block, choice: int | str, scope: str, readers: Sequence[Block] = ()) -> str:
    """Copy what a block reads into a buffer of another scope first, and let it (and `readers`) read that.

    for i: C(i)  # reads A[i]   ->   for ax0: A_shared[ax0] = A[ax0]
                                     for i: C(i)  # reads A_shared[i]

    A block that updates a buffer in place reads the copy and writes where it wrote:

    for i: A[i] = A[i] + 1      ->   for ax0: A_local[ax0] = A[ax0]
                                     for i: A[i] = A_local[i] + 1
    """
    what = "cache_read"
    require_scope(state, block, scope, what)
    buffer = pick_buffer(state, block, block.reads, choice, what)
    index = state.index
    _require_same_scope(state, block, readers, what)
    users = [item for item in index.scope(block).blocks if item is block or any(item is other for other in readers)]
    for user in users:
        if all(region.buffer is not buffer for region in user.reads):
            state.fail(f"{what}: block {user.name} does not read {buffer.name}", user)
    around = _row_loop(state, users, buffer)
    updating = _in_place(state, users, buffer, what) if around is None else block
    writers = [writer for writer in index.scope(block).writers_of(buffer) if writer is not updating]
    staged = staged_buffer(state, buffer, scope)
    name = state.fresh_block_name(staged.name)
    where, number = place_beside(state, users[0], [*writers, *users[1:]], around)
    for writer in writers:
        # What is written once all users have read, in each iteration around the copy, is copied by the next iteration.
        if index.position(writer) > index.position(users[0]) and not is_after(state, writer, users, where):
            state.fail(f"{what}: block {writer.name} writes {buffer.name} before others read it", writer)
    copy = copy_block(name, [(buffer, staged)], buffer.full_region().region)
    needed: dict[Var, Range] = {}
    if isinstance(where, For):
        box = read_box(state, where, users, buffer)
        parts = {item.var: part for item, part in zip(copy.iters, box, strict=True) if part is not None}
        needed = known_ranges(parts, users)
    nest = build_nest(state, copy, needed, preserve_unit_loops=True)
    change = reading if updating is None else with_other_loads
    edits: dict[Stmt, Stmt | None] = {user: change(user, buffer, staged) for user in users}
    state.mark_regular(name)
    affected, proven = [name, *(user.name for user in users)], None if updating is None else updating.name
    finish_staging(state, where, number, nest, edits, [staged], affected, what, {name: users[0].name}, proven)
    return name


def _row_loop(state: ScheduleState, users: Sequence[Block], buffer: Buffer) -> For | None:
    """The outermost loop around a block alone with what it writes of a buffer that never meets, in one iteration, what
    it reads there: the steps of a recurrence.
    """
    (user, *others) = users
    writes = [(user, region) for region in user.writes if region.buffer is buffer]
    reads = [region for region in user.reads if region.buffer is buffer]
    if others or not writes or update_kind(state, user, buffer) is not Update.UNKNOWN:
        return None
    loops = state.index.loops_above(user)
    return next((loop for loop in loops if apart(state.index, loop, user, reads, writes, state.analyzer)), None)


def _in_place(state: ScheduleState, users: Sequence[Block], buffer: Buffer, what: str) -> Block | None:
    """The block among readers of a buffer that updates it in place, if there is one; refuses others that write it."""
    for user in users:
        kind = update_kind(state, user, buffer) if any(r.buffer is buffer for r in user.writes) else Update.NOTHING
        if kind is not Update.NOTHING and (kind is not Update.BEFORE or len(users) > 1):
            state.fail(
                f"{what}: block {user.name} also writes {buffer.name}",
                user,
                "it may, alone, where each instance reads the one element that it then writes: A[i] = A[i] + 1",
            )
        if kind is Update.BEFORE:
            return user
    return None


def require_scope(state: ScheduleState, block: Block, scope: str, what: str) -> None:
    """A scope is a name: `shared`, `local`, `shared.cluster`."""
    if not isinstance(scope, str) or not all(part.isidentifier() for part in scope.split(".")):
        state.fail(
            f"{what}: {scope!r} is not a memory scope",
            block,
            "use global, shared, warp, local, or the name of an accelerator's own memory",
        )


def is_after(state: ScheduleState, writer: Block, users: Sequence[Block], where: For | Block) -> bool:
    """Whether a block runs once other blocks are done, in each iteration of a loop around all of them."""
    index = state.index
    around = len(index.loops_above(where)) + 1 if isinstance(where, For) else 0
    return all(
        index.position(writer) > index.position(user) and len(index.common_loops(user, writer)) <= around
        for user in users
    )


def read_box(state: ScheduleState, loop: For, blocks: Sequence[Block], buffer: Buffer) -> Box:
    """What blocks read of a buffer in one iteration of a loop."""
    boxes: list[Box] = []
    for block in blocks:
        regions = [region for region in block.reads if region.buffer is buffer]
        boxes.extend(box for _, box in relax(block, regions, state.index.loops_between(loop, block), state.analyzer))
    return hull(boxes, state.analyzer)


def _require_same_scope(state: ScheduleState, block: Block, others: Sequence[Block], what: str) -> None:
    for other in others:
        if state.index.scope_block(other) is not state.index.scope_block(block):
            state.fail(f"{what}: blocks {block.name} and {other.name} are not in the same scope", other)


def reading(block: Block, old: Buffer, new: Buffer) -> Block:
    """A block that reads another buffer instead."""
    body = replace_buffers(block.body, {old: new})
    init = None if block.init is None else replace_buffers(block.init, {old: new})
    # The old buffer may also stand in the indices of other regions.
    regions = tuple(replace_buffers(region, {old: new}) for region in block.reads)
    writes = tuple(replace_buffers(region, {old: new}) for region in block.writes)
    return block.replace(body=body, init=init, reads=regions, writes=writes)


def cache_write(state: ScheduleState, block: Block, choices: Sequence[int | str], scope: str) -> str:
    """Let a block write to a buffer of another scope, and copy that to the old place afterwards.

    for i: C(i)  # writes C[i]   ->   for i: C(i)  # writes C_local[i]
                                      for ax0: C[ax0] = C_local[ax0]

    Several buffers of a block are copied by one block. A block that updates a buffer in place reads where it read and
    writes the other one; one that reads what it has just written reads that there.
    """
    what = "cache_write"
    index = state.index
    require_scope(state, block, scope, what)
    buffers = list(dict.fromkeys(pick_buffer(state, block, block.writes, choice, what) for choice in choices))
    kinds = {buffer: _kind_to_stage(state, block, buffer, what) for buffer in buffers}
    staged: dict[Buffer, Buffer] = {buffer: staged_buffer(state, buffer, scope) for buffer in buffers}
    name = state.fresh_block_name(staged[buffers[0]].name)
    where, number = place_beside(state, block, consumers(index, block))
    total = _written_alike(state, block, buffers, None, what)
    copy = copy_block(name, [(staged[buffer], buffer) for buffer in buffers], total)
    needed: dict[Var, Range] = {}
    if isinstance(where, For):
        box = _written_alike(state, block, buffers, where, what)
        needed = {item.var: part for item, part in zip(copy.iters, box, strict=True)}
    nest = build_nest(state, copy, needed, preserve_unit_loops=True)
    changed = block
    for buffer, kind in kinds.items():
        changed = _writing(changed, buffer, staged[buffer], kind)
    state.mark_regular(name)
    affected = [name, *(reader.name for reader in consumers(index, block))]
    new = list(staged.values())
    finish_staging(state, where, number + 1, nest, {block: changed}, new, affected, what, writes_for={name: block.name})
    return name


def _kind_to_stage(state: ScheduleState, block: Block, buffer: Buffer, what: str) -> Update:
    """What a block reads of a buffer that it alone writes, always and in full; refuses others."""
    others = [writer for writer in state.index.scope(block).writers_of(buffer) if writer is not block]
    if others:
        state.fail(
            f"{what}: {buffer.name} is written by block {others[0].name} too",
            block,
            f"{what} comes before decompose_reduction",
        )
    kind = update_kind(state, block, buffer)
    if kind is Update.UNKNOWN:
        state.fail(
            f"{what}: block {block.name} reads {buffer.name}, which it writes",
            block,
            "it may where each instance reads the one element that it writes, before it or after it",
        )
    if not always_writes(block, buffer):
        state.fail(f"{what}: block {block.name} writes {buffer.name} only where a condition inside it holds", block)
    if not state.is_regular(block.name):
        state.fail(
            f"{what}: the loops around block {block.name} do not visit exactly the domains of its iterators", block
        )
    return kind


def _written_alike(
    state: ScheduleState, block: Block, buffers: Sequence[Buffer], loop: For | None, what: str
) -> list[Range]:
    """Exactly what a block writes of each of some buffers: the same box of all."""
    boxes = [written_box(state, block, buffer, loop, what) for buffer in buffers]
    for buffer, box in zip(buffers[1:], boxes[1:], strict=True):
        pairs = list(zip(box, boxes[0], strict=False))
        equal = state.analyzer.prove_equal
        if len(box) != len(boxes[0]) or not all(equal(a.min, b.min) and equal(a.extent, b.extent) for a, b in pairs):
            state.fail(
                f"{what}: block {block.name} does not write the same part of {buffers[0].name} and {buffer.name}",
                block,
                f"use {what} for each of them",
            )
    return boxes[0]


def _writing(block: Block, old: Buffer, new: Buffer, kind: Update) -> Block:
    """A block that writes another buffer instead, and reads what it writes there."""
    if kind is Update.BEFORE:
        return with_other_stores(block, old, new)
    body = replace_buffers(block.body, {old: new})
    init = None if block.init is None else replace_buffers(block.init, {old: new})
    reads, writes = (
        tuple(BufferRegion(new, item.region) if item.buffer is old else item for item in regions)
        for regions in (block.reads, block.writes)
    )
    return block.replace(body=body, init=init, reads=reads, writes=writes)


def written_box(state: ScheduleState, block: Block, buffer: Buffer, loop: For | None, what: str) -> list[Range]:
    """Exactly what a block writes of a buffer, in one iteration of a loop or (None) in all."""
    region = joined([region for region in block.writes if region.buffer is buffer])
    box: Box | None = None
    if region is not None and loop is None:
        box = whole_box(block, region, state.analyzer)
    elif region is not None:
        box = exact_box(block, region, state.index.loops_between(loop, block), state.analyzer)
    if box is None or any(item is None for item in box):
        state.fail(f"{what}: which elements of {buffer.name} block {block.name} writes cannot be told exactly", block)
    return [item for item in box if item is not None]


def set_scope(state: ScheduleState, block: Block, choice: int | str, scope: str) -> None:
    """Move an intermediate buffer that a block writes to another memory scope."""
    what = "set_scope"
    require_scope(state, block, scope, what)
    buffer = pick_buffer(state, block, block.writes, choice, what)
    if state.is_parameter(buffer):
        state.fail(f"{what}: {buffer.name} is a parameter of the function: the caller decides where it lives", block)
    moved = buffer.replace(scope=scope)
    root = replace_buffers(state.index.root, {buffer: moved})
    state.commit(state.func.replace(body=root))
