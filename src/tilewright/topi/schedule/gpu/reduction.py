"""The schedule of a reduction with loops of its own: threads for results, for steps, or for both."""

from __future__ import annotations

from math import prod
from typing import Final

from tilewright.ir.visit import pre_order, uses_any
from tilewright.target.machine import gpu_parameters
from tilewright.tir.annotations import ANCHOR, KEPT, WINDOW, Anchor
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu import column_sums
from tilewright.topi.schedule.gpu.accumulation import accumulate
from tilewright.topi.schedule.gpu.injective import spread
from tilewright.topi.schedule.gpu.rows import reduces_contiguous, schedule_long_rows
from tilewright.topi.schedule.gpu.stage import StageContext, reduce_loops
from tilewright.topi.schedule.template import Template, apply_first

_LANE_BYTES = 16
_LANES = 4
"""Elements of a vector that parts of a row are multiples of, where they can be."""
_PIXELS = (1, 2, 4, 7, 8)
"""Neighbouring windows that a thread may have."""


def keep_windows(context: ScheduleContext) -> None:
    """Mark the padded images of convolutions by channels: a thread reads its window before it computes."""
    for handle in context.sch.blocks():
        readers = [ANCHOR.of(context.block(reader)) for reader in context.sch.get_consumers(handle)]
        if (
            readers == [Anchor.DEPTHWISE_CONV2D]
            and "pad" in handle.name
            and context.extents(context.sch.get_loops(handle))
        ):
            context.sch.annotate(handle, WINDOW, 1)
            context.sch.annotate(handle, KEPT, 1)


def kept_windows(context: ScheduleContext, handle: BlockHandle) -> list[BlockHandle]:
    """The images that were marked, of a convolution."""
    return [item for item in context.sch.get_producers(handle) if WINDOW.of(context.block(item))]


def _across(context: ScheduleContext, results: int, steps: int) -> int:
    """Threads of a block next to each other: a warp, or fewer, so that all cores work; at least 32 bytes of memory.

    Long sums are divided anyway, and memory is quickest in whole lines.
    """
    if results * steps >= context.gpu.reduction.memory_bound:
        return 32
    return max(n for n in (8, 16, 32) if n == 8 or results >= n * context.target.cores)


def _schedule_plain(context: StageContext) -> None:
    """A thread a result, of whatever sizes."""
    sch, handle, epilogue, reduce = context.sch, context.stage, context.epilogue, context.reduce_loops()
    spatial = [loop for loop in sch.get_loops(handle) if loop not in reduce]
    if spatial and reduce:
        sch.reorder(*spatial, *reduce)
    if len(context.block(handle).writes) > 1 or not spatial or not reduce:
        spread(context, spatial)
        if epilogue is not None:
            spread(context, sch.get_loops(epilogue))
        return
    thread = spread(context, sch.get_loops(epilogue or (epilogue := sch.cache_write(handle, 0, "local"))))
    if thread is not None:
        sch.compute_at(handle, thread)


def _schedule_several_results(context: StageContext) -> None:
    sch = context.sch
    _share_several_results(context)
    if context.epilogue is not None:
        spread(context, sch.get_loops(context.epilogue))


def _share_several_results(context: StageContext) -> None:
    """A reduction of several values at once (the place of the greatest element): a block of threads a result."""
    sch, handle, reduce = context.sch, context.stage, context.reduce_loops()
    spatial = [loop for loop in sch.get_loops(handle) if loop not in reduce]
    steps = prod(context.sizes(reduce))
    machine = context.gpu
    many = prod(context.sizes(spatial)) >= context.target.cores * machine.elementwise.block_threads
    if spatial:
        sch.reorder(*spatial, *reduce)
    if steps < machine.reduction.few_steps or many:
        spread(context, spatial)
        return
    step = sch.fuse(*reduce) if len(reduce) > 1 else reduce[0]
    threads = min(machine.elementwise.block_threads, context.target.max_threads, 1 << (steps - 1).bit_length() - 1)
    _, lane = sch.split(step, [None, threads])
    partial = sch.rfactor(lane, 0)
    *rows, last = sch.get_loops(handle)
    row = (sch.fuse(*rows) if len(rows) > 1 else rows[0]) if rows else sch.add_unit_loop(last)
    sch.compute_at(partial, row)
    sch.bind(row, "blockIdx.x")
    sch.bind(last, "threadIdx.x")
    sch.bind(sch.get_loops(partial)[1], "threadIdx.x")


