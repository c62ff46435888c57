"""Hiding latency: software_pipeline (iterations overlap) and double_buffer (a staged tile is filled one ahead)."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import ONE, ZERO, Var
from tilewright.ir.visit import variables
from tilewright.tir.analysis.dependence import covered, is_private
from tilewright.tir.annotations import ORDER, PIPELINE, STAGE, ZIGZAG
from tilewright.tir.buffer import Buffer
from tilewright.tir.schedule.loops import require_blocks, require_serial
from tilewright.tir.schedule.placement import body_statements
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, For, IterKind, LoopKind, Stmt, seq


def software_pipeline(
    state: ScheduleState, loop: For, stages: Sequence[int], order: Sequence[int] | None = None
) -> None:
    """Run the statements of a loop's body some iterations late, so that work on several iterations overlaps.

    for i in 8:                  T = two copies
        T = load(i)         ->   T[0] = load(0)                                        stages = [0, 1]
        use(T)                   for i in range(1, 8): T[i % 2] = load(i); use(T[(i - 1) % 2])
                                 use(T[7 % 2])

    The program keeps its plain loop with notes on it until it is lowered. A consumer must not be in an earlier stage
    than its producer; a buffer through which stages speak must live within one iteration: it gets as many copies as
    iterations are under way.

    `order` has the place of each statement in an iteration of the pipeline: [1, 0] uses the tile of one iteration
    before it loads that of the next, and then one copy of T is enough. Statements of one stage that need each other
    keep their order.
    """
    what = "software_pipeline"
    require_serial(state, loop, what)
    require_blocks(state, loop, what)
    if ZIGZAG.of(loop):
        state.fail(f"{what}: loop {loop.var.name} runs back and forth (zigzag), stages need one direction", loop)
    parts = list(body_statements(loop))
    if len(stages) != len(parts) or min(stages, default=0) != 0:
        state.fail(
            f"{what}: the stages {list(stages)} do not fit the {len(parts)} statements in loop {loop.var.name}",
            loop,
            "give one number for each statement of the body, the least of them 0",
        )
    blocks = [_blocks_of(state, part) for part in parts]
    if order is not None:
        _check_order(state, loop, stages, order, blocks, what)
    users: dict[int, tuple[Buffer, set[int], set[int]]] = {}
    for number, group in enumerate(blocks):
        for block in group:
            for region in block.reads:
                users.setdefault(id(region.buffer), (region.buffer, set(), set()))[1].add(number)
            for region in block.writes:
                users.setdefault(id(region.buffer), (region.buffer, set(), set()))[2].add(number)
    for buffer, readers, writers in users.values():
        involved = {stages[number] for number in readers | writers}
        if writers and len(involved) > 1:
            _check_buffer(state, loop, buffer, readers, writers, stages, blocks, what)
    around = {item.var for item in state.index.loops_above(loop)}
    for group in blocks:
        for block in group:
            if any(
                item.kind is IterKind.OPAQUE and not around.issuperset(variables(item.value)) for item in block.iters
            ):
                state.fail(f"{what}: block {block.name} has an opaque iterator: its order is fixed", block)
    places = [None] * len(parts) if order is None else order
    marked = [_with_stage(part, stage, place) for part, stage, place in zip(parts, stages, places, strict=True)]
    pipeline = PIPELINE.put(loop.replace(body=seq(*marked)), max(stages) + 1)
    state.commit_index(state.index_of(state.edited({loop: pipeline})))


def _blocks_of(state: ScheduleState, part: Stmt) -> list[Block]:
    return [part] if isinstance(part, Block) else state.index.blocks_under(part)


def _check_buffer(
    state: ScheduleState,
    loop: For,
    buffer: Buffer,
    readers: set[int],
    writers: set[int],
    stages: Sequence[int],
    blocks: Sequence[Sequence[Block]],
    what: str,
) -> None:
    """A buffer through which stages speak: written in one stage, before it is read, within each iteration."""
    first = blocks[min(writers)][0]
    if len({stages[number] for number in writers}) > 1:
        state.fail(f"{what}: {buffer.name} is written in several stages", first)
    written = stages[min(writers)]
    if any(stages[number] < written for number in readers):
        state.fail(f"{what}: {buffer.name} is read in an earlier stage than it is written", first)
    private = is_private(state.index, loop, buffer)
    sources = [b for n in sorted(writers) for b in blocks[n] if any(r.buffer is buffer for r in b.writes)]
    for number in sorted(readers):
        for block in blocks[number]:
            if all(region.buffer is not buffer for region in block.reads) or block in sources:
                continue
            if not private or not any(
                covered(state.index, source, block, buffer, loop, state.analyzer) for source in sources
            ):
                state.fail(
                    f"{what}: what block {block.name} reads of {buffer.name} is not all written in the same iteration "
                    f"of loop {loop.var.name}, or {buffer.name} is used outside the loop",
                    block,
                    "stages speak through buffers that live within one iteration: stage them with cache_read",
                )


def _with_stage(part: Stmt, stage: int, place: int | None) -> For:
    """A statement of the body with its stage (and place) noted; a block alone gets a loop to carry the note."""
    if not isinstance(part, For):
        part = For(Var("u"), ZERO, ONE, LoopKind.SERIAL, part)
    part = ORDER.drop(part) if place is None else ORDER.put(part, place)
    return STAGE.put(part, stage)


def _check_order(
    state: ScheduleState,
    loop: For,
    stages: Sequence[int],
    order: Sequence[int],
    blocks: Sequence[Sequence[Block]],
    what: str,
) -> None:
    """Statements of one stage that share what one of them writes must keep their order."""
    if sorted(order) != list(range(len(stages))):
        state.fail(
            f"{what}: the order {list(order)} does not give each of the {len(stages)} statements in loop "
            f"{loop.var.name} a place",
            loop,
            "give the places 0, 1, ... of the statements in an iteration, in the order of the program",
        )
    for late, group in enumerate(blocks):
        for early in range(late):
            if stages[early] != stages[late] or order[early] < order[late]:
                continue
            shared = _shared_buffer(blocks[early], group)
            if shared is not None:
                state.fail(
                    f"{what}: statement {late} would pass statement {early} of the same stage, which shares "
                    f"{shared.name} with it",
                    loop,
                )


def _shared_buffer(early: Sequence[Block], late: Sequence[Block]) -> Buffer | None:
    """A buffer that one of two statements writes and the other touches."""
    for ours, theirs in ((early, late), (late, early)):
        written = [region.buffer for block in ours for region in block.writes]
        for block in theirs:
            for region in (*block.reads, *block.writes):
                if any(region.buffer is buffer for buffer in written):
                    return region.buffer
    return None


def double_buffer(state: ScheduleState, block: Block) -> None:
    """Fill a staged buffer one iteration ahead of its use: a pipeline of two stages.

    for k: { A_local = A[k];  C += A_local }    ->    filling k + 1 overlaps with using k

    The loop is the innermost one around the block and all its consumers.
    """
    what = "double_buffer"
    index = state.index
    scope = index.scope(block)
    readers = [item for region in block.writes for item in scope.readers_of(region.buffer) if item is not block]
    if not readers:
        state.fail(f"{what}: nothing reads what block {block.name} writes", block)
    shared = index.loops_above(block)
    for reader in readers:
        around = {id(loop) for loop in index.common_loops(block, reader)}
        shared = [loop for loop in shared if id(loop) in around]
    if not shared:
        state.fail(
            f"{what}: block {block.name} shares no loop with its consumers",
            block,
            "compute it at a loop of its consumer first",
        )
    loop = shared[-1]
    parts = body_statements(loop)
    place = next(n for n, part in enumerate(parts) if part is block or index.is_under(block, part))
    if place == len(parts) - 1:
        state.fail(f"{what}: nothing comes after block {block.name} in loop {loop.var.name}", block)
    software_pipeline(state, loop, [0] * (place + 1) + [1] * (len(parts) - place - 1))
