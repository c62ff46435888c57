"""The schedule of contractions (matrix products and convolutions): a register tile around the reduction."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.ir.expr import Select, const_value
from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.annotations import LAYOUT, PHASES, Anchor, Layout
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import BufferStore
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.anchors import contraction_template, kind_of
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.prefetch import prefetch_panels, prefetch_results, prefetch_rows
from tilewright.topi.schedule.cpu.register_tiles import (
    analytic_tile,
    begins_at_bias,
    can_fill_panels,
    can_pad_columns,
    copy_computed_panels,
    fill_panels,
    pack_weights,
    pad_columns,
    reduction_size,
    row_axis,
    schedule_tile,
    start_at_bias,
    unroll_reduction,
)
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import (
    RegisterTile,
    divisors,
    padded_widths,
    register_tile,
)
from tilewright.topi.schedule.cpu.turned_columns import turn_columns, turn_in_batch, turned_by_batch
from tilewright.topi.schedule.cpu.unrolling import interleave_streams

_TILES_IN_BLOCK = (2, 4, 8, 16, 32, 64, 128)
_FAR_BLOCKS = 4
"""How many times the least tiles of rows meet a panel where rows do not stay in the second cache level."""


def schedule_contraction(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> None:
    """Tile the output rows x columns, compute each tile of the contraction in registers, apply the epilogue on it.

    Before:  conv[n, y, x, c] += ...;  out[n, y, x, c] = epilogue(conv[n, y, x, c])
    After:   parallel (n, co, y), for xo:
               acc[xi, ci] = 0;  for kh, kw, ic: acc[xi, ci] += ...   (xi unrolled, ci a vector)
               out[n, y, xo*X + xi, co*C + ci] = epilogue(acc[xi, ci])
    """
    sch = context.sch
    keep_planar(context, anchor)
    turn_columns(context, anchor)
    turned = turned_by_batch(context, anchor, output)
    for producer in sch.get_producers(anchor):
        if _tests_border(context, anchor, producer):
            sch.compute_inline(producer)
        elif producer not in turned:
            schedule_injective(context, producer)
    if anchor.name == output.name:
        # The result itself is the contraction: accumulate in a tile of its own and copy it out.
        output = sch.cache_write(anchor, 0, "local")
    loops = _split_phases(context, anchor, sch.get_loops(output))
    extents = context.sizes(loops)
    if prod(extents) == 0:
        schedule_injective(context, output)
        return
    row = row_axis(context, anchor, extents)
    stay = _weights_should_stay(context, anchor, extents)
    tile, lines = _chosen_tile(context, anchor, loops, row, stay)
    if begins_at_bias(context, anchor, extents[-1], tile):
        start_at_bias(context, anchor)
    _arrange_weights(context, anchor, tile, prod(extents[:-1]))
    nest = _split_into_tiles(context, anchor, loops, row, tile, lines, stay)
    sch.reorder(*nest.outer, *nest.inner)
    sch.compute_at(anchor, nest.outer[-1])
    batch = loops[:-2] if nest.outer[: len(loops) - 2] == loops[:-2] else []
    # Panels that are filled up are copies of their own.
    if any(item.name != anchor.name for producer in turned for item in sch.get_consumers(producer)):
        batch = []
    for producer in turned:
        turn_in_batch(context, producer, batch)
    reduction = schedule_tile(context, anchor, nest.outer[-1], tile)
    *unrolled, lane = nest.inner
    for loop in unrolled:
        sch.unroll(loop)
    sch.vectorize(lane)
    work = prod(extents) * reduction_size(context, anchor)
    if turned and batch:
        context.parallelize(batch, work)
    else:
        context.parallelize_tiles(nest.outer, work)
    if context.packing and reduction and prod(extents[:-1]) < context.cpu.product.few_rows:
        item = context.block(anchor).writes[0].buffer.dtype.itemsize
        if interleave_streams(context, reduction[-1], tile.rows * tile.vectors, tile.columns * item):
            return
    reduction = unroll_reduction(context, reduction, tile)
    if not nest.resident:
        prefetch_panels(context, anchor, reduction, tile, nest.in_blocks)
    elif row is not None:
        prefetch_rows(context, anchor, reduction, tile)
        prefetch_results(context, output, reduction, tile)


def _tests_border(context: ScheduleContext, anchor: BlockHandle, producer: BlockHandle) -> bool:
    """Whether a convolution reads its image where it lies, and tests for the border, instead of a copy with one.

    Loops are partitioned, so that only tiles at the border test. Of many channels a pixel is in so many products that
    the copy is nothing beside them.
    """
    if kind_of(context, anchor) is not Anchor.CONV2D or LAYOUT.of(context.block(anchor)) is not Layout.NHWC:
        return False
    block = context.block(producer)
    value = block.body.value if isinstance(block.body, BufferStore) else None
    if not isinstance(value, Select) or not isinstance(value.a, BufferLoad):
        return False
    image, in_order = value.a.buffer, value.a.indices[-1] is block.iters[-1].var
    _, *sizes = (const_value(size) for size in image.shape)
    channels = None if None in sizes else sizes[-1]
    in_place = image in context.sch.func.params and in_order
    return in_place and channels is not None and channels < context.cpu.convolution.least_copied_channels


def keep_planar(context: ScheduleContext, anchor: BlockHandle) -> None:
    """Let the padded copy of a planar image stay planar where the convolution would have it channels last.

    Before: `pad[n, y, x, c] = image[n, c, y, x]`; after: `pad[n, c, y, x] = image[n, c, y, x]`, the same elements in an
    order in which whole vectors are copied.
    """
    sch = context.sch
    if kind_of(context, anchor) is not Anchor.CONV2D:
        return
    for handle in sch.get_producers(anchor):
        block = context.block(handle)
        own = [item.var for item in block.iters]
        loads = find_all(block.body, BufferLoad)
        if len(own) != 4 or len(loads) != 1 or not uses_any(loads[0].indices[-1], [own[2]]):
            continue
        sch.transform_layout(handle, block.writes[0].buffer.name, lambda n, y, x, c: (n, c, y, x))
        n, y, x, c = sch.get_loops(handle)
        sch.reorder(n, c, y, x)


def _weights_should_stay(context: ScheduleContext, anchor: BlockHandle, extents: list[int]) -> bool:
    """Whether each tile of rows had better meet all weights before the next: they fit, and panels would not pay."""
    stay = weights_stay(context, anchor, extents[-1])
    if can_pad_columns(context, anchor) or can_fill_panels(context, anchor):
        stay = stay and not _panels_pay(context, anchor, prod(extents), extents[-1])
    return stay


def _chosen_tile(
    context: ScheduleContext, anchor: BlockHandle, loops: list[LoopHandle], row: int | None, stay: bool
) -> tuple[RegisterTile, int]:
    """The register tile, and of how many lines of an image its rows are."""
    extents = context.sizes(loops)
    elements, columns = prod(extents), extents[-1]
    rows = extents[row] if row is not None else 1
    if row is None or not _has_narrow_lines(context, anchor, loops, row):
        return choose_tile(context, _tile(context, anchor, rows, columns, elements, stay), rows, columns), 1
    height = extents[row - 1]
    tile = _tile(context, anchor, rows, columns, elements, stay, height)
    heights = [rows * count for count in divisors(height, height)]
    tile = choose_tile(context, tile, rows * height, columns, heights=heights)
    return tile, max(1, tile.rows // rows)


def _arrange_weights(context: ScheduleContext, anchor: BlockHandle, tile: RegisterTile, rows: int) -> None:
    """Weights in panels as wide as the tile, filled up with zeros where they may be."""
    if can_pad_columns(context, anchor):
        pad_columns(context, anchor, tile)
        return
    fills = can_fill_panels(context, anchor)
    copy_computed_panels(context, anchor, tile, rows)
    pack_weights(context, anchor, tile)
    if fills:
        fill_panels(context, anchor, tile)


@dataclass(frozen=True)
class _Nest:
    """The loops around a tile and those in it, outermost first.

    `resident`: panels of weights are the innermost loop around a tile. `in_blocks`: rows come in blocks, each of which
    meets all panels.
    """

    outer: list[LoopHandle]
    inner: list[LoopHandle]
    resident: bool
    in_blocks: bool


def _split_into_tiles(
    context: ScheduleContext,
    anchor: BlockHandle,
    loops: list[LoopHandle],
    row: int | None,
    tile: RegisterTile,
    lines: int,
    stay: bool,
) -> _Nest:
    """Split the loops of the output by the tile, and say in which order they go."""
    sch = context.sch
    column_outer, vector, lane = sch.split(loops[-1], [None, tile.vectors, tile.lanes])
    inner: list[LoopHandle] = []
    outer = [loop for n, loop in enumerate(loops[:-1]) if n != row]
    if row is not None and lines > 1:
        outer[-1], line = sch.split(loops[row - 1], [None, lines])
        inner.append(line)
    # Phases have weights of their own: they come before panels.
    fixed = 3 if PHASES.is_on(context.block(anchor)) else 1
    order = [*outer[:fixed], column_outer, *outer[fixed:]]
    resident = context.choose("weights_stay", (False, True), stay)
    in_blocks = False
    if row is not None:
        row_loop = loops[row]
        if not resident and not outer[1:]:
            size = _block_of_rows(context, anchor, tile, row_loop)
            in_blocks = size is not None
            if size is not None:
                row_block, row_loop = sch.split(row_loop, [None, size])
                order.insert(len(outer), row_block)
        row_outer, row_inner = sch.split(row_loop, [None, tile.rows // lines])
        order.append(row_outer)
        inner.append(row_inner)
    if resident:
        order = [loop for loop in order if loop is not column_outer] + [column_outer]
    return _Nest(order, [*inner, vector, lane], resident, in_blocks)


def _block_of_rows(
    context: ScheduleContext, anchor: BlockHandle, tile: RegisterTile, row_loop: LoopHandle
) -> int | None:
    """How many rows meet a panel of weights before the next panel's turn; None if all of them do."""
    rows = context.extent(row_loop)
    most = _tiles_in_block(context, anchor, tile, rows) * tile.rows
    if rows is None:
        return most
    return _balanced(rows, most, tile.rows) if most < rows else None


