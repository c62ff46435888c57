"""Reductions: the init apart (decompose_reduction), what changes nothing (skip_neutral), partial results (rfactor)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tilewright.ir.build import all_of
from tilewright.ir.expr import ZERO, PrimExpr, Range, Select, Var, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, substitute, transform
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.analysis.bindings import conjuncts, is_injective
from tilewright.tir.analysis.dependence import moved_flow_conflict
from tilewright.tir.analysis.index import child_statements
from tilewright.tir.analysis.linear import mentions
from tilewright.tir.annotations import TENSOR_INTRIN, TENSOR_INTRIN_RESET
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.schedule.reducer import (
    MatchedReducer,
    combining_body,
    is_neutral,
    match_reducer,
    starts_at_identity,
)
from tilewright.tir.schedule.state import ScheduleState, with_allocations, with_children
from tilewright.tir.stmt import (
    Block,
    BlockIter,
    BufferStore,
    For,
    IfThenElse,
    IterKind,
    LoopKind,
    Stmt,
    seq,
)

_PRIVATE_SCOPES: Final = frozenset(["local", "warp"])
"""Memory that other threads of a group do not see (or not all of them)."""


def _loops_of(iters: Sequence[BlockIter], loops: Sequence[For]) -> set[Var]:
    return {loop.var for loop in loops if any(mentions(item.value, {loop.var}) for item in iters)}


def _reduce_iters(block: Block) -> list[BlockIter]:
    return [item for item in block.iters if item.kind is IterKind.REDUCE]


def _other_iters(block: Block) -> list[BlockIter]:
    return [item for item in block.iters if item.kind is not IterKind.REDUCE]


def _require_no_opaque(state: ScheduleState, block: Block, loops: Sequence[For], what: str) -> None:
    """Loops whose order is fixed are not run a second time."""
    opaque = _loops_of([item for item in block.iters if item.kind is IterKind.OPAQUE], loops)
    for loop in loops:
        if loop.var in opaque:
            state.fail(f"{what}: loop {loop.var.name} runs an opaque iterator of block {block.name}", loop)


def _require_once(state: ScheduleState, block: Block, loops: Sequence[For], outer: Sequence[For], what: str) -> None:
    """Instances that run again start over with the init; apart from it they would be added twice."""
    if not is_injective(block, loops, outer):
        state.fail(
            f"{what}: some instances of block {block.name} may run more than once in the loops from "
            f"{loops[0].var.name} inward",
            block,
        )


def _require_reduction(state: ScheduleState, block: Block, what: str) -> Stmt:
    if block.init is None:
        state.fail(f"{what}: block {block.name} is not a reduction with an init", block)
    return block.init


def _require_start(state: ScheduleState, block: Block, loops: Sequence[For], what: str) -> None:
    """The reduction must start in these loops: a later part of a partitioned one goes on with what is there."""
    start: dict[Var, PrimExpr] = {loop.var: loop.min for loop in loops}
    for item in _reduce_iters(block):
        if not state.analyzer.prove_equal(substitute(item.value, start), item.domain.min):
            state.fail(
                f"{what}: the reduction of block {block.name} does not start in the loops around it",
                block,
                "it is the later part of a partitioned reduction",
            )


def _copied_block(block: Block, name: str, mapping: Mapping[Var, PrimExpr]) -> tuple[Block, dict[Var, PrimExpr]]:
    """The spatial part of a block under new loops: fresh iterator variables; no body yet (the old one stays in)."""
    fresh: dict[Var, PrimExpr] = {}
    iters: list[BlockIter] = []
    for item in _other_iters(block):
        var = Var(item.var.name)
        fresh[item.var] = var
        iters.append(BlockIter(var, item.domain, item.kind, substitute(item.value, mapping)))
    return block.replace(name=name, iters=tuple(iters), init=None, annotations={}), fresh


def decompose_reduction(state: ScheduleState, block: Block, loop: For) -> str:
    """Initialise before a loop instead of at the first step of the reduction.

    for i: for k: C(i, k) with init        for i: C_init(i)
                                     ->    for i: for k: C(i, k)        (loop = k: the init stays inside i)
    """
    what = "decompose_reduction"
    index = state.index
    init = _require_reduction(state, block, what)
    above = index.loops_above(block)
    if not any(item is loop for item in above):
        state.fail(f"{what}: loop {loop.var.name} is not around block {block.name}", loop)
    place = next(n for n, item in enumerate(above) if item is loop)
    reducing = _loops_of(_reduce_iters(block), above)
    spatial = _loops_of(_other_iters(block), above)
    for item in above:
        if item.var in reducing and item.var in spatial:
            state.fail(f"{what}: loop {item.var.name} serves spatial and reduce iterators at once", item)
    for item in above:
        if item.var in reducing and item.kind is LoopKind.THREAD:
            state.fail(
                f"{what}: the threads of loop {item.var.name} add up their parts of block {block.name}: without its "
                "init all would add to the result at once",
                item,
                "use rfactor for that loop first, or leave the init where it is",
            )
    for item in above[:place]:
        if item.var in reducing and const_value(item.extent) != 1:
            state.fail(
                f"{what}: loop {item.var.name} is a reduction loop outside loop {loop.var.name}",
                item,
                "choose the outermost reduction loop, or a loop around it",
            )
    inner = above[place:]
    _require_start(state, block, above, what)
    _require_no_opaque(state, block, inner, what)
    _require_once(state, block, inner, above[:place], what)
    mapping, loops = _copy_loops([item for item in inner if item.var in spatial])
    guards = _spatial_guards(state, block, reducing, spatial, what)
    name = state.fresh_block_name(f"{block.name}_init")
    copied, fresh = _copied_block(block, name, mapping)
    predicate = all_of(substitute(part, mapping) for part in guards)
    # The init of a tile that an intrinsic computes is the intrinsic's reset.
    intrinsic = TENSOR_INTRIN.of(block)
    notes = {} if intrinsic is None else TENSOR_INTRIN_RESET.entry(intrinsic)
    copied = copied.replace(body=substitute(init, fresh), predicate=predicate, annotations=notes)
    nest: Stmt = with_detected_accesses(copied)
    for item in reversed(loops):
        nest = item.replace(body=nest)
    update = with_detected_accesses(block.replace(init=None))
    # The loop is rebuilt with the update block inside, then the init is put before it.
    changed = _swap(loop, block, update)
    candidate = state.index_of(state.edited({loop: seq(nest, changed)}))
    # What an init reads must have been made before the loop.
    conflict = moved_flow_conflict(index, candidate, name, state.analyzer)
    if conflict is not None:
        state.fail(f"{what}: {conflict.reason}", block)
    state.inherit(name, block.name)
    state.commit_index(candidate)
    return name


def skip_neutral(state: ScheduleState, block: Block) -> None:
    """Do nothing where a reduction would combine what changes nothing.

    for k: C[i] += A[i, k] if p else 0     ->     for k: C[i] += A[i, k]  where p

    The init must be in a block of its own: it runs whatever the condition says. A sum that is minus zero stays so,
    where zero added to it would have made it plus zero.
    """
    what = "skip_neutral"
    matched = match_reducer(block)
    if matched is None or len(matched.results) != 1 or not _reduce_iters(block):
        state.fail(f"{what}: block {block.name} is not a reduction of one value", block)
    if block.init is not None:
        state.fail(
            f"{what}: block {block.name} has an init, which would be skipped too",
            block,
            "use decompose_reduction first",
        )
    (source,), (result,) = matched.sources, matched.results
    if not isinstance(source, Select) or not is_neutral(result, source.b):
        state.fail(f"{what}: block {block.name} does not choose between a value and what changes nothing", block)
    if any(isinstance(item, BufferLoad) for item in pre_order(source.condition)):
        state.fail(f"{what}: what block {block.name} chooses by is not told by indices", block)
    values: dict[Var, PrimExpr] = {item.var: item.value for item in block.iters}
    condition = state.analyzer.simplify(substitute(source.condition, values))
    (target,) = matched.accumulators
    body = combining_body([target], matched.combined([target], [source.a]))
    update = with_detected_accesses(block.replace(body=body, predicate=all_of([block.predicate, condition])))
    state.mark_partial(block.name)
    state.commit_index(state.index_of(state.edited({block: update})))


def _copy_loops(loops: Sequence[For]) -> tuple[dict[Var, PrimExpr], list[For]]:
    """Loops with fresh variables (their bodies are still the old ones), and the mapping from old to new."""
    mapping: dict[Var, PrimExpr] = {}
    copies: list[For] = []
    for loop in loops:
        var = Var(loop.var.name)
        low, extent = substitute(loop.min, mapping), substitute(loop.extent, mapping)
        mapping[loop.var] = var
        copies.append(loop.replace(var=var, min=low, extent=extent))
    return mapping, copies


def _spatial_guards(
    state: ScheduleState, block: Block, reducing: set[Var], spatial: set[Var], what: str
) -> list[PrimExpr]:
    """The parts of a predicate that concern spatial loops; those of reduction loops hold at the reduction's start."""
    kept: list[PrimExpr] = []
    for part in conjuncts(block.predicate):
        if not mentions(part, reducing):
            kept.append(part)
        elif mentions(part, spatial):
            state.fail(f"{what}: a guard of block {block.name} mixes spatial and reduction loops", block)
    return kept


