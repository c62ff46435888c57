"""The schedule of a stage that maps elements: one thread an element."""

from __future__ import annotations

from tilewright.tir.schedule.handles import LoopHandle
from tilewright.topi.schedule.cpu.context import CpuContext

THREADS = 256
"""Threads of a block where nothing else decides: a few warps that hide each other's latencies."""


def spread(context: CpuContext, loops: list[LoopHandle]) -> LoopHandle | None:
    """Divide the iterations of nested loops over blocks of threads; gives the innermost loop, None without loops.

    for i, j: B(i, j)   ->   for bx in blockIdx.x: for tx in threadIdx.x(256): B(...)
    """
    if not loops:
        return None
    sch = context.sch
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    extent = context.extent(fused)
    threads = min(THREADS, context.target.max_threads)
    if extent is not None:
        threads = min(threads, max(1, extent))
    block, thread = sch.split(fused, [None, threads])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return thread
