"""Operands in an order of a block's own iterators: reindex, reindex_cache_read, reindex_cache_write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.itermap import detect_iter_map
from tilewright.ir.build import const
from tilewright.ir.expr import And, Or, PrimExpr, Range, Select, Var, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, substitute, transform, variables
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.analysis.dependence import consumers
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.cache import finish_staging, pick_buffer, place_beside, require_scope
from tilewright.tir.schedule.placement import build_nest
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.schedule.updates import always_writes
from tilewright.tir.stmt import Block, BlockIter, BufferStore, IfThenElse, IterKind, Stmt, While


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
    place = tuple(item.var for item in used)
    return _stage(state, block, _Staging(buffer, staged, indices, place, used, mode, what))


def reindex_cache(
    state: ScheduleState, block: Block, choice: int | str, mode: str, scope: str, index_map: IndexMap
) -> str:
    """Stage an operand in another scope, where its indices are what a map makes of the block's iterators.

    for i, j, k: C[i, j] += A[i, k] * W[k, j]   ->   for i, k: A_shared[k // 4, i, k % 4] = A[i, k]
                                                     for i, j, k: C[i, j] += A_shared[k // 4, i, k % 4] * W[k, j]
    by reindex_cache_read(C, "A", "shared", lambda i, j, k: (k // 4, i, k % 4)).

    The map uses the iterators that move the operand, and keeps its elements apart.
    """
    what = f"reindex_cache_{mode}"
    require_scope(state, block, scope, what)
    buffer = pick_buffer(state, block, block.reads if mode == "read" else block.writes, choice, what)
    if not state.is_regular(block.name):
        state.fail(
            f"{what}: the loops around block {block.name} do not visit exactly the domains of its iterators", block
        )
    indices = _only_access(state, block, buffer, mode, what)
    used = [item for item in block.iters if any(item.var in variables(index) for index in indices)]
    place = index_map.apply([item.var for item in block.iters])
    allowed = {item.var for item in used}
    for var in (var for index in place for var in variables(index)):
        if var not in allowed:
            state.fail(f"{what}: the map uses the iterator {var.name}, which does not move {buffer.name}", block)
    domains = {item.var: item.domain for item in used}
    iter_map = detect_iter_map(place, domains)
    if iter_map is None or not iter_map.injective:
        state.fail(
            f"{what}: the map does not provably keep the elements apart that block {block.name} accesses",
            block,
            "use maps made of i, i // c, i % c and fused indices i * n + j, of every iterator that moves the buffer",
        )
    staged = _arranged(state, block, buffer, place, domains, scope, what)
    return _stage(state, block, _Staging(buffer, staged, indices, place, used, mode, what))


def _arranged(
    state: ScheduleState,
    block: Block,
    buffer: Buffer,
    place: Sequence[PrimExpr],
    domains: Mapping[Var, Range],
    scope: str,
    what: str,
) -> Buffer:
    """A buffer of a scope that holds every place."""
    analyzer = Analyzer()
    for var, domain in domains.items():
        analyzer.bind(var, domain)
    shape: list[PrimExpr] = []
    for index in place:
        if isinstance(index, Var) and index in domains and const_value(domains[index].min) == 0:
            # An iterator as it is, whose extent may be open.
            shape.append(domains[index].extent)
            continue
        bounds = analyzer.bounds(index)
        if bounds.lower is None or bounds.upper is None or bounds.lower < 0:
            state.fail(f"{what}: the new indices of {buffer.name} are not provably within bounds", block)
        shape.append(const(bounds.upper + 1))
    name = state.fresh_buffer_name(f"{buffer.name}_{scope.replace('.', '_')}")
    return Buffer(name, tuple(shape), buffer.dtype, scope)


@dataclass(frozen=True, slots=True)
class _Staging:
    """An operand, where a block accesses it, and where its copy has it: all in terms of the block's iterators."""

    buffer: Buffer
    staged: Buffer
    indices: tuple[PrimExpr, ...]
    place: tuple[PrimExpr, ...]
    used: Sequence[BlockIter]
    mode: str
    what: str


def _stage(state: ScheduleState, block: Block, item: _Staging) -> str:
    name = state.fresh_block_name(item.staged.name)
    state.mark_regular(name)
    if item.mode == "read":
        _stage_read(state, block, item, name)
    else:
        _stage_write(state, block, item, name)
    return name


def _only_access(state: ScheduleState, block: Block, buffer: Buffer, mode: str, what: str) -> tuple[PrimExpr, ...]:
    accesses: dict[tuple[PrimExpr, ...], None] = {}
    for stmt in (block.body, block.init):
        for item in () if stmt is None else pre_order(stmt):
            if isinstance(item, Block):
                state.fail(f"{what}: block {block.name} holds other blocks", block)
            kinds = (BufferLoad,) if mode == "read" else (BufferLoad, BufferStore)
            if isinstance(item, kinds) and item.buffer is buffer:
                accesses.setdefault(item.indices)
    if len(accesses) != 1:
        state.fail(f"{what}: block {block.name} accesses {buffer.name} at {len(accesses)} different places", block)
    (indices,) = accesses
    if any(isinstance(item, BufferLoad) for index in indices for item in pre_order(index)):
        state.fail(f"{what}: an index of {buffer.name} is read from memory", block)
    if mode == "read" and is_conditional(block.body, buffer) and not _is_inside(block, buffer, indices):
        state.fail(
            f"{what}: block {block.name} reads {buffer.name} only where a condition holds",
            block,
            "copy it with the condition in a stage of its own first",
        )
    return indices


def _is_inside(block: Block, buffer: Buffer, indices: Sequence[PrimExpr]) -> bool:
    """Whether an access is within the buffer wherever the block is, so that no condition needs to guard it."""
    analyzer = Analyzer()
    for item in block.iters:
        analyzer.bind(item.var, item.domain)
    places = zip(indices, buffer.shape, strict=True)
    return all(analyzer.prove_nonnegative(at) and analyzer.prove_less(at, extent) for at, extent in places)


def is_conditional(body: Stmt, buffer: Buffer) -> bool:
    """Whether some read of a buffer happens only where a condition holds."""
    guards = [item for item in pre_order(body) if isinstance(item, (Select, And, Or, IfThenElse, While))]
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


def _stage_read(state: ScheduleState, block: Block, item: _Staging, name: str) -> None:
    what, buffer = item.what, item.buffer
    if any(region.buffer is buffer for region in block.writes):
        state.fail(f"{what}: block {block.name} also writes {buffer.name}", block)
    writers = state.index.scope(block).writers_of(buffer)
    for writer in writers:
        if state.index.position(writer) > state.index.position(block):
            state.fail(f"{what}: block {writer.name} writes {buffer.name} later", writer)
    iters, mapping = _fresh_iters(item.used)
    load = BufferLoad(buffer, tuple(substitute(index, mapping) for index in item.indices))
    body = BufferStore(item.staged, tuple(substitute(index, mapping) for index in item.place), load)
    copy = with_detected_accesses(Block(name, iters, (), (), body))
    where, number = place_beside(state, block, writers)
    if not isinstance(where, Block):
        state.fail(f"{what}: block {block.name} shares loops with the blocks that write {buffer.name}", block)
    nest = build_nest(state, copy, {}, preserve_unit_loops=True)
    changed = _swapped(block, buffer, item.staged, item.place)
    finish_staging(state, where, number, nest, {block: changed}, [item.staged], [name, block.name], what)


def _stage_write(state: ScheduleState, block: Block, item: _Staging, name: str) -> None:
    what, buffer, used = item.what, item.buffer, item.used
    if any(writer is not block for writer in state.index.scope(block).writers_of(buffer)):
        state.fail(f"{what}: {buffer.name} is written by other blocks too", block)
    if any(region.buffer is buffer for region in block.reads):
        state.fail(f"{what}: block {block.name} reads {buffer.name}, which it writes", block)
    if not always_writes(block, buffer):
        state.fail(f"{what}: block {block.name} writes {buffer.name} only where a condition inside it holds", block)
    idle = [entry for entry in block.iters if entry.kind is IterKind.SPATIAL and entry not in used]
    if any(const_value(entry.domain.extent) != 1 for entry in idle):
        state.fail(f"{what}: iterator {idle[0].var.name} of block {block.name} does not move what it writes", block)
    domains = {entry.var: Range(entry.domain.min, entry.domain.extent) for entry in used}
    iter_map = detect_iter_map(item.indices, domains)
    if iter_map is None or not iter_map.injective:
        state.fail(f"{what}: different instances of block {block.name} may write the same element", block)
    iters, mapping = _fresh_iters(used)
    target = tuple(substitute(index, mapping) for index in item.indices)
    source = tuple(substitute(index, mapping) for index in item.place)
    body = BufferStore(buffer, target, BufferLoad(item.staged, source))
    copy = with_detected_accesses(Block(name, iters, (), (), body))
    readers = consumers(state.index, block)
    where, number = place_beside(state, block, readers)
    if not isinstance(where, Block):
        state.fail(f"{what}: block {block.name} shares loops with the blocks that read {buffer.name}", block)
    nest = build_nest(state, copy, {}, preserve_unit_loops=True)
    changed = _swapped(block, buffer, item.staged, item.place)
    affected = [name, *(reader.name for reader in readers)]
    finish_staging(state, where, number + 1, nest, {block: changed}, [item.staged], affected, what)
