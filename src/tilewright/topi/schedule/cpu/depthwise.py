"""The schedule of depthwise convolutions: a row of pixels of one vector of channels, with all taps unrolled."""

from __future__ import annotations

from math import prod

from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.cpu.context import CpuContext
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.register_tiles import pack_weights, reduction_size, row_axis, schedule_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors, vector_width

_MOST_UNROLLED_TAPS = 25


def schedule_depthwise(context: CpuContext, anchor: BlockHandle, output: BlockHandle) -> None:
    """Tile the output pixels x channels, compute each tile of the convolution in registers, apply the epilogue on it.

    The panels of channels are the innermost outer loop: there are hardly any weights, and results are written as they
    lie in memory.
    """
    sch = context.sch
    for producer in sch.get_producers(anchor):
        schedule_injective(context, producer)
    if anchor.name == output.name:
        # The result itself is the convolution: accumulate in a tile of its own and copy it out.
        output = sch.cache_write(anchor, 0, "local")
    loops = sch.get_loops(output)
    extents = context.extents(loops)
    if extents is None or prod(extents) == 0:
        schedule_injective(context, output)
        return
    row = row_axis(context, anchor, extents)
    rows = extents[row] if row is not None else 1
    tile = sliding_tile(rows, extents[-1], context.lanes(anchor), context.target.vector_registers)
    pack_weights(context, anchor, tile)
    column_outer, lane = sch.split(loops[-1], [None, tile.lanes])
    inner: list[LoopHandle] = []
    order = [loop for n, loop in enumerate(loops[:-1]) if n != row]
    if row is not None:
        row_outer, row_inner = sch.split(loops[row], [None, tile.rows])
        order.append(row_outer)
        inner.append(row_inner)
    order.append(column_outer)
    sch.reorder(*order, *inner, lane)
    sch.compute_at(anchor, order[-1])
    reduction = schedule_tile(context, anchor, order[-1], tile)
    # With all taps in sight, an element that several windows share is loaded once.
    taps = context.extents(reduction)
    if taps is not None and prod(taps) <= _MOST_UNROLLED_TAPS:
        for loop in reduction:
            sch.unroll(loop)
    for loop in inner:
        sch.unroll(loop)
    sch.vectorize(lane)
    work = prod(extents) * reduction_size(context, anchor)
    context.parallelize(order[:-1] if len(order) > 1 else order, work)


def sliding_tile(rows: int, columns: int, lanes: int, registers: int) -> RegisterTile:
    """The tile of a depthwise convolution: one vector of channels, as many pixels of a row as registers allow.

    Each pixel needs an accumulator and a loaded element; taps of one kernel row stay loaded.
    """
    width = vector_width(columns, lanes)
    most = max(1, (registers - 6) // 2)
    return RegisterTile(max(divisors(rows, most)), 1, width)
