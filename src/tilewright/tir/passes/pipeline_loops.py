"""Software pipelines: iterations of a loop overlap, and buffers between stages get a copy for each under way.

    for i in range(8):  # stages [0, 1]        T = alloc((2, 16))
        T = alloc((16,))                       for i in range(9):
        load(T, i)                       ->        if i < 8:  load(T[i % 2], i)
        use(T, i)                                  if 1 <= i: use(T[(i - 1) % 2], i - 1)

Loop partitioning then takes the first and last iterations apart, so that the main loop has no conditions. Each
statement sees its iterations in the old order; what stages exchange lives within one iteration, so every copy is
complete before it is read and is not overwritten before its last reader has run. Where that
cannot be seen any more (the loop was changed after it was pipelined), the loop stays as it is: the same result without
overlap. A processor that runs ahead of memory
(or an accelerator with queues) overlaps the loads of one iteration with the work on another.

Where threads of a block work together, one barrier at the start of an iteration orders all that stages exchange, and
copies to shared memory are asynchronous:

    for i in range(8):  # stages [0, 2]        for i in range(2):
        S = alloc((16,), "shared")                 for t in threads: S[i % 3, t] = async_copy(A[i, t])
        for t in threads: S[t] = A[i, t]           async_commit
        for t in threads: use(S, i)         -> for i in range(2, 10):
                                                   async_wait(1);  barrier
                                                   if i < 8: for t in threads: S[i % 3, t] = async_copy(A[i, t])
                                                   async_commit
                                                   for t in threads: use(S[(i - 2) % 3], i - 2)

Copies of constants for the first iterations come before all others, in the first group; each in its own where there
are no others.

With the annotations `ORDER` the statements stand in another order in an iteration of the pipeline. Where the last users
of a buffer come before what fills it anew, it needs a copy less:

    for i in range(8):  # stages [0, 1], order [1, 0]      for i in range(9):
        load(T, i)                                   ->        if 1 <= i: use(T, i - 1)
        use(T, i)                                              if i < 8:  load(T, i)

With the annotation `PRODUCERS` the copies are left to threads of their own, which need no barrier to run ahead: the
stages stay in one iteration, each on the copies of that iteration, and `specialize_warps` takes them apart.

With the annotation `WOVEN` the stages of an iteration go between each other's steps (`rewrite/interleave.py`).

What an iteration writes is read one or more iterations later, after the barrier of that iteration; it is overwritten
one iteration after its last reader. Each iteration is a group of copies, and the wait leaves only those under way that
no stage of this iteration reads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from tilewright.ir.build import add, all_of, const, floormod, le, lt, sub
from tilewright.ir.expr import Call, FloatImm, IntImm, PrimExpr, Select, StringImm, Var
from tilewright.ir.intrinsics import async_commit, async_copy, async_wait, barrier
from tilewright.ir.visit import pre_order
from tilewright.tir.analysis.flat_accesses import touches
from tilewright.tir.annotations import BEHIND, LATE, ORDER, ORDERED, PIPELINE, PRODUCERS, ROLLED, STAGE, WOVEN, without
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc, constant_buffers
from tilewright.tir.machine import TILE_SCOPE, machine_call
from tilewright.tir.passes.compact_buffers import compact_buffers
from tilewright.tir.passes.zigzag_loops import turned_inside
from tilewright.tir.rewrite.interleave import interleaved, without_tiles
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter, all_statements, fresh_copy
from tilewright.tir.stmt import Allocate, BufferStore, Evaluate, For, IfThenElse, LoopKind, SeqStmt, Stmt, seq
from tilewright.tir.warp_instructions import FENCE, reads_by_itself


@dataclass(frozen=True, slots=True)
class PipelineLoopsOptions:
    """How the stages of a pipeline overlap."""

    asynchronous: bool = False
    """Whether threads may leave copies to shared memory under way."""


_USUAL: Final = PipelineLoopsOptions()


def pipeline_loops(func: PrimFunc, options: PipelineLoopsOptions = _USUAL) -> PrimFunc:
    """The function with its pipelined loops overlapped."""
    if not any(PIPELINE.is_on(item) for item in all_statements(func.body)):
        return func
    # Buffers sink to the iterations they live in: those are the ones to copy.
    func = compact_buffers(func)
    return func.replace(body=_Pipeline(options.asynchronous, constant_buffers(func)).stmt(func.body))


class _Pipeline(StmtRewriter):
    def __init__(self, asynchronous: bool, constants: Collection[Buffer]) -> None:
        self._asynchronous = asynchronous
        self._constants = constants

    def visit_for(self, loop: For) -> Stmt:
        lowered = super().visit_for(loop)
        assert isinstance(lowered, For)
        if not PIPELINE.is_on(loop):
            return lowered
        return _pipelined(turned_inside(lowered), self._asynchronous, self._constants)


def _pipelined(loop: For, asynchronous: bool, constants: Collection[Buffer]) -> Stmt:
    allocations: list[Buffer] = []
    parts = _in_order(_staged(loop.body, allocations))
    if not _speak_in_private(parts, allocations):
        return _as_it_is(loop)
    depth = max(stage for stage, _ in parts)
    overlaps = WOVEN.is_on(loop) and depth == 1 and _can_interleave(loop)
    versions = _with_copies(loop, parts, allocations, overlaps)
    if versions is None:
        return _as_it_is(loop)
    if overlaps:
        return _interleaved(loop, parts, allocations, versions)
    ordered = _ordered(parts, allocations) if _has_threads(loop.body) else {}
    if PRODUCERS.is_on(loop) and asynchronous and ordered:
        result: Stmt = _for_producers(loop, parts, versions, ordered)
    else:
        result = _overlapped(
            loop.replace(annotations=without(loop, PRODUCERS, BEHIND)),
            parts,
            versions,
            ordered,
            asynchronous,
            constants,
        )
    for buffer in allocations:
        result = Allocate(versions[buffer], result)
    return result


def _as_it_is(loop: For) -> For:
    """A loop whose iterations do not overlap: no thread runs ahead in it either."""
    return loop.replace(annotations=without(loop, PIPELINE, PRODUCERS, BEHIND))


def _with_copies(
    loop: For, parts: Sequence[tuple[int, Stmt]], allocations: Sequence[Buffer], overlaps: bool
) -> dict[Buffer, Buffer] | None:
    """Each buffer with a copy for every iteration under way; None if there is no room for them."""
    versions: dict[Buffer, Buffer] = {}
    late = LATE.of(loop) or 0
    # Threads meet once in an iteration, at its start: what others read during it is not to be overwritten.
    threads = _has_threads(loop.body)
    for buffer in allocations:
        stages = [stage for stage, part in parts if touches(buffer, part)]
        count = max(stages) - min(stages) + 1
        if count > 1 and not overlaps and not threads and _is_read_before_written(buffer, parts, max(stages)):
            count -= 1
        if count > 1 and buffer.scope == TILE_SCOPE:
            # There are no tiles for two iterations: the old contents go before the new ones come.
            if not overlaps:
                return None
            count = 1
        if count > 1:
            count += late
        if isinstance(loop.extent, IntImm):
            # There are no more iterations under way than there are.
            count = min(count, max(1, loop.extent.value))
        versions[buffer] = buffer if count == 1 else buffer.replace(shape=(const(count), *buffer.shape), strides=())
    return versions


def _is_read_before_written(buffer: Buffer, parts: Sequence[tuple[int, Stmt]], last: int) -> bool:
    """Whether the last stage that uses a buffer comes, in an iteration, before what fills it anew."""
    users = [number for number, (stage, part) in enumerate(parts) if stage == last and touches(buffer, part)]
    writers = [number for number, (_, part) in enumerate(parts) if buffer in _written(part)]
    return bool(users and writers) and max(users) < min(writers)


def _for_producers(
    loop: For, parts: Sequence[tuple[int, Stmt]], versions: dict[Buffer, Buffer], ordered: dict[Buffer, int]
) -> Stmt:
    """The loop with all stages in one iteration, on the copies of that iteration (`specialize_warps`)."""
    moved = [_Versions(versions, sub(loop.var, loop.min)).stmt(_Asynchronous(ordered).stmt(part)) for _, part in parts]
    notes = without(loop, PIPELINE, LATE) | ORDERED.entry(tuple(sorted(buffer.name for buffer in ordered)))
    return loop.replace(body=seq(*moved), annotations=notes | ROLLED.entry(True))


def _overlapped(
    loop: For,
    parts: Sequence[tuple[int, Stmt]],
    versions: dict[Buffer, Buffer],
    ordered: dict[Buffer, int],
    asynchronous: bool,
    constants: Collection[Buffer],
) -> Stmt:
    """The loop with each stage's work of its own iteration; `ordered` are the buffers that threads share."""
    depth = max(stage for stage, _ in parts)
    time = Var(loop.var.name, loop.var.dtype)
    notes = without(loop, PIPELINE, LATE)
    body = _meeting(loop, ordered, asynchronous, notes) if ordered else []
    # Constants come first: a kernel that starts early reads them before it waits for those in front of it.
    ahead: dict[bool, list[Stmt]] = {True: [], False: []}
    starts = {known: Var(loop.var.name, loop.var.dtype) for known in ahead}
    # Where stages are the first and the last alone, the iterations before the last stage's first come in front: the
    # loop itself then has its work without a condition.
    peeled = asynchronous and bool(ordered) and {stage for stage, _ in parts} == {0, depth}
    last_copies = max((number for number, (stage, _) in enumerate(parts) if stage < depth), default=-1)
    for number, (stage, part) in enumerate(parts):
        now = sub(time, const(stage, time.dtype))
        part = _Asynchronous(ordered).stmt(part) if asynchronous and ordered else part
        placed = _Versions(versions, sub(loop.var, loop.min)).stmt(part)
        moved = fresh_copy(placed, {loop.var: now})
        conditions = [le(add(loop.min, const(stage)), time)] if stage and not peeled else []
        if stage < depth:
            conditions.append(lt(time, add(add(loop.min, loop.extent), const(stage))))
            known = _reads_only(part, constants)
            before = lt(starts[known], add(loop.min, loop.extent))
            ahead[known].append(IfThenElse(before, fresh_copy(placed, {loop.var: starts[known]})))
        body.append(IfThenElse(all_of(conditions), moved) if conditions else moved)
        if asynchronous and ordered and number == last_copies:
            body.append(Evaluate(async_commit()))
            ahead[not ahead[False]].append(Evaluate(async_commit()))
    if not peeled:
        extent = add(loop.extent, const(depth))
        return loop.replace(var=time, extent=extent, body=seq(*body), annotations=notes)
    order = {ORDERED.name: notes[ORDERED.name]}
    first = [
        For(starts[known], loop.min, const(depth), LoopKind.SERIAL, seq(*work), annotations=order)
        for known, work in ahead.items()
        if work
    ]
    rest = loop.replace(var=time, min=add(loop.min, const(depth)), body=seq(*body), annotations=notes)
    return seq(*first, rest)


