"""Steps that the templates with a register tile share: packing weights, the row axis, the loops under a tile."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.annotations import ANCHOR, LAYOUT, PHASES, ROW_VECTORS, Anchor, Layout
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.addend import find_addend
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import Block, IterKind
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.cpu.tiling import Columns, RegisterTile, padded_tile, padded_widths, register_tile
from tilewright.topi.schedule.cpu.unrolling import unroll_steps
from tilewright.topi.schedule.packing import constant_parameters

_MOST_UNROLLED_SUMS = 0.75
"""The part of the registers that sums may take where several steps of a reduction are written out."""


def analytic_tile(
    context: ScheduleContext,
    anchor: BlockHandle,
    rows: int,
    columns: int,
    pads: bool,
    stay: bool,
    heights: Sequence[int] = (),
) -> RegisterTile:
    """The register tile of a contraction of some rows by the target's numbers.

    `pads` says whether columns past the last one may be computed too, `stay` whether all weights stay in the second
    cache level; `heights` are the numbers of rows to choose from, where not all will do.
    """
    lanes, registers = context.lanes(anchor), context.target.vector_registers
    if not pads:
        return register_tile(rows, columns, lanes, registers, context.cpu, heights)
    item = context.block(anchor).writes[0].buffer.dtype.itemsize
    depth = reduction_size(context, anchor) * item
    near = context.cpu.register_tile.near_share * context.target.l1_bytes

    def source(width: int) -> Columns:
        """Where the weights of so many columns are."""
        held = depth * (columns if stay else width)
        return Columns(item, held <= near, not stay)

    # A tile of rows of an open number has one body for all panels: the last one is computed whole.
    rest = [item.domain.extent for item in context.block(anchor).iters if item.kind is IterKind.SPATIAL][:-1]
    is_open = any(const_value(extent) is None for extent in rest[-2:])
    widths = padded_widths(columns, lanes)
    return padded_tile(rows, columns, widths, registers, source, context.cpu, heights, whole_panels=is_open)


def pack_weights(context: ScheduleContext, anchor: BlockHandle, tile: RegisterTile) -> None:
    """Arrange constant weights in panels as wide as the tile, so that the inner loop walks memory straight through.

    Before: `w[kh, kw, ic, oc]`; after: `w[oc // columns, kh, kw, ic, oc % columns]`. The taps of each phase of a
    transposed convolution of stride s lie together: `w[kh % s, kw % s, oc // columns, kh // s, kw // s, ic, ...]`.
    """
    weights = _weights(context, anchor)
    if weights is None:
        return
    buffer, column = weights
    phases = PHASES.of(context.block(anchor))
    if phases is not None:
        index_map = _phase_panels(phases, tile.columns)
    else:
        index_map = panels(buffer.ndim, column, tile.columns)
    context.pack(anchor, buffer, index_map)


def _weights(context: ScheduleContext, anchor: BlockHandle) -> tuple[Buffer, int] | None:
    """The constant weights of a contraction, and which of their axes counts the columns."""
    block = context.block(anchor)
    spatial = [item.var for item in block.iters if item.kind is IterKind.SPATIAL]
    constants = constant_parameters(context.sch.func)
    for item in find_all(block.body, BufferLoad):
        if item.buffer not in constants or not spatial or any(part in spatial[:-1] for part in item.indices):
            continue
        column = next((n for n, part in enumerate(item.indices) if part is spatial[-1]), None)
        if column is not None and item.buffer.ndim >= 2:
            return item.buffer, column
    return None


def can_fill_panels(context: ScheduleContext, anchor: BlockHandle) -> bool:
    """Whether columns past the last one may be computed, from weights that packing pads: nothing else tells columns."""
    weights = _weights(context, anchor)
    block = context.block(anchor)
    spatial = [item for item in block.iters if item.kind is IterKind.SPATIAL]
    if weights is None or const_value(spatial[-1].domain.extent) is None:
        return False
    others = [item for item in find_all(block.body, BufferLoad) if item.buffer is not weights[0]]
    sources = [item for item in others if item.buffer is not block.writes[0].buffer]
    return not any(uses_any(item, [spatial[-1].var]) for item in sources)


def fill_panels(context: ScheduleContext, anchor: BlockHandle, tile: RegisterTile) -> None:
    """Compute the last panel of columns like the others, whole: only what is written of it is guarded.

    Comes after `pack_weights`, which pads the weights. Guarded sums would not stay in registers.
    """
    spatial = [n for n, item in enumerate(context.block(anchor).iters) if item.kind is IterKind.SPATIAL]
    context.sch.over_compute(anchor, spatial[-1], tile.columns)


def copy_computed_panels(context: ScheduleContext, anchor: BlockHandle, tile: RegisterTile, rows: int) -> None:
    """Let a contraction of many rows read computed weights from a copy in panels as wide as the tile.

    Before: `w[kh, kw, ic, oc]`; after: a copy `w[oc // columns, kh, kw, ic, oc % columns]`, as constant weights are
    packed. Rows of weights that lie far apart drive each other out of the first cache level.
    """
    load = _computed_weights(context, anchor)
    shape = None if load is None else load.buffer.static_shape
    if load is None or shape is None or rows < context.cpu.register_tile.rows_for_copy:
        return
    if tile.columns == 1 or shape[-1] % tile.columns or shape[-1] == tile.columns:
        return
    if prod(shape) * load.buffer.dtype.itemsize <= context.target.l1_bytes:
        return
    sch = context.sch
    copy = sch.cache_read(anchor, load.buffer.name, "global")
    rank = load.buffer.ndim
    sch.transform_layout(copy, context.block(copy).writes[0].buffer.name, panels(rank, rank - 1, tile.columns))
    schedule_copy(context, copy, tile.columns)


def schedule_copy(context: ScheduleContext, copy: BlockHandle, width: int, axis: int = -1) -> None:
    """A copy in panels: whole panels of a row are written as vectors, rows by several threads."""
    loops = context.sch.get_loops(copy)
    work = prod(context.sizes(loops))
    column = loops.pop(axis)
    panel, lane = context.sch.split(column, [None, width])
    if axis not in (-1, len(loops)):
        # Neighbours in a panel are far apart in the source: a line of it is used up, panel by panel.
        context.sch.reorder(*loops[:-1], panel, loops[-1], lane)
        context.parallelize([*loops[:-1], panel], work)
        return
    context.sch.vectorize(lane)
    context.parallelize(loops, work)


def _computed_weights(context: ScheduleContext, anchor: BlockHandle) -> BufferLoad | None:
    """The load of a contraction's weights where they are computed and the same for all rows; columns are last."""
    block = context.block(anchor)
    if ANCHOR.of(block) not in (Anchor.MATMUL, Anchor.CONV2D) or LAYOUT.of(block) is Layout.NCHW:
        return None
    *others, column = (item.var for item in block.iters if item.kind is IterKind.SPATIAL)
    loads = [item for item in find_all(block.body, BufferLoad) if item.buffer is not block.writes[0].buffer]
    met = [item for item in loads if uses_any(item, [column])]
    if len(met) != 1 or met[0].buffer in constant_parameters(context.sch.func):
        return None
    (load,) = met
    plain = all(type(index) is Var for index in load.indices) and load.indices[-1] is column
    return load if plain and not uses_any(load, others) else None


