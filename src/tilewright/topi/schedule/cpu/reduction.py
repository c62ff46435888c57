"""The schedule of kernels with plain reductions: softmax, normalisation, pooling, sums."""

from __future__ import annotations

from math import prod

from tilewright.ir.visit import pre_order
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.cpu.context import CpuContext
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.tiling import vector_length


def schedule_reductions(context: CpuContext, output: BlockHandle) -> None:
    """Compute every stage of a row where its results are used, rows in parallel, elements in vectors.

    The rows are the output's axes that all reductions keep as their own outer axes.
    """
    sch = context.sch
    others = [handle for handle in sch.blocks() if handle.name != output.name]
    loops = sch.get_loops(output)
    kept = _shared_rows(context, output, others)
    block = context.block(output)
    if block.is_reduction:
        for handle in others:
            if context.block(handle).is_reduction:
                _vectorize_reduction(context, handle, sch.get_loops(handle))
            else:
                schedule_injective(context, handle)
        _schedule_root_reduction(context, output)
        return
    if kept == 0 or any(context.extent(loop) is None for loop in loops):
        for handle in others:
            if context.block(handle).is_reduction:
                _schedule_root_reduction(context, handle)
            else:
                schedule_injective(context, handle)
        schedule_injective(context, output)
        return
    rows, rest = loops[:kept], loops[kept:]
    for handle in reversed(others):
        sch.compute_at(handle, rows[-1])
    for handle in others:
        below = _below(context, handle, rows[-1])
        if context.block(handle).is_reduction:
            _vectorize_reduction(context, handle, below)
        else:
            _vectorize_last(context, handle, below)
    _vectorize_last(context, output, rest)
    extents = context.extents(sch.get_loops(output)) or [1]
    context.parallelize(rows, prod(extents) * 8)


def _shared_rows(context: CpuContext, output: BlockHandle, others: list[BlockHandle]) -> int:
    """How many leading axes of the output index every intermediate buffer it reads as a row."""
    block = context.block(output)
    own = [item.var for item in block.iters]
    shared = len(own)
    names = {context.block(handle).writes[0].buffer for handle in others}
    for item in pre_order(block.body):
        if not isinstance(item, BufferLoad) or item.buffer not in names:
            continue
        matching = 0
        for index, var in zip(item.indices, own, strict=False):
            if index is not var:
                break
            matching += 1
        shared = min(shared, matching)
    return shared


def _below(context: CpuContext, handle: BlockHandle, attach: LoopHandle) -> list[LoopHandle]:
    loops = context.sch.get_loops(handle)
    position = [loop.var for loop in loops].index(attach.var)
    return loops[position + 1 :]


def _vectorize_last(context: CpuContext, handle: BlockHandle, loops: list[LoopHandle]) -> None:
    if not loops:
        return
    extent = context.extent(loops[-1])
    if extent is None or extent < 2:
        return
    length = vector_length(extent, context.lanes(handle))
    if length == extent:
        context.sch.vectorize(loops[-1])
    else:
        _, inner = context.sch.split(loops[-1], [None, length])
        context.sch.vectorize(inner)


def _schedule_root_reduction(context: CpuContext, handle: BlockHandle) -> None:
    """A reduction with loops of its own: its spatial loops in parallel."""
    sch = context.sch
    loops = sch.get_loops(handle)
    extents = context.extents(loops)
    if extents is None or prod(extents) == 0:
        return
    spatial = _vectorize_reduction(context, handle, loops)
    outer = spatial[:-1] if len(spatial) > 1 else spatial
    if outer and all(context.loop(loop).kind.value == "serial" for loop in outer):
        context.parallelize(outer, prod(extents))


def _vectorize_reduction(context: CpuContext, handle: BlockHandle, loops: list[LoopHandle]) -> list[LoopHandle]:
    """Use vectors in a reduction; gives the spatial loops that stay outside.

    When the last spatial axis walks memory, lanes are its elements (reduction loops outside it); when the reduction
    itself walks memory, lanes are partial results, combined at the end (rfactor).
    """
    sch = context.sch
    block = context.block(handle)
    kinds = {id(item.value): item.kind for item in block.iters}
    spatial = [loop for loop in loops if kinds.get(id(loop.var)) is IterKind.SPATIAL]
    reduce = [loop for loop in loops if kinds.get(id(loop.var)) is IterKind.REDUCE]
    if not reduce or len(block.writes) != 1:
        return spatial
    walking = _innermost_axis(context, handle)
    lanes = context.lanes(handle)
    if spatial and walking is not None and walking is spatial[-1].var:
        extent = context.extent(spatial[-1])
        if extent is None or extent < 2:
            return spatial
        length = vector_length(extent, lanes)
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
    if walking is not None and reduce and walking is reduce[-1].var:
        extent = context.extent(reduce[-1])
        if extent is not None and extent >= 2 * lanes and extent % lanes == 0 and lanes > 1:
            _, inner = sch.split(reduce[-1], [None, lanes])
            partial = sch.rfactor(inner, 0)
            _vectorize_partial(context, partial)
    return spatial


def _vectorize_partial(context: CpuContext, partial: BlockHandle) -> None:
    """The partial results of an rfactored reduction: their lane axis goes innermost, as a vector."""
    sch = context.sch
    loops = sch.get_loops(partial)
    block = context.block(partial)
    kinds = {id(item.value): item.kind for item in block.iters}
    reduce = [loop for loop in loops if kinds.get(id(loop.var)) is IterKind.REDUCE]
    lane = block.iters[0].value
    lane_loop = next((loop for loop in loops if loop.var is lane), None)
    if lane_loop is None or not reduce:
        return
    start = sch.decompose_reduction(partial, reduce[0])
    sch.vectorize(lane_loop)
    start_block = context.block(start)
    start_lane = start_block.iters[0].value
    for loop in sch.get_loops(start):
        if loop.var is start_lane:
            sch.vectorize(loop)


def _innermost_axis(context: CpuContext, handle: BlockHandle) -> object | None:
    """The loop variable that walks the input with stride one: the one in the last index of the largest load."""
    block = context.block(handle)
    values = {id(item.var): item.value for item in block.iters}
    best: BufferLoad | None = None
    target = block.writes[0].buffer
    for item in pre_order(block.body):
        if not isinstance(item, BufferLoad) or item.buffer is target or not item.indices:
            continue
        if best is None or item.buffer.ndim > best.buffer.ndim:
            best = item
    if best is None:
        return None
    last = best.indices[-1]
    return values.get(id(last))