def _meeting(loop: For, ordered: dict[Buffer, int], asynchronous: bool, notes: dict[str, object]) -> list[Stmt]:
    """Where threads wait for each other at the start of an iteration; what later passes must know is noted."""
    notes |= ORDERED.entry(tuple(sorted(buffer.name for buffer in ordered)))
    body: list[Stmt] = []
    if asynchronous:
        body.append(Evaluate(async_wait(min(ordered.values()) - 1)))
    if any(isinstance(item, Call) and reads_by_itself(item.name) for item in pre_order(loop.body)):
        body.append(Evaluate(machine_call(FENCE)))
        # Steps are many instructions, and NVIDIA's compiler follows products through loops best as they are.
        notes |= ROLLED.entry(True)
    body.append(Evaluate(barrier("shared")))
    return body


def _can_interleave(loop: For) -> bool:
    several = isinstance(loop.extent, IntImm) and loop.extent.value > 1
    return several and not _has_threads(loop.body)


def _interleaved(
    loop: For, parts: Sequence[tuple[int, Stmt]], allocations: Sequence[Buffer], versions: dict[Buffer, Buffer]
) -> Stmt:
    """Two stages: the first's first iteration, both with one iteration between them, the second's last iteration."""
    tiles: list[Buffer] = []
    stages: dict[int, list[Stmt]] = {0: [], 1: []}
    for stage, part in parts:
        plain, lifted = without_tiles(_Versions(versions, sub(loop.var, loop.min)).stmt(part))
        tiles += lifted
        stages[stage].append(plain)

    def at(stage: int, iteration: PrimExpr) -> list[Stmt]:
        return [fresh_copy(part, {loop.var: iteration}) for part in stages[stage]]

    time = Var(loop.var.name, loop.var.dtype)
    notes = without(loop, PIPELINE, WOVEN)
    end = add(loop.min, loop.extent)
    body = interleaved(at(0, time), at(1, sub(time, const(1))))
    start, rest = add(loop.min, const(1)), sub(loop.extent, const(1))
    main = loop.replace(var=time, min=start, extent=rest, body=body, annotations=notes)
    result = seq(*at(0, loop.min), main, *at(1, sub(end, const(1))))
    for buffer in (*tiles, *allocations):
        result = Allocate(versions.get(buffer, buffer), result)
    return result