def can_pad_columns(context: ScheduleContext, anchor: BlockHandle) -> bool:
    """Whether a product of many rows is worth a padded copy of its computed columns.

    Those that are no whole vectors are; others where there are too many for the first cache level.
    """
    block = context.block(anchor)
    spatial = [item for item in block.iters if item.kind is IterKind.SPATIAL]
    if ANCHOR.of(block) is not Anchor.MATMUL or len(spatial) < 2:
        return False
    rows, columns = (const_value(item.domain.extent) for item in spatial[-2:])
    few = rows is not None and rows < context.cpu.register_tile.rows_for_copy
    held = reduction_size(context, anchor) * (columns or 0) * block.writes[0].buffer.dtype.itemsize
    if few or not columns or (columns % context.lanes(anchor) == 0 and held <= context.target.l1_bytes):
        return False
    *_, row, column = (item.var for item in spatial)
    loads = [item for item in find_all(block.body, BufferLoad) if item.buffer is not block.writes[0].buffer]
    plain = all(type(index) is Var for item in loads for index in item.indices)
    met = [item for item in loads if uses_any(item, [column])]
    computed = len(met) == 1 and met[0].buffer not in constant_parameters(context.sch.func)
    return plain and computed and column in met[0].indices and not uses_any(met[0], [row])


