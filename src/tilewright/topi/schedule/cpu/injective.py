"""The schedule of a stage that maps elements: outer loops in parallel, the innermost in vectors."""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import Select, Var
from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.analysis.byte_lookups import is_byte_lookup
from tilewright.tir.annotations import ROWS
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.schedule.reindexing import is_conditional
from tilewright.topi.schedule.access_patterns import (
    are_contiguous,
    crossed_axis,
    crossed_source,
    gathers,
    mostly_divides,
    moves_only,
    same_indices,
)
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.tile_choice import choose_vector_length
from tilewright.topi.schedule.template import Template

_MOVES_AT_ONCE = 4
_MOST_INTERLEAVED = 4
"""Elements side by side that are written from vectors of the lines they come from."""
_PIECES = 2
"""Pieces that the least work worth sharing is cut into, where its size is open."""
_WIDE = 32
"""Bits of a number that is computed with as it is."""


def schedule_injective(context: ScheduleContext, handle: BlockHandle) -> None:
    """Vectorize the innermost loop and spread the outer ones.

    Before: `for i, j: B[i, j] = f(A[i, j])`; after: `parallel i: for jo: vectorized ji: ...`. A stage whose loads all
    use its own indices is first fused to one dimension.
    """
    sch = context.sch
    loops = sch.get_loops(handle)
    if not loops:
        return
    extents = context.sizes(loops)
    lanes = context.lanes(handle)
    if len(loops) > 1 and same_indices(context.block(handle)) and _are_better_fused(context, loops, lanes):
        loops = [sch.fuse(*loops)]
        extents = [prod(extents)]
    work = prod(extents)
    if work == 0:
        return
    crossed = crossed_axis(context.block(handle), len(loops))
    across = loops[crossed] if crossed is not None and extents[crossed] > 1 else None
    loops = _without_unit(context, fuse_contiguous(context, handle, loops))
    extents = context.sizes(loops)
    if across in loops[:-1] and lanes > 1 and 1 < extents[-1] <= _MOST_INTERLEAVED:
        _schedule_interleaved(context, loops, loops.index(across), lanes, work)
        return
    if across in loops[:-1] and extents[-1] >= lanes > 1:
        assert across is not None
        _schedule_transpose(context, handle, loops, loops.index(across), lanes, work)
        return
    if not _has_gathers(context, handle) and _moves_out_of_order(context, handle, loops[-1]):
        _schedule_scalar_moves(context, loops, work)
        return
    symbolic = context.is_symbolic(loops[-1])
    length = 2 * lanes if symbolic else choose_vector_length(context, extents[-1], lanes, work)
    length = 1 if mostly_divides(context.block(handle), loops[-1].var) else length
    if symbolic and len(loops) == 1:
        _schedule_open_row(context, loops[0], length)
        return
    outer = loops[:-1]
    if length == extents[-1] and not symbolic:
        sch.vectorize(loops[-1])
    else:
        rest, inner = sch.split(loops[-1], [None, length])
        sch.vectorize(inner)
        outer = [*outer, rest]
    if outer:
        context.parallelize(_beside_borders(context, handle, outer), work)