def _has_threads(stmt: Stmt) -> bool:
    return any(isinstance(item, For) and item.kind is LoopKind.THREAD for item in all_statements(stmt))


def _ordered(parts: Sequence[tuple[int, Stmt]], allocations: Sequence[Buffer]) -> dict[Buffer, int]:
    """The buffers that one stage writes and later ones read, with the iterations between the two.

    All that the loop's stages exchange, or nothing: then barriers are placed where they are needed.
    """
    distances: dict[Buffer, int] = {}
    for buffer in allocations:
        stages = {stage for stage, part in parts if touches(buffer, part)}
        writes = {stage for stage, part in parts if _writes(buffer, part)}
        reads = {stage for stage, part in parts if _reads(buffer, part)}
        if len(stages) == 1:
            continue
        if len(writes) != 1 or not reads or min(reads) <= max(writes) or buffer.scope != "shared":
            return {}
        distances[buffer] = min(reads) - max(writes)
    return distances


def _writes(buffer: Buffer, stmt: Stmt) -> bool:
    return any(
        (isinstance(item, BufferStore) and item.buffer is buffer)
        or (
            isinstance(item, Call)
            and item.name == "access_ptr"
            and isinstance(item.args[1], BufferLoad)
            and item.args[1].buffer is buffer
            and not (isinstance(item.args[0], StringImm) and "w" not in item.args[0].value)
        )
        for item in pre_order(stmt)
    )


