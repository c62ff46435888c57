"""Asking for memory ahead of its use: weights that are read panel by panel from beyond the near caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.expr import ZERO, PrimExpr, Var, const_value
from tilewright.ir.visit import find_all, substitute
from tilewright.tir.annotations import PREFETCH
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.schedule.trace import Value
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.register_tiles import reduction_size
from tilewright.topi.schedule.cpu.tiling import RegisterTile


def prefetch_panels(
    context: ScheduleContext,
    anchor: BlockHandle,
    reduction: list[LoopHandle],
    tile: RegisterTile,
    in_blocks: bool = False,
) -> None:
    """While a panel of packed weights is used, fetch the next.

    Before: `for panel, rows, k: ...`; after: the loop k is annotated with the panel's length. Not done where rows and
    two panels do not fit the cache: what is fetched would drive out what is in use. Rows that are worked on
    `in_blocks` have the size that fits best.
    """
    packed = [param for n, param in enumerate(context.sch.func.params) if n in context.packing]
    length = reduction_size(context, anchor) * tile.columns
    block = context.block(anchor)
    result = block.writes[0].buffer
    read = [item.buffer for item in block.reads if item.buffer is not result and item.buffer not in packed]
    # With a stride not all of the input is read.
    used = prod((result.static_shape or (0,))[:-1]) * reduction_size(context, anchor) * result.dtype.itemsize
    rows = min(used, sum(buffer_bytes(buffer) for buffer in read))
    most = context.target.l2_bytes * context.cpu.prefetch.operands_share
    for param in packed:
        assert isinstance(param, Buffer)
        fits = in_blocks or rows + 2 * length * param.dtype.itemsize <= most
        if reduction and context.choose_again("fetch_weights", (False, True), fits):
            context.sch.annotate(reduction[-1], PREFETCH, {param.name: length})


def prefetch_results(
    context: ScheduleContext, output: BlockHandle, reduction: list[LoopHandle], tile: RegisterTile
) -> None:
    """While rows of the result are computed, fetch the places of the next rows, and of what is added to those.

    Before: `for rows, panel, k: ...`; after: the loop k is annotated with the length of a tile of rows. Done where
    results do not stay in the second cache level: a tile that is stored all at once would wait for memory. Of an open
    size they may not; asking in vain costs one instruction for each four of a column's products. Rows narrower than a
    vector are few lines of the cache, and asking for each is what keeps LLVM from summing a single column in vectors.
    """
    places = result_places(context, output)
    columns, are_far = const_value(places[0].shape[-1]), _are_far(context, places)
    if not reduction or columns is None or columns < context.lanes(output) or are_far is None:
        return
    if context.choose("fetch_results", (False, True), are_far):
        add_prefetch(context, reduction[-1], {buffer.name: tile.rows * columns for buffer in places})


def result_places(context: ScheduleContext, output: BlockHandle) -> list[Buffer]:
    """The result of a block, and the parameters that are read at the same places (a residual)."""
    block = context.block(output)
    own = tuple(item.var for item in block.iters)
    added = [item.buffer for item in find_all(block.body, BufferLoad) if tuple(item.indices) == own]
    return [block.writes[0].buffer, *(buffer for buffer in added if buffer in context.sch.func.params)]


def prefetch_rows(
    context: ScheduleContext, anchor: BlockHandle, reduction: list[LoopHandle], tile: RegisterTile
) -> None:
    """While a tile of rows is multiplied, fetch the next rows where they come from beyond the second cache level.

    Rows are those of a matrix, or the pixels of a 1 x 1 convolution: one after the other in memory.
    """
    block = context.block(anchor)
    own = [item.var for item in block.iters]
    # A kernel of one tap adds nothing to the place of a pixel.
    single: dict[Var, PrimExpr] = {item.var: ZERO for item in block.iters if const_value(item.domain.extent) == 1}
    for load in find_all(block.body, BufferLoad):
        if not load.indices:
            # A number, such as a zero point.
            continue
        columns, rank = const_value(load.buffer.shape[-1]), len(load.indices)
        places = [Analyzer().simplify(substitute(index, single)) for index in load.indices]
        rows_in_order = [Analyzer().simplify(substitute(var, single)) for var in (*own[: rank - 1], own[-1])]
        in_order = places == rows_in_order
        if columns is None or not reduction or not in_order or load.buffer not in context.sch.func.params:
            continue
        are_far = _are_far(context, [load.buffer])
        if are_far is not None and context.choose_again("fetch_rows", (False, True), are_far):
            add_prefetch(context, reduction[-1], {load.buffer.name: tile.rows * columns})


def _are_far(context: ScheduleContext, buffers: Sequence[Buffer]) -> bool | None:
    """Whether buffers do not stay in the second cache level; None if they stay in the first.

    Those of open sizes may not.
    """
    if any(buffer.static_shape is None for buffer in buffers):
        return True
    size = sum(map(buffer_bytes, buffers))
    if size <= context.target.l1_bytes:
        return None
    return size > context.target.l2_bytes * context.cpu.prefetch.results_share


def add_prefetch(context: ScheduleContext, loop: LoopHandle, runs: Mapping[str, Value]) -> None:
    """Let a loop fetch some more, beside what its note asks for."""
    present = PREFETCH.plain(PREFETCH.of(context.loop(loop)) or {})
    context.sch.annotate(loop, PREFETCH, {**present, **runs})


def run_ahead(length: int, distance: int) -> Value:
    """A run of so many elements, whole runs ahead: about as many elements as `distance`, and one run at least."""
    return [length, max(length, distance // length * length)]


def buffer_bytes(buffer: Buffer) -> int:
    """The size of a buffer; nothing where it is not known."""
    return prod(buffer.static_shape or (0,)) * buffer.dtype.itemsize
