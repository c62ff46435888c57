"""The schedule of a reduction with loops of its own: threads for results, for steps, or for both."""

from __future__ import annotations

from math import prod

from tilewright.ir.visit import pre_order, uses_any
from tilewright.tir.annotations import ANCHOR, KEPT, WINDOW, Anchor
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.attempt import attempt
from tilewright.topi.schedule.gpu.injective import THREADS, spread
from tilewright.topi.schedule.gpu.rows import schedule_long_rows, walks_row

_FEW_STEPS = 32
"""Steps of a reduction below which one thread does them all."""
_MANY_STEPS = 1 << 13
"""Steps of a reduction from which several blocks share those of one result, where results are few."""
_PART_STEPS = 1 << 8
"""Steps that such a block has at least."""
_MUCH = 1 << 23
"""Elements from which on memory decides."""
_LANE_BYTES = 16
_MOST_SHARING = 512
"""Threads of a block that share steps."""
_MOST_UNROLLED = 8
_MOST_WINDOW = 9
"""Steps of a convolution by channels up to which a thread holds its whole window."""


def schedule_reduction(context: ScheduleContext, handle: BlockHandle, epilogue: BlockHandle | None = None) -> None:
    """Schedule a reduction, and the stage that goes on with its results where one does."""
    for window in kept_windows(context, handle):
        if attempt(context, lambda trial, window=window: _windows(trial, handle, epilogue, window)):  # type: ignore[misc]
            return
        context.sch.compute_inline(window)
    sch = context.sch
    reduce = _reducing(context, handle)
    spatial = [loop for loop in sch.get_loops(handle) if loop not in reduce]
    results, steps = prod(context.sizes(spatial)), prod(context.sizes(reduce))
    static = context.extents(sch.get_loops(handle)) is not None
    if not reduce or results == 0 or steps == 0 or not static:
        _plain(context, handle, epilogue, spatial, reduce)
        return
    if len(context.block(handle).writes) > 1:
        _several_results(context, handle, spatial, reduce, steps)
        if epilogue is not None:
            spread(context, sch.get_loops(epilogue))
        return
    if not attempt(context, lambda trial: _fast(trial, handle, epilogue)):
        _plain(context, handle, epilogue, spatial, reduce)


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


def _windows(context: ScheduleContext, handle: BlockHandle, epilogue: BlockHandle | None, window: BlockHandle) -> bool:
    """A thread has neighbouring channels of a result, and its weights and its window in registers before it starts."""
    if prod(context.sizes(_reducing(context, handle))) > _MOST_WINDOW:
        return False
    _columns(context, handle, epilogue, 1, window=window)
    return True


