"""How loops run (parallel, vectorize, unroll, bind) and annotations of loops and blocks."""

from __future__ import annotations

from typing import Final

from tilewright.tir.analysis.dependence import places_from_data
from tilewright.tir.annotations import ANNOTATIONS, INDEPENDENT, PIPELINE, STAGE, ZIGZAG
from tilewright.tir.schedule.premises import (
    only_reduces,
    require_annotations,
    require_axis,
    require_constant,
    require_independent,
    require_zigzag,
)
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, For, LoopKind

THREAD_AXES: Final = (
    *(f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz"),
    "clusterIdx.x",
)
"""The hardware axes that a loop can be bound to, besides `vthread`."""


def _require_free(state: ScheduleState, loop: For, what: str) -> None:
    if loop.kind is not LoopKind.SERIAL:
        state.fail(f"{what}: loop {loop.var.name} is already {loop.kind.value}", loop)


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
    state.relabel(loop, INDEPENDENT.put(loop, True))


def parallel(state: ScheduleState, loop: For) -> None:
    """for i: B(i)  ->  for i in parallel: B(i). Iterations must be independent."""
    _require_free(state, loop, "parallel")
    require_independent(state, loop, "parallel", private=True)
    state.relabel(loop, loop.replace(kind=LoopKind.PARALLEL))


def vectorize(state: ScheduleState, loop: For) -> None:
    """for i in 8: B(i)  ->  for i in vectorized(8): B(i). Iterations must be independent; the extent constant."""
    _require_free(state, loop, "vectorize")
    require_constant(state, loop, "vectorize")
    require_independent(state, loop, "vectorize", private=False)
    state.relabel(loop, loop.replace(kind=LoopKind.VECTORIZED))


def unroll(state: ScheduleState, loop: For) -> None:
    """for i in 4: B(i)  ->  for i in unroll(4): B(i): the body is repeated when the program is lowered."""
    _require_free(state, loop, "unroll")
    require_constant(state, loop, "unroll")
    state.relabel(loop, loop.replace(kind=LoopKind.UNROLLED))


def zigzag(state: ScheduleState, loop: For) -> None:
    """for t: for p in 8: B(t, p)  ->  for t: for p in zigzag(8): B(t, p): backwards in every second iteration of t.

    What the loop used last is still in the cache when it comes first the next time. A loop that is then unrolled turns
    with the unrolled loop just around it: what it used last is still in a register. Iterations must be independent, or
    steps of a reduction whose init is elsewhere (`decompose_reduction`). Blocks of threads turn with the parallel loop
    just inside: in every second iteration of it the last block is the first.
    """
    if (loop.thread or "").startswith("blockIdx"):
        if not isinstance(loop.body, For) or loop.body.kind is not LoopKind.PARALLEL:
            state.fail(f"zigzag: there is no parallel loop just inside loop {loop.var.name} to turn with", loop)
        state.relabel(loop, ZIGZAG.put(loop, True))
        return
    _require_free(state, loop, "zigzag")
    require_zigzag(state, loop)
    state.relabel(loop, ZIGZAG.put(loop, True))


def bind(state: ScheduleState, loop: For, thread: str) -> None:
    """for i in 32: B(i)  ->  for i in thread_binding("threadIdx.x", 32): B(i).

    A reduction loop may be bound to threads (a reduction across threads), not to blocks of threads.
    """
    _require_free(state, loop, "bind")
    if thread != "vthread" and thread not in THREAD_AXES:
        state.fail(f"bind: there is no thread axis {thread!r}", loop, f"use one of {', '.join(THREAD_AXES)}, vthread")
    virtual = thread == "vthread"
    if not virtual:
        require_axis(state, loop, thread, "bind")
    if virtual:
        require_constant(state, loop, "bind")
    if not (thread.startswith("threadIdx") and only_reduces(state, loop)):
        require_independent(state, loop, "bind", private=True)
    if virtual:
        state.relabel(loop, loop.replace(kind=LoopKind.VTHREAD))
    else:
        state.relabel(loop, loop.replace(kind=LoopKind.THREAD, thread=thread))


def annotate(state: ScheduleState, target: For | Block, name: str, value: object) -> None:
    """Attach an annotation to a loop or a block, replacing one of the same name.

    Names of `tir/annotations.py` take values of their types; those that change what lowering makes of a program belong
    to primitives, which prove that they may. Under other names anything can be kept.
    """
    known = ANNOTATIONS.get(name)
    if known is not None and known.owner is not None:
        state.fail(f"annotate: the annotation {name!r} changes what the program does", target, known.owner)
    annotated = target.replace(annotations={**target.annotations, name: value})
    if known is not None:
        require_annotations(state, annotated)
    state.relabel(target, annotated)


def unannotate(state: ScheduleState, target: For | Block, name: str) -> None:
    """Remove an annotation from a loop or a block."""
    if name not in target.annotations:
        state.fail(f"unannotate: there is no annotation {name!r} here", target)
    if name == STAGE.name:
        hint = f"remove {PIPELINE.name!r} of its loop"
        state.fail(f"unannotate: {name!r} is a part of a software pipeline", target, hint)
    rest = {key: value for key, value in target.annotations.items() if key != name}
    state.relabel(target, target.replace(annotations=rest))
