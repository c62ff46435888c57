"""The schedule of large products of two computed matrices, as in training: both are read from copies in panels.

Where multiply-adds take a lane of a register, or one number from memory for all lanes, a panel of rows is as good as
one of columns: a step of the sums then reads a few vectors of each, side by side in memory, however the matrices lie.
Copies are made of what fits the second cache level, right before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.ir.expr import const_value
from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.annotations import KEPT, PREFETCH_NEAR, ROW_VECTORS, Anchor
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.anchors import contraction_template, kind_of
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.register_tiles import panels, schedule_tile
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors, register_tile
from tilewright.topi.schedule.cpu.unrolling import unroll_steps
from tilewright.topi.schedule.packing import constant_parameters

_LEAST_SIZE = 64
"""Rows, columns and steps from which on copies are read often enough."""
_LEAST_WORK = 1 << 22
_MOST_DEPTH = 2048
"""Steps of a part of the sums: more than these do not stay near. Parts cost reading and writing all sums again."""
_UNROLLED = 4
_BLOCK_SHARE = 0.5
"""What a block of the larger matrix may take of the second cache level."""
_BLOCKS_PER_CORE = 2
_LEAST_OF_CORE = 32
"""Rows or columns for each core, of which blocks are made."""
_ROWS_AHEAD = 12
"""Rows of the source that a copy asks for before it reads them: each may be on another page."""


@dataclass(frozen=True)
class _Product:
    """Sizes of `c[i, j] += a[..i, k..] * b[..k, j..]`, and its loads of both matrices."""

    rows: int
    columns: int
    depth: int
    left: BufferLoad
    right: BufferLoad

    @property
    def part(self) -> int:
        """How many steps of the sums there are at a time."""
        count = -(-self.depth // _MOST_DEPTH)
        return self.depth if count == 1 else -(-self.depth // (count * _UNROLLED)) * _UNROLLED


def _matches(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> str | None:
    product = _product(context, anchor)
    return product if isinstance(product, str) else None


def _product(context: ScheduleContext, anchor: BlockHandle) -> _Product | str:
    """The product that a block computes; else why panels of both operands are not for it."""
    block = context.block(anchor)
    if not (context.target.multiplies_by_lanes or context.target.multiplies_from_memory):
        return "the processor multiplies neither by lanes nor by numbers from memory"
    if kind_of(context, anchor) is not Anchor.MATMUL or len(block.iters) != 3:
        return "no product of two matrices"
    extents = [const_value(item.domain.extent) for item in block.iters]
    sizes = [size for size in extents if size is not None]
    if len(sizes) < 3 or min(sizes) < _LEAST_SIZE or prod(sizes) < _LEAST_WORK:
        return "sizes are open, or small"
    if max(sizes[:2]) < _LEAST_OF_CORE * context.target.cores and context.target.cores > 1:
        return "too few blocks for all cores"
    i, j, k = (item.var for item in block.iters)
    loads = [item for item in find_all(block.body, BufferLoad) if item.buffer is not block.writes[0].buffer]
    left = [load for load in loads if set(load.indices) == {i, k}]
    right = [load for load in loads if set(load.indices) == {k, j}]
    if len(loads) != 2 or len(left) != 1 or len(right) != 1:
        return "operands are no plain matrices"
    if left[0].buffer is right[0].buffer or any(load.buffer.dtype.bits != 32 for load in loads):
        return "one matrix, or not of 32 bits"
    if any(load.buffer in constant_parameters(context.sch.func) for load in loads):
        return "constant weights"
    return _Product(sizes[0], sizes[1], sizes[2], left[0], right[0])


def schedule_panel_product(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> None:
    """A part of every sum at a time; the smaller matrix of the part is copied whole, the larger one in blocks.

    Before:  c[i, j] += a[i, k] * b[k, j];  out[i, j] = epilogue(c[i, j])
    After:   for part:  copy b[part] in panels of columns
               parallel block of rows:  copy a[block, part] in panels of rows
                 for panel of columns, panel of rows:
                   acc[ii, ji] = 0;  for k: acc[ii, ji] += a[k, ii] * b[k, ji]          (in registers)
                   c[i, j] += acc[ii, ji]
             out[i, j] = epilogue(c[i, j])

    Sums of one part have their epilogue on the tile. Where columns are more than rows, their matrix is the larger one.
    """
    sch = context.sch
    product = _product(context, anchor)
    assert not isinstance(product, str)
    for producer in sch.get_producers(anchor):
        if KEPT.is_on(context.block(producer)):
            sch.compute_inline(producer)
        else:
            schedule_injective(context, producer)
    in_parts = product.part < product.depth
    if not in_parts and output.name == anchor.name:
        output = sch.cache_write(anchor, 0, "local")
    tile = _tile(context, anchor, product)
    left, right = _copy_operands(context, anchor, output, product, tile)
    rest = [handle for handle in sch.get_output_blocks() if in_parts and handle.name != anchor.name]
    work = product.rows * product.columns * product.depth
    nest = _parts(context, anchor, product, tile) if in_parts else _whole(context, anchor, output, product, tile)
    by_rows = product.rows >= product.columns
    if nest.part is not None:
        sch.compute_at(right if by_rows else left, nest.part, preserve_unit_loops=True)
    sch.compute_at(left if by_rows else right, nest.block, preserve_unit_loops=True)
    _schedule_copy(context, left, tile.rows, shared=not by_rows)
    _schedule_copy(context, right, tile.columns, shared=by_rows)
    context.parallelize([nest.block], work)
    for handle in rest:
        schedule_injective(context, handle)


def _tile(context: ScheduleContext, anchor: BlockHandle, product: _Product) -> RegisterTile:
    """Whole vectors of rows and of columns: as many multiply-adds for each load as the registers allow.

    Of shapes that are as good, the one with the least beyond the ends of the matrices, and then the wider one. Where
    numbers of rows come from memory, a tile has a part of a vector of rows, so that copies are made in squares.
    """
    lanes, registers = context.lanes(anchor), context.target.vector_registers
    if not context.target.multiplies_by_lanes:
        heights = divisors(lanes, lanes)
        tile = register_tile(product.rows, product.columns, lanes, registers, context.cpu, heights, [lanes])
        return choose_tile(context, tile, product.rows, product.columns, heights=heights)
    shapes = [
        (height * lanes, vectors)
        for height in range(1, registers)
        for vectors in range(1, registers)
        if height * lanes * vectors + vectors + height <= registers
    ]

    def merit(shape: tuple[int, int]) -> tuple[float, int, int]:
        height, vectors = shape
        beyond = -product.rows % height * product.columns + -product.columns % (vectors * lanes) * product.rows
        return height * vectors / (height / lanes + vectors), -beyond, -height

    rows, vectors = max(shapes, key=merit)
    heights = sorted({height for height, _ in shapes})
    tile = RegisterTile(rows, vectors, lanes)
    return choose_tile(context, tile, product.rows, product.columns, heights=heights)


def _copy_operands(
    context: ScheduleContext, anchor: BlockHandle, output: BlockHandle, product: _Product, tile: RegisterTile
) -> tuple[BlockHandle, BlockHandle]:
    """Let the product read copies of both matrices in panels as the tile has them, with zeros past the ends."""
    sch = context.sch
    i, j, _ = (item.var for item in context.block(anchor).iters)
    total = context.block(anchor).writes[0].buffer
    held = _tiles_in_block(context, product, tile)
    by_rows = product.rows >= product.columns
    rows, columns = (tile.rows * held, tile.columns) if by_rows else (tile.rows, tile.columns * held)
    padding = sch.pad_einsum(anchor, [rows, columns, product.part])
    if context.block(anchor).writes[0].buffer is not total:
        (crop,) = sch.get_consumers(anchor)
        if output.name != anchor.name:
            sch.compute_inline(crop)
    copies = []
    for variable, width in ((i, tile.rows), (j, tile.columns)):
        block = context.block(anchor)
        load = next(
            item
            for item in find_all(block.body, BufferLoad)
            if item.buffer is not block.writes[0].buffer and variable in item.indices
        )
        made = [item for item in sch.get_producers(anchor) if context.block(item).writes[0].buffer is load.buffer]
        padded = [item for item in made if item in padding]
        copy = padded[0] if padded else sch.cache_read(anchor, load.buffer.name, "global")
        axis = load.indices.index(variable)
        sch.transform_layout(copy, context.block(copy).writes[0].buffer.name, panels(2, axis, width))
        copies.append(copy)
    return copies[0], copies[1]


@dataclass(frozen=True)
class _Nest:
    """Where copies are made: of the larger matrix for each block, of the smaller one for each part (None: before)."""

    block: LoopHandle
    part: LoopHandle | None


def _whole(
    context: ScheduleContext, anchor: BlockHandle, output: BlockHandle, product: _Product, tile: RegisterTile
) -> _Nest:
    """Sums as a whole: each tile has its epilogue at once."""
    sch = context.sch
    row, column = sch.get_loops(output)
    block, outer, inner = _tiled(context, product, tile, row, column)
    sch.reorder(block, *outer, *inner)
    sch.compute_at(anchor, outer[-1], preserve_unit_loops=True)
    _schedule_sums(context, anchor, outer[-1], tile, inner)
    return _Nest(block, None)


def _parts(context: ScheduleContext, anchor: BlockHandle, product: _Product, tile: RegisterTile) -> _Nest:
    """Sums in parts, each of which is added to what is there."""
    sch = context.sch
    part, _ = sch.split(sch.get_loops(anchor)[-1], [None, product.part])
    partial_sums = sch.rfactor(part)
    row, column, part = sch.get_loops(anchor)
    block, outer, inner = _tiled(context, product, tile, row, column)
    sch.reorder(part, block, *outer, *inner)
    start = sch.decompose_reduction(anchor, part)
    sch.compute_at(partial_sums, outer[-1], preserve_unit_loops=True)
    _schedule_sums(context, partial_sums, outer[-1], tile, inner)
    schedule_injective(context, start)
    return _Nest(block, part)


def _tiled(
    context: ScheduleContext, product: _Product, tile: RegisterTile, row: LoopHandle, column: LoopHandle
) -> tuple[LoopHandle, list[LoopHandle], list[LoopHandle]]:
    """The loop over blocks of the larger matrix, those over panels in a block, and those in a tile."""
    sch = context.sch
    held = _tiles_in_block(context, product, tile)
    if product.rows >= product.columns:
        block, row_outer, row_inner = sch.split(row, [None, held, tile.rows])
        panel, vector, lane = sch.split(column, [None, tile.vectors, tile.lanes])
        return block, [panel, row_outer], [row_inner, vector, lane]
    block, panel, vector, lane = sch.split(column, [None, held, tile.vectors, tile.lanes])
    row_outer, row_inner = sch.split(row, [None, tile.rows])
    return block, [row_outer, panel], [row_inner, vector, lane]


def _tiles_in_block(context: ScheduleContext, product: _Product, tile: RegisterTile) -> int:
    """How many panels of the larger matrix a block has: what fits the cache, with the least beyond the last panel."""
    by_rows = product.rows >= product.columns
    size, width = (product.rows, tile.rows) if by_rows else (product.columns, tile.columns)
    tiles, item = -(-size // width), product.left.buffer.dtype.itemsize
    most = int(context.target.l2_bytes * _BLOCK_SHARE) // (product.part * width * item)
    if context.target.cores > 1:
        most = min(most, tiles // (_BLOCKS_PER_CORE * context.target.cores))
    most = max(1, min(most, tiles))
    return min(range(-(-most // 2), most + 1), key=lambda held: (-(-tiles // held) * held, -held))


def _schedule_sums(
    context: ScheduleContext, sums: BlockHandle, attach: LoopHandle, tile: RegisterTile, inner: list[LoopHandle]
) -> None:
    """Sums of a tile in registers, and what is done with them there."""
    sch = context.sch
    reduction = schedule_tile(context, sums, attach, tile)
    *unrolled, lane = inner
    for loop in unrolled:
        sch.unroll(loop)
    sch.vectorize(lane)
    steps = unroll_steps(context, reduction[-1], tile.rows * tile.vectors, _UNROLLED)
    if context.target.multiplies_by_lanes:
        sch.annotate(steps, ROW_VECTORS, True)


def _schedule_copy(context: ScheduleContext, copy: BlockHandle, width: int, *, shared: bool) -> None:
    """A copy in panels: whole vectors where the source has a panel's elements side by side, else squares of lanes.

    One that all cores read is made by all of them.
    """
    sch = context.sch
    loops = sch.get_loops(copy)[-2:]
    work = prod(context.sizes(loops))
    axis = _panel_axis(context, copy)
    panel, lane = sch.split(loops[axis], [None, width])
    if axis == 1:
        outer = loops[0]
        source = context.block(copy).reads[0].buffer
        ahead = _ROWS_AHEAD * (const_value(source.shape[-1]) or 0)
        sch.annotate(panel, PREFETCH_NEAR, {source.name: [context.sizes([panel])[0] * width, ahead]})
    else:
        outer = panel
        step, inner = sch.split(loops[1], [None, context.lanes(copy)])
        sch.reorder(panel, step, inner, lane)
        sch.unroll(inner)
    sch.vectorize(lane)
    if shared:
        context.parallelize([outer], work)


def _panel_axis(context: ScheduleContext, copy: BlockHandle) -> int:
    """Which axis of its source a copy in panels divides: the one that the last index of the copy is part of."""
    block = context.block(copy)
    last = block.writes[0].region[-1].min
    (axis,) = (n for n, item in enumerate(block.iters) if uses_any(last, [item.var]))
    return axis


TEMPLATE = contraction_template(
    "panel-product",
    "both computed matrices in panels, copied as they are used; a part of every sum at a time",
    _matches,
    schedule_panel_product,
)
