"""Copies of just what one iteration of a loop touches, placed in that loop: read_at, write_at."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import Range, Var, const_value
from tilewright.tir.analysis.dependence import covered, reads_own_output
from tilewright.tir.analysis.linear import mentions
from tilewright.tir.analysis.regions import relax, within
from tilewright.tir.buffer import Buffer
from tilewright.tir.schedule.cache import (
    copy_block,
    finish_staging,
    is_after,
    pick_buffer,
    read_box,
    reading,
    staged_buffer,
    written_box,
)
from tilewright.tir.schedule.placement import body_statements, build_nest, known_ranges, total_range
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, For, IterKind, Stmt


def _require_inside(state: ScheduleState, loop: For, block: Block, what: str) -> None:
    index = state.index
    if index.scope_block(loop) is not index.scope_block(block) or not index.is_under(block, loop):
        state.fail(
            f"{what}: block {block.name} is not under loop {loop.var.name}",
            block,
            "give one of the loops that get_loops names for the block",
        )


def _places(state: ScheduleState, loop: For, blocks: Sequence[Block]) -> list[int]:
    """The places in a loop's body of the statements that hold blocks."""
    return [
        number
        for number, stmt in enumerate(body_statements(loop))
        if any(block is stmt or state.index.is_under(block, stmt) for block in blocks)
    ]


def read_at(state: ScheduleState, loop: For, block: Block, choice: int | str, scope: str) -> str:
    """Copy what the blocks in a loop read of a buffer in one iteration, at the start of their work there.

    for i in 4:                            for i in 4:
        for j in 8: C(i, j)          ->        for ax in 10: A_local[i * 8 + ax] = A[i * 8 + ax]
        # reads A[i * 8 + j : +3]              for j in 8: C(i, j)    # reads A_local

    Every block under the loop that reads the buffer reads the copy then.
    """
    what = "read_at"
    index = state.index
    _require_inside(state, loop, block, what)
    buffer = pick_buffer(state, block, block.reads, choice, what)
    users = [item for item in index.scope(loop).readers_of(buffer) if index.is_under(item, loop)]
    users = list(dict.fromkeys(users))
    for user in users:
        if any(region.buffer is buffer for region in user.writes):
            state.fail(f"{what}: block {user.name} also writes {buffer.name}", user)
    for writer in index.scope(loop).writers_of(buffer):
        if index.position(writer) > index.position(users[0]) and not is_after(state, writer, users, loop):
            state.fail(f"{what}: block {writer.name} writes {buffer.name} before others read it", writer)
    staged = staged_buffer(state, buffer, scope)
    name = state.fresh_block_name(staged.name)
    copy = copy_block(name, [(buffer, staged)], buffer.full_region().region)
    box = read_box(state, loop, users, buffer)
    parts = {item.var: part for item, part in zip(copy.iters, box, strict=True) if part is not None}
    nest = build_nest(state, copy, known_ranges(parts, users), preserve_unit_loops=True)
    edits: dict[Stmt, Stmt | None] = {user: reading(user, buffer, staged) for user in users}
    number = _places(state, loop, users)[0]
    affected = [name, *(user.name for user in users)]
    state.mark_regular(name)
    finish_staging(state, loop, number, nest, edits, [staged], affected, what, {name: users[0].name})
    return name


def write_at(state: ScheduleState, loop: For, block: Block, choice: int | str, scope: str) -> str:
    """Let the blocks in a loop write to a buffer of another scope, and copy out what one iteration has written.

    for i in 4:                            for i in 4:
        for j in 8: C(i, j)          ->        for j in 8: C(i, j)    # writes C_local[i * 8 + j]
        # writes C[i * 8 + j]                  for ax in 8: C[i * 8 + ax] = C_local[i * 8 + ax]

    All that writes the buffer must be under the loop (a reduction's init too), and its reductions finished there.
    """
    what = "write_at"
    index = state.index
    _require_inside(state, loop, block, what)
    buffer = pick_buffer(state, block, block.writes, choice, what)
    writers = list(dict.fromkeys(index.scope(loop).writers_of(buffer)))
    for writer in writers:
        _require_whole(state, loop, writer, writers[0], buffer, what)
    total = written_box(state, writers[0], buffer, None, what)
    box = written_box(state, writers[0], buffer, loop, what)
    for writer in writers[1:]:
        _require_within(state, loop, writer, buffer, total, box, what)
    staged = staged_buffer(state, buffer, scope)
    name = state.fresh_block_name(staged.name)
    copy = copy_block(name, [(staged, buffer)], total)
    needed: dict[Var, Range] = {item.var: part for item, part in zip(copy.iters, box, strict=True)}
    nest = build_nest(state, copy, needed, preserve_unit_loops=True)
    edits: dict[Stmt, Stmt | None] = {writer: reading(writer, buffer, staged) for writer in writers}
    number = _places(state, loop, writers)[-1] + 1
    readers = [item.name for item in index.scope(loop).readers_of(buffer) if item not in writers]
    state.mark_regular(name)
    finish_staging(state, loop, number, nest, edits, [staged], [name, *dict.fromkeys(readers)], what)
    return name


def _require_whole(state: ScheduleState, loop: For, writer: Block, first: Block, buffer: Buffer, what: str) -> None:
    """A writer starts and ends its work on a buffer within one iteration of a loop."""
    index = state.index
    if not index.is_under(writer, loop):
        state.fail(f"{what}: block {writer.name} writes {buffer.name} outside loop {loop.var.name}", writer)
    if not state.is_regular(writer.name):
        state.fail(
            f"{what}: the loops around block {writer.name} do not visit exactly the domains of its iterators", writer
        )
    reads = any(region.buffer is buffer for region in writer.reads)
    if (writer is first and reads_own_output(writer)) or (
        reads and writer is not first and not covered(index, first, writer, buffer, loop, state.analyzer)
    ):
        state.fail(f"{what}: block {writer.name} reads what {buffer.name} held before loop {loop.var.name}", writer)
    outer = {item.var for item in (*index.loops_above(loop), loop) if const_value(item.extent) != 1}
    if any(item.kind is IterKind.REDUCE and mentions(item.value, outer) for item in writer.iters):
        state.fail(
            f"{what}: the reduction of block {writer.name} is not finished in one iteration of loop {loop.var.name}",
            writer,
            "choose a loop outside its reduction loops",
        )


def _require_within(
    state: ScheduleState,
    loop: For,
    writer: Block,
    buffer: Buffer,
    total: Sequence[Range],
    box: Sequence[Range],
    what: str,
) -> None:
    """A later writer stays in what the first one writes: in one iteration, and in all."""
    regions = [region for region in writer.writes if region.buffer is buffer]
    for region, part in relax(writer, regions, state.index.loops_between(loop, writer), state.analyzer):
        for number, (inner, outer, whole) in enumerate(zip(part, box, total, strict=True)):
            everything = total_range(region, number, writer)
            if not within(inner, outer, state.analyzer) or not within(everything, whole, state.analyzer):
                state.fail(
                    f"{what}: block {writer.name} may write more of {buffer.name} than the blocks before it", writer
                )
