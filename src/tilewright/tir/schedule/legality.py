"""Whether a finished program may run as it is marked: the premises of all primitives, proven on what is built.

A primitive proves its premise when it is called; what is called later, a note made by hand or a program that was
written with its loops parallel from the start must not get round that. So all that is built is looked at once more:

| of | what is proven |
|---|---|
| thread axes | no loop is inside another one of its axis, and its number of threads does not depend on loops |
| parallel, vectorized, bound loops | no iteration touches what another writes |
| vectorized, unrolled loops, virtual threads | the extent is constant |
| reductions | the init runs for every element, also where there is nothing to reduce |
| annotations (zigzag, pipelines, tensor intrinsics, reductions, layouts) | what the primitive that makes them proves |

Who may reach a buffer needs no proof: lowering finds from the accesses whether threads share it, and places barriers.
Only `warp` is what it says, and lowering's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import pairwise
from typing import Final, NoReturn

from tilewright.ir.expr import FloorDiv, FloorMod, PrimExpr, const_value
from tilewright.ir.visit import pre_order, uses_any
from tilewright.tir.analysis.dependence import iteration_conflict
from tilewright.tir.analysis.empty_reductions import empty_init, may_be_empty, reductions
from tilewright.tir.analysis.index import child_statements, statements
from tilewright.tir.analysis.match_intrin import intrinsic_mismatch
from tilewright.tir.analysis.reduction_order import last_step_conflict
from tilewright.tir.annotations import (
    LAST_STEP,
    ORDER,
    PIPELINE,
    REDUCTION,
    STAGE,
    TENSOR_INTRIN,
    TENSOR_INTRIN_RESET,
    ZIGZAG,
)
from tilewright.tir.buffer import Buffer, loads_in
from tilewright.tir.enclose import IN_ORDER, enclose, runs_loose_in_parallel
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.align_storage import ATTRIBUTE as ALIGNED
from tilewright.tir.passes.swizzle_storage import ATTRIBUTE as SWIZZLED
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.handles import LoopHandle
from tilewright.tir.schedule.loops import split
from tilewright.tir.schedule.placement import body_statements
from tilewright.tir.schedule.premises import (
    only_reduces,
    require_annotations,
    require_axis,
    require_constant,
    require_independent,
    require_turnable,
)
from tilewright.tir.schedule.reducer import match_reducer
from tilewright.tir.schedule.schedule import Schedule, replay
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.schedule.storage import require_swizzle
from tilewright.tir.schedule.trace import Trace
from tilewright.tir.stmt import Allocate, Block, BufferStore, For, IfThenElse, LetStmt, LoopKind, Stmt


class Proven(Enum):
    """What is known of a program before the final proof."""

    NOTHING = 0
    """It may have been written by hand."""
    STEPS = 1
    """Primitives made it: their proofs about buffers of a thread's or block's own are not repeated."""
    THREADS = 2
    """A template made it for a device: nor are those about loops that it has bound, which the end may hide."""


def require_legal(func: PrimFunc, proven: Proven = Proven.NOTHING) -> None:
    """Raise a `ScheduleError` that shows where a program with a root block must not run as it is marked."""
    if any(runs_loose_in_parallel(item.body) for item in statements(func.body) if isinstance(item, Block)):
        func = enclose(func)
    state = ScheduleState(func)
    for annotated in (*state.index.loops.values(), *state.index.blocks.values()):
        require_annotations(state, annotated)
    for loop in state.index.loops.values():
        if loop.kind not in IN_ORDER:
            _require_kind(state, loop, proven)
        elif loop.kind is LoopKind.UNROLLED:
            require_constant(state, loop, "unroll")
        if loop.annotations:
            _require_annotated(state, loop)
    for block, path in reductions(func.body):
        _require_init(state, block, path)
    _require_attributes(state)
    for block in state.index.blocks.values():
        for buffer in block.allocations:
            if buffer.scope == "warp":
                state.fail(
                    f"buffer {buffer.name} has the scope 'warp', which lowering keeps for what threads exchange",
                    block,
                    "use 'shared': lowering finds out who shares it",
                )
        if LAST_STEP.is_on(block):
            conflict = last_step_conflict(state.index, block)
            if conflict is not None:
                state.fail(f"the epilogue of block {block.name} would not run at the last step: {conflict}", block)
        if TENSOR_INTRIN.is_on(block) or TENSOR_INTRIN_RESET.is_on(block):
            reason = intrinsic_mismatch(block)
            if reason is not None:
                state.fail(f"block {block.name} is not what its tensor intrinsic computes: {reason}", block)


def require_legal_schedule(schedule: Schedule) -> None:
    """The same for a schedule: the error says which of its calls broke the premise."""
    try:
        require_legal(schedule.func, Proven.STEPS)
    except ScheduleError as error:
        _blame(schedule, error)


def _blame(schedule: Schedule, error: ScheduleError) -> NoReturn:
    """Raise an error with the first call after which the program is no longer legal."""
    origin, instructions = schedule.origin, schedule.trace.instructions
    for count in range(len(instructions) + 1):
        try:
            require_legal(replay(Trace(instructions[:count]), origin).func, Proven.STEPS)
        except ScheduleError as broken:
            if count == 0:
                break
            raise error.since(_shown_call(schedule.trace, count - 1)) from broken
    raise error


def _shown_call(trace: Trace, place: int) -> str:
    """A call of a trace, with what its handles stand for."""
    item, line = trace.instructions[place], trace.lines()[place]
    handles = {number: handle for handle, number in trace.handles()}
    names = [handles[number] for number in item.inputs if number in handles]
    shown = [f"loop {h.var.name}" if isinstance(h, LoopHandle) else f"block {h.name}" for h in names]
    return f"call {place + 1} of the schedule, `{line}`" + (f" on {', '.join(shown)}" if shown else "")


# ---------------------------------------------------------------- loops


_WORDS: Final = {
    LoopKind.PARALLEL: "parallel",
    LoopKind.VECTORIZED: "vectorize",
    LoopKind.THREAD: "bind",
    LoopKind.VTHREAD: "bind",
}
"""The primitive that makes a loop of a kind."""


def _require_kind(state: ScheduleState, loop: For, proven: Proven) -> None:
    what = _WORDS[loop.kind]
    if loop.kind in (LoopKind.VECTORIZED, LoopKind.VTHREAD):
        require_constant(state, loop, what)
    if loop.kind is LoopKind.THREAD:
        assert loop.thread is not None
        require_axis(state, loop, loop.thread, what)
        if uses_any(loop.extent, state.index.loops):
            state.fail(
                f"{what}: the number of threads along {loop.thread} depends on a loop",
                loop,
                "loops over threads have one extent for all that run them: guard the statements inside instead",
            )
        if loop.thread.startswith("threadIdx") and only_reduces(state, loop):
            return
    on_device = loop.kind in (LoopKind.THREAD, LoopKind.VTHREAD)
    if on_device and proven is Proven.THREADS:
        return
    try:
        private = loop.kind is not LoopKind.VECTORIZED
        scheduled = on_device and proven is not Proven.NOTHING
        require_independent(state, loop, what, private, scheduled=scheduled)
    except ScheduleError:
        if loop.kind is not LoopKind.PARALLEL or not _independent_in_parts(state, loop):
            raise
    _require_conditions(state, loop, what)


def _independent_in_parts(state: ScheduleState, loop: For) -> bool:
    """Whether a fused loop, taken apart where indices divide it, has independent loops: its iterations then are too.

    Iterations that differ in an outer part are independent by that one, those that differ in an inner part alone by
    the inner one.
    """
    extent = const_value(loop.extent)
    cuts = sorted({cut for cut in _divisors(loop) if extent is not None and extent % cut == 0 and 1 < cut < extent})
    steps = [1, *cuts]
    if not cuts or any(larger % smaller for smaller, larger in pairwise(steps)):
        return False
    factors: list[int | None] = [None, *reversed([larger // smaller for smaller, larger in pairwise(steps)])]
    apart = ScheduleState(state.edited({loop: loop.replace(kind=LoopKind.SERIAL)}))
    parts = split(apart, apart.index.loops[loop.var], factors)
    loops = [apart.index.loops[var] for var in parts]
    return all(iteration_conflict(apart.index, part, apart.analyzer, private=True) is None for part in loops)


def _divisors(loop: For) -> Iterator[int]:
    """The constants that bindings of blocks under a loop divide its variable by."""
    for stmt in statements(loop.body):
        if isinstance(stmt, Block):
            for item in (part for value in stmt.iter_values for part in pre_order(value)):
                if isinstance(item, (FloorDiv, FloorMod)) and uses_any(item.a, [loop.var]):
                    divisor = const_value(item.b)
                    # (f // 4) % 6 turns where f // 24 does.
                    inner = const_value(item.a.b) if isinstance(item.a, FloorDiv) else 1
                    if divisor is not None and inner is not None:
                        yield divisor * inner


def _require_conditions(state: ScheduleState, loop: For, what: str) -> None:
    """What stands around blocks inside a loop (conditions, definitions, bounds) must not read what they write."""
    read = _read_between(loop.body)
    if not read:
        return
    for block in state.index.blocks_under(loop):
        for region in block.writes:
            if region.buffer in read:
                state.fail(
                    f"{what}: the iterations of loop {loop.var.name} are not independent: a condition or a bound reads "
                    f"{region.buffer.name}, which block {block.name} writes",
                    block,
                )


def _read_between(stmt: Stmt) -> set[Buffer]:
    """The buffers that statements around blocks read."""
    parts: list[PrimExpr] = []
    stack = [stmt]
    while stack:
        item = stack.pop()
        if isinstance(item, Block):
            parts.extend((*item.iter_values, item.predicate))
            continue
        if isinstance(item, IfThenElse):
            parts.append(item.condition)
        elif isinstance(item, LetStmt):
            parts.append(item.value)
        elif isinstance(item, For):
            parts.extend((item.min, item.extent))
        stack.extend(child_statements(item))
    return {load.buffer for part in parts for load in loads_in(part)}


# ---------------------------------------------------------------- reductions


def _require_init(state: ScheduleState, block: Block, path: list[Stmt]) -> None:
    if not may_be_empty(block, path):
        return
    init = empty_init(block, path)
    if isinstance(init, str):
        state.fail(
            f"the reduction of block {block.name} may be over nothing, and then its init would not run: {init}",
            block,
            "decompose_reduction gives the init a place of its own",
        )


# ---------------------------------------------------------------- annotations


def _require_annotated(state: ScheduleState, loop: For) -> None:
    if ZIGZAG.of(loop) and loop.kind is LoopKind.SERIAL:
        require_turnable(state, loop)
    if PIPELINE.is_on(loop):
        _require_stages(state, loop)
    if REDUCTION.of(loop):
        _require_reduction(state, loop)


def _require_stages(state: ScheduleState, loop: For) -> None:
    """Of two statements of a pipelined loop that touch a buffer, one of them writing, the first is not the later one.

    That all they exchange lives within an iteration is what `pipeline_loops` finds out itself: where it does not, the
    loop stays as it is.
    """
    body = loop.body
    while isinstance(body, Allocate):
        body = body.body
    parts = list(body_statements(loop.replace(body=body)))
    latest: dict[Buffer, tuple[int, bool]] = {}
    orders: dict[tuple[Buffer, int], tuple[int, bool]] = {}
    for part in parts:
        note, place = STAGE.of(part), ORDER.of(part) or 0
        if note is None:
            continue
        touched: dict[Buffer, bool] = {}
        for block in [part] if isinstance(part, Block) else state.index.blocks_under(part):
            touched.update({region.buffer: touched.get(region.buffer, False) for region in block.reads})
            touched.update({region.buffer: True for region in block.writes})
        for buffer, writes in touched.items():
            stage, written = latest.get(buffer, (0, False))
            if note < stage and (writes or written):
                state.fail(
                    f"software_pipeline: {buffer.name} is touched in stage {stage} and by a later statement in stage "
                    f"{note}, which runs before it",
                    loop,
                )
            latest[buffer] = (max(stage, note), writes or written)
            before, touched_before = orders.get((buffer, note), (place, False))
            if place < before and (writes or touched_before):
                state.fail(
                    f"software_pipeline: of two statements of stage {note} that touch {buffer.name} the later one "
                    "would run first",
                    loop,
                )
            orders[buffer, note] = (place, writes or touched_before)


def _require_attributes(state: ScheduleState) -> None:
    """How buffers lie in memory, as `storage_align` and `storage_swizzle` leave it."""
    aligned, swizzled = (state.func.attributes.get(key) for key in (ALIGNED, SWIZZLED))
    if not aligned and not swizzled:
        return
    notes: dict[str, object] = aligned if isinstance(aligned, dict) else {}
    for name, note in notes.items():
        numbers: Sequence[int] = note if isinstance(note, (list, tuple)) and all(type(n) is int for n in note) else ()
        if len(numbers) != 3 or numbers[0] >= 0 or not 0 <= numbers[2] < numbers[1]:
            state.fail(
                f"storage_align: {note!r} of {name} is not an axis (the last is -1), a factor and an offset below it"
            )
    named = swizzled if isinstance(swizzled, (list, tuple)) else ()
    for buffer in (buffer for block in state.index.blocks.values() for buffer in block.allocations):
        if buffer.name in named:
            require_swizzle(state, buffer, None)


def _require_reduction(state: ScheduleState, loop: For) -> None:
    """The steps of a loop that says of itself that they combine in any order must do so."""
    for item in statements(loop.body):
        if isinstance(item, BufferStore):
            matched = match_reducer(Block("step", (), (), (), item))
            if matched is None or any(uses_any(index, [loop.var]) for index in item.indices):
                state.fail(
                    f"loop {loop.var.name} is {REDUCTION.name!r}, but does more than combine values in any order",
                    loop,
                    "give the statement a block with a reduce iterator and an init",
                )
