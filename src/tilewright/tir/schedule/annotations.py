"""How loops run (parallel, vectorize, unroll, bind) and free-form notes on loops and blocks."""

from __future__ import annotations

from typing import Final

from tilewright.ir.expr import const_value
from tilewright.tir.analysis.dependence import INDEPENDENT, iteration_conflict, places_from_data
from tilewright.tir.analysis.linear import mentions
from tilewright.tir.passes.pipeline_loops import PIPELINE
from tilewright.tir.passes.zigzag_loops import ZIGZAG
from tilewright.tir.schedule.loops import require_blocks
from tilewright.tir.schedule.reducer import match_reducer, starts_at_identity
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, For, IterKind, LoopKind

THREAD_AXES: Final = (
    *(f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz"),
    "clusterIdx.x",
)
"""The hardware axes that a loop can be bound to, besides `vthread`."""


def _require_free(state: ScheduleState, loop: For, what: str) -> None:
    if loop.kind is not LoopKind.SERIAL:
        state.fail(f"{what}: loop {loop.var.name} is already {loop.kind.value}", loop)


def _require_constant(state: ScheduleState, loop: For, what: str) -> None:
    if const_value(loop.extent) is None:
        state.fail(
            f"{what}: the extent of loop {loop.var.name} is not constant",
            loop,
            "split it by a constant factor and use the inner loop",
        )


def _require_independent(state: ScheduleState, loop: For, what: str, private: bool) -> None:
    if PIPELINE in loop.annotations:
        # Its blocks may be independent as they stand; once it is lowered, an iteration uses what earlier ones made.
        state.fail(f"{what}: the iterations of loop {loop.var.name} overlap: it is a software pipeline", loop)
    require_blocks(state, loop, what)
    conflict = iteration_conflict(state.index, loop, state.analyzer, private)
    if conflict is None:
        return
    reduces = any(item.kind is IterKind.REDUCE and mentions(item.value, {loop.var}) for item in conflict.block.iters)
    hint = "use rfactor to make the partial results separate" if reduces else None
    if any(places_from_data(conflict.block, region.buffer) for region in conflict.block.writes):
        hint = "if the indices are known to be all different, say so with promise_independent"
    state.fail(
        f"{what}: the iterations of loop {loop.var.name} are not independent: {conflict.reason}", conflict.block, hint
    )


def promise_independent(state: ScheduleState, loop: For) -> None:
    """Take somebody's word that iterations do not meet where data decide what is written: B[I[i]] = A[i].

    for i: B[I[i]] = A[i]  ->  for i in serial(annotations={"independent": True}): B[I[i]] = A[i]

    It is believed of such places only, and not checked: where it is wrong, the program computes something else. What
    indices tell is proved as ever.
    """
    what = "promise_independent"
    blocks = state.index.blocks_under(loop)
    buffers = {region.buffer for block in blocks for region in block.writes}
    if not any(places_from_data(block, buffer) for block in blocks for buffer in buffers):
        state.fail(
            f"{what}: no block under loop {loop.var.name} writes at indices that are read from memory",
            loop,
            "nothing is taken on trust where indices tell what is written",
        )
    state.relabel(loop, loop.replace(annotations={**loop.annotations, INDEPENDENT: True}))


def parallel(state: ScheduleState, loop: For) -> None:
    """for i: B(i)  ->  for i in parallel: B(i). Iterations must be independent."""
    _require_free(state, loop, "parallel")
    _require_independent(state, loop, "parallel", private=True)
    state.relabel(loop, loop.replace(kind=LoopKind.PARALLEL))


def vectorize(state: ScheduleState, loop: For) -> None:
    """for i in 8: B(i)  ->  for i in vectorized(8): B(i). Iterations must be independent; the extent constant."""
    _require_free(state, loop, "vectorize")
    _require_constant(state, loop, "vectorize")
    _require_independent(state, loop, "vectorize", private=False)
    state.relabel(loop, loop.replace(kind=LoopKind.VECTORIZED))


def unroll(state: ScheduleState, loop: For) -> None:
    """for i in 4: B(i)  ->  for i in unroll(4): B(i): the body is repeated when the program is lowered."""
    _require_free(state, loop, "unroll")
    _require_constant(state, loop, "unroll")
    state.relabel(loop, loop.replace(kind=LoopKind.UNROLLED))


def zigzag(state: ScheduleState, loop: For) -> None:
    """for t: for p in 8: B(t, p)  ->  for t: for p in zigzag(8): B(t, p): backwards in every second iteration of t.

    What the loop used last is still in the cache when it comes first the next time. Iterations must be independent, or
    steps of a reduction whose init is elsewhere (`decompose_reduction`).
    """
    _require_free(state, loop, "zigzag")
    if not _only_adds(state, loop):
        _require_independent(state, loop, "zigzag", private=True)
    if not any(above.kind is LoopKind.SERIAL for above in state.index.loops_above(loop)):
        state.fail(f"zigzag: there is no serial loop around loop {loop.var.name} to turn with", loop)
    state.relabel(loop, loop.replace(annotations={**loop.annotations, ZIGZAG: True}))


def bind(state: ScheduleState, loop: For, thread: str) -> None:
    """for i in 32: B(i)  ->  for i in thread_binding("threadIdx.x", 32): B(i).

    A reduction loop may be bound to threads (a reduction across threads), not to blocks of threads.
    """
    _require_free(state, loop, "bind")
    if thread != "vthread" and thread not in THREAD_AXES:
        state.fail(f"bind: there is no thread axis {thread!r}", loop, f"use one of {', '.join(THREAD_AXES)}, vthread")
    for above in state.index.loops_above(loop):
        if above.thread == thread and thread != "vthread":
            state.fail(f"bind: loop {above.var.name} around it is bound to {thread} already", above)
    if thread == "vthread":
        _require_constant(state, loop, "bind")
    if not (thread.startswith("threadIdx") and _only_reduces(state, loop)):
        _require_independent(state, loop, "bind", private=True)
    if thread == "vthread":
        state.relabel(loop, loop.replace(kind=LoopKind.VTHREAD))
    else:
        state.relabel(loop, loop.replace(kind=LoopKind.THREAD, thread=thread))


def _only_adds(state: ScheduleState, loop: For) -> bool:
    """Whether a loop serves just the reduction of a single block whose init is elsewhere: its steps have no order."""
    blocks = state.index.blocks_under(loop)
    return len(blocks) == 1 and blocks[0].init is None and _drives_reduction(blocks[0], loop)


def _only_reduces(state: ScheduleState, loop: For) -> bool:
    """Whether a loop serves just the reduction of a single block that still has its init, which changes nothing."""
    blocks = state.index.blocks_under(loop)
    if len(blocks) != 1 or blocks[0].init is None:
        return False
    matched = match_reducer(blocks[0])
    if matched is not None and not starts_at_identity(blocks[0], matched):
        return False
    return _drives_reduction(blocks[0], loop)


def _drives_reduction(block: Block, loop: For) -> bool:
    """Whether a block uses a loop for its reduce iterators and for nothing else."""
    users = [item for item in block.iters if mentions(item.value, {loop.var})]
    return bool(users) and all(item.kind is IterKind.REDUCE for item in users)


def annotate(state: ScheduleState, target: For | Block, key: str, value: object) -> None:
    """Attach a note to a loop or a block, replacing one of the same key."""
    state.relabel(target, target.replace(annotations={**target.annotations, key: value}))


def unannotate(state: ScheduleState, target: For | Block, key: str) -> None:
    """Remove a note from a loop or a block."""
    if key not in target.annotations:
        state.fail(f"unannotate: there is no annotation {key!r} here", target)
    notes = {name: value for name, value in target.annotations.items() if name != key}
    state.relabel(target, target.replace(annotations=notes))
