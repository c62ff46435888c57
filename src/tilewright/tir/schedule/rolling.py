"""Circular buffers for producers of sliding windows: rolling_buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.build import all_of, const, floormod, ge, le, logical_or, sub
from tilewright.ir.expr import ZERO, PrimExpr, Range, Var, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import substitute
from tilewright.tir.analysis.bindings import exact_box
from tilewright.tir.analysis.dependence import consumers, covered, reads_own_output
from tilewright.tir.analysis.linear import linear, mentions
from tilewright.tir.annotations import PIPELINE, ZIGZAG
from tilewright.tir.buffer import Buffer, BufferLoad, BufferRegion
from tilewright.tir.schedule.cache import pick_buffer
from tilewright.tir.schedule.loops import check_kinds
from tilewright.tir.schedule.state import ScheduleState, edit_tree, transform_users
from tilewright.tir.stmt import Block, BlockIter, BufferStore, For, IterKind, LoopKind


@dataclass(frozen=True, slots=True)
class _Slide:
    """A dimension whose window moves with a loop: `step` elements an iteration, less than its `width`.

    Loops outside that one (`outer`) may move the window too: it starts anew in each of their iterations.
    """

    dimension: int
    loop: For
    outer: tuple[For, ...]
    step: int
    width: int


def rolling_buffer(state: ScheduleState, block: Block, choice: int | str) -> None:
    """Keep what successive windows share in a circular buffer, and compute only what is new.

    for i in 8:                                    for i in 8:
        for r in 3: B[i + r] = A[i + r] * 2    ->      for r in 3: B[(i + r) % 3] = A[i + r] * 2  where i <= 0 or r >= 2
        C[i] = B[i] + B[i + 1] + B[i + 2]              C[i] = B[i % 3] + B[(i + 1) % 3] + B[(i + 2) % 3]

    The block has been computed at a loop of its consumers; the window that it writes in one iteration moves with one of
    the loops around by less than its width. The outermost such loop rolls: the buffer has just the width of the
    window in that dimension. Windows that slide in other dimensions along loops inside that one are computed once too.
    The element x of the dimension lies at x % width until x + width comes, which is after the last window with x.
    """
    what = "rolling_buffer"
    buffer = pick_buffer(state, block, block.writes, choice, what)
    _require_producer(state, block, buffer, what)
    place = _meeting_loop(state, block, buffer, what)
    around = [*state.index.loops_above(place), place]
    (region,) = [item for item in block.writes if item.buffer is buffer]
    box = exact_box(block, region, state.index.loops_between(place, block), state.analyzer)
    if box is None:
        state.fail(f"{what}: which elements of {buffer.name} block {block.name} writes cannot be told exactly", block)
    ranges = [item for item in box if item is not None]
    slides = _slides(ranges, around)
    if not slides:
        state.fail(
            f"{what}: what block {block.name} writes in one iteration of loop {place.var.name} does not slide: no "
            "window moves with a loop by less than its width",
            block,
            "compute it at a loop that moves its consumers' window, with compute_at",
        )
    roll = min(slides, key=lambda slide: around.index(slide.loop))
    inside = around[around.index(roll.loop) :]
    _require_steady(state, block, buffer, roll, inside, ranges, what)
    slides = [slide for slide in slides if slide.loop in inside and not any(loop in inside for loop in slide.outer)]
    changed = _only_new(state, block, region, ranges, slides, inside)
    rolled = buffer.replace(
        shape=tuple(const(roll.width) if n == roll.dimension else dim for n, dim in enumerate(buffer.shape)), strides=()
    )
    root = _rewritten(edit_tree(state.index, {block: changed}), buffer, rolled, roll.dimension)
    candidate = state.index_of(state.func.replace(body=root))
    check_kinds(state, candidate, [loop.var for loop in around], what)
    # What is in the buffer is there for its iteration: neither the block nor its readers go elsewhere.
    for item in (block, *consumers(state.index, block)):
        state.mark_partial(item.name)
    state.commit_index(candidate)


def _require_producer(state: ScheduleState, block: Block, buffer: Buffer, what: str) -> None:
    if state.is_parameter(buffer):
        state.fail(f"{what}: {buffer.name} is a parameter of the function: all of it must be written", block)
    others = [writer for writer in state.index.scope(block).writers_of(buffer) if writer is not block]
    if others:
        state.fail(
            f"{what}: {buffer.name} is written by block {others[0].name} too",
            block,
            f"{what} comes before decompose_reduction",
        )
    if len([region for region in block.writes if region.buffer is buffer]) != 1 or len(block.writes) != 1:
        state.fail(f"{what}: block {block.name} does not write one element of one buffer", block)
    if reads_own_output(block):
        state.fail(f"{what}: block {block.name} reads what it writes", block)
    if not state.is_regular(block.name):
        state.fail(
            f"{what}: the loops around block {block.name} do not visit exactly the domains of its iterators", block
        )


def _meeting_loop(state: ScheduleState, block: Block, buffer: Buffer, what: str) -> For:
    """The innermost loop around a producer and its consumers: in each iteration it writes all that they read."""
    index = state.index
    readers = consumers(index, block)
    if not readers:
        state.fail(f"{what}: nothing reads what block {block.name} writes", block)
    shared = index.loops_above(block)
    for reader in readers:
        common = index.common_loops(block, reader)
        shared = [loop for loop in shared if any(loop is item for item in common)]
    if not shared:
        state.fail(
            f"{what}: block {block.name} shares no loop with its consumers",
            block,
            "compute it at a loop of its consumer first",
        )
    for reader in readers:
        if not covered(index, block, reader, buffer, shared[-1], state.analyzer):
            state.fail(
                f"{what}: what block {reader.name} reads of {buffer.name} is not certainly all written in the same "
                f"iteration of loop {shared[-1].var.name}",
                reader,
            )
    return shared[-1]


def _slides(box: Sequence[Range], around: Sequence[For]) -> list[_Slide]:
    """The dimensions of a box that move with a loop by less than they are wide."""
    slides: list[_Slide] = []
    names = {loop.var for loop in around}
    for dimension, item in enumerate(box):
        form, width = linear(item.min), const_value(item.extent)
        moving = [loop for loop in around if form.terms.get(loop.var, 0) and const_value(loop.extent) != 1]
        opaque = any(type(term) is not Var and mentions(term, names) for term in form.terms)
        if moving and width is not None and not opaque:
            step = form.terms[moving[-1].var]
            if 0 < step < width:
                slides.append(_Slide(dimension, moving[-1], tuple(moving[:-1]), step, width))
    return slides


def _require_steady(
    state: ScheduleState,
    block: Block,
    buffer: Buffer,
    roll: _Slide,
    inside: Sequence[For],
    box: Sequence[Range],
    what: str,
) -> None:
    """From one iteration of the rolling loop to the next only the window's place in its own dimension changes."""
    var = roll.loop.var
    size = const_value(buffer.shape[roll.dimension])
    if size is not None and size <= roll.width:
        state.fail(f"{what}: the window of {buffer.name} is all of its dimension {roll.dimension}", block)
    for dimension, item in enumerate(box):
        if dimension != roll.dimension and (mentions(item.min, {var}) or mentions(item.extent, {var})):
            state.fail(f"{what}: several dimensions of {buffer.name} move with loop {var.name}", block)
    for loop in inside:
        if mentions(loop.min, {var}) or mentions(loop.extent, {var}):
            state.fail(f"{what}: the range of loop {loop.var.name} depends on loop {var.name}", loop)
        in_order = loop.kind in (LoopKind.SERIAL, LoopKind.UNROLLED)
        if not in_order or PIPELINE.is_on(loop) or ZIGZAG.is_on(loop):
            state.fail(f"{what}: the iterations of loop {loop.var.name} do not run one after another", loop)
    names = {loop.var for loop in inside}
    (region,) = block.writes
    for entry in block.iters:
        written = any(mentions(part.min, {entry.var}) for part in region.region)
        if not written and mentions(entry.value, names):
            state.fail(
                f"{what}: iterator {entry.var.name} of block {block.name} moves with a loop around and not with what "
                "is written",
                block,
            )


