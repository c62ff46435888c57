"""The schedule of kernels with plain reductions: softmax, normalisation, pooling, sums."""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import FloorMod, PrimExpr, Var, const_value
from tilewright.ir.visit import find_all, pre_order, uses_any
from tilewright.tir.analysis.linear import linear
from tilewright.tir.annotations import ROWS, Anchor
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import Block, IterKind
from tilewright.topi.schedule.access_patterns import are_contiguous
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.cpu import column_sums
from tilewright.topi.schedule.cpu.anchors import contraction_template, kind_of
from tilewright.topi.schedule.cpu.injective import fuse_contiguous, parallelize_rows, schedule_injective
from tilewright.topi.schedule.cpu.tile_choice import choose_vector_length
from tilewright.topi.schedule.template import Template


def schedule_reductions(context: ScheduleContext, output: BlockHandle) -> None:
    """Compute every stage of a row where its results are used, rows in parallel, elements in vectors.

    The rows are the output's axes by which every intermediate result is indexed. If the last axis is one of them
    (a pool, a normalisation of channels), a row is a few vectors of it side by side.
    """
    sch = context.sch
    for handle in sch.blocks():
        _fuse_reduced_axes(context, handle)
    others = [handle for handle in _stages(context) if handle.name != output.name]
    loops = sch.get_loops(output)
    block = context.block(output)
    if block.is_reduction:
        for handle in others:
            if context.block(handle).is_reduction:
                _schedule_root_reduction(context, handle)
            else:
                schedule_injective(context, handle)
        _schedule_root_reduction(context, output)
        return
    shared = _shared_axes(context, output, others)
    extents = context.sizes(loops)
    if not shared or prod(extents) == 0 or _are_sums_of_lines(context, output, others):
        for handle in others:
            if context.block(handle).is_reduction:
                _schedule_root_reduction(context, handle)
            else:
                schedule_injective(context, handle)
        schedule_injective(context, output)
        return
    stages = [context.sizes(sch.get_loops(handle)) for handle in others]
    rows = [loop for n, loop in enumerate(loops) if n in shared]
    rest = [loop for n, loop in enumerate(loops) if n not in shared]
    streams = prod(extents) == extents[-1] and not context.is_symbolic(loops[-1])
    if len(loops) - 1 in shared and any(_is_contiguous_along_last_axis(context, handle) for handle in others):
        length = _vector_length(context, output, loops[-1], context.lanes(output))
        if streams:
            # A vector of each row alone is little of what lies there.
            length *= column_sums.vectors_of_block(context, output, extents[-1], length, pieces=1)
        outer, inner = sch.split(rows[-1], [None, length])
        rows, rest = [*rows[:-1], outer], [*rest, inner]
    else:
        together = _rows_together(context, extents, shared)
        if together > 1:
            outer, inner = sch.split(rows[-1], [None, together])
            rows, rest = [*rows[:-1], outer], [inner, *rest]
    sch.reorder(*rows, *rest)
    for handle in reversed(others):
        sch.compute_at(handle, rows[-1])
    for handle in others:
        below = loops_below(context, handle, rows[-1])
        if streams and _schedule_as_column_sums(context, handle, below, whole=False):
            continue
        if context.block(handle).is_reduction:
            vectorize_reduction(context, handle, below)
        else:
            vectorize_last(context, handle, below)
    vectorize_last(context, output, rest)
    context.parallelize(rows, max(prod(extents) * 8, *(prod(sizes) for sizes in stages)))


def _are_sums_of_lines(context: ScheduleContext, output: BlockHandle, others: list[BlockHandle]) -> bool:
    """Whether a row of results is of two sums, lines first and then all lines, that are worth all cores' work.

    There are many lines and few results: each stage is then divided by itself, the lines first.
    """
    sums = [handle for handle in others if context.block(handle).is_reduction]
    if len(sums) != 2 or len(sums) != len(others) or context.target.cores < 2:
        return False
    lines, total = (context.extents(context.sch.get_loops(handle)) for handle in sums)
    results = context.extents(context.sch.get_loops(output))
    if lines is None or total is None or results is None or prod(results) != results[-1]:
        return False
    kept = [context.extent(loop) for loop in _spatial_loops(context, sums[0])]
    return prod(lines) >= context.cpu.parallel.least_work and prod(size or 1 for size in kept[:-1]) > 1