def _tiles_in_block(context: ScheduleContext, anchor: BlockHandle, tile: RegisterTile, rows: int | None) -> int:
    """How many tiles of rows meet a panel of weights before the next panel's turn.

    Their values and the panel should stay in the second cache level. A few tiles there must be at any rate, for the
    next panel is fetched meanwhile. Where not even these have room beside a panel, rows come from beyond that level
    whatever their number: more of them then meet a panel, which comes from there, too.
    """
    depth = reduction_size(context, anchor) * context.block(anchor).writes[0].buffer.dtype.itemsize
    least = context.cpu.product.least_row_tiles
    space = context.target.l2_bytes * context.cpu.product.rows_share - depth * tile.columns
    stay = depth * (tile.columns + least * tile.rows) <= context.target.l2_bytes
    most = max(least, int(space) // (depth * tile.rows)) if stay else _FAR_BLOCKS * least
    if rows is None:
        return most
    whole = -(-rows // tile.rows)
    # More than there are is all of them.
    return context.choose("row_tiles", [n for n in _TILES_IN_BLOCK if n < whole] + [whole], min(most, whole))


def _balanced(extent: int, most: int, unit: int) -> int:
    """The size of blocks, of whole units and at most `most`, that cover an extent about evenly."""
    blocks = -(-extent // most)
    return -(-extent // (blocks * unit)) * unit


def weights_stay(context: ScheduleContext, anchor: BlockHandle, columns: int) -> bool:
    """Whether all weights stay in the second cache level: the panels of columns are then the innermost outer loop.

    Each tile of rows meets all weights before the next, and results are written as they lie in memory. Otherwise a
    panel of weights is kept while all rows pass by. That is dear where the rows are larger than the cache themselves:
    weights may then take more of it.
    """
    block = context.block(anchor)
    item = block.writes[0].buffer.dtype.itemsize
    weights = prod(PHASES.of(block) or ()) * reduction_size(context, anchor) * columns * item
    if weights <= context.target.l2_bytes * context.cpu.product.weights_share:
        return True
    sources = [region.buffer.static_shape for region in block.reads if region.buffer is not block.writes[0].buffer]
    rows = max((prod(shape) * item for shape in sources if shape), default=0)
    cache, shares = context.target.l2_bytes, context.cpu.product
    return rows > cache * shares.large_rows_share and weights <= cache * shares.most_weights_share


def _panels_pay(context: ScheduleContext, anchor: BlockHandle, elements: int, columns: int) -> bool:
    """Whether weights that would stay are better read panel by panel, each fetched while the one before is used.

    In a model constant weights come from beyond the second cache level. The first tile of rows would wait for all of
    them; a weight that meets 200 rows takes a tenth longer for it, one that meets 50 a third. Many rows hide that, and
    would have to come several times themselves. A single row has nothing to hide it behind.
    """
    rows = elements // (columns * prod(PHASES.of(context.block(anchor)) or ()))
    item = context.block(anchor).writes[0].buffer.dtype.itemsize
    weights = reduction_size(context, anchor) * columns * item
    return context.cpu.product.few_rows <= rows < context.cpu.product.many_rows and weights > context.target.l1_bytes


def _has_narrow_lines(context: ScheduleContext, anchor: BlockHandle, loops: list[LoopHandle], row: int) -> bool:
    """Whether the rows are the pixels of an image's lines, too few of them to make the most of a loaded weight."""
    if LAYOUT.of(context.block(anchor)) is not Layout.NHWC or row != len(loops) - 2 or row < 2:
        return False
    width, height = context.extent(loops[row]), context.extent(loops[row - 1])
    return width is not None and height is not None and 1 < width <= context.cpu.product.narrow_line and height > 1


def _tile(
    context: ScheduleContext, anchor: BlockHandle, rows: int, columns: int, elements: int, stay: bool, lines: int = 1
) -> RegisterTile:
    """The register tile of some rows, or of a few lines of so many rows each; `stay` is whether all weights do."""
    heights = [rows * count for count in divisors(lines, lines)] if lines > 1 else []
    pads = can_fill_panels(context, anchor) or can_pad_columns(context, anchor)
    cores = context.target.cores
    if rows * lines < context.cpu.product.few_rows:
        lanes, registers = context.lanes(anchor), context.target.vector_registers
        widths = padded_widths(columns, lanes) if pads else []
        tile = register_tile(rows * lines, columns, lanes, registers, context.cpu, heights, widths)
        return _shared_evenly(context, tile, rows * lines, columns, elements)
    tile = analytic_tile(context, anchor, rows * lines, columns, pads, stay, heights)
    # A product of few rows has few tiles: narrower ones give every core some.
    least = context.cpu.product.tiles_per_core * cores
    while cores > 1 and tile.vectors > 1 and elements < tile.rows * tile.columns * least:
        tile = RegisterTile(tile.rows, max(divisors(tile.vectors, tile.vectors - 1)), tile.lanes)
    return tile


def _shared_evenly(
    context: ScheduleContext, tile: RegisterTile, rows: int, columns: int, elements: int
) -> RegisterTile:
    """The tile, or a narrower one where tiles are so few that cores would be idle.

    2600 columns are 33 panels of five vectors, which sixteen cores finish in three rounds of five; of panels
    of four they finish 41 in as many rounds. There are a few panels for each core, so that a slow one holds up nobody.
    """
    cores, limits = context.target.cores, context.cpu.product
    if cores < 2 or elements >= tile.rows * tile.columns * limits.tiles_shared_evenly * cores:
        return tile
    # Elements count what is not in the tile's rows and columns too.
    others = max(1, elements // (rows * columns)) * -(-rows // tile.rows)
    whole = -(-columns // tile.lanes)

    def rounds(vectors: int) -> int:
        """Vectors that the busiest core computes."""
        return -(-others * -(-whole // vectors) // cores) * vectors

    # Where columns are whole vectors, panels are whole too.
    widths = divisors(whole, tile.vectors) if columns % tile.lanes == 0 else range(1, tile.vectors + 1)
    least = min(map(rounds, widths))
    for idle in (limits.little_idle, limits.most_idle):
        good = [n for n in widths if rounds(n) <= idle * least and n >= min(limits.least_vectors, tile.vectors)]
        several = [n for n in good if others * -(-whole // n) >= limits.tiles_per_core * cores]
        if several:
            return RegisterTile(tile.rows, max(several), tile.lanes)
    return RegisterTile(tile.rows, max(n for n in widths if rounds(n) == least), tile.lanes)


def _split_phases(context: ScheduleContext, anchor: BlockHandle, loops: list[LoopHandle]) -> list[LoopHandle]:
    """The loops of the output, with each phase of a transposed convolution a loop of its own.

    Before: `n, y, x, c`; after, for stride s: `n, y % s, x % s, y, x, c`: each phase has weights of its own.
    """
    phases = PHASES.of(context.block(anchor))
    if phases is None or len(loops) != 4:
        return loops
    sch = context.sch
    row, row_phase = sch.split(loops[1], [None, phases[0]])
    column, column_phase = sch.split(loops[2], [None, phases[1]])
    sch.reorder(row_phase, column_phase, row, column)
    return [loops[0], row_phase, column_phase, row, column, loops[3]]


TEMPLATE = contraction_template(
    "contraction",
    "a register tile of rows x columns around the reduction, the epilogue on the tile",
    lambda context, anchor, output: None,
    schedule_contraction,
)
