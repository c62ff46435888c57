"""Reductions that do what their consumer does with the result: fuse_reduction_epilogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.itermap import detect_iter_map
from tilewright.ir.build import add, all_of, eq, ge, maximum, minimum, mul, select, sub
from tilewright.ir.expr import ONE, Add, BinaryExpr, Max, Min, Mul, PrimExpr, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, substitute, transform
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.analysis.dependence import consumers, moved_flow_conflict
from tilewright.tir.analysis.linear import mentions
from tilewright.tir.analysis.reduction_order import last_step_conflict
from tilewright.tir.annotations import LAST_STEP
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.schedule.addend import require_defined
from tilewright.tir.schedule.compute_location import require_movable
from tilewright.tir.schedule.inline import reader_mapping, without_buffer
from tilewright.tir.schedule.reducer import MatchedReducer, match_reducer
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, BufferStore, IterKind, LoopKind

WHAT = "fuse_reduction_epilogue"
_OWN_OPERATIONS: Final[dict[type[PrimExpr], Callable[[PrimExpr, PrimExpr], PrimExpr]]] = {
    Add: add,
    Mul: mul,
    Min: minimum,
    Max: maximum,
}
"""Combinations of which an operand may as well come first: the reduction begins at it."""


def fuse_reduction_epilogue(state: ScheduleState, reduction: Block, epilogue: Block) -> None:
    """Let a reduction do what its elementwise consumer does with the result; the consumer goes away.

    for k: C[i] = C[i] + x, from 0          for k: D[i] = max(D[i] + x, 0) if k == last else D[i] + x, from b[i]
    D[i] = max(C[i] + b[i], 0)        ->

    What the consumer combines with the result by the reduction's own operation (an addend of a sum, a lower bound of a
    maximum, a factor of a product) goes to the init: steps stay free in their order. All else is applied in place by
    the last step, which must then run last: a change of the loops that breaks this is refused. The result must have
    the type of the consumer's output, each element must be read once, by this consumer alone, and nothing may use the
    output before. Floats that go to the init are rounded in another order, as by any other order of the steps.
    """
    matched = _require_reduction(state, reduction)
    store, load = _require_epilogue(state, reduction, epilogue, matched)
    mapping, conditions = reader_mapping(state, epilogue, load, reduction, matched.stores[0], WHAT)
    if conditions:
        state.fail(f"{WHAT}: block {epilogue.name} does not read every result of block {reduction.name}", epilogue)
    start, value = _start(reduction, matched, store.value, load)
    if start is not None:
        start = substitute(start, mapping)
        require_defined(state, reduction, start, WHAT)
    place = tuple(substitute(index, mapping) for index in store.indices)
    result = BufferLoad(store.buffer, place)
    step = _in_place(matched.results[0], matched.accumulators[0], result)
    done = _in_place(substitute(value, mapping), substitute(load, mapping), step)
    init = reduction.init
    assert isinstance(init, BufferStore)
    first = init.value if start is None else _begun_at(matched, init.value, start)
    notes = {**epilogue.annotations, **reduction.annotations}
    if done is not step:
        _require_last(state, reduction)
        done = select(_is_last(reduction), done, step)
        notes |= LAST_STEP.entry(True)
    fused = with_detected_accesses(
        reduction.replace(
            body=BufferStore(store.buffer, place, done),
            init=BufferStore(store.buffer, place, first),
            annotations=notes,
        )
    )
    _commit(state, reduction, epilogue, fused, matched.stores[0].buffer)


def _require_reduction(state: ScheduleState, block: Block) -> MatchedReducer:
    require_movable(state, block, WHAT)
    matched = match_reducer(block)
    single = matched is not None and len(matched.results) == 1 and isinstance(block.body, BufferStore)
    if matched is None or not single or not isinstance(block.init, BufferStore):
        state.fail(f"{WHAT}: block {block.name} is not a reduction of one value with an init", block)
    for loop in state.index.loops_above(block):
        reduces = any(item.kind is IterKind.REDUCE and mentions(item.value, {loop.var}) for item in block.iters)
        if reduces and loop.kind is LoopKind.THREAD:
            state.fail(f"{WHAT}: every thread of loop {loop.var.name} would apply the epilogue", loop)
    return matched


def _require_epilogue(
    state: ScheduleState, reduction: Block, epilogue: Block, matched: MatchedReducer
) -> tuple[BufferStore, BufferLoad]:
    """The store of an elementwise consumer, and its read of the result."""
    index, result = state.index, matched.stores[0].buffer
    if state.is_parameter(result):
        state.fail(f"{WHAT}: {result.name} is a parameter of the function: it must be written", reduction)
    if [item for item in consumers(index, reduction) if item is not epilogue] or epilogue is reduction:
        state.fail(f"{WHAT}: block {epilogue.name} is not all that reads {result.name}", epilogue)
    require_movable(state, epilogue, WHAT)
    store = epilogue.body
    if epilogue.is_reduction or epilogue.init is not None or not isinstance(store, BufferStore):
        state.fail(f"{WHAT}: block {epilogue.name} does not store one expression for each element", epilogue)
    loads = {item for item in pre_order(store) if isinstance(item, BufferLoad) and item.buffer is result}
    if len(loads) != 1:
        state.fail(f"{WHAT}: block {epilogue.name} reads {result.name} at {len(loads)} different indices", epilogue)
    target = store.buffer
    if target.dtype is not result.dtype:
        state.fail(
            f"{WHAT}: {target.name} holds {target.dtype}, the reduction is in {result.dtype}: its steps cannot be kept "
            "there",
            epilogue,
        )
    iter_map = detect_iter_map(store.indices, {item.var: item.domain for item in epilogue.iters})
    if iter_map is None or not iter_map.injective:
        state.fail(f"{WHAT}: several instances of block {epilogue.name} may write one element", epilogue)
    _require_unused(state, reduction, epilogue, target)
    return store, next(iter(loads))


def _require_unused(state: ScheduleState, reduction: Block, epilogue: Block, target: Buffer) -> None:
    """Nothing may look at an output while it holds partial results: only blocks after the consumer use it."""
    scope = state.index.scope(epilogue)
    for user in (*scope.readers_of(target), *scope.writers_of(target)):
        if user is not epilogue and (user is reduction or state.index.position(user) < state.index.position(epilogue)):
            state.fail(f"{WHAT}: block {user.name} uses {target.name} before block {epilogue.name} writes it", user)


def _start(
    reduction: Block, matched: MatchedReducer, value: PrimExpr, load: BufferLoad
) -> tuple[PrimExpr | None, PrimExpr]:
    """What a consumer combines with a result by the reduction's own operation, and its expression without that."""
    kind = type(matched.results[0])
    around = {item for item in pre_order(value) if any(child is load for child in item.children())}
    if len(around) != 1 or kind not in _OWN_OPERATIONS:
        return None, value
    (total,) = around
    if type(total) is not kind or not isinstance(total, BinaryExpr):
        return None, value
    operand = total.b if total.a is load else total.a
    if operand is load:
        return None, value
    return operand, _in_place(value, total, load)


