"""What must hold of a loop for it to run as it is marked: each is proven by a primitive, and again on what is built."""

from __future__ import annotations

from typing import Final

from tilewright.ir.expr import const_value
from tilewright.tir.analysis.dependence import iteration_conflict, places_from_data
from tilewright.tir.analysis.index import statements
from tilewright.tir.analysis.linear import mentions
from tilewright.tir.annotations import PIPELINE, Place, problems
from tilewright.tir.schedule.loops import require_blocks
from tilewright.tir.schedule.reducer import match_reducer, starts_at_identity
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, For, IterKind, LoopKind, Stmt


def require_constant(state: ScheduleState, loop: For, what: str) -> None:
    """Vectors and copies have a length that is known."""
    if const_value(loop.extent) is None:
        state.fail(
            f"{what}: the extent of loop {loop.var.name} is not constant",
            loop,
            "split it by a constant factor and use the inner loop",
        )


def require_independent(state: ScheduleState, loop: For, what: str, private: bool, *, scheduled: bool = False) -> None:
    """No iteration may touch what another writes; `private`: buffers of an iteration's own are fine.

    `scheduled`: the program was made by primitives, which have proven what iterations read of their own buffers.
    """
    if PIPELINE.is_on(loop):
        # Its blocks may be independent as they stand; once it is lowered, an iteration uses what earlier ones made.
        state.fail(f"{what}: the iterations of loop {loop.var.name} overlap: it is a software pipeline", loop)
    require_blocks(state, loop, what)
    conflict = iteration_conflict(state.index, loop, state.analyzer, private, scheduled)
    if conflict is None:
        return
    reduces = any(item.kind is IterKind.REDUCE and mentions(item.value, {loop.var}) for item in conflict.block.iters)
    hint = "use rfactor to make the partial results separate" if reduces else None
    if any(places_from_data(conflict.block, region.buffer) for region in conflict.block.writes):
        hint = "if the indices are known to be all different, say so with promise_independent"
    state.fail(
        f"{what}: the iterations of loop {loop.var.name} are not independent: {conflict.reason}", conflict.block, hint
    )


def require_axis(state: ScheduleState, loop: For, thread: str, what: str) -> None:
    """Loops over one hardware axis are one set of threads: nested, only those with equal numbers would run both."""
    for above in state.index.ancestors(loop):
        if isinstance(above, For) and above.thread == thread:
            state.fail(f"{what}: loop {above.var.name} around it is bound to {thread} already", above, _AXIS_HINT)
    for stmt in statements(loop.body):
        if isinstance(stmt, For) and stmt.thread == thread:
            state.fail(f"{what}: loop {stmt.var.name} inside it is bound to {thread} already", stmt, _AXIS_HINT)


_AXIS_HINT: Final = "loops bound to one axis stand side by side; inside each other they need axes of their own"


def require_zigzag(state: ScheduleState, loop: For) -> None:
    """A loop that turns has iterations without an order, and a loop to turn with."""
    require_turnable(state, loop)
    if not any(above.kind is LoopKind.SERIAL for above in state.index.loops_above(loop)):
        state.fail(f"zigzag: there is no serial loop around loop {loop.var.name} to turn with", loop)


def require_turnable(state: ScheduleState, loop: For) -> None:
    """Iterations that may run backwards: independent ones, or steps of a reduction that is initialised elsewhere."""
    if not _only_adds(state, loop):
        require_independent(state, loop, "zigzag", private=True)


def require_annotations(state: ScheduleState, stmt: Stmt) -> None:
    """Known annotations of a loop or block stand where they belong and have values of their types."""
    if isinstance(stmt, (For, Block)):
        what = f"loop {stmt.var.name}" if isinstance(stmt, For) else f"block {stmt.name}"
        for problem in problems(stmt.annotations, Place.LOOP if isinstance(stmt, For) else Place.BLOCK):
            state.fail(f"{what}: {problem}", stmt)


def only_reduces(state: ScheduleState, loop: For) -> bool:
    """Whether a loop serves just the reduction of a single block that still has its init, which changes nothing."""
    blocks = state.index.blocks_under(loop)
    if len(blocks) != 1 or blocks[0].init is None:
        return False
    matched = match_reducer(blocks[0])
    if matched is not None and not starts_at_identity(blocks[0], matched):
        return False
    return _drives_reduction(blocks[0], loop)


def _only_adds(state: ScheduleState, loop: For) -> bool:
    """Whether a loop serves just the reduction of a single block whose init is elsewhere: its steps have no order."""
    blocks = state.index.blocks_under(loop)
    return len(blocks) == 1 and blocks[0].init is None and _drives_reduction(blocks[0], loop)


def _drives_reduction(block: Block, loop: For) -> bool:
    """Whether a block uses a loop for its reduce iterators and for nothing else."""
    users = [item for item in block.iters if mentions(item.value, {loop.var})]
    return bool(users) and all(item.kind is IterKind.REDUCE for item in users)