def _swap(root: Stmt, old: Block, new: Stmt) -> Stmt:
    """A statement with a block below it replaced (statements only are visited)."""
    if root is old:
        return new
    children = child_statements(root)
    if not children or isinstance(root, Block):
        return root
    swapped = [_swap(child, old, new) for child in children]
    if all(a is b for a, b in zip(children, swapped, strict=True)):
        return root
    result = with_children(root, list(swapped))
    assert result is not None
    return result


def rfactor(state: ScheduleState, loop: For, factor_axis: int) -> str:
    """Keep a partial result for each iteration of a reduction loop, and combine the partial results afterwards.

    for i: for k_0: for k_1:              for i: for k_0: for k_1: C_rf[k_0, i] += ...
        C(i, k_0 * 8 + k_1)         ->    for i: for k_0: C[i] += C_rf[k_0, i]       (loop = k_0)

    The loop keeps how it runs: unrolled, or along threads. The loops that combine are new, and serial.
    """
    what = "rfactor"
    index = state.index
    blocks = index.blocks_under(loop)
    if len(blocks) != 1:
        state.fail(f"{what}: loop {loop.var.name} must have exactly one block inside, it has {len(blocks)}", loop)
    (block,) = blocks
    _require_reduction(state, block, what)
    matched = match_reducer(block)
    if matched is None:
        state.fail(
            f"{what}: what block {block.name} combines is not recognised",
            block,
            "use sum, prod, min, max, all, any, bitwise and/or/xor, or a tuple reduction such as argmax",
        )
    if not starts_at_identity(block, matched):
        state.fail(
            f"{what}: every partial result of block {block.name} would begin where the whole one does, which is not "
            "at what changes nothing",
            block,
            "use start_at_addend after rfactor",
        )
    _require_seen_by_all(state, loop, matched, what)
    above = index.loops_above(block)
    reducing = _loops_of(_reduce_iters(block), above)
    spatial = _loops_of(_other_iters(block), above)
    if loop.var not in reducing:
        state.fail(f"{what}: loop {loop.var.name} is not a reduction loop", loop)
    for item in above:
        if item.var in reducing and item.var in spatial:
            state.fail(f"{what}: loop {item.var.name} serves spatial and reduce iterators at once", item)
    _require_start(state, block, above, what)
    rank = matched.stores[0].buffer.ndim
    if not -rank - 1 <= factor_axis <= rank:
        state.fail(f"{what}: factor_axis {factor_axis} is not a place among the {rank} dimensions", block)
    axis = factor_axis % (rank + 1)
    guards = _spatial_guards(state, block, reducing, spatial, what)
    # The partial results are made in the whole nest that is the block's own; the combination comes after it.
    place = next(n for n, item in enumerate(above) if len(index.blocks_under(item)) == 1)
    top = above[place]
    _require_no_opaque(state, block, above[place:], what)
    _require_once(state, block, above[place:], above[:place], what)
    partial = {store.buffer: _partial_buffer(state, store.buffer, loop.extent, axis) for store in matched.stores}
    name = state.fresh_block_name(f"{block.name}_rf")
    state.inherit(name, block.name)
    first = _partial_block(block, name, loop, above, reducing, matched, partial, axis, guards)
    last = _combining_nest(block, loop, above, top, spatial, matched, partial, axis, guards)
    changed = _swap(top, block, first)
    owner = index.scope_block(block).name
    state.commit(with_allocations(state.edited({top: seq(changed, last)}), owner, list(partial.values())))
    return name