def _begun_at(matched: MatchedReducer, init: PrimExpr, start: PrimExpr) -> PrimExpr:
    """The first value of a reduction that begins at something more."""
    result = matched.results[0]
    assert isinstance(result, BinaryExpr)
    neutral = {Add: 0, Mul: 1}.get(type(result))
    if neutral is not None and getattr(init, "value", None) == neutral:
        return start
    return _OWN_OPERATIONS[type(result)](init, start)


def _in_place(expr: PrimExpr, old: PrimExpr, new: PrimExpr) -> PrimExpr:
    def visit(item: Node) -> Node | None:
        return new if item is old else None

    return transform(expr, visit)


def _require_last(state: ScheduleState, reduction: Block) -> None:
    for item in reduction.iters:
        if item.kind is IterKind.REDUCE and not Analyzer().prove(ge(item.domain.extent, ONE)):
            state.fail(f"{WHAT}: iterator {item.var.name} may have no step at all, and then no last one", reduction)
    reason = last_step_conflict(state.index, reduction)
    if reason is not None:
        state.fail(
            f"{WHAT}: the last step of the reduction of block {reduction.name} may not run last: {reason}", reduction
        )


def _is_last(reduction: Block) -> PrimExpr:
    """Whether all reduce iterators are at their ends."""
    return all_of(
        eq(item.var, sub(add(item.domain.min, item.domain.extent), ONE))
        for item in reduction.iters
        if item.kind is IterKind.REDUCE and const_value(item.domain.extent) != 1
    )


def _commit(state: ScheduleState, reduction: Block, epilogue: Block, fused: Block, gone: Buffer) -> None:
    readers = [item.name for item in consumers(state.index, epilogue)]
    func = state.edited({epilogue: None, reduction: fused}, lambda root: without_buffer(root, gone))
    candidate = state.index_of(func)
    for name in (reduction.name, *readers):
        conflict = moved_flow_conflict(state.index, candidate, name, state.analyzer)
        if conflict is not None:
            state.fail(f"{WHAT}: {conflict.reason}", state.index.blocks.get(name))
    state.commit_index(candidate)
    if LAST_STEP.is_on(fused):
        state.watch_last_steps()