def _sharing(context: ScheduleContext, steps: int, across: int) -> int:
    """Threads that share the steps of a result, so that each has a few: their loads are on their way together."""
    # Each has a vector in shared memory, and as much again is spare.
    target = context.target
    sharing = gpu_parameters(target).reduction.most_sharing
    most = min(target.max_threads, sharing, target.shared_bytes // (2 * _LANE_BYTES)) // across
    options = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= max(1, most)]
    return context.choose_again("sharing", options, max(n for n in options if n == 1 or n * 8 <= steps))


def _columns(
    context: ScheduleContext,
    handle: BlockHandle,
    epilogue: BlockHandle | None,
    sharing: int,
    across: int = 32,
    window: BlockHandle | None = None,
) -> None:
    """A thread has a vector of results next to each other; several threads may share their steps.

    for i, k: c[i] += x[k, i]  ->  for bx: for tx: { for ty: for ko: part[v] += x[ko * 8 + ty, (bx, tx, v)]  (vectors);
                                                     c[v] = sum of part over ty }
    """
    sch = context.sch
    partial: BlockHandle | None = None
    steps = 0
    if sharing > 1:
        reduce = reduce_loops(context, handle)
        steps = prod(context.sizes(reduce))
        step = sch.fuse(*reduce) if len(reduce) > 1 else reduce[0]
        _, share = sch.split(step, [None, sharing])
        partial = sch.rfactor(share, 0)
    output = epilogue or sch.cache_write(handle, 0, "local")
    loops = sch.get_loops(output)
    if not loops:
        return
    lanes = _vector_width(context, partial or handle, output)
    lane: LoopHandle | None = None
    if lanes > 1:
        loops[-1], lane = sch.split(loops[-1], [None, lanes])
    pixels = _pixels(context, handle, loops, sharing)
    if pixels is not None:
        inside = [pixels] if lane is None else [pixels, lane]
        sch.reorder(*loops, *inside)
        sch.unroll(pixels)
    if sharing > 1:
        fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
        block, thread = sch.split(fused, [None, across])
        sch.bind(block, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
    else:
        innermost = spread(context, loops)
        assert innermost is not None
        thread = innermost
    sch.compute_at(handle, thread)
    if window is not None:
        _hold(context, handle, thread, window)
    if partial is not None:
        sch.compute_at(partial, thread)
        own = sch.get_loops(handle)
        sch.bind(own[-1], "threadIdx.y")
        share = sch.get_loops(partial)[sch.get_loops(partial).index(thread) + 1]
        sch.bind(share, "threadIdx.y")
        accumulate(context, partial, share, steps // sharing)
    else:
        accumulate(context, handle, thread)
    if lane is not None:
        sch.vectorize(lane)


def _hold(context: ScheduleContext, handle: BlockHandle, thread: LoopHandle, window: BlockHandle) -> None:
    """Read the weights and the window of a thread into registers first: all loads are on their way together."""
    sch = context.sch
    image = context.block(window).writes[0].buffer
    near = [
        sch.cache_read(handle, region.buffer.name, "local")
        for region in context.block(handle).reads
        if region.buffer is not image and region.buffer not in {item.buffer for item in context.block(handle).writes}
    ]
    sch.set_scope(window, 0, "local")
    for item in (*near, window):
        sch.compute_at(item, thread)
        own = sch.get_loops(item)
        *outer, last = own[own.index(thread) + 1 :]
        for loop in outer:
            sch.unroll(loop)
        if (context.extent(last) or 0) > 1:
            sch.vectorize(last)


def _pixels(context: ScheduleContext, handle: BlockHandle, loops: list[LoopHandle], sharing: int) -> LoopHandle | None:
    """Neighbouring windows that a thread has, of a convolution or a pool by channels: what they share is read once."""
    anchor = ANCHOR.of(context.block(handle))
    if anchor not in (Anchor.DEPTHWISE_CONV2D, Anchor.POOL2D) or len(loops) < 2 or sharing > 1:
        return None
    width = context.extent(loops[-2]) or 1
    options = [n for n in _PIXELS if width % n == 0]
    threads = prod(context.sizes(loops))
    enough = context.target.cores * context.gpu.elementwise.block_threads
    # As few windows share most of what they read; more are for rows that are not multiples of four.
    able = [n for n in options if threads // n >= enough]
    default = next((n for n in (4, 7, 2) if n in able and anchor is Anchor.DEPTHWISE_CONV2D), 1)
    count = context.choose_again("pixels", options, default)
    if count == 1:
        return None
    loops[-2], inner = context.sch.split(loops[-2], [None, count])
    return inner


def _vector_width(context: ScheduleContext, handle: BlockHandle, output: BlockHandle) -> int:
    """Results next to each other that a thread has: 16 bytes, where what is read and written lies so, too."""
    block, last = context.block(handle), context.block(output)
    results, written = [item.var for item in block.iters if item.kind is IterKind.SPATIAL], last.iters[-1].var
    size = context.sizes(context.sch.get_loops(output)[-1:])[0]
    bits = max(region.buffer.dtype.bits for region in (*block.reads, *block.writes, *last.writes))
    lanes = _LANE_BYTES * 8 // max(8, bits)
    count = prod(context.sizes(context.sch.get_loops(output)))
    while lanes > 1 and (size % lanes or count // lanes < context.target.cores * 32):
        lanes //= 2
    written_buffers = {region.buffer for region in block.writes}
    for item in pre_order(block.body):
        if isinstance(item, BufferLoad) and item.indices and item.buffer not in written_buffers:
            if any(uses_any(index, results[-1:]) for index in item.indices[:-1]):
                return 1
            if uses_any(item.indices[-1], results[-1:]) and item.indices[-1] is not results[-1]:
                return 1
    for item in pre_order(last.body):
        if isinstance(item, BufferLoad) and any(uses_any(index, [written]) for index in item.indices[:-1]):
            return 1
    return lanes


def _parts(context: StageContext, most: int) -> tuple[int, bool]:
    """Into how many parts the steps of a reduction are divided, and whether of all its loops fused; 1 if it is not."""
    sizes = context.sizes(context.reduce_loops())
    part_steps = context.gpu.reduction.part_steps
    parts = _divisor(sizes[0], most, max(1, part_steps // prod(sizes[1:])), 1 if len(sizes) > 1 else _LANES)
    if 4 * parts < most and len(sizes) > 1:
        return _divisor(prod(sizes), most, part_steps, _LANES), True
    return parts, False


def _split(context: StageContext, parts: int, fused: bool) -> BlockHandle:
    """Partial results of a reduction's outer steps, in a stage of their own."""
    reduce = context.reduce_loops()
    loop = context.sch.fuse(*reduce) if fused else reduce[0]
    outer, _ = context.sch.split(loop, [parts, None])
    return context.sch.rfactor(outer, 0)


def _divisor(number: int, most: int, least_left: int, lanes: int = 1) -> int:
    """The greatest divisor of a number up to a limit that leaves parts of some size.

    One that leaves whole vectors of lanes, if that costs less than half of the parts.
    """
    found = [n for n in range(1, most + 1) if number % n == 0 and (n == 1 or number // n >= least_left)]
    whole = [n for n in found if number // n % lanes == 0 and 2 * n > found[-1]]
    return max(whole or found)


# ---------------------------------------------------------------- templates


def _sizes(context: StageContext) -> tuple[int, int] | str:
    """Results and steps of a reduction, or why templates of known sizes do not take it."""
    block = context.block(context.stage)
    loops, reduce = context.sch.get_loops(context.stage), context.reduce_loops()
    if not block.is_reduction:
        return "the stage is no reduction"
    if not reduce or context.extents(loops) is None:
        return "sizes are symbolic" if reduce else "there are no loops over steps"
    steps = prod(context.sizes(reduce))
    results = prod(context.sizes([loop for loop in loops if loop not in reduce]))
    return (results, steps) if results and steps else "there is nothing to reduce"


def _fits_one_thread(context: StageContext, results: int, steps: int) -> bool:
    """Whether a thread does all steps of its results."""
    machine = context.gpu
    many = context.target.cores * machine.elementwise.block_threads * 4
    return steps < machine.reduction.few_steps or results >= many


def _why_not_window(context: StageContext) -> str | None:
    if not kept_windows(context, context.stage):
        return "the stage is no convolution by channels of a padded image"
    is_large = _is_large_window(context, context.reduce_loops())
    return "windows are too large for registers" if is_large else None


def _is_large_window(context: ScheduleContext, reduce: list[LoopHandle]) -> bool:
    return prod(context.sizes(reduce)) > context.gpu.reduction.most_window


def _schedule_window(context: StageContext) -> None:
    """A thread has neighbouring channels of a result, and its weights and its window in registers before it starts."""
    window, *_ = kept_windows(context, context.stage)
    _columns(context, context.stage, context.epilogue, 1, window=window)


def _why_not_several_results(context: StageContext) -> str | None:
    sizes = _sizes(context)
    if isinstance(sizes, str):
        return sizes
    return None if len(context.block(context.stage).writes) > 1 else "the reduction has one result"


def _one_result(context: StageContext) -> tuple[int, int] | str:
    """Results and steps of a reduction of one value, or why it is none."""
    return "the reduction has several results" if len(context.block(context.stage).writes) > 1 else _sizes(context)


def _why_not_split(context: StageContext) -> str | None:
    sizes = _one_result(context)
    if isinstance(sizes, str):
        return sizes
    results, steps = sizes
    if _fits_one_thread(context, results, steps) or steps < context.gpu.reduction.many_steps:
        return "steps are few, or results many"
    blocks = _blocks(context, results, steps)
    if blocks >= context.target.cores:
        return "there are results for all multiprocessors"
    parts, fused = _parts(context, max(2, 4 * context.target.cores // blocks))
    if parts == 1:
        return "steps do not divide"
    try:
        _split(context.copy(), parts, fused)
    except ScheduleError as error:
        return f"steps cannot be split: {error.message.splitlines()[0]}"
    return None


def _blocks(context: StageContext, results: int, steps: int) -> int:
    """Blocks of threads where each has the whole of its results."""
    return results if _has_rows(context, results) else -(-results // _across(context, results, steps))


def _has_rows(context: StageContext, results: int) -> bool:
    """Whether a block of threads has a result: its steps are neighbours in memory, or there is no other result."""
    return results == 1 or reduces_contiguous(context.block(context.stage))


def _schedule_split(context: StageContext) -> None:
    """Partial results first, then their reduction: each a reduction of its own.

    for i, k: c[i] += x[i, k]  ->  for i, p, k: part[p, i] += x[i, p * 256 + k];  for i, p: c[i] += part[p, i]
    """
    sizes = _one_result(context)
    assert not isinstance(sizes, str)
    partial = _split(context, *_parts(context, max(2, 4 * context.target.cores // _blocks(context, *sizes))))
    for handle, epilogue in ((partial, None), (context.stage, context.epilogue)):
        stage = StageContext.of(context, handle, epilogue)
        apply_first(REDUCTIONS, stage)
        context.take(stage)


def _why_not_row(context: StageContext) -> str | None:
    sizes = _one_result(context)
    if isinstance(sizes, str):
        return sizes
    if _fits_one_thread(context, *sizes):
        return "a thread does all steps of its results"
    return None if _has_rows(context, sizes[0]) else "steps are not neighbours in memory"


def _schedule_row(context: StageContext) -> None:
    output = context.epilogue or context.sch.cache_write(context.stage, 0, "local")
    schedule_long_rows(context, context.stage, output)


def _why_not_columns(context: StageContext) -> str | None:
    sizes = _one_result(context)
    return sizes if isinstance(sizes, str) else None


def _schedule_columns(context: StageContext) -> None:
    sizes = _one_result(context)
    assert not isinstance(sizes, str)
    sharing, across = 1, 32
    if not _fits_one_thread(context, *sizes):
        across = _across(context, *sizes)
        sharing = _sharing(context, sizes[1], across)
    _columns(context, context.stage, context.epilogue, sharing, across)


def _why_not_plain(context: StageContext) -> str | None:
    return None if context.block(context.stage).is_reduction else "the stage is no reduction"


REDUCTIONS: Final = (
    Template(
        "depthwise_window",
        "a convolution by channels: a thread reads its window and weights into registers first",
        _why_not_window,
        _schedule_window,
    ),
    column_sums.TEMPLATE,
    Template(
        "several_results",
        "threads of a block share the steps of a reduction of several values",
        _why_not_several_results,
        _schedule_several_results,
    ),
    Template(
        "split_reduction", "partial results of many blocks, then their reduction", _why_not_split, _schedule_split
    ),
    Template("row_reduction", "a block of threads a row, in vectors along it", _why_not_row, _schedule_row),
    Template(
        "column_reduction",
        "neighbouring results a thread; threads of a column share its steps",
        _why_not_columns,
        _schedule_columns,
    ),
    Template("plain_reduction", "a thread a result, of whatever sizes", _why_not_plain, _schedule_plain),
)
"""Ways to compute a reduction with loops of its own; the last one fits all of them."""


def inline_large_windows(context: ScheduleContext, handle: BlockHandle) -> None:
    """Compute the image of a convolution by channels where it is read, if threads cannot hold its windows."""
    if _is_large_window(context, reduce_loops(context, handle)):
        for window in kept_windows(context, handle):
            context.sch.compute_inline(window)
