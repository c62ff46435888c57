"""Reading weights that meet few rows: several places of a panel are read in turn, each a stream of its own."""

from __future__ import annotations

from tilewright.tir.schedule.handles import LoopHandle
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.tile_choice import MOST_UNROLLED

_MOST_STREAMS = 8
_LEAST_BYTES = 1 << 14
"""What a stream reads of a panel at least: prefetchers take some lines to notice one."""


def read_in_streams(context: ScheduleContext, steps: LoopHandle, accumulators: int, step_bytes: int) -> bool:
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
    options = [
        count
        for count in range(1, _MOST_STREAMS + 1)
        if depth % count == 0 and count * accumulators <= MOST_UNROLLED and depth // count * step_bytes >= _LEAST_BYTES
    ]
    if len(options) < 2:
        return False
    count = context.choose_again("streams", options, options[-1] if context.target.arch == "x86_64" else 1)
    if count == 1:
        return False
    stream, step = context.sch.split(steps, [count, None])
    context.sch.reorder(step, stream)
    context.sch.unroll(stream)
    return True