def _reads(buffer: Buffer, stmt: Stmt) -> bool:
    return any(isinstance(item, BufferLoad) and item.buffer is buffer for item in pre_order(stmt))


class _Asynchronous(StmtRewriter):
    """Plain copies from global memory to the buffers between stages need not be waited for."""

    def __init__(self, ordered: dict[Buffer, int]) -> None:
        self._ordered = ordered

    def visit_store(self, stmt: BufferStore) -> Stmt:
        if stmt.buffer in self._ordered and _is_copy(stmt.value):
            return stmt.replace(value=async_copy(stmt.value))
        return stmt


def _is_copy(value: PrimExpr) -> bool:
    """Whether a value is an element of global memory, or zero under some condition."""
    if isinstance(value, Select):
        return _is_copy(value.a) and isinstance(value.b, (IntImm, FloatImm)) and value.b.value == 0
    return isinstance(value, BufferLoad) and value.buffer.scope == "global"


def _reads_only(stmt: Stmt, constants: Collection[Buffer]) -> bool:
    """Whether all that a statement reads of global memory are constants."""
    loads = (item.buffer for item in pre_order(stmt) if isinstance(item, BufferLoad))
    return all(buffer in constants for buffer in loads if buffer.scope == "global")


def _speak_in_private(parts: Sequence[tuple[int, Stmt]], allocations: Sequence[Buffer]) -> bool:
    """Whether all that is written and touched in several stages lives within one iteration."""
    written = {buffer for _, part in parts for buffer in _written(part)}
    return all(
        buffer in allocations or len({stage for stage, part in parts if touches(buffer, part)}) == 1
        for buffer in written
    )