def _fast(context: ScheduleContext, handle: BlockHandle, epilogue: BlockHandle | None) -> bool:
    """The template that fits a reduction of one value, of constant sizes."""
    sch = context.sch
    reduce = _reducing(context, handle)
    results = prod(context.sizes([loop for loop in sch.get_loops(handle) if loop not in reduce]))
    steps = prod(context.sizes(reduce))
    cores = context.target.cores
    if steps < _FEW_STEPS or results >= cores * THREADS * 4:
        _columns(context, handle, epilogue, 1)
        return True
    along = walks_row(context.block(handle))
    across = _across(context, results, steps)
    blocks = results if along else -(-results // across)
    if blocks < cores and steps >= _MANY_STEPS:
        partial = _partial(context, reduce, max(2, 4 * cores // blocks))
        if partial is not None:
            schedule_reduction(context, partial)
            schedule_reduction(context, handle, epilogue)
            return True
    if along:
        schedule_long_rows(context, handle, epilogue or sch.cache_write(handle, 0, "local"))
    else:
        _columns(context, handle, epilogue, _sharing(context, steps, across), across)
    return True


def _across(context: ScheduleContext, results: int, steps: int) -> int:
    """Threads of a block next to each other: a warp, or fewer, so that all cores work; at least 32 bytes of memory.

    Long sums are divided anyway, and memory is quickest in whole lines.
    """
    if results * steps >= _MUCH:
        return 32
    return max(n for n in (8, 16, 32) if n == 8 or results >= n * context.target.cores)


def _reducing(context: ScheduleContext, handle: BlockHandle) -> list[LoopHandle]:
    iters = [item for item in context.block(handle).iters if item.kind is IterKind.REDUCE]
    return [loop for loop in context.sch.get_loops(handle) if any(uses_any(item.value, [loop.var]) for item in iters)]


def _plain(
    context: ScheduleContext,
    handle: BlockHandle,
    epilogue: BlockHandle | None,
    spatial: list[LoopHandle],
    reduce: list[LoopHandle],
) -> None:
    """A thread a result, of whatever sizes."""
    sch = context.sch
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


def _several_results(
    context: ScheduleContext, handle: BlockHandle, spatial: list[LoopHandle], reduce: list[LoopHandle], steps: int
) -> None:
    """A reduction of several values at once (the place of the greatest element): a block of threads a result."""
    sch = context.sch
    many = prod(context.sizes(spatial)) >= context.target.cores * THREADS
    if spatial:
        sch.reorder(*spatial, *reduce)
    if steps < _FEW_STEPS or many:
        spread(context, spatial)
        return
    step = sch.fuse(*reduce) if len(reduce) > 1 else reduce[0]
    threads = min(THREADS, context.target.max_threads, 1 << (steps - 1).bit_length() - 1)
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
    most = min(context.target.max_threads, _MOST_SHARING, context.target.shared_bytes // (2 * _LANE_BYTES)) // across
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
        reduce = _reducing(context, handle)
        steps = prod(context.sizes(reduce))
        step = sch.fuse(*reduce) if len(reduce) > 1 else reduce[0]
        _, share = sch.split(step, [None, sharing])
        partial = sch.rfactor(share, 0)
    output = epilogue or sch.cache_write(handle, 0, "local")
    loops = sch.get_loops(output)
    if not loops:
        return
    lanes = _lanes(context, partial or handle, output)
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
        found = spread(context, loops)
        assert found is not None
        thread = found
    sch.compute_at(handle, thread)
    if window is not None:
        _hold(context, handle, thread, window)
    if partial is not None:
        sch.compute_at(partial, thread)
        own = sch.get_loops(handle)
        sch.bind(own[-1], "threadIdx.y")
        share = sch.get_loops(partial)[sch.get_loops(partial).index(thread) + 1]
        sch.bind(share, "threadIdx.y")
        _accumulate(context, partial, share, steps // sharing)
    else:
        _accumulate(context, handle, thread)
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
    options = [n for n in (1, 2, 4) if width % n == 0]
    count = context.choose_again("pixels", options, 1)
    if count == 1:
        return None
    loops[-2], inner = context.sch.split(loops[-2], [None, count])
    return inner


def _accumulate(context: ScheduleContext, handle: BlockHandle, outside: LoopHandle, whole: int | None = None) -> None:
    """The loops of a reduction in a thread: steps outside, a vector of results inside.

    `whole` is the number of steps that all threads have, where not all have as many.
    """
    sch = context.sch
    own = sch.get_loops(handle)
    below = own[own.index(outside) + 1 :]
    reduce = [loop for loop in _reducing(context, handle) if loop in below]
    results = [loop for loop in below if loop not in reduce]
    if results and reduce:
        sch.reorder(*reduce, *results)
    for loop in results[:-1]:
        sch.unroll(loop)
    if results and (context.extent(results[-1]) or 0) > 1:
        sch.vectorize(results[-1])
    if reduce:
        count = context.extent(reduce[-1]) or 1
        if count <= _MOST_UNROLLED:
            for loop in reduce:
                if 1 < (context.extent(loop) or 0) <= _MOST_UNROLLED:
                    sch.unroll(loop)
        else:
            _unroll_most(context, reduce[-1], min(count, whole or count))


def _unroll_most(context: ScheduleContext, loop: LoopHandle, whole: int) -> None:
    """Several steps at a time: their loads are on their way together. What is left over, or needs a guard, is apart."""
    sch = context.sch
    main = whole - whole % _MOST_UNROLLED
    if main == 0:
        return
    if main < (context.extent(loop) or 0):
        loop, rest = sch.partition(loop, [main])
        if (context.extent(rest) or 0) <= _MOST_UNROLLED:
            sch.unroll(rest)
    _, inner = sch.split(loop, [None, _MOST_UNROLLED])
    sch.unroll(inner)


def _lanes(context: ScheduleContext, handle: BlockHandle, output: BlockHandle) -> int:
    """Results next to each other that a thread has: 16 bytes, where what is read and written lies so, too."""
    block, last = context.block(handle), context.block(output)
    results, written = [item.var for item in block.iters if item.kind is IterKind.SPATIAL], last.iters[-1].var
    size = context.sizes(context.sch.get_loops(output)[-1:])[0]
    bits = max(region.buffer.dtype.bits for region in (*block.reads, *block.writes, *last.writes))
    lanes = _LANE_BYTES * 8 // max(8, bits)
    count = prod(context.sizes(context.sch.get_loops(output)))
    while lanes > 1 and (size % lanes or count // lanes < context.target.cores * 32):
        lanes //= 2
    made = {region.buffer for region in block.writes}
    for item in pre_order(block.body):
        if isinstance(item, BufferLoad) and item.indices and item.buffer not in made:
            if any(uses_any(index, results[-1:]) for index in item.indices[:-1]):
                return 1
            if uses_any(item.indices[-1], results[-1:]) and item.indices[-1] is not results[-1]:
                return 1
    for item in pre_order(last.body):
        if isinstance(item, BufferLoad) and any(uses_any(index, [written]) for index in item.indices[:-1]):
            return 1
    return lanes


def _partial(context: ScheduleContext, reduce: list[LoopHandle], most: int) -> BlockHandle | None:
    """Partial results of a reduction's outer steps; None where it does not divide, or has no such form."""
    trial = context.sch.copy()
    sizes = context.sizes(reduce)
    loop, rest = reduce[0], prod(sizes[1:])
    parts = _divisor(sizes[0], most, max(1, _PART_STEPS // rest))
    try:
        if 4 * parts < most and len(reduce) > 1:
            loop = trial.fuse(*reduce)
            parts = _divisor(prod(sizes), most, _PART_STEPS)
        if parts == 1:
            return None
        outer, _ = trial.split(loop, [parts, None])
        partial = trial.rfactor(outer, 0)
    except ScheduleError:
        return None
    context.sch = trial
    return partial


def _divisor(number: int, most: int, least_left: int) -> int:
    """The greatest divisor of a number up to a limit that leaves parts of some size."""
    return max(n for n in range(1, most + 1) if number % n == 0 and (n == 1 or number // n >= least_left))