def _schedule_open_row(context: ScheduleContext, row: LoopHandle, length: int) -> None:
    """A row of an open size: pieces that are worth a core's while; of a short row there is one, which wakes nobody."""
    sch = context.sch
    if context.target.cores < 2:
        _, lane = sch.split(row, [None, length])
    else:
        vectors = max(1, context.cpu.parallel.least_work // (_PIECES * length))
        piece, _, lane = sch.split(row, [None, vectors, length])
        sch.parallel(piece)
    sch.vectorize(lane)


def _beside_borders(context: ScheduleContext, handle: BlockHandle, outer: list[LoopHandle]) -> list[LoopHandle]:
    """The loops to run in parallel: where elements are chosen by their place, cores have whole lines if all have some.

    The loop along a line is then divided at the borders of an image, and its inside tests nothing.
    """
    block = context.block(handle)
    tested = {var for item in find_all(block.body, Select) for var in find_all(item.condition, Var)}
    places = [item.value for item in block.iters if item.var in tested]
    along = [n for n, loop in enumerate(outer) if any(uses_any(place, [loop.var]) for place in places)]
    lines = context.extents(outer[: along[-1]]) if along else None
    return outer[: along[-1]] if lines and prod(lines) >= context.target.cores else outer


def fuse_contiguous(context: ScheduleContext, handle: BlockHandle, loops: list[LoopHandle]) -> list[LoopHandle]:
    """Make one loop of the last ones where what they access lies side by side: vectors then have one end in all."""
    block = context.block(handle)
    driven = {item.value: item for item in block.iters if isinstance(item.value, Var)}
    first = len(loops) - 1
    while first > 0 and all(loop.var in driven for loop in loops[first - 1 : first + 1]):
        if not are_contiguous(block, driven[loops[first - 1].var], driven[loops[first].var]):
            break
        first -= 1
    if first == len(loops) - 1:
        return loops
    return [*loops[:first], context.sch.fuse(*loops[first:])]


def _without_unit(context: ScheduleContext, loops: list[LoopHandle]) -> list[LoopHandle]:
    """Loops the last of which has more than one iteration, if any has: vectors are of that one's."""
    last = next((n for n in reversed(range(len(loops))) if context.extent(loops[n]) != 1), None)
    if last is None or last == len(loops) - 1:
        return loops
    return [*loops[:last], context.sch.fuse(*loops[last:])]


def _are_better_fused(context: ScheduleContext, loops: list[LoopHandle], lanes: int) -> bool:
    """Whether elements are better walked as one row than as rows of the last axis.

    Not where the fused loop would be divided by symbolic extents, nor where rows are whole vectors anyway and fusing
    would only leave a tail.
    """
    if not any(context.is_symbolic(loop) for loop in loops):
        return True
    last = context.extent(loops[-1])
    return last is not None and last % lanes != 0 and not any(context.is_symbolic(loop) for loop in loops[1:])


def _schedule_transpose(
    context: ScheduleContext, handle: BlockHandle, loops: list[LoopHandle], crossed: int, lanes: int, work: int
) -> None:
    """A stage that reads along another axis than it writes: tiles as large as a cache line both ways.

    Before: `for i, j: B[i, j] = f(A[j, i])`; after: `parallel io, jo: for ii: vectorized ji: T[ii, ji] = A[j, i]`, and
    `for ii: vectorized ji: B[i, j] = f(T[ii, ji])` where f computes with narrow numbers. What is read in a tile is
    read again while it is in the cache. Narrow numbers are turned before they are converted: single elements of wide
    vectors cost more.
    """
    sch = context.sch
    block = context.block(handle)
    source = crossed_source(block, len(loops))
    side = lanes
    copy: BlockHandle | None = None
    # What is read only where a condition holds (inside the border of padded data) is turned as it is read.
    if (
        source is not None
        and source.dtype.bits < _WIDE
        and not moves_only(block)
        and not is_conditional(block.body, source)
    ):
        side = max(lanes, context.target.lanes(max(8, source.dtype.bits)))
        copy = sch.reindex_cache_read(handle, source.name, "local", lambda *i: i)
    across_outer, across_inner = sch.split(loops[crossed], [None, side])
    last_outer, last_inner = sch.split(loops[-1], [None, side])
    outer = [across_outer if n == crossed else loop for n, loop in enumerate(loops[:-1])]
    sch.reorder(*outer, last_outer, across_inner, last_inner)
    if copy is not None:
        sch.compute_at(copy, last_outer)
        sch.vectorize(sch.get_loops(copy)[-1])
    sch.vectorize(last_inner)
    context.parallelize(outer, work)


def _schedule_interleaved(
    context: ScheduleContext, loops: list[LoopHandle], crossed: int, lanes: int, work: int
) -> None:
    """A stage that writes a few elements side by side, which it reads from as many lines: an image's channels.

    Before: `for y, x, c: B[y, x, c] = f(A[c, y, x])`; after: `parallel y: for xo: unrolled c: vectorized xi: ...`.
    Neighbouring stores of every n-th element are put together in registers (`emit_interleaved.py`).
    """
    sch = context.sch
    (extent,) = context.sizes([loops[crossed]])
    lanes = min(lanes, context.target.lanes(_WIDE))
    length = lanes if context.is_symbolic(loops[crossed]) else choose_vector_length(context, extent, lanes, work)
    outer, inner = sch.split(loops[crossed], [None, length])
    order = [outer if n == crossed else loop for n, loop in enumerate(loops[:-1])]
    sch.reorder(*order, loops[-1], inner)
    sch.unroll(loops[-1])
    sch.vectorize(inner)
    context.parallelize(order, work)


def _has_gathers(context: ScheduleContext, handle: BlockHandle) -> bool:
    """Whether the processor loads vectors of such elements from anywhere: of 32 bits or more, or bytes of a table."""
    block = context.block(handle)
    if context.target.has_byte_tables and any(map(is_byte_lookup, find_all(block.body, BufferLoad))):
        return True
    return context.target.has_feature("avx2") and block.writes[0].buffer.dtype.bits >= _WIDE


def _moves_out_of_order(context: ScheduleContext, handle: BlockHandle, last: LoopHandle) -> bool:
    """Whether a stage only moves elements, from places that are not in order along its last loop."""
    block = context.block(handle)
    lanes = [item.var for item in block.iters if item.value is last.var]
    return bool(lanes) and moves_only(block) and gathers(block, lanes[0])


def _schedule_scalar_moves(context: ScheduleContext, loops: list[LoopHandle], work: int) -> None:
    """Single elements, some at a time: putting them together to a vector would take longer than storing each."""
    rest, few = context.sch.split(loops[-1], [None, _MOVES_AT_ONCE])
    context.sch.unroll(few)
    context.parallelize([*loops[:-1], rest], work)


def parallelize_rows(context: ScheduleContext) -> None:
    """Rows that are computed by statements of their own (`te.extern_rows`): in parallel."""
    for handle in context.sch.blocks():
        if ROWS.is_on(context.block(handle)):
            sizes = [region.buffer.static_shape for region in context.block(handle).reads]
            context.parallelize(context.sch.get_loops(handle), sum(prod(size) for size in sizes if size))


def _apply(context: ScheduleContext) -> None:
    parallelize_rows(context)
    for handle in context.sch.blocks():
        if not ROWS.is_on(context.block(handle)) and not context.block(handle).is_reduction:
            schedule_injective(context, handle)


TEMPLATE = Template(
    "elementwise",
    "each stage by itself: the innermost loop in vectors, the outer ones in parallel",
    lambda _: None,
    _apply,
)
