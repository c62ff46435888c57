"""Inlining: a producer into its consumers (compute_inline), a consumer into its producer (reverse_compute_inline)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.ir.expr import PrimExpr, Var, is_const_int
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, substitute, transform
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.analysis.dependence import consumers, moved_flow_conflict, producers
from tilewright.tir.analysis.regions import within
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.schedule.compute_location import require_movable
from tilewright.tir.schedule.placement import single_iterator, total_range
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, BufferStore, Stmt


def _single_store(state: ScheduleState, block: Block, what: str) -> BufferStore:
    """The one store of an elementwise block."""
    if block.is_reduction or block.init is not None:
        state.fail(
            f"{what}: block {block.name} is a reduction",
            block,
            "only blocks that compute each element from one expression can be inlined",
        )
    if not isinstance(block.body, BufferStore):
        state.fail(f"{what}: the body of block {block.name} is not a single store", block)
    return block.body


def _inverse_access(
    state: ScheduleState, block: Block, indices: tuple[PrimExpr, ...], what: str
) -> dict[Var, tuple[int, int]]:
    """For each iterator: the dimension whose index is `iterator + constant`, and the constant."""
    iters = {item.var: item for item in block.iters}
    places: dict[Var, tuple[int, int]] = {}
    for dimension, index in enumerate(indices):
        if not any(type(item) is Var for item in pre_order(index)):
            continue
        found = single_iterator(index, iters)
        if found is None or found[0].var in places:
            state.fail(
                f"{what}: dimension {dimension} of the access of block {block.name} is not one iterator of its own",
                block,
            )
        places[found[0].var] = (dimension, found[1])
    for item in block.iters:
        if item.var not in places and not is_const_int(item.domain.extent, 1):
            state.fail(f"{what}: the access of block {block.name} does not settle its iterator {item.var.name}", block)
    return places


def _require_intermediate(state: ScheduleState, buffer: Buffer, block: Block, what: str) -> None:
    if state.is_parameter(buffer):
        state.fail(f"{what}: {buffer.name} is a parameter of the function: it must be written", block)


def _without_allocation(buffer: Buffer, owner: Block) -> Block:
    kept = tuple(item for item in owner.allocations if item is not buffer)
    return owner if len(kept) == len(owner.allocations) else owner.replace(allocations=kept)


def _commit(
    state: ScheduleState, edits: Mapping[Stmt, Stmt | None], gone: Buffer, affected: list[str], what: str
) -> None:
    func = state.edited(edits, lambda root: without_buffer(root, gone))
    candidate = state.index_of(func)
    for name in affected:
        conflict = moved_flow_conflict(state.index, candidate, name, state.analyzer)
        if conflict is not None:
            state.fail(f"{what}: {conflict.reason}", state.index.blocks.get(name))
    state.commit_index(candidate)


def without_buffer(root: Block, buffer: Buffer) -> Block:
    """A program without the allocation of a buffer (allocations stand in the root or in a block around its users)."""
    if any(item is buffer for item in root.allocations):
        return _without_allocation(buffer, root)

    def visit(item: Node) -> Node | None:
        return _without_allocation(buffer, item) if isinstance(item, Block) else None

    return transform(root, visit)


def compute_inline(state: ScheduleState, block: Block) -> None:
    """B[i] = A[i] + 1; C[i] = B[i] * 2  ->  C[i] = (A[i] + 1) * 2."""
    what = "compute_inline"
    require_movable(state, block, what)
    store = _single_store(state, block, what)
    _require_intermediate(state, store.buffer, block, what)
    places = _inverse_access(state, block, store.indices, what)
    index = state.index
    readers = consumers(index, block)
    if not readers:
        state.fail(f"{what}: nothing reads what block {block.name} writes", block)
    _require_stable_inputs(state, block, what)
    fixed: dict[Var, PrimExpr] = {item.var: item.domain.min for item in block.iters if item.var not in places}

    def replace(item: Node) -> Node | None:
        if not isinstance(item, BufferLoad) or item.buffer is not store.buffer:
            return None
        mapping = dict(fixed)
        for var, (dimension, offset) in places.items():
            mapping[var] = item.indices[dimension].astype(var.dtype) - offset
        return substitute(store.value, mapping)

    edits: dict[Stmt, Stmt | None] = {block: None}
    for reader in readers:
        edits[reader] = with_replaced(reader, replace)
    _commit(state, edits, store.buffer, [reader.name for reader in readers], what)


def with_replaced(block: Block, replace: Callable[[Node], Node | None]) -> Block:
    """A block with nodes of its body and init replaced, and the accesses that it then has."""

    def visit(item: Node) -> Node | None:
        # A block inside reads something else now, too.
        return with_detected_accesses(item) if isinstance(item, Block) else replace(item)

    body = transform(block.body, visit)
    init = None if block.init is None else transform(block.init, visit)
    return with_detected_accesses(block.replace(body=body, init=init))


def _require_stable_inputs(state: ScheduleState, block: Block, what: str) -> None:
    """What a block reads must not be written again after it: its consumers would see the new values."""
    index = state.index
    scope = index.scope(block)
    for region in block.reads:
        for writer in scope.writers_of(region.buffer):
            if index.position(writer) > index.position(block):
                state.fail(
                    f"{what}: block {writer.name} writes {region.buffer.name} after block {block.name} has read it",
                    block,
                )


def reverse_compute_inline(state: ScheduleState, block: Block) -> None:
    """B[i] = A[i] + 1; C[i] = B[i] * 2  ->  C[i] = (A[i] + 1) * 2, at the place of B."""
    what = "reverse_compute_inline"
    require_movable(state, block, what)
    store = _single_store(state, block, what)
    source = _only_source(state, block, what)
    require_movable(state, source, what)
    inner = _single_store(state, source, what)
    _require_intermediate(state, inner.buffer, source, what)
    loads = {item for item in pre_order(store.value) if isinstance(item, BufferLoad) and item.buffer is inner.buffer}
    if len(loads) != 1:
        state.fail(f"{what}: block {block.name} reads {inner.buffer.name} at {len(loads)} different indices", block)
    (load,) = loads
    mapping = reader_mapping(state, block, load, source, inner, what)
    # The consumer's variables go first: the producer's expression, put in afterwards, is in the producer's own.
    target = substitute(load, mapping)

    def replace(item: Node) -> Node | None:
        return inner.value if item is target else None

    value = transform(substitute(store.value, mapping), replace)
    body = BufferStore(store.buffer, tuple(substitute(index, mapping) for index in store.indices), value)
    merged = with_detected_accesses(source.replace(body=body, annotations={**source.annotations, **block.annotations}))
    readers = [item.name for item in consumers(state.index, block)]
    _commit(state, {block: None, source: merged}, inner.buffer, [source.name, *readers], what)


def reader_mapping(
    state: ScheduleState, reader: Block, load: BufferLoad, source: Block, store: BufferStore, what: str
) -> dict[Var, PrimExpr]:
    """The iterators of a block that reads each element that another stores, in the other one's iterators."""
    places = _inverse_access(state, reader, load.indices, what)
    _require_same_elements(state, reader, source, store.buffer, what)
    mapping: dict[Var, PrimExpr] = {item.var: item.domain.min for item in reader.iters if item.var not in places}
    for var, (dimension, offset) in places.items():
        mapping[var] = store.indices[dimension] - offset
    return mapping