def _staged(body: Stmt, allocations: list[Buffer]) -> list[tuple[int, int | None, Stmt]]:
    """The statements of a body with their stages and places; an init that was put before a statement goes with it."""
    flat: list[Stmt] = []

    def visit(stmt: Stmt) -> None:
        if isinstance(stmt, Allocate):
            allocations.append(stmt.buffer)
            visit(stmt.body)
        elif isinstance(stmt, SeqStmt):
            for item in stmt.stmts:
                visit(item)
        else:
            flat.append(stmt)

    visit(body)
    result: list[tuple[int, int | None, Stmt]] = []
    stage: int | None = None
    place: int | None = None
    for stmt in reversed(flat):
        if isinstance(stmt, For) and STAGE.is_on(stmt):
            stage, place = STAGE.of(stmt), ORDER.of(stmt)
            stmt = stmt.replace(annotations=without(stmt, STAGE, ORDER))
        result.append((-1 if stage is None else stage, place, stmt))
    # What was put after everything else runs with the last stage.
    last = max([0, *(stage for stage, _, _ in result)])
    return [(last if stage < 0 else stage, place, stmt) for stage, place, stmt in reversed(result)]


def _in_order(parts: Sequence[tuple[int, int | None, Stmt]]) -> list[tuple[int, Stmt]]:
    """The statements in the order that was asked for, if all have a place and none of a stage passes what it needs."""
    plain = [(stage, part) for stage, _, part in parts]
    places = [place for _, place, _ in parts if place is not None]
    if len(places) < len(parts):
        return plain
    order = sorted(range(len(parts)), key=lambda number: (places[number], number))
    rank = {number: position for position, number in enumerate(order)}
    for late, (stage, part) in enumerate(plain):
        for early, (other_stage, other) in enumerate(plain[:late]):
            if stage == other_stage and rank[late] < rank[early] and _depend(other, part):
                return plain
    return [plain[number] for number in order]


def _depend(a: Stmt, b: Stmt) -> bool:
    """Whether one statement writes a buffer that the other touches."""
    return any(touches(buffer, b) for buffer in _written(a)) or any(touches(buffer, a) for buffer in _written(b))


def _written(stmt: Stmt) -> set[Buffer]:
    """The buffers that a statement writes, directly or through an address."""
    written = {item.buffer for item in all_statements(stmt) if isinstance(item, BufferStore)}
    for item in pre_order(stmt):
        if isinstance(item, Call) and item.name == "access_ptr" and isinstance(item.args[1], BufferLoad):
            mode = item.args[0]
            if not isinstance(mode, StringImm) or "w" in mode.value:
                written.add(item.args[1].buffer)
    return written


class _Versions(StmtRewriter):
    """Accesses go to the copy of the iteration."""

    def __init__(self, versions: dict[Buffer, Buffer], iteration: PrimExpr) -> None:
        self._versions = {old: new for old, new in versions.items() if old is not new}
        self._iteration = iteration
        self.expr = ExprRewriter(self._load, of_memory=True)  # type: ignore[method-assign]

    def _copy(self, buffer: Buffer) -> PrimExpr:
        return floormod(self._iteration, self._versions[buffer].shape[0])

    def _load(self, expr: PrimExpr) -> PrimExpr | None:
        if isinstance(expr, BufferLoad) and expr.buffer in self._versions:
            return BufferLoad(self._versions[expr.buffer], (self._copy(expr.buffer), *expr.indices))
        return None

    def visit_store(self, stmt: BufferStore) -> Stmt:
        indices, value = self.exprs(stmt.indices), self.expr(stmt.value)
        if stmt.buffer not in self._versions:
            return stmt.replace(indices=indices, value=value)
        return stmt.replace(
            buffer=self._versions[stmt.buffer], indices=(self._copy(stmt.buffer), *indices), value=value
        )
