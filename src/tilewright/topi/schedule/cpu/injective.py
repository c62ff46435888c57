"""The schedule of a stage that maps elements: outer loops in parallel, the innermost in vectors."""

from __future__ import annotations

from math import prod

from tilewright.ir.visit import pre_order
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import Block, BufferStore
from tilewright.topi.schedule.cpu.context import CpuContext
from tilewright.topi.schedule.cpu.tiling import vector_length


def schedule_injective(context: CpuContext, handle: BlockHandle, loops: list[LoopHandle] | None = None) -> None:
    """Vectorize the innermost loop and spread the outer ones.

    Before: `for i, j: B[i, j] = f(A[i, j])`; after: `parallel i: for jo: vectorized ji: ...`. A stage whose loads all
    use its own indices is first fused to one dimension.
    """
    sch = context.sch
    loops = sch.get_loops(handle) if loops is None else loops
    if not loops:
        return
    extents = context.extents(loops)
    if extents is None:
        context.parallelize(loops[:-1], 1 << 30)
        return
    if len(loops) > 1 and _same_indices(context.block(handle)):
        loops = [sch.fuse(*loops)]
        extents = [prod(extents)]
    work = prod(extents)
    if work == 0:
        return
    lanes = context.lanes(handle)
    length = vector_length(extents[-1], lanes)
    outer = loops[:-1]
    if length == extents[-1]:
        sch.vectorize(loops[-1])
    else:
        rest, inner = sch.split(loops[-1], [None, length])
        sch.vectorize(inner)
        outer = [*outer, rest]
    if outer:
        context.parallelize(outer, work)


def _same_indices(block: Block) -> bool:
    """Whether every access is at the block's own iterators, in order: then memory is walked straight through."""
    if not isinstance(block.body, BufferStore):
        return False
    own = tuple(item.var for item in block.iters)
    if tuple(block.body.indices) != own:
        return False
    return all(tuple(item.indices) == own for item in pre_order(block.body.value) if isinstance(item, BufferLoad))
