"""The schedule of a stage that maps elements: vectors of neighbours over threads, transposes through shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import const, floordiv
from tilewright.ir.expr import ZERO, PrimExpr, Range, Var, const_value
from tilewright.ir.visit import find_all, pre_order, substitute, uses_any
from tilewright.tir.analysis.linear import linear
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import Block
from tilewright.topi.schedule.access_patterns import crossed_axis, same_indices
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.stage import StageContext
from tilewright.topi.schedule.template import Template, apply_first

_VECTOR_BYTES = 16
"""The widest access of a thread."""
_TILE = 32
"""Rows and columns of a tile that is transposed."""
_TILE_ROWS = 8
"""Rows of a tile that the threads of a block move at a time."""


def schedule_injective(context: ScheduleContext, handle: BlockHandle) -> None:
    """Schedule a stage that maps elements, by the first of its templates that fits."""
    stage = StageContext.of(context, handle)
    apply_first(INJECTIVE, stage)
    context.take(stage)


def _schedule_elements(context: StageContext) -> None:
    """Divide the elements of a stage over threads, a vector or two for each.

    for i, j: B[i, j] = f(A[i, j])  ->  for bx in blockIdx.x: for tx in threadIdx.x(256): for u: for v in vectorized(4)
    """
    sch = context.sch
    loops = sch.get_loops(context.stage)
    sizes = context.extents(loops)
    if not loops or sizes is None or 0 in sizes:
        spread(context, loops)
        return
    block = context.block(context.stage)
    crossed = crossed_axis(block, len(loops))
    if len(loops) > 1 and same_indices(block):
        loops, sizes = [sch.fuse(*loops)], [prod(sizes)]
    lanes = _vector_width(context, block, sizes) if crossed is None else _short_row(context, block, sizes)
    outer = loops
    if lanes > 1:
        whole, lane = sch.split(loops[-1], [None, lanes])
        sch.vectorize(lane)
        outer = [*loops[:-1], whole]
    vectors = context.choose_again("vectors", (1, 2, 4), 1)
    spread(context, outer, vectors)


def spread(context: ScheduleContext, loops: list[LoopHandle], each: int = 1) -> LoopHandle | None:
    """Divide the iterations of nested loops over blocks of threads; gives the innermost loop, None without loops.

    for i, j: B(i, j)   ->   for bx in blockIdx.x: for tx in threadIdx.x(256): B(...)

    A thread has `each` iterations, as far apart as there are threads.
    """
    if not loops:
        return None
    sch = context.sch
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    extent = context.extent(fused)
    machine = context.gpu.elementwise
    threads = min(machine.block_threads, context.target.max_threads)
    if extent is not None:
        # Small blocks where there are few: more cores have one.
        while threads > machine.least_threads and extent < threads * each * context.target.cores:
            threads //= 2
        options = [n for n in (64, 128, 256, 512) if n <= min(extent, context.target.max_threads)]
        threads = context.choose_again("threads", options, threads) if len(options) > 1 else threads
        threads = min(threads, max(1, extent))
    if each > 1:
        block, step, thread = sch.split(fused, [None, each, threads])
        sch.reorder(thread, step)
        sch.unroll(step)
    else:
        block, thread = sch.split(fused, [None, threads])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return thread


def _vector_width(context: ScheduleContext, block: Block, sizes: list[int]) -> int:
    """Elements that a thread takes at once: 16 bytes, if rows are whole vectors and all threads of the device work."""
    regions = (*block.reads, *block.writes)
    # What is small (a value for each channel) is in the cache: it does not decide.
    large = [region.buffer for region in regions if 4 * prod(region.buffer.static_shape or (0,)) >= prod(sizes)]
    lanes = _VECTOR_BYTES * 8 // max(8, *(buffer.dtype.bits for buffer in large))
    threads = context.target.cores * context.gpu.elementwise.block_threads
    while lanes > 1 and (sizes[-1] % lanes or prod(sizes) // lanes < threads * 2):
        lanes //= 2
    own = block.iters[-1].var
    crossing = [
        index
        for item in pre_order(block.body)
        if isinstance(item, BufferLoad)
        for index in _long_axes(item)[:-1]
        if uses_any(index, [own])
    ]
    # An element that is far from its neighbour's gains nothing, and costs registers.
    while lanes > 1 and not _are_same_in_vectors(crossing, block, lanes):
        lanes //= 2
    return lanes if lanes > 1 or not crossing else _short_row(context, block, sizes)


def _are_same_in_vectors(indices: Sequence[PrimExpr], block: Block, lanes: int) -> bool:
    """Whether indices are the same for all elements of a vector along the last axis, as reshaped heads of a row are."""
    if not indices:
        return True
    analyzer = Analyzer()
    for item in block.iters:
        analyzer.bind(item.var, item.domain)
    last = block.iters[-1]
    vector, lane = Var("vector"), Var("lane")
    analyzer.bind(vector, Range(ZERO, floordiv(last.domain.extent, lanes)))
    analyzer.bind(lane, Range(ZERO, const(lanes)))
    place = {last.var: vector * lanes + lane}
    return not any(uses_any(analyzer.simplify(substitute(index, place)), [lane]) for index in indices)


def _long_axes(load: BufferLoad) -> list[PrimExpr]:
    """The indices of a load along axes of more than one element."""
    return [index for index, size in zip(load.indices, load.buffer.shape, strict=True) if const_value(size) != 1]


def _short_row(context: ScheduleContext, block: Block, sizes: list[int]) -> int:
    """Elements of the last axis that a thread writes at once where reads run across it: the whole axis, or one.

    Channels of an image become neighbours: each is read by neighbouring threads, and a pixel is written as a vector.
    """
    width = sizes[-1] * block.writes[0].buffer.dtype.itemsize
    threads = context.target.cores * context.gpu.elementwise.block_threads
    is_vector = sizes[-1] in (2, 4) and width <= _VECTOR_BYTES
    return sizes[-1] if is_vector and prod(sizes[:-1]) >= threads * 2 else 1


def _why_not_transposed(context: StageContext) -> str | None:
    if context.target.is_software:
        return "shared memory of the target is no nearer than other memory"
    loops = context.sch.get_loops(context.stage)
    sizes = context.extents(loops)
    if not loops or sizes is None:
        return "sizes are symbolic"
    block = context.block(context.stage)
    if block.is_reduction:
        return "the stage is a reduction"
    crossed = crossed_axis(block, len(loops))
    if crossed is None:
        return "elements are read along the axis that they are written along"
    if min(sizes[crossed], sizes[-1]) < _TILE // 2:
        return "axes are too short for tiles"
    if not _has_square_tiles(block, crossed):
        return "a tile of results does not read a tile of two axes"
    return None if context.target.max_threads >= _TILE * _TILE_ROWS else "blocks of the target are too small"


def _crossed_loads(block: Block, crossed: int) -> list[BufferLoad]:
    """The loads of the buffer that a transposed stage reads across the way it writes."""
    loads = [item for item in find_all(block.body, BufferLoad) if item.indices]
    source = next(item.buffer for item in loads if item.indices[-1] is block.iters[crossed].var)
    return [item for item in loads if item.buffer is source]


def _has_square_tiles(block: Block, crossed: int) -> bool:
    """Whether a tile along both axes reads the source along two axes too: one index each, in steps of their own."""
    first, *more = _crossed_loads(block, crossed)
    across, last = block.iters[crossed].var, block.iters[-1].var
    others = [index for index in first.indices[:-1] if uses_any(index, [across, last])]
    same = all(item.indices == first.indices for item in more)
    return same and len(others) == 1 and not uses_any(others[0], [across]) and last in linear(others[0]).terms


def _schedule_transpose(context: StageContext) -> None:
    """Tiles go through shared memory: read along one axis, written along the other, both by neighbouring threads.

    for i, j: B[i, j] = A[j, i]  ->  for io, jo: { S[j, i] = A[j, i] (threads along i); B[i, j] = S[j, i] (along j) }
    """
    sch, handle = context.sch, context.stage
    loops = sch.get_loops(handle)
    block = context.block(handle)
    crossed = crossed_axis(block, len(loops))
    assert crossed is not None
    source = _crossed_loads(block, crossed)[0].buffer
    across, across_inner = sch.split(loops[crossed], [None, _TILE])
    last, last_inner = sch.split(loops[-1], [None, _TILE])
    outer = [across if n == crossed else loop for n, loop in enumerate(loops[:-1])]
    sch.reorder(*outer, last, across_inner, last_inner)
    copy = sch.cache_read(handle, source.name, "shared")
    tile = sch.fuse(*outer, last)
    sch.compute_at(copy, tile)
    sch.bind(tile, "blockIdx.x")
    moved = sch.get_loops(copy)
    for pair in ([across_inner, last_inner], moved[moved.index(tile) + 1 :]):
        step, row = sch.split(pair[0], [None, _TILE_ROWS])
        sch.reorder(row, pair[1], step)
        sch.bind(row, "threadIdx.y")
        sch.bind(pair[1], "threadIdx.x")
        sch.unroll(step)
    sch.storage_align(copy, 0, context.block(copy).writes[0].buffer.ndim - 2, _TILE, 1)


INJECTIVE = (
    Template(
        "transpose",
        "tiles go through shared memory, so that neighbouring threads read and write neighbours",
        _why_not_transposed,
        _schedule_transpose,
    ),
    Template("elementwise", "a vector or two of neighbours a thread", lambda context: None, _schedule_elements),
)
"""Ways to compute a stage that maps elements; the last one fits all of them."""
