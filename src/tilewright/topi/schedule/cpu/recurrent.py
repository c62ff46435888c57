"""The schedule of recurrent layers: panels of the state with all their gates in registers, in the loop over time."""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import PrimExpr, const_value
from tilewright.ir.visit import find_all
from tilewright.tir.annotations import Anchor
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.anchors import blocks_of_kind, requires_kind
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.register_tiles import reduction_size, schedule_tile, unroll_reduction
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors
from tilewright.topi.schedule.cpu.unrolling import interleave_streams
from tilewright.topi.schedule.packing import constant_parameters
from tilewright.topi.schedule.template import Template


def schedule_recurrence(context: ScheduleContext) -> None:
    """Compute each panel of the products where its consumer uses it; the weights lie in that order.

    Before:  for t:  for b, g, n, k: product[t, b, g, n] += h[t-1, b, k] * w[g, n, k];  for b, n: h[t, b, n] = step(...)
    After:   for t:  parallel chunk: zigzag panel:
                       acc[b, g, l] = 0;  for k: acc[b, g, l] += h[t-1, b, k] * packed[panel, k, g, l]
                       h[t, b, panel*L + l] = step(acc[b, :, l], ...)
    """
    sch = context.sch
    products = blocks_of_kind(context, Anchor.RECURRENCE)
    steps = {consumer.name for handle in products for consumer in sch.get_consumers(handle)}
    for handle in sch.blocks():
        if handle.name in steps or handle in products:
            continue
        if handle.name.endswith("_first"):
            sch.compute_inline(handle)
        else:
            schedule_injective(context, handle)
    # One width for all products: they may share weights, which have one arrangement.
    vectors = min(_vectors(context, handle) for handle in products)
    for handle in products:
        _schedule_product(context, handle, vectors)


def _vectors(context: ScheduleContext, product: BlockHandle) -> int:
    """Vectors of a gate in a panel: as many as hide the latency of additions, or fewer for more sequences at a time.

    Each tile of sequences reads the panel's weights anew, from a cache that gives less than products take.
    """
    gates, batch = _gates(context, product), const_value(context.block(product).writes[0].buffer.shape[1])
    most = max(1, context.cpu.core.add_in_flight // gates)
    return max(range(most, 0, -1), key=lambda vectors: _most_rows(context, batch, gates * vectors))


def _gates(context: ScheduleContext, product: BlockHandle) -> int:
    return const_value(context.block(product).writes[0].buffer.shape[2]) or 1


def _schedule_product(context: ScheduleContext, product: BlockHandle, vectors: int) -> None:
    sch = context.sch
    lanes = context.lanes(product)
    (consumer,) = sch.get_consumers(product)
    tile = RegisterTile(1, vectors, lanes)
    packed = _pack_weights(context, product, tile.columns)
    if packed:
        # The last panel is padded: all panels are computed alike, without guards.
        sch.over_compute(product, 3, tile.columns)
    _, batch, column = sch.get_loops(consumer)
    panel, vector, lane = sch.split(column, [None, vectors, lanes])
    rows = rows_together(context, batch, _gates(context, product) * vectors)
    batch_outer, batch_inner = sch.split(batch, [None, rows])
    sch.reorder(panel, batch_outer, batch_inner, vector, lane)
    sch.compute_at(product, batch_outer)
    reduction = schedule_tile(context, product, batch_outer, tile)
    across = _gates(context, product) * vectors
    width = across * lanes * context.block(product).writes[0].buffer.dtype.itemsize
    if not (packed and reduction and interleave_streams(context, reduction[-1], rows * across, width)):
        unroll_reduction(context, reduction, tile)
    sch.unroll(batch_inner)
    sch.unroll(vector)
    sch.vectorize(lane)
    spread_panels(context, product, panel)


def rows_together(context: ScheduleContext, batch: LoopHandle, vectors: int) -> int:
    """Sequences that one tile computes: their sums and one row of weights fit the registers."""
    return _most_rows(context, context.extent(batch), vectors)


def _most_rows(context: ScheduleContext, batch: int | None, vectors: int) -> int:
    most = max(1, (context.target.vector_registers - vectors - 1) // vectors)
    if not batch:
        return 1
    return batch if batch <= most else max(divisors(batch, most))


def _pack_weights(context: ScheduleContext, product: BlockHandle, width: int) -> bool:
    """Whether the weights are constant, and then are in panels now.

    Before: `w[gate, row, k]`; after: `w[row // width, k, gate, row % width]`, .
    """
    constants = constant_parameters(context.sch.func)

    def arrange(gate: PrimExpr, row: PrimExpr, k: PrimExpr) -> tuple[PrimExpr, ...]:
        return (row // width, k, gate, row % width)

    for item in find_all(context.block(product).body, BufferLoad):
        number = constants.get(item.buffer)
        if number is None:
            continue
        if number not in context.packing:
            context.pack(product, item.buffer, IndexMap.of(arrange, 3))
        return True
    return False


def spread_panels(context: ScheduleContext, product: BlockHandle, panel: LoopHandle) -> None:
    """One chunk of panels a core, each walked to and fro: what a core read last is in its cache for the next step."""
    sch = context.sch
    panels, cores = context.extent(panel), context.target.cores
    work = prod(const_value(dim) or 1 for dim in context.block(product).writes[0].buffer.shape[1:])
    is_enough = work * reduction_size(context, product) >= context.cpu.parallel.least_work
    if cores > 1 and panels is not None and panels > 1 and is_enough:
        chunk, panel = sch.split(panel, [min(cores, panels), None])
        sch.zigzag(panel)
        sch.parallel(chunk)
    else:
        sch.zigzag(panel)


TEMPLATE = Template(
    "recurrence",
    "inside the loop over time, a panel of the state with all its gates in registers",
    requires_kind(Anchor.RECURRENCE),
    schedule_recurrence,
)
