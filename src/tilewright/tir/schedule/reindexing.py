"""Operands in the order of a block's own iterators: reindex."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arith.itermap import detect_iter_map
from tilewright.ir.expr import And, Or, PrimExpr, Range, Select, Var, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, substitute, transform, variables
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.analysis.dependence import consumers
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.schedule.cache import finish_staging, pick_buffer, place_beside
from tilewright.tir.schedule.placement import build_nest
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, BlockIter, BufferStore, IfThenElse, IterKind, Stmt


def reindex(state: ScheduleState, block: Block, choice: int | str, mode: str) -> str:
    """Give a block an operand whose indices are the block's iterators themselves; gives the copying block.

    for i, j, k: C[i, j] += A[i * 2 + k] * W[k]    ->   for i, k: A_reindex[i, k] = A[i * 2 + k]
                                                        for i, j, k: C[i, j] += A_reindex[i, k] * W[k]

    `mode` is "read" or "write". The buffer must be accessed at one place. After it, operands have the plain form that
    layouts and intrinsics are made for.
    """
    what = "reindex"
    if mode not in ("read", "write"):
        state.fail(f"{what}: the mode {mode!r} is not read or write", block)
    regions = block.reads if mode == "read" else block.writes
    buffer = pick_buffer(state, block, regions, choice, what)
    if not state.is_regular(block.name):
        state.fail(
            f"{what}: the loops around block {block.name} do not visit exactly the domains of its iterators", block
        )
    indices = _only_access(state, block, buffer, mode, what)
    used = [item for item in block.iters if any(item.var in variables(index) for index in indices)]
    for item in used:
        if const_value(item.domain.extent) is None or const_value(item.domain.min) != 0:
            state.fail(f"{what}: the domain of iterator {item.var.name} is not constant from 0", block)
    shape = tuple(item.domain.extent for item in used)
    staged = Buffer(state.fresh_buffer_name(f"{buffer.name}_reindex"), shape, buffer.dtype, buffer.scope)
    name = state.fresh_block_name(staged.name)
    state.mark_regular(name)
    if mode == "read":
        _reindex_read(state, block, buffer, staged, indices, used, name)
    else:
        _reindex_write(state, block, buffer, staged, indices, used, name)
    return name


def _only_access(state: ScheduleState, block: Block, buffer: Buffer, mode: str, what: str) -> tuple[PrimExpr, ...]:
    found: dict[tuple[PrimExpr, ...], None] = {}
    for stmt in (block.body, block.init):
        for item in () if stmt is None else pre_order(stmt):
            if isinstance(item, Block):
                state.fail(f"{what}: block {block.name} holds other blocks", block)
            wanted = (BufferLoad,) if mode == "read" else (BufferLoad, BufferStore)
            if isinstance(item, wanted) and item.buffer is buffer:
                found.setdefault(item.indices)
    if len(found) != 1:
        state.fail(f"{what}: block {block.name} accesses {buffer.name} at {len(found)} different places", block)
    (indices,) = found
    if any(isinstance(item, BufferLoad) for index in indices for item in pre_order(index)):
        state.fail(f"{what}: an index of {buffer.name} is read from memory", block)
    if mode == "read" and _is_conditional(block.body, buffer):
        state.fail(
            f"{what}: block {block.name} reads {buffer.name} only where a condition holds",
            block,
            "copy it with the condition in a stage of its own first",
        )
    return indices


def _is_conditional(body: Stmt, buffer: Buffer) -> bool:
    """Whether some read of a buffer happens only where a condition holds."""
    guards = [item for item in pre_order(body) if isinstance(item, (Select, And, Or, IfThenElse))]
    inside = [item for guard in guards for item in pre_order(guard)]
    return any(isinstance(item, BufferLoad) and item.buffer is buffer for item in inside)


def _fresh_iters(used: Sequence[BlockIter]) -> tuple[tuple[BlockIter, ...], dict[Var, PrimExpr]]:
    iters = tuple(BlockIter(Var(item.var.name), item.domain, IterKind.SPATIAL, item.domain.min) for item in used)
    return iters, {old.var: new.var for old, new in zip(used, iters, strict=True)}


def _swapped(block: Block, old: Buffer, new: Buffer, place: tuple[PrimExpr, ...]) -> Block:
    def visit(item: Node) -> Node | None:
        if isinstance(item, BufferLoad) and item.buffer is old:
            return BufferLoad(new, place)
        if isinstance(item, BufferStore) and item.buffer is old:
            return BufferStore(new, place, item.value)
        return None

    body = transform(block.body, visit)
    init = None if block.init is None else transform(block.init, visit)
    return with_detected_accesses(block.replace(body=body, init=init))


def _reindex_read(
    state: ScheduleState,
    block: Block,
    buffer: Buffer,
    staged: Buffer,
    indices: tuple[PrimExpr, ...],
    used: Sequence[BlockIter],
    name: str,
) -> None:
    what = "reindex"
    if any(region.buffer is buffer for region in block.writes):
        state.fail(f"{what}: block {block.name} also writes {buffer.name}", block)
    writers = state.index.scope(block).writers_of(buffer)
    for writer in writers:
        if state.index.position(writer) > state.index.position(block):
            state.fail(f"{what}: block {writer.name} writes {buffer.name} later", writer)
    iters, mapping = _fresh_iters(used)
    load = BufferLoad(buffer, tuple(substitute(index, mapping) for index in indices))
    body = BufferStore(staged, tuple(item.var for item in iters), load)
    copy = with_detected_accesses(Block(name, iters, (), (), body))
    where, number = place_beside(state, block, writers)
    if not isinstance(where, Block):
        state.fail(f"{what}: block {block.name} shares loops with the blocks that write {buffer.name}", block)
    nest = build_nest(state, copy, {}, preserve_unit_loops=True)
    place = tuple(item.var for item in used)
    changed = _swapped(block, buffer, staged, place)
    finish_staging(state, where, number, nest, {block: changed}, [staged], [name, block.name], what)


def _reindex_write(
    state: ScheduleState,
    block: Block,
    buffer: Buffer,
    staged: Buffer,
    indices: tuple[PrimExpr, ...],
    used: Sequence[BlockIter],
    name: str,
) -> None:
    what = "reindex"
    if any(writer is not block for writer in state.index.scope(block).writers_of(buffer)):
        state.fail(f"{what}: {buffer.name} is written by other blocks too", block)
    if any(region.buffer is buffer for region in block.reads):
        state.fail(f"{what}: block {block.name} reads {buffer.name}, which it writes", block)
    idle = [item for item in block.iters if item.kind is IterKind.SPATIAL and item not in used]
    if any(const_value(item.domain.extent) != 1 for item in idle):
        state.fail(f"{what}: iterator {idle[0].var.name} of block {block.name} does not move what it writes", block)
    domains = {item.var: Range(item.domain.min, item.domain.extent) for item in used}
    found = detect_iter_map(indices, domains)
    if found is None or not found.injective:
        state.fail(f"{what}: different instances of block {block.name} may write the same element", block)
    iters, mapping = _fresh_iters(used)
    target = tuple(substitute(index, mapping) for index in indices)
    body = BufferStore(buffer, target, BufferLoad(staged, tuple(item.var for item in iters)))
    copy = with_detected_accesses(Block(name, iters, (), (), body))
    readers = consumers(state.index, block)
    where, number = place_beside(state, block, readers)
    if not isinstance(where, Block):
        state.fail(f"{what}: block {block.name} shares loops with the blocks that read {buffer.name}", block)
    nest = build_nest(state, copy, {}, preserve_unit_loops=True)
    changed = _swapped(block, buffer, staged, tuple(item.var for item in used))
    affected = [name, *(reader.name for reader in readers)]
    finish_staging(state, where, number + 1, nest, {block: changed}, [staged], affected, what)
