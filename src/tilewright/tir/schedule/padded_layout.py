"""Arrangements with room for more elements than there are, and what those hold: transform_layout with a pad value."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import all_of, const, floordiv, floormod, logical_not, lt, select
from tilewright.ir.expr import ZERO, PrimExpr, Range, Var, const_value
from tilewright.ir.visit import find_all, substitute
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.analysis.index import ProgramIndex
from tilewright.tir.buffer import Buffer
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.iterators import rebuilt, renested
from tilewright.tir.schedule.layout import transform_layout as plain_transform_layout
from tilewright.tir.schedule.padding import find_plain_loops
from tilewright.tir.schedule.placement import body_statements
from tilewright.tir.schedule.state import ScheduleState, edit_tree
from tilewright.tir.stmt import Block, BlockIter, BufferStore, For, IterKind, LoopKind, Stmt, seq

WHAT = "transform_layout"


def transform_layout(
    state: ScheduleState, block: Block, buffer: Buffer, index_map: IndexMap, pad_value: int | float
) -> None:
    """Store the elements of a buffer in another arrangement, and fill what no old element goes to.

    for i in 14: B[i] = f(i)   ->   for n0 in 4, n1 in 4:
                                        B[n0, n1] = f(n0 * 4 + n1) if n0 * 4 + n1 < 14 else pad_value

    A block that alone writes the buffer, one element for each of its plain loops, writes the padding too. Otherwise (a
    reduction, several writers, loops that were changed) a block of its own fills it before all others:

    for n0 in 4, n1 in 4: B_pad[n0, n1] = pad_value  where not n0 * 4 + n1 < 14
    """
    value = _constant(state, block, buffer, pad_value)
    writers = [item for item in state.index.blocks.values() if item is not state.index.root and _writes(item, buffer)]
    if not writers:
        state.fail(
            f"{WHAT}: nothing here writes {buffer.name}: whoever gives it decides what is in its padding",
            block,
            "leave pad_value out, or make a copy with cache_read and arrange that",
        )
    trial = state.copy()
    plain_transform_layout(trial, block, buffer, index_map)
    arranged = _arranged(trial, state, buffer)
    places = tuple(Var(f"v_ax{number}") for number in range(arranged.ndim))
    old = _old_indices(index_map, places)
    if _is_full(index_map, buffer, arranged):
        state.commit(trial.func)
        return
    if old is None:
        state.fail(
            f"{WHAT}: where the padding of {buffer.name} is cannot be told of this map",
            block,
            "with a pad_value, use maps made of i, i // c and i % c",
        )
    divided = _divided(index_map)
    inside = all_of(
        lt(old[axis], dim)
        for axis, dim in enumerate(buffer.shape)
        if axis in divided and (const_value(dim) or 0) % divided[axis]
    )
    if len(writers) == 1 and _is_plain_writer(state, writers[0], buffer):
        changed = _padded_writer(writers[0], arranged, places, old, inside, value)
        renested(trial, trial.index.loops[state.index.loops_above(writers[0])[0].var], changed)
        state.commit(trial.func)
    else:
        _fill_padding(state, trial, arranged, places, inside, value)


def _constant(state: ScheduleState, block: Block, buffer: Buffer, value: int | float) -> PrimExpr:
    """A pad value as a constant of the buffer's type."""
    dtype = buffer.dtype
    number = isinstance(value, (bool, int, float))
    if number and dtype.is_bool:
        number = value in (0, 1)
    elif number and dtype.is_integer:
        number = float(value).is_integer() and dtype.min_value() <= value <= dtype.max_value()
    if not number:
        state.fail(f"{WHAT}: the pad value {value!r} is not a {dtype}, which {buffer.name} holds", block)
    return const(value, dtype)


def _writes(block: Block, buffer: Buffer) -> bool:
    return any(region.buffer is buffer for region in block.writes)


def _arranged(trial: ScheduleState, state: ScheduleState, buffer: Buffer) -> Buffer:
    """The buffer that took another one's place."""
    places = zip(_all_buffers(state.index), _all_buffers(trial.index), strict=True)
    return next(new for old, new in places if old is buffer)


def _all_buffers(index: ProgramIndex) -> list[Buffer]:
    return [*index.func.buffers, *(buffer for block in index.blocks.values() for buffer in block.allocations)]


