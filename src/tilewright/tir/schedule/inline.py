"""Inlining: a producer into its consumers (compute_inline), a consumer into its producer (reverse_compute_inline)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from tilewright.ir.build import all_of, const
from tilewright.ir.expr import LE, LT, Call, PrimExpr, Range, Var, const_value, is_const_int
from tilewright.ir.intrinsics import is_pure
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, substitute, transform
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.analysis.dependence import apart, consumers, covered, moved_flow_conflict, producers
from tilewright.tir.analysis.index import statements
from tilewright.tir.analysis.linear import linear, mentions
from tilewright.tir.analysis.regions import within
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.schedule.compute_location import require_movable
from tilewright.tir.schedule.inverse import (
    AccessInverse,
    inside,
    invert_access,
    relax_whole,
    single_iterator,
    whole_box,
)
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Assert, Block, BlockIter, BufferStore, Evaluate, For, Stmt, While


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
) -> dict[Var, tuple[int, int]] | AccessInverse:
    """How an element tells the instance of a block that accesses it.

    For each iterator the dimension whose index is `iterator + constant`, and the constant, where all are so plain.
    """
    iters = {item.var: item for item in block.iters}
    places: dict[Var, tuple[int, int]] = {}
    plain = True
    for dimension, index in enumerate(indices):
        if not any(type(item) is Var for item in pre_order(index)):
            continue
        single = single_iterator(index, iters)
        plain = plain and single is not None and single[0].var not in places
        if single is not None:
            places[single[0].var] = (dimension, single[1])
    for item in block.iters:
        moves = any(mentions(index, {item.var}) for index in indices)
        if not moves and not is_const_int(item.domain.extent, 1):
            state.fail(
                f"{what}: the access of block {block.name} does not determine its iterator {item.var.name}", block
            )
    if plain:
        return places
    inverse = invert_access(block, indices, state.analyzer)
    if inverse is None:
        state.fail(
            f"{what}: the indices of the access of block {block.name} do not tell which instance of it they are of",
            block,
            "indices must split, join and shift iterators, each used once: i * 16 + j, i // 4 and i % 4, 9 - i",
        )
    return inverse


def _instance(
    found: dict[Var, tuple[int, int]] | AccessInverse, iters: Sequence[BlockIter], place: Sequence[PrimExpr]
) -> dict[Var, PrimExpr]:
    """The iterators of the instance of a block that accesses an element."""
    if isinstance(found, AccessInverse):
        return found.at(place)
    mapping: dict[Var, PrimExpr] = {item.var: item.domain.min for item in iters if item.var not in found}
    for var, (dimension, offset) in found.items():
        mapping[var] = place[dimension].astype(var.dtype) - offset
    return mapping


def _require_intermediate(state: ScheduleState, buffer: Buffer, block: Block, what: str) -> None:
    if state.is_parameter(buffer):
        state.fail(f"{what}: {buffer.name} is a parameter of the function: it must be written", block)
    index = state.index
    scope = index.scope_block(block)
    for other in index.blocks.values():
        apart = other is not scope and not index.is_under(other, scope) and not index.is_under(scope, other)
        if apart and any(region.buffer is buffer for region in (*other.reads, *other.writes)):
            state.fail(f"{what}: block {other.name}, outside block {scope.name}, uses {buffer.name}", block)


def _without_allocation(buffer: Buffer, owner: Block) -> Block:
    kept = tuple(item for item in owner.allocations if item is not buffer)
    return owner if len(kept) == len(owner.allocations) else owner.replace(allocations=kept)


def _commit(
    state: ScheduleState,
    edits: Mapping[Stmt, Stmt | None],
    gone: Sequence[Buffer],
    affected: list[str],
    what: str,
    inlined: tuple[str, Sequence[str]] = ("", ()),
) -> None:
    """Edit blocks and drop buffers; check the dependences of blocks. `inlined` are a block and those that now read
    what it read.
    """
    func = state.edited(edits, lambda root: reduce(without_buffer, gone, root))
    candidate = state.index_of(func)
    for name in affected:
        before = (name, inlined[0]) if name in inlined[1] else ()
        conflict = moved_flow_conflict(state.index, candidate, name, state.analyzer, before)
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
    """B[i] = A[i] + 1; C[i] = B[i] * 2  ->  C[i] = (A[i] + 1) * 2.

    A block whose results nothing reads goes away.
    """
    what = "compute_inline"
    index = state.index
    readers = consumers(index, block)
    shared = _shared_loops(state, block, readers)
    require_movable(state, block, what, shared)
    if not readers:
        _remove(state, block, what)
        return
    store = _single_store(state, block, what)
    _require_intermediate(state, store.buffer, block, what)
    inverse = _inverse_access(state, block, store.indices, what)
    _require_stable_inputs(state, block, readers, shared, what)
    analyzer = state.analyzer

    def replace(item: Node) -> Node | None:
        if not isinstance(item, BufferLoad) or item.buffer is not store.buffer:
            return None
        mapping = _instance(inverse, block.iters, item.indices)
        if isinstance(inverse, AccessInverse):
            mapping = {var: analyzer.simplify(value) for var, value in mapping.items()}
        return substitute(store.value, mapping)

    edits: dict[Stmt, Stmt | None] = {block: None}
    for reader in readers:
        _require_no_while(state, reader, store.buffer, what)
        edits[reader] = with_replaced(reader, replace)
    names = [reader.name for reader in readers]
    _commit(state, edits, [store.buffer], names, what, (block.name, names))


def _remove(state: ScheduleState, block: Block, what: str) -> None:
    """Take a block out whose results nothing reads."""
    index = state.index
    buffers = list(dict.fromkeys(region.buffer for region in block.writes))
    for buffer in buffers:
        _require_intermediate(state, buffer, block, what)
    for item in pre_order(block):
        if isinstance(item, (Evaluate, Assert)) or (isinstance(item, Call) and not is_pure(item)):
            state.fail(f"{what}: nothing reads what block {block.name} writes, but it may do more than write", block)
    if len(index.scope(block).blocks) == 1:
        state.fail(f"{what}: nothing would be left of its scope without block {block.name}", block)
    _commit(state, {block: None}, buffers, [], what)


def _require_no_while(state: ScheduleState, reader: Block, buffer: Buffer, what: str) -> None:
    """What a while loop reads it may read any number of times: nothing is computed there that was computed once."""
    loops = [item for item in statements(reader) if isinstance(item, While)]
    inside = [item for loop in loops for item in pre_order(loop)]
    if any(isinstance(item, BufferLoad) and item.buffer is buffer for item in inside):
        state.fail(f"{what}: block {reader.name} reads {buffer.name} in a while loop", reader)


def with_replaced(block: Block, replace: Callable[[Node], Node | None]) -> Block:
    """A block with nodes of its body and init replaced, and the accesses that it then has."""

    def visit(item: Node) -> Node | None:
        # A block inside reads something else now, too.
        return with_detected_accesses(item) if isinstance(item, Block) else replace(item)

    body = transform(block.body, visit)
    init = None if block.init is None else transform(block.init, visit)
    return with_detected_accesses(block.replace(body=body, init=init))


def _shared_loops(state: ScheduleState, block: Block, readers: Sequence[Block]) -> list[For]:
    """The loops around a block and all that read it, in one iteration of which they read what it makes in that."""
    index, analyzer = state.index, state.analyzer
    shared = index.loops_above(block)
    for reader in readers:
        shared = shared[: len(index.common_loops(block, reader))]
    for region in block.writes if shared else ():
        for reader in readers:
            reads = any(item.buffer is region.buffer for item in reader.reads)
            if reads and not covered(index, block, reader, region.buffer, shared[-1], analyzer):
                return []
    return list(shared)


def _require_stable_inputs(
    state: ScheduleState, block: Block, readers: Sequence[Block], shared: Sequence[For], what: str
) -> None:
    """What a block reads must not be written between it and its consumers: they would see the new values.

    A writer may come after all of them, or (a step of a recurrence: row t from row t - 1) write other elements.
    """
    index = state.index
    scope = index.scope(block)
    for region in block.reads:
        for writer in scope.writers_of(region.buffer):
            if writer is block or index.position(writer) < index.position(block):
                continue
            common = index.common_loops(block, writer)
            done = all(
                index.position(writer) > index.position(reader)
                and len(index.common_loops(reader, writer)) <= len(shared)
                for reader in readers
            )
            writes = [(writer, item) for item in writer.writes if item.buffer is region.buffer]
            inside = len(common) <= len(shared) and bool(common)
            if not done and not (inside and apart(index, common[-1], block, [region], writes, state.analyzer)):
                state.fail(
                    f"{what}: block {writer.name} writes {region.buffer.name} after block {block.name} has read it",
                    block,
                )
            if writer.init is not None and any(writer is reader for reader in readers):
                state.fail(
                    f"{what}: the reduction of block {writer.name} would read {region.buffer.name}, which it writes",
                    block,
                )


def reverse_compute_inline(state: ScheduleState, block: Block) -> None:
    """B[i] = A[i] + 1; C[i] = B[i] * 2  ->  C[i] = (A[i] + 1) * 2, at the place of B.

    The consumer may read through a reshape or another layout (C[i, j] = B[i * 16 + j]), and less than all: then the
    producer runs only where something is read.
    """
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
    mapping, conditions = reader_mapping(state, block, load, source, inner, what)
    # The consumer's variables go first: the producer's expression, put in afterwards, is in the producer's own.
    target = substitute(load, mapping)

    def replace(item: Node) -> Node | None:
        return inner.value if item is target else None

    value = transform(substitute(store.value, mapping), replace)
    body = BufferStore(store.buffer, tuple(substitute(index, mapping) for index in store.indices), value)
    merged = source.replace(body=body, annotations={**source.annotations, **block.annotations})
    merged, exact = _running_where(merged, conditions)
    readers = [item.name for item in consumers(state.index, block)]
    edits: dict[Stmt, Stmt | None] = {block: None, source: with_detected_accesses(merged)}
    _commit(state, edits, [inner.buffer], [source.name, *readers], what, (block.name, [source.name]))
    if not exact:
        state.mark_partial(source.name)


def _running_where(block: Block, conditions: Sequence[PrimExpr]) -> tuple[Block, bool]:
    """A block that runs only where conditions on its iterators hold; whether those only make its domains smaller."""
    domains = {item.var: item.domain for item in block.iters}
    exact = True
    for condition in conditions:
        smaller = _smaller_domain(condition, domains)
        exact = exact and smaller is not None
        if smaller is not None:
            domains[smaller[0]] = smaller[1]
    values: dict[Var, PrimExpr] = {item.var: item.value for item in block.iters}
    guards = [substitute(condition, values) for condition in conditions]
    iters = tuple(BlockIter(item.var, domains[item.var], item.kind, item.value) for item in block.iters)
    return block.replace(iters=iters, predicate=all_of([block.predicate, *guards])), exact


def _smaller_domain(condition: PrimExpr, domains: Mapping[Var, Range]) -> tuple[Var, Range] | None:
    """The iterator whose domain a condition makes smaller, and that domain: `2 <= i`, `i < 14`."""
    if not isinstance(condition, (LE, LT)):
        return None
    form = linear(condition.b).minus(linear(condition.a)).shifted(-1 if isinstance(condition, LT) else 0)
    if len(form.terms) != 1:
        return None
    ((var, step),) = form.terms.items()
    if not isinstance(var, Var) or var not in domains or abs(step) != 1:
        return None
    low, extent = const_value(domains[var].min), const_value(domains[var].extent)
    if low is None or extent is None:
        return None
    end = min(low + extent, form.constant + 1) if step < 0 else low + extent
    start = max(low, -form.constant) if step > 0 else low
    return var, Range(const(start), const(max(0, end - start)))


def reader_mapping(
    state: ScheduleState, reader: Block, load: BufferLoad, source: Block, store: BufferStore, what: str
) -> tuple[dict[Var, PrimExpr], list[PrimExpr]]:
    """The iterators of a block that reads elements that another stores, in the other one's iterators.

    And where, in terms of the other one's iterators, it reads the element that is stored: nowhere else does it run.
    """
    inverse = _inverse_access(state, reader, load.indices, what)
    write = next(region for region in source.writes if region.buffer is store.buffer)
    read = next(region for region in reader.reads if region.buffer is store.buffer)
    analyzer = state.analyzer
    with analyzer.scope():
        for item in (*source.iters, *reader.iters):
            analyzer.bind(item.var, item.domain)
        written = whole_box(source, write, analyzer)
        read_box = whole_box(reader, read, analyzer) or relax_whole(reader, read, analyzer)
        for dimension in range(store.buffer.ndim):
            if written is None or not within(read_box[dimension], written[dimension], analyzer):
                state.fail(
                    f"{what}: block {reader.name} does not certainly read only elements of {store.buffer.name} that "
                    f"block {source.name} writes (dimension {dimension})",
                    reader,
                )
        mapping = _instance(inverse, reader.iters, store.indices)
        if isinstance(inverse, AccessInverse):
            mapping = {var: analyzer.simplify(value) for var, value in mapping.items()}
            conditions = inverse.conditions(store.indices)
        else:
            bounds = zip(store.indices, read_box, strict=True)
            conditions = [part for index, item in bounds if item is not None for part in inside(index, item)]
        simpler = [analyzer.simplify(condition) for condition in conditions]
        kept = [item for item in simpler if not is_const_int(item, 1) and not analyzer.prove(item)]
    return mapping, kept


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
