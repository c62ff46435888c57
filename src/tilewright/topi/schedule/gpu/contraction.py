"""The schedule of matrix products: tiles of the result in registers, tiles of the operands in shared memory."""

from __future__ import annotations

from math import prod

from tilewright.ir.visit import uses_any
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.cpu.context import CpuContext

_THREADS = 16
"""Threads along each side of a tile."""
_LEAST = 16
"""Rows, columns and steps of a product from which on tiles pay."""


def is_tileable(context: CpuContext, anchor: BlockHandle) -> BlockHandle | None:
    """The stage that gives the result of a product that can be tiled: the product itself, or its epilogue."""
    sch = context.sch
    block = context.block(anchor)
    if (
        block.annotations.get("anchor") != "matmul"
        or len(block.writes) != 1
        or context.target.max_threads < _THREADS**2
    ):
        return None
    spatial = [item for item in block.iters if item.kind is IterKind.SPATIAL]
    reduce = [item for item in block.iters if item.kind is IterKind.REDUCE]
    if len(spatial) < 2 or len(reduce) != 1 or len(block.reads) != 2:
        return None
    extents = context.extents(sch.get_loops(anchor))
    if extents is None or min(extents[-3:]) < _LEAST or _step(extents[-1]) < 4:
        return None
    consumers = sch.get_consumers(anchor)
    if not consumers:
        return anchor
    if len(consumers) != 1 or context.block(consumers[0]).is_reduction:
        return None
    out = context.block(consumers[0])
    same = [item.domain.extent for item in out.iters] == [item.domain.extent for item in spatial]
    reads_once = [region for region in out.reads if region.buffer is block.writes[0].buffer]
    aligned = len(reads_once) == 1 and all(
        uses_any(part.min, [item.var]) for part, item in zip(reads_once[0].region, out.iters, strict=False)
    )
    alone = len(sch.get_consumers(consumers[0])) == 0
    return consumers[0] if same and aligned and alone else None


def schedule_contraction(context: CpuContext, anchor: BlockHandle, output: BlockHandle) -> None:
    """Tile a product over blocks, the tile over 16 x 16 threads, the reduction over steps in shared memory.

    for i, j, k: C += A * B   ->   for by, bx: for ko: { A_shared = A; B_shared = B; for ty, tx: for ki: acc += ... }
                                               for ty, tx: C = epilogue(acc)
    """
    sch = context.sch
    if anchor == output:
        output = sch.cache_write(anchor, 0, "local")
    else:
        sch.set_scope(anchor, 0, "local")
    loops = sch.get_loops(output)
    rows, columns = context.sizes(loops[-2:])
    tall, wide = (
        _per_thread(context, prod(context.sizes(loops)), rows),
        _per_thread(context, prod(context.sizes(loops)), columns),
    )
    row, row_thread, row_inner = sch.split(loops[-2], [None, _THREADS, tall])
    column, column_thread, column_inner = sch.split(loops[-1], [None, _THREADS, wide])
    sch.reorder(row, column, row_thread, column_thread, row_inner, column_inner)
    sch.compute_at(anchor, column)
    _bind_blocks(context, loops[:-2], row, column)
    sch.bind(row_thread, "threadIdx.y")
    sch.bind(column_thread, "threadIdx.x")
    i, j, k = sch.get_loops(anchor)[-3:]
    i_thread, i_inner = sch.split(i, [_THREADS, tall])
    j_thread, j_inner = sch.split(j, [_THREADS, wide])
    step, inside = sch.split(k, [None, _step(context.sizes([k])[0])])
    sch.reorder(step, i_thread, j_thread, inside, i_inner, j_inner)
    for number in (0, 1):
        name = context.block(anchor).reads[number].buffer.name
        copy = sch.cache_read(anchor, name, "shared")
        sch.compute_at(copy, step)
        own = sch.get_loops(copy)
        last = own[own.index(step) + 1 :][-2:]
        for loop, axis in zip(last, ("threadIdx.y", "threadIdx.x"), strict=True):
            extent = context.sizes([loop])[0]
            if extent > _THREADS:
                _, loop = sch.split(loop, [None, _THREADS])
            sch.bind(loop, axis)
    sch.bind(i_thread, "threadIdx.y")
    sch.bind(j_thread, "threadIdx.x")


def _bind_blocks(context: CpuContext, outer: list[LoopHandle], row: LoopHandle, column: LoopHandle) -> None:
    sch = context.sch
    sch.bind(column, "blockIdx.x")
    sch.bind(row, "blockIdx.y")
    if outer:
        sch.bind(sch.fuse(*outer) if len(outer) > 1 else outer[0], "blockIdx.z")


def _per_thread(context: CpuContext, results: int, extent: int) -> int:
    """Results along one side that a thread computes: more reuse where there are enough tiles for all cores."""
    for count in (4, 2):
        if extent % (count * _THREADS) == 0 and results >= context.target.cores * (count * _THREADS) ** 2:
            return count
    return 2 if extent >= 2 * _THREADS else 1


def _step(extent: int) -> int:
    """Steps of the reduction that are in shared memory at a time: a divisor, so that no step is guarded."""
    return max(count for count in range(1, 17) if extent % count == 0)