def _old_indices(index_map: IndexMap, places: Sequence[Var]) -> list[PrimExpr] | None:
    """The old indices as expressions of the new ones, where the map rearranges whole and divided axes."""
    steps = index_map.steps()
    if steps is None or not index_map.is_rearrangement() or index_map.divides_again():
        return None
    parts: dict[tuple[int, str], PrimExpr] = {}
    factors: dict[int, int] = {}
    left = list(places)
    rest: PrimExpr = ZERO
    whole = True
    for step in reversed(steps):
        rest = left.pop() if whole else rest
        whole = not step.joined
        digit = rest
        if step.factor is not None:
            factors[step.axis] = step.factor
            if step.joined:
                digit, rest = floormod(rest, const(step.factor)), floordiv(rest, const(step.factor))
        parts[step.axis, step.part] = digit
    return [
        parts[axis, "outer"] * factors[axis] + parts[axis, "inner"] if axis in factors else parts[axis, "whole"]
        for axis in range(len(index_map.inputs))
    ]


def _divided(index_map: IndexMap) -> dict[int, int]:
    """The axes that a map divides, and by what."""
    return {step.axis: step.factor for step in index_map.steps() or () if step.factor is not None}


def _is_full(index_map: IndexMap, buffer: Buffer, arranged: Buffer) -> bool:
    """Whether every new place has an old element: the map keeps them apart, so it is a matter of counting."""
    before, after = buffer.static_shape, arranged.static_shape
    if before is not None and after is not None:
        return prod(before) == prod(after)
    divided = _divided(index_map)
    sizes = {axis: const_value(buffer.shape[axis]) for axis in divided}
    return (
        index_map.is_rearrangement()
        and not index_map.divides_again()
        and all(size is not None and size % divided[axis] == 0 for axis, size in sizes.items())
    )


def _is_plain_writer(state: ScheduleState, block: Block, buffer: Buffer) -> bool:
    """Whether a block stores each element once, at its iterators themselves, in plain loops of its own."""
    store = block.body
    if not isinstance(store, BufferStore) or block.init is not None or find_plain_loops(state, block) is None:
        return False
    if any(item.kind is not IterKind.SPATIAL for item in block.iters) or any(r.buffer is buffer for r in block.reads):
        return False
    domains = {item.var: item.domain.extent for item in block.iters}
    own = len(set(store.indices)) == len(store.indices) == len(block.iters)
    return own and all(
        isinstance(index, Var) and domains.get(index) is dim
        for index, dim in zip(store.indices, buffer.shape, strict=True)
    )


def _padded_writer(
    block: Block,
    arranged: Buffer,
    places: Sequence[Var],
    old: Sequence[PrimExpr],
    inside: PrimExpr,
    value: PrimExpr,
) -> Block:
    """A writer that runs over the new places and stores the pad value where there is no old element."""
    store = block.body
    assert isinstance(store, BufferStore)
    analyzer = Analyzer()
    iters: list[BlockIter] = []
    for number, (place, dim) in enumerate(zip(places, arranged.shape, strict=True)):
        iters.append(BlockIter(place, Range(ZERO, dim), IterKind.SPATIAL, Var(f"ax{number}")))
        analyzer.bind(place, iters[-1].domain)
    mapping = {index: expr for index, expr in zip(store.indices, old, strict=True) if isinstance(index, Var)}
    chosen = select(inside, substitute(store.value, mapping), value)
    plain = block.replace(body=BufferStore(arranged, tuple(places), chosen))
    return rebuilt(plain, tuple(iters), {}, analyzer)


def _fill_padding(
    state: ScheduleState,
    trial: ScheduleState,
    arranged: Buffer,
    places: Sequence[Var],
    inside: PrimExpr,
    value: PrimExpr,
) -> None:
    """Put a block that fills the padding before everything that touches the buffer."""
    index = trial.index
    name = state.fresh_block_name(f"{arranged.name}_pad")
    loops = [Var(f"ax{number}") for number in range(arranged.ndim)]
    iters = tuple(
        BlockIter(place, Range(ZERO, dim), IterKind.SPATIAL, loop)
        for place, dim, loop in zip(places, arranged.shape, loops, strict=True)
    )
    outside = logical_not(substitute(inside, dict(zip(places, loops, strict=True))))
    fill = Block(name, iters, (), (), BufferStore(arranged, tuple(places), value), predicate=outside)
    nest: Stmt = with_detected_accesses(fill)
    for item in reversed(iters):
        assert isinstance(item.value, Var)
        nest = For(item.value, ZERO, item.domain.extent, LoopKind.SERIAL, nest)
    owner = next((block for block in index.blocks.values() if arranged in block.allocations), index.root)
    under = list(body_statements(owner))
    number = next(n for n, stmt in enumerate(under) if any(item is arranged for item in find_all(stmt, Buffer)))
    changed = owner.replace(body=seq(*under[:number], nest, *under[number:]))
    state.commit(trial.func.replace(body=edit_tree(index, {owner: changed})))
    state.mark_partial(name)