def pad_columns(context: ScheduleContext, anchor: BlockHandle, tile: RegisterTile) -> None:
    """Let a product read a copy of its computed columns, in panels of whole tiles with zeros past the last one.

    The last panel is then computed like the others. What was there before, instead of zeros, might be numbers that take
    a hundred times as long to multiply.
    """
    sch = context.sch
    iters = context.block(anchor).iters
    last = max(n for n, item in enumerate(iters) if item.kind is IterKind.SPATIAL)
    if (const_value(iters[last].domain.extent) or 1) % tile.columns:
        copy, crop = sch.pad_einsum(anchor, [tile.columns if n == last else 1 for n in range(len(iters))])
        sch.compute_inline(crop)
    else:
        copy = sch.cache_read(anchor, _columns_of(context, anchor).buffer.name, "global")
    buffer = context.block(copy).writes[0].buffer
    load = _columns_of(context, anchor)
    axis = load.indices.index(_spatial_vars(context, anchor)[-1])
    sch.transform_layout(copy, buffer.name, panels(buffer.ndim, axis, tile.columns))
    schedule_copy(context, copy, tile.columns, axis)


def _spatial_vars(context: ScheduleContext, anchor: BlockHandle) -> list[Var]:
    return [item.var for item in context.block(anchor).iters if item.kind is IterKind.SPATIAL]


def _columns_of(context: ScheduleContext, anchor: BlockHandle) -> BufferLoad:
    """What a product reads of its columns."""
    block = context.block(anchor)
    column = _spatial_vars(context, anchor)[-1]
    loads = [item for item in find_all(block.body, BufferLoad) if item.buffer is not block.writes[0].buffer]
    (load,) = (item for item in loads if uses_any(item, [column]))
    return load