def _require_seen_by_all(state: ScheduleState, loop: For, matched: MatchedReducer, what: str) -> None:
    """The partial results of a loop that threads run must lie where one thread sees those of the others."""
    if loop.kind is not LoopKind.THREAD:
        return
    for store in matched.stores:
        if store.buffer.scope in _PRIVATE_SCOPES:
            state.fail(
                f"{what}: the partial results of the threads of loop {loop.var.name} would be in the "
                f"{store.buffer.scope} memory of each, as {store.buffer.name} is",
                loop,
                "use set_scope first, or rfactor before bind",
            )


def _partial_buffer(state: ScheduleState, buffer: Buffer, extent: PrimExpr, axis: int) -> Buffer:
    shape = (*buffer.shape[:axis], extent, *buffer.shape[axis:])
    return Buffer(state.fresh_buffer_name(f"{buffer.name}_rf"), shape, buffer.dtype, buffer.scope)


def _at_axis(indices: Sequence[PrimExpr], axis: int, value: PrimExpr) -> tuple[PrimExpr, ...]:
    return (*indices[:axis], value, *indices[axis:])


def _partial_block(
    block: Block,
    name: str,
    loop: For,
    above: Sequence[For],
    reducing: set[Var],
    matched: MatchedReducer,
    partial: Mapping[Buffer, Buffer],
    axis: int,
    guards: Sequence[PrimExpr],
) -> Block:
    """The block that makes partial results: the factored loop becomes a spatial iterator, the others reduce."""
    factor = Var(f"v_{loop.var.name}")
    iters = [BlockIter(factor, Range(ZERO, loop.extent), IterKind.SPATIAL, loop.var - loop.min)]
    inside: dict[Var, PrimExpr] = {loop.var: factor + loop.min}
    iters.extend(_other_iters(block))
    for item in above:
        if item.var in reducing and item is not loop:
            var = Var(f"v_{item.var.name}")
            iters.append(BlockIter(var, Range(item.min, item.extent), IterKind.REDUCE, item.var))
            inside[item.var] = var
    mapping: dict[Var, PrimExpr] = {item.var: substitute(item.value, inside) for item in _reduce_iters(block)}
    loads = {
        load: BufferLoad(partial[load.buffer], _at_axis(load.indices, axis, factor)) for load in matched.accumulators
    }

    def on_node(item: Node) -> Node | None:
        if isinstance(item, BufferLoad) and item in loads:
            return loads[item]
        if isinstance(item, BufferStore) and item.buffer in partial:
            return BufferStore(partial[item.buffer], _at_axis(item.indices, axis, factor), item.value)
        return None

    body = substitute(transform(block.body, on_node), mapping)
    assert block.init is not None
    init = transform(block.init, on_node)
    # Every partial result needs its init, also where guards leave it nothing to combine: those guards go inside.
    inner = [part for part in conjuncts(block.predicate) if all(part is not kept for kept in guards)]
    if inner:
        body = IfThenElse(substitute(all_of(inner), inside), body)
    result = block.replace(name=name, iters=tuple(iters), body=body, init=init, predicate=all_of(guards))
    return with_detected_accesses(result)


