"""The schedule of contractions (matrix products and convolutions): a register tile around the reduction."""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import PrimExpr
from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.cpu.context import CpuContext
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors, register_tile, sliding_tile
from tilewright.topi.schedule.packing import constant_parameters

_MOST_UNROLLED_TAPS = 25
_TILES_PER_CORE = 2
_WEIGHTS_SHARE = 0.25
"""The part of the second cache level that weights may take to count as staying there."""


def schedule_contraction(context: CpuContext, anchor: BlockHandle, output: BlockHandle) -> None:
    """Tile the output rows x columns, compute each tile of the contraction in registers, apply the epilogue on it.

    Before:  conv[n, y, x, c] += ...;  out[n, y, x, c] = epilogue(conv[n, y, x, c])
    After:   parallel (n, co, y), for xo:
               acc[xi, ci] = 0;  for kh, kw, ic: acc[xi, ci] += ...   (xi unrolled, ci a vector)
               out[n, y, xo*X + xi, co*C + ci] = epilogue(acc[xi, ci])
    """
    sch = context.sch
    for producer in sch.get_producers(anchor):
        schedule_injective(context, producer)
    if anchor.name == output.name:
        # The result itself is the contraction: accumulate in a tile of its own and copy it out.
        output = sch.cache_write(anchor, 0, "local")
    loops = _split_phases(context, anchor, sch.get_loops(output))
    extents = context.extents(loops)
    if extents is None or prod(extents) == 0:
        schedule_injective(context, output)
        return
    row = _row_axis(context, anchor, extents)
    tile = _tile(context, anchor, extents[row] if row is not None else 1, extents[-1], prod(extents))
    _pack_weights(context, anchor, tile)
    column_outer, vector, lane = sch.split(loops[-1], [None, tile.vectors, tile.lanes])
    inner: list[LoopHandle] = []
    outer = [loop for n, loop in enumerate(loops[:-1]) if n != row]
    order = [*outer[:1], column_outer, *outer[1:]]
    if row is not None:
        row_outer, row_inner = sch.split(loops[row], [None, tile.rows])
        order.append(row_outer)
        inner.append(row_inner)
    if _columns_inside(context, anchor, extents[-1]):
        order = [loop for loop in order if loop is not column_outer] + [column_outer]
    sch.reorder(*order, *inner, vector, lane)
    sch.compute_at(anchor, order[-1])
    _schedule_tile(context, anchor, order[-1], tile)
    for loop in (*inner, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    work = prod(extents) * _reduction_size(context, anchor)
    context.parallelize(order[:-1] if len(order) > 1 else order, work)


def _columns_inside(context: CpuContext, anchor: BlockHandle, columns: int) -> bool:
    """Whether the panels of columns are the innermost outer loop.

    Then each tile of rows meets all weights before the next, and results are written as they lie in memory: right when
    the weights stay in the second cache level (a depthwise convolution has hardly any). Otherwise a panel of weights
    is kept while all rows pass by.
    """
    if _is_depthwise(context, anchor):
        return True
    weights = _reduction_size(context, anchor) * columns * context.block(anchor).writes[0].buffer.dtype.itemsize
    return weights <= context.target.l2_bytes * _WEIGHTS_SHARE


def _is_depthwise(context: CpuContext, anchor: BlockHandle) -> bool:
    return context.block(anchor).annotations.get("anchor") == "depthwise_conv2d"


def _tile(context: CpuContext, anchor: BlockHandle, rows: int, columns: int, elements: int) -> RegisterTile:
    lanes, registers = context.lanes(anchor), context.target.vector_registers
    if _is_depthwise(context, anchor):
        return sliding_tile(rows, columns, lanes, registers)
    tile = register_tile(rows, columns, lanes, registers)
    # A product of few rows has few tiles: narrower ones give every core some.
    cores = context.target.cores
    while cores > 1 and tile.vectors > 1 and elements < tile.rows * tile.columns * _TILES_PER_CORE * cores:
        tile = RegisterTile(tile.rows, max(divisors(tile.vectors, tile.vectors - 1)), tile.lanes)
    return tile


def _pack_weights(context: CpuContext, anchor: BlockHandle, tile: RegisterTile) -> None:
    """Arrange constant weights in panels as wide as the tile, so that the inner loop walks memory straight through.

    Before: `w[kh, kw, ic, oc]`; after: `w[oc // columns, kh, kw, ic, oc % columns]`.
    """
    block = context.block(anchor)
    spatial = [item.var for item in block.iters if item.kind is IterKind.SPATIAL]
    constants = constant_parameters(context.sch.func)
    for item in find_all(block.body, BufferLoad):
        buffer = item.buffer
        if buffer not in constants or not spatial or any(part in spatial[:-1] for part in item.indices):
            continue
        column = next((n for n, part in enumerate(item.indices) if part is spatial[-1]), None)
        if column is None or buffer.ndim < 2:
            continue
        index_map = _panels(buffer.ndim, column, tile.columns)
        context.sch.transform_layout(anchor, buffer.name, index_map)
        context.packing[constants[buffer]] = index_map
        return


def _panels(rank: int, column: int, width: int) -> IndexMap:
    """The arrangement in panels of some columns, whichever axis they are on."""

    def arrange(*i: PrimExpr) -> tuple[PrimExpr, ...]:
        rest = [index for n, index in enumerate(i) if n != column]
        if width == 1:
            # A panel of one column has no index inside it.
            return (i[column], *rest)
        return (i[column] // width, *rest, i[column] % width)

    return IndexMap.of(arrange, rank)


def _split_phases(context: CpuContext, anchor: BlockHandle, loops: list[LoopHandle]) -> list[LoopHandle]:
    """The loops of the output, with each phase of a transposed convolution a loop of its own.

    Before: `n, y, x, c`; after, for stride s: `n, y % s, x % s, y, x, c`: each phase has weights of its own.
    """
    phases = context.block(anchor).annotations.get("phases")
    if not isinstance(phases, tuple) or len(loops) != 4:
        return loops
    sch = context.sch
    row, row_phase = sch.split(loops[1], [None, phases[0]])
    column, column_phase = sch.split(loops[2], [None, phases[1]])
    sch.reorder(row_phase, column_phase, row, column)
    return [loops[0], row_phase, column_phase, row, column, loops[3]]


def _row_axis(context: CpuContext, anchor: BlockHandle, extents: list[int]) -> int | None:
    """The position of the loop whose elements share weights: the second axis of the register tile.

    Pixels of a row for channels-last convolutions, rows of a matrix (whichever loop counts them), output channels for
    planar convolutions.
    """
    block = context.block(anchor)
    rank = len(extents)
    if block.annotations.get("layout") == "NCHW" and rank > 1:
        return 1
    if block.annotations.get("anchor") != "matmul":
        return max(range(rank - 1), key=lambda n: (extents[n] > 1, n), default=None)
    spatial = [item.var for item in block.iters if item.kind is IterKind.SPATIAL]
    loads = [item for item in find_all(block.body, BufferLoad) if item.buffer is not block.writes[0].buffer]
    weights = [item for item in loads if uses_any(item, spatial[-1:])]
    shared = [n for n in range(rank - 1) if not any(uses_any(item, [spatial[n]]) for item in weights)]
    return max(shared, key=lambda n: (extents[n] > 1, n), default=None)


def _reduction_size(context: CpuContext, anchor: BlockHandle) -> int:
    sizes = [
        getattr(item.domain.extent, "value", 1) for item in context.block(anchor).iters if item.kind is IterKind.REDUCE
    ]
    return int(prod(sizes))


def _schedule_tile(context: CpuContext, anchor: BlockHandle, attach: LoopHandle, tile: RegisterTile) -> None:
    """The loops of the contraction under its tile: reduction outside, rows unrolled, columns in vectors."""
    sch = context.sch
    block = context.block(anchor)
    reduce_vars = {item.value for item in block.iters if item.kind is IterKind.REDUCE}
    below = _below(context, anchor, attach)
    reduction = [loop for loop in below if loop.var in reduce_vars]
    spatial = [loop for loop in below if loop.var not in reduce_vars]
    sch.set_scope(anchor, 0, "local")
    if not spatial or not reduction:
        return
    sch.reorder(*reduction, *spatial)
    start = sch.decompose_reduction(anchor, reduction[0])
    for handle, loops in ((anchor, spatial), (start, _below(context, start, attach))):
        _vectorize_tile(context, handle, loops, tile)
    if _is_depthwise(context, anchor):
        # With all taps in sight, an element that several windows share is loaded once.
        taps = context.extents(reduction)
        if taps is not None and prod(taps) <= _MOST_UNROLLED_TAPS:
            for loop in reduction:
                sch.unroll(loop)


def _vectorize_tile(context: CpuContext, handle: BlockHandle, loops: list[LoopHandle], tile: RegisterTile) -> None:
    if not loops:
        return
    sch = context.sch
    extent = context.extent(loops[-1])
    *rest, lane = loops
    if extent is not None and extent > tile.lanes:
        vector, lane = sch.split(lane, [None, tile.lanes])
        rest.append(vector)
    sch.vectorize(lane)
    for loop in rest:
        if context.extent(loop) is not None:
            sch.unroll(loop)


def _below(context: CpuContext, handle: BlockHandle, attach: LoopHandle) -> list[LoopHandle]:
    loops = context.sch.get_loops(handle)
    return loops[[loop.var for loop in loops].index(attach.var) + 1 :]
