"""Sums that begin at what is added to them (start_at_addend)."""

from __future__ import annotations

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import add, all_of, le, lt
from tilewright.ir.expr import ZERO, Add, Call, Div, FloorDiv, FloorMod, Mod, PrimExpr, const_value
from tilewright.ir.intrinsics import is_pure
from tilewright.ir.visit import pre_order, substitute, uses_any
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.analysis.dependence import consumers, moved_flow_conflict
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.schedule.compute_location import require_movable
from tilewright.tir.schedule.inline import reader_mapping, with_replaced
from tilewright.tir.schedule.reducer import match_reducer, starts_at_identity
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, BufferStore, IterKind, LoopKind


def find_addend(reader: Block, buffer: Buffer) -> tuple[Add, BufferLoad, PrimExpr] | None:
    """The addition that all of a block's reads of a buffer are part of: it, the element read, and what is added."""
    loads = {item for item in pre_order(reader) if isinstance(item, BufferLoad) and item.buffer is buffer}
    if len(loads) != 1:
        return None
    (load,) = loads
    around = {item for item in pre_order(reader) if any(child is load for child in item.children())}
    if len(around) != 1:
        return None
    (total,) = around
    if not isinstance(total, Add):
        return None
    addend = total.b if total.a is load else total.a
    return None if addend is load else (total, load, addend)


def start_at_addend(state: ScheduleState, block: Block) -> None:
    """Begin the sums of a reduction at what its consumer adds to them, instead of at zero.

    C[i] = 0, then C[i] += A[i, k];  D[i] = max(C[i] + b[i], 0)
      ->  C[i] = b[i], then C[i] += A[i, k];  D[i] = max(C[i], 0)

    Sums of integers are the same. Those of floats are rounded in another order: the addend takes part in every partial
    sum and not only in the last one, which is as good as any order of a reduction's steps, of which none is fixed.
    """
    what = "start_at_addend"
    require_movable(state, block, what)
    matched, init = match_reducer(block), block.init
    is_sum = matched is not None and len(matched.results) == 1 and isinstance(matched.results[0], Add)
    if matched is None or not is_sum or not isinstance(init, BufferStore):
        state.fail(f"{what}: block {block.name} is not a sum with an init", block)
    for loop in state.index.loops_above(block):
        reduces = any(item.kind is IterKind.REDUCE and uses_any(item.value, [loop.var]) for item in block.iters)
        if reduces and loop.kind is LoopKind.THREAD:
            state.fail(f"{what}: every thread of loop {loop.var.name} would begin at the addend", loop)
    target = matched.stores[0]
    if state.is_parameter(target.buffer):
        state.fail(f"{what}: {target.buffer.name} is a parameter of the function: nothing is added to it here", block)
    readers = consumers(state.index, block)
    if len(readers) != 1:
        state.fail(f"{what}: {len(readers)} blocks read what block {block.name} writes, it must be one", block)
    (reader,) = readers
    found = find_addend(reader, target.buffer)
    if found is None:
        state.fail(f"{what}: block {reader.name} does more with {target.buffer.name} than add to it", reader)
    total, load, addend = found
    mapping, conditions = reader_mapping(state, reader, load, block, target, what)
    if conditions:
        state.fail(f"{what}: block {reader.name} does not read every sum of block {block.name}", reader)
    start = substitute(addend, mapping)
    require_defined(state, block, start, what)
    first = start if starts_at_identity(block, matched) else add(init.value, start)
    summed = with_detected_accesses(block.replace(init=BufferStore(init.buffer, init.indices, first)))
    changed = with_replaced(reader, lambda item: load if item is total else None)
    candidate = state.index_of(state.edited({block: summed, reader: changed}))
    conflict = moved_flow_conflict(state.index, candidate, block.name, state.analyzer)
    if conflict is not None:
        state.fail(f"{what}: {conflict.reason}", block)
    state.commit_index(candidate)


def require_defined(state: ScheduleState, block: Block, start: PrimExpr, what: str) -> None:
    """What a sum begins at is computed for every element, whatever condition it stood under: it must be possible."""
    analyzer = Analyzer()
    for item in block.iters:
        analyzer.bind(item.var, item.domain)
    for part in pre_order(start):
        if isinstance(part, BufferLoad):
            inside = [all_of([le(ZERO, n), lt(n, dim)]) for n, dim in zip(part.indices, part.buffer.shape, strict=True)]
            if not analyzer.prove(all_of(inside)):
                state.fail(f"{what}: the addend may read past the end of {part.buffer.name}", block)
        elif isinstance(part, Call) and not is_pure(part):
            state.fail(f"{what}: the addend calls {part.name}, which may do more than give a value", block)
        elif isinstance(part, (Div, Mod, FloorDiv, FloorMod)) and not part.dtype.is_float and not const_value(part.b):
            state.fail(f"{what}: the addend divides by what may be zero", block)