def _combining_nest(
    block: Block,
    loop: For,
    above: Sequence[For],
    top: For,
    spatial: set[Var],
    matched: MatchedReducer,
    partial: Mapping[Buffer, Buffer],
    axis: int,
    guards: Sequence[PrimExpr],
) -> Stmt:
    """The nest after it: the partial results combined by the original block."""
    place = next(n for n, item in enumerate(above) if item is top)
    outer, loops = _copy_loops([item for item in above[place:] if item.var in spatial])
    copied, fresh = _copied_block(block, block.name, outer)
    run = Var(loop.var.name)
    step = Var(f"v_{loop.var.name}")
    iters = (*copied.iters, BlockIter(step, Range(ZERO, loop.extent), IterKind.REDUCE, run))
    targets = [substitute(load, fresh) for load in matched.accumulators]
    parts = [
        BufferLoad(partial[load.buffer], _at_axis(target.indices, axis, step))
        for load, target in zip(matched.accumulators, targets, strict=True)
    ]
    body = combining_body(targets, matched.combined(targets, parts))
    init = None if block.init is None else substitute(block.init, fresh)
    predicate = all_of(substitute(part, outer) for part in guards)
    result: Stmt = with_detected_accesses(
        copied.replace(iters=iters, body=body, init=init, predicate=predicate, annotations=block.annotations)
    )
    result = For(run, ZERO, loop.extent, LoopKind.SERIAL, result)
    for item in reversed(loops):
        result = item.replace(body=result, kind=LoopKind.SERIAL, thread=None, annotations={})
    return result