def _spatial_loops(context: ScheduleContext, handle: BlockHandle) -> list[LoopHandle]:
    block = context.block(handle)
    return [loop for loop in context.sch.get_loops(handle) if not _drives(loop, block, IterKind.REDUCE)]


def _stages(context: ScheduleContext) -> list[BlockHandle]:
    """All blocks but those whose rows are computed by statements of their own: these stay before all others, whole."""
    handles = context.sch.blocks()
    whole = [context.block(handle) for handle in handles if ROWS.is_on(context.block(handle))]
    apart = {item.name for block in whole for item in find_all(block, Block)}
    return [handle for handle in handles if handle.name not in apart]


def _fuse_reduced_axes(context: ScheduleContext, handle: BlockHandle) -> None:
    """Make one axis of reduced axes that lie side by side in memory: rows of vectors then have no short ends.

    Before: `for h, w: S[c] += A[c, h, w]`; after: `for k: S[c] += A[c, k // W, k % W]`.
    """
    block = context.block(handle)
    groups: list[list[int]] = []
    for number, item in enumerate(block.iters):
        reduced = item.kind is IterKind.REDUCE
        if groups and reduced and are_contiguous(block, block.iters[number - 1], item):
            groups[-1].append(number)
        else:
            groups.append([number])
    if len(groups) < len(block.iters):
        context.sch.fuse_iterators(handle, groups)