def _only_new(
    state: ScheduleState,
    block: Block,
    region: BufferRegion,
    box: Sequence[Range],
    slides: Sequence[_Slide],
    inside: Sequence[For],
) -> Block:
    """A producer that leaves out what earlier windows had: its sliding iterators run in a fixed order then."""
    values: dict[Var, PrimExpr] = {item.var: item.value for item in block.iters}
    simplify = state.analyzer.simplify
    conditions = [block.predicate]
    ordered: set[Var] = set()
    for slide in slides:
        written = region.region[slide.dimension].min
        depth = simplify(sub(substitute(written, values), box[slide.dimension].min))
        fresh = ge(depth, const(slide.width - slide.step))
        conditions.append(logical_or(le(slide.loop.var, slide.loop.min), fresh))
        ordered.update(item.var for item in block.iters if mentions(written, {item.var}))
    for loop in inside:
        # A loop that moves no window at all would only repeat it.
        if not any(mentions(item.min, {loop.var}) for item in box) and const_value(loop.extent) != 1:
            conditions.append(le(loop.var, loop.min))
    iters = tuple(
        BlockIter(item.var, item.domain, IterKind.OPAQUE, item.value) if item.var in ordered else item
        for item in block.iters
    )
    return block.replace(iters=iters, predicate=all_of(conditions))


def _rewritten(root: Block, old: Buffer, new: Buffer, dimension: int) -> Block:
    """A program in which a buffer is circular in one dimension."""
    width = new.shape[dimension]

    def place(indices: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
        return tuple(floormod(index, width) if n == dimension else index for n, index in enumerate(indices))

    def visit(item: Node) -> Node | None:
        if isinstance(item, BufferLoad) and item.buffer is old:
            return BufferLoad(new, place(item.indices))
        if isinstance(item, BufferStore) and item.buffer is old:
            return BufferStore(new, place(item.indices), item.value)
        if isinstance(item, BufferRegion) and item.buffer is old:
            part = item.region[dimension]
            point = const_value(part.extent) == 1
            circular = Range(floormod(part.min, width), part.extent) if point else Range(ZERO, width)
            return BufferRegion(new, (*item.region[:dimension], circular, *item.region[dimension + 1 :]))
        if isinstance(item, Block) and old in item.allocations:
            return item.replace(allocations=tuple(new if buffer is old else buffer for buffer in item.allocations))
        return None

    return transform_users(root, (old,), visit)