def panels(rank: int, column: int, width: int) -> IndexMap:
    """The arrangement in panels of some columns, whichever axis they are on."""

    def arrange(*i: PrimExpr) -> tuple[PrimExpr, ...]:
        rest = [index for n, index in enumerate(i) if n != column]
        if width == 1:
            # A panel of one column has no index inside it.
            return (i[column], *rest)
        return (i[column] // width, *rest, i[column] % width)

    return IndexMap.of(arrange, rank)


def _phase_panels(strides: tuple[int, ...], width: int) -> IndexMap:
    """The arrangement of weights in panels of some columns, each phase by itself."""
    vertical, horizontal = strides

    def arrange(y: PrimExpr, x: PrimExpr, i: PrimExpr, o: PrimExpr) -> tuple[PrimExpr, ...]:
        inner = (o % width,) if width > 1 else ()
        panel = o // width if width > 1 else o
        phase = [part % step for part, step in ((y, vertical), (x, horizontal)) if step > 1]
        taps = [part // step if step > 1 else part for part, step in ((y, vertical), (x, horizontal))]
        return (*phase, panel, *taps, i, *inner)

    return IndexMap.of(arrange, 4)


def start_at_bias(context: ScheduleContext, anchor: BlockHandle) -> None:
    """Let sums begin at the bias that an epilogue adds to them first: no zeros to begin with, no addition at the end.

    Comes before the loops are changed. Only constants: a residual is read where results are written, in whose place
    they may then be.
    """
    consumers = context.sch.get_consumers(anchor)
    if len(consumers) != 1:
        return
    reader, total = context.block(consumers[0]), context.block(anchor).writes[0].buffer
    addition = find_addend(reader, total)
    if addition is None:
        return
    _, load, addend = addition
    constants = constant_parameters(context.sch.func)
    whole = tuple(item.domain.extent for item in reader.iters) == tuple(total.shape)
    own = whole and load.indices == tuple(item.var for item in reader.iters)
    biases = find_all(addend, BufferLoad)
    if own and biases and all(item.buffer in constants for item in biases):
        context.sch.start_at_addend(anchor)


def begins_at_bias(context: ScheduleContext, anchor: BlockHandle, columns: int, tile: RegisterTile) -> bool:
    """Whether sums in a tile had better begin at the bias: they are short, and no tile reaches past its end."""
    block = context.block(anchor)
    if PHASES.of(block) is not None or columns % tile.columns:
        return False
    return 1 < reduction_size(context, anchor) <= context.cpu.register_tile.biased_steps


def row_axis(context: ScheduleContext, anchor: BlockHandle, extents: list[int]) -> int | None:
    """The position of the loop whose elements share weights: the second axis of the register tile.

    Pixels of a row for channels-last convolutions, rows of a matrix (whichever loop counts them), output channels for
    planar convolutions.
    """
    block = context.block(anchor)
    rank = len(extents)
    if LAYOUT.of(block) is Layout.NCHW and rank > 1:
        return 1
    if ANCHOR.of(block) is not Anchor.MATMUL:
        return max(range(rank - 1), key=lambda n: (extents[n] > 1, n), default=None)
    return shared_axis(block, extents)


def shared_axis(block: Block, extents: list[int]) -> int | None:
    """The position of the last loop (that is one) whose elements all meet the same weights."""
    spatial = [item.var for item in block.iters if item.kind is IterKind.SPATIAL]
    loads = [item for item in find_all(block.body, BufferLoad) if item.buffer is not block.writes[0].buffer]
    weights = [item for item in loads if uses_any(item, spatial[-1:])]
    shared = [n for n in range(len(extents) - 1) if not any(uses_any(item, [spatial[n]]) for item in weights)]
    return max(shared, key=lambda n: (extents[n] > 1, n), default=None)


def reduction_size(context: ScheduleContext, anchor: BlockHandle) -> int:
    """Products that one element of the result sums; symbolic extents count as one."""
    sizes = [
        getattr(item.domain.extent, "value", 1) for item in context.block(anchor).iters if item.kind is IterKind.REDUCE
    ]
    return int(prod(sizes))


def schedule_tile(
    context: ScheduleContext, anchor: BlockHandle, attach: LoopHandle, tile: RegisterTile
) -> list[LoopHandle]:
    """The loops of the contraction under its tile: reduction outside, rows unrolled, columns in vectors.

    Gives the loops of the reduction. Templates ask last how many of its steps are unrolled (`unroll_reduction`): the
    schedules that a tuner compares then share all that is done before.
    """
    sch = context.sch
    block = context.block(anchor)
    reduce_vars = {item.value for item in block.iters if item.kind is IterKind.REDUCE}
    below = loops_below(context, anchor, attach)
    reduction = [loop for loop in below if loop.var in reduce_vars]
    spatial = [loop for loop in below if loop.var not in reduce_vars]
    sch.set_scope(anchor, 0, "local")
    if not spatial or not reduction:
        return reduction
    sch.reorder(*reduction, *spatial)
    start = sch.decompose_reduction(anchor, reduction[0])
    for loops in (spatial, loops_below(context, start, attach)):
        vectorize_tile(context, loops, tile.lanes)
    return reduction


def unroll_reduction(context: ScheduleContext, reduction: list[LoopHandle], tile: RegisterTile) -> list[LoopHandle]:
    """Several steps of the innermost loop of a reduction in one iteration; gives the loops that are left.

    Where multiply-adds take lanes, and registers have room for a vector of each row beside the tile, steps share loads.
    Elsewhere LLVM loads the weights of all steps at once: it would spill sums that fill the registers.
    """
    if not reduction:
        return reduction
    sums, registers = tile.rows * tile.vectors, context.target.vector_registers
    in_vectors = context.target.multiplies_by_lanes and sums + tile.vectors + tile.rows <= registers
    steps = 4 if in_vectors else 2
    if not context.target.multiplies_by_lanes and sums > registers * _MOST_UNROLLED_SUMS:
        steps = 1
    left = unroll_steps(context, reduction[-1], sums, steps)
    if in_vectors and left.var is not reduction[-1].var:
        context.sch.annotate(left, ROW_VECTORS, True)
    return [*reduction[:-1], left]


def vectorize_tile(context: ScheduleContext, loops: list[LoopHandle], lanes: int) -> None:
    """The innermost loop in vectors of a length, the others unrolled where their extents are known."""
    if not loops:
        return
    sch = context.sch
    *rest, lane = loops
    extent = context.extent(lane)
    if extent is not None and extent > lanes:
        vector, lane = sch.split(lane, [None, lanes])
        rest.append(vector)
    sch.vectorize(lane)
    for loop in rest:
        if context.extent(loop) is not None:
            sch.unroll(loop)