def _rows_together(context: ScheduleContext, extents: list[int], shared: set[int]) -> int:
    """How many rows go through each stage before the next stage starts.

    The end of a reduction is a chain of dependent instructions; those of a few rows overlap. They must stay in cache.
    """
    count = extents[max(shared)]
    size = prod(extent for n, extent in enumerate(extents) if n not in shared) * 4
    options = [1]
    most = context.cpu.core.add_in_flight
    for together in (most // 2, most):
        if count % together == 0 and count >= 2 * together and 4 * size * together <= context.target.l1_bytes:
            options.append(together)
    return context.choose("rows_together", options, options[-1])


def _shared_axes(context: ScheduleContext, output: BlockHandle, others: list[BlockHandle]) -> set[int]:
    """The axes of the output that index every intermediate buffer it reads."""
    block = context.block(output)
    place = {item.var: n for n, item in enumerate(block.iters)}
    shared = set(place.values())
    names = {region.buffer for handle in others for region in context.block(handle).writes}
    for item in pre_order(block.body):
        if isinstance(item, BufferLoad) and item.buffer in names:
            shared &= {place[index] for index in item.indices if isinstance(index, Var) and index in place}
    return shared


def _is_contiguous_along_last_axis(context: ScheduleContext, handle: BlockHandle) -> bool:
    """Whether a stage is a reduction whose last kept axis walks memory."""
    block = context.block(handle)
    if not block.is_reduction:
        return False
    spatial = [item for item in block.iters if item.kind is IterKind.SPATIAL]
    return bool(spatial) and _contiguous_axis(context, handle) is spatial[-1].value


def vectorize_last(context: ScheduleContext, handle: BlockHandle, loops: list[LoopHandle]) -> None:
    """Use vectors in the innermost of the loops of a stage that maps elements."""
    if not loops:
        return
    loops = fuse_contiguous(context, handle, loops)
    extent = context.extent(loops[-1])
    if extent is not None and extent < 2:
        return
    length = _vector_length(context, handle, loops[-1], context.lanes(handle))
    if length == extent:
        context.sch.vectorize(loops[-1])
    else:
        _, inner = context.sch.split(loops[-1], [None, length])
        context.sch.vectorize(inner)


def _vector_length(context: ScheduleContext, handle: BlockHandle, loop: LoopHandle, lanes: int) -> int:
    """How many elements of an innermost loop to take at once; of a symbolic loop a few vectors, its tail is masked."""
    extent = context.extent(loop)
    if extent is None:
        return 2 * lanes
    return choose_vector_length(context, extent, lanes, prod(context.sizes(context.sch.get_loops(handle))))


def _schedule_root_reduction(context: ScheduleContext, handle: BlockHandle) -> None:
    """A reduction with loops of its own: its spatial loops in parallel."""
    sch = context.sch
    loops = sch.get_loops(handle)
    extents = context.sizes(loops)
    if prod(extents) == 0:
        return
    if _schedule_as_column_sums(context, handle, loops):
        return
    spatial = vectorize_reduction(context, handle, loops)
    outer = spatial[:-1] if len(spatial) > 1 else spatial
    if outer and all(context.loop(loop).kind.value == "serial" for loop in outer):
        context.parallelize(outer, prod(extents))


def _schedule_as_column_sums(
    context: ScheduleContext, handle: BlockHandle, loops: list[LoopHandle], *, whole: bool = True
) -> bool:
    """Schedule a reduction along columns that lie side by side in memory, many at a time, if it is one.

    It is a `whole` kernel, or a stage of one that has all columns of its loops in one block.
    """
    block = context.block(handle)
    reduced = [loop for loop in loops if _drives(loop, block, IterKind.REDUCE)]
    spatial = [loop for loop in loops if loop not in reduced]
    walking = _contiguous_axis(context, handle)
    if not reduced or not spatial or walking is None or linear(walking).terms.get(spatial[-1].var) != 1:
        return False
    length = _vector_length(context, handle, spatial[-1], context.lanes(handle))
    if not column_sums.fits(context, handle, reduced, spatial[-1], length):
        return False
    if whole:
        column_sums.schedule_column_sums(context, handle, spatial, reduced, length)
    else:
        (columns,) = context.sizes(spatial[-1:])
        column_sums.schedule_rows(context, handle, spatial, reduced, length, -(-columns // length))
    return True


def vectorize_reduction(context: ScheduleContext, handle: BlockHandle, loops: list[LoopHandle]) -> list[LoopHandle]:
    """Use vectors in a reduction; gives the spatial loops that stay outside.

    When the last spatial axis walks memory, lanes are its elements (reduction loops outside it); when the reduction
    itself walks memory, lanes are partial results, combined at the end (rfactor).
    """
    sch = context.sch
    block = context.block(handle)
    reduce = [loop for loop in loops if _drives(loop, block, IterKind.REDUCE)]
    spatial = [loop for loop in loops if loop not in reduce]
    if not reduce:
        return spatial
    walking = _contiguous_axis(context, handle)
    lanes = context.lanes(handle)
    if spatial and walking is not None and linear(walking).terms.get(spatial[-1].var) == 1:
        extent = context.extent(spatial[-1])
        if extent is not None and extent < 2:
            return spatial
        length = _vector_length(context, handle, spatial[-1], lanes)
        outer, inner = spatial[-1], spatial[-1]
        if length != extent:
            outer, inner = sch.split(spatial[-1], [None, length])
            sch.reorder(outer, *reduce, inner)
            spatial = [*spatial[:-1], outer]
        else:
            sch.reorder(*reduce, inner)
            spatial = spatial[:-1]
        start = sch.decompose_reduction(handle, reduce[0])
        sch.vectorize(inner)
        last = sch.get_loops(start)[-1]
        sch.vectorize(last)
        return spatial
    if walking is reduce[-1].var:
        (extent,) = context.sizes(reduce[-1:])
        if extent >= 2 * lanes and lanes > 1:
            count = 2 * lanes if context.is_symbolic(reduce[-1]) else _choose_partial(context, extent, lanes)
            _, inner = sch.split(reduce[-1], [None, count])
            partial = sch.rfactor(inner, -1)
            spatial = _move_partial(context, handle, partial, len(spatial))
            _vectorize_partial(context, partial)
    return spatial


def _drives(loop: LoopHandle, block: Block, kind: IterKind) -> bool:
    """Whether an iterator of a kind moves with a loop."""
    return any(item.kind is kind and uses_any(item.value, [loop.var]) for item in block.iters)


def _partial_length(extent: int, lanes: int, most: int) -> int:
    """How many partial results a reduction keeps: whole vectors, without a tail if that leaves enough of them."""
    for count in (most, most // 2):
        if extent % (count * lanes) == 0 or extent >= 4 * count * lanes:
            return count * lanes
    return lanes


def _choose_partial(context: ScheduleContext, extent: int, lanes: int) -> int:
    """The same, for a tuner to decide."""
    default = _partial_length(extent, lanes, context.cpu.core.add_in_flight)
    options = [lanes * count for count in (1, 2, 4, 8) if extent >= 2 * lanes * count]
    return context.choose_again("partial", sorted({*options, default}), default)


def _move_partial(context: ScheduleContext, handle: BlockHandle, partial: BlockHandle, rows: int) -> list[LoopHandle]:
    """Make the partial results of a row where they are combined; gives the loops of rows."""
    sch = context.sch
    shared = [loop.var for loop in sch.get_loops(partial)]
    own = [loop for loop in sch.get_loops(handle) if loop.var not in shared]
    spatial = own[:-1]
    if spatial:
        sch.compute_at(partial, spatial[-1])
    return spatial if len(spatial) == rows else []


def _vectorize_partial(context: ScheduleContext, partial: BlockHandle) -> None:
    """The partial results of an rfactored reduction: their lane axis goes innermost, as a vector."""
    sch = context.sch
    loops = sch.get_loops(partial)
    block = context.block(partial)
    reduce = [loop for loop in loops if _drives(loop, block, IterKind.REDUCE)]
    lane = block.iters[0].value
    lane_loop = next((loop for loop in loops if loop.var is lane), None)
    if lane_loop is None:
        return
    if not reduce:
        # As many partial results as elements: each is one of them.
        sch.vectorize(lane_loop)
        return
    sch.reorder(*reduce, lane_loop)
    start = sch.decompose_reduction(partial, reduce[0])
    sch.vectorize(lane_loop)
    start_block = context.block(start)
    start_lane = start_block.iters[0].value
    for loop in sch.get_loops(start):
        if loop.var is start_lane:
            sch.vectorize(loop)


def _contiguous_axis(context: ScheduleContext, handle: BlockHandle) -> PrimExpr | None:
    """The iterator's value that walks the input with stride one: the one in the last index of the largest load."""
    block = context.block(handle)
    values: dict[PrimExpr, PrimExpr] = {item.var: item.value for item in block.iters}
    best: BufferLoad | None = None
    written = {region.buffer for region in block.writes}
    for item in pre_order(block.body):
        if not isinstance(item, BufferLoad) or item.buffer in written or not item.indices:
            continue
        if best is None or item.buffer.ndim > best.buffer.ndim:
            best = item
    if best is None:
        return None
    last = best.indices[-1]
    if isinstance(last, FloorMod):
        # Axes that were made one.
        last = last.a
    return values.get(last)


def _is_matrix_vector(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> str | None:
    """A matrix product of one column: its sums run along rows in memory, so that lanes are partial sums."""
    spatial = [item for item in context.block(anchor).iters if item.kind is IterKind.SPATIAL]
    one_column = kind_of(context, anchor) is Anchor.MATMUL and const_value(spatial[-1].domain.extent) == 1
    return None if one_column else "no matrix product of one column"


def _has_reduction(context: ScheduleContext) -> str | None:
    if len(context.sch.get_output_blocks()) != 1:
        return "several outputs"
    is_reduction = [context.block(handle).is_reduction for handle in context.sch.blocks()]
    return None if any(is_reduction) else "no reduction"


def _apply(context: ScheduleContext) -> None:
    parallelize_rows(context)
    (output,) = context.sch.get_output_blocks()
    schedule_reductions(context, output)


MATRIX_VECTOR = contraction_template(
    "matrix-vector-product",
    "a product of one column as a reduction: partial sums in vectors",
    _is_matrix_vector,
    lambda context, anchor, output: schedule_reductions(context, output),
)
REDUCTION = Template("reduction", "every stage of a row where its results are used, in vectors", _has_reduction, _apply)