def _only_source(state: ScheduleState, block: Block, what: str) -> Block:
    """The producer that a consumer can be inlined into: elementwise, with no other consumer."""
    index = state.index
    sources = producers(index, block)
    candidates = [
        item
        for item in sources
        if not item.is_reduction and item.init is None and all(r is block for r in consumers(index, item))
    ]
    if not candidates:
        reduction = next((item for item in sources if item.is_reduction), None)
        state.fail(
            f"{what}: block {block.name} has no producer that it alone reads and that is not a reduction",
            block,
            None if reduction is None else f"use reverse_compute_at to run it beside the reduction {reduction.name}",
        )
    return candidates[-1]


def _require_same_elements(state: ScheduleState, block: Block, source: Block, buffer: Buffer, what: str) -> None:
    """The consumer must read exactly the elements that the producer writes: no fewer, no more."""
    read = next(region for region in block.reads if region.buffer is buffer)
    write = next(region for region in source.writes if region.buffer is buffer)
    for dimension in range(buffer.ndim):
        reading = total_range(read, dimension, block) or read.region[dimension]
        writing = total_range(write, dimension, source) or write.region[dimension]
        same = within(reading, writing, state.analyzer) and within(writing, reading, state.analyzer)
        if not same:
            state.fail(
                f"{what}: block {block.name} does not read exactly the elements of {buffer.name} that block "
                f"{source.name} writes (dimension {dimension})",
                block,
            )
