"""Unrolling of reductions: several steps in an iteration, in turn or from interleaved streams of weights."""

from __future__ import annotations

from tilewright.tir.schedule.handles import LoopHandle
from tilewright.topi.schedule.context import ScheduleContext

_UNROLLED_STEPS = (1, 2, 4, 8)
_MOST_STREAMS = 8
"""Streams that a tuner may choose."""


def unroll_steps(context: ScheduleContext, loop: LoopHandle, accumulators: int, wanted: int = 2) -> LoopHandle:
    """Several steps of a reduction in one iteration, `wanted` or fewer; gives the loop that is left.

    Before: `for k: acc += ...`; after: `for ko: unrolled ki: acc += ...`.
    """
    extent = context.extent(loop)
    if extent is None:
        return loop
    most = context.cpu.register_tile.most_unrolled // accumulators
    options = [n for n in (*_UNROLLED_STEPS, extent) if n == 1 or (n <= most and extent % n == 0)]
    # Half as much counting of steps: a core that is shared with another thread takes in less of everything.
    count = context.choose_again("unroll", options, max(n for n in options if n <= wanted))
    if count == 1:
        return loop
    outer, inner = context.sch.split(loop, [None, count])
    context.sch.unroll(inner)
    return outer


def interleave_streams(context: ScheduleContext, steps: LoopHandle, accumulators: int, step_bytes: int) -> bool:
    """Whether the steps of a reduction now take several parts of a panel of weights in one iteration.

    Before: `for k: acc += x[k] * packed[panel, k]`; after, for S streams:
    `for i: unrolled s: acc += x[s * K/S + i] * packed[panel, s * K/S + i]`.

    A step has so many multiply-adds, and reads so many bytes of weights. Prefetchers of x86 processors end at a page of
    4 KiB, so that a single stream has fewer lines under way than the core has room for: weights from memory come 1.15
    to 1.4 times as fast in four to eight streams, those from the third cache level as fast as before.
    """
    depth = context.extent(steps)
    if depth is None:
        return False
    streams = context.cpu.streams
    most = min(_MOST_STREAMS, context.cpu.register_tile.most_unrolled // accumulators)
    least = streams.least_bytes
    options = [n for n in range(1, most + 1) if depth % n == 0 and depth // n * step_bytes >= least]
    if len(options) < 2:
        return False
    count = context.choose_again("streams", options, max(n for n in options if n <= streams.count))
    if count == 1:
        return False
    stream, step = context.sch.split(steps, [count, None])
    context.sch.reorder(step, stream)
    context.sch.unroll(stream)
    return True
