"""The schedule of convolutions' gradients for their weights: products over pixels, a part of the pixels at a time."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.ir.expr import PrimExpr
from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.annotations import LAYOUT, Anchor, Layout
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.anchors import blocks_of_kind
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.register_tiles import schedule_tile, unroll_reduction
from tilewright.topi.schedule.cpu.tile_choice import choose_tile, choose_vector_length
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors, register_tile
from tilewright.topi.schedule.template import Template

_KIND = Anchor.CONV2D_WEIGHT_GRADIENT
_ITEM = 4
"""Bytes of a number."""
_LEAST_USES = 8
"""How often a panel must be read to be worth a copy."""


def _matches(context: ScheduleContext) -> str | None:
    anchors = blocks_of_kind(context, _KIND)
    if len(anchors) != 1:
        return "no gradient of a convolution for its weights"
    *loops, images, lines, pixels = (context.extent(loop) for loop in context.sch.get_loops(anchors[0]))
    if LAYOUT.of(context.block(anchors[0])) is not Layout.NHWC:
        return "channels are not last"
    if images == 0 or any(not size for size in (*loops, lines, pixels)):
        return "sizes of an image are open, or there is nothing to add up"
    return "a single line of pixels" if images == 1 and lines == 1 else None


def schedule_weight_gradient(context: ScheduleContext) -> None:
    """Parts of the pixels meet all taps and channels while they are in the second cache level.

    Before:  w[h, v, i, o] += data[n, y*s + h, x*s + v, i] * gradient[n, y, x, o]
    After:   data and gradient in panels of channels as wide as the tile
             parallel share, for part of (n, y), for h, v, tile of inputs, panel of outputs:
               acc[ii, oi] = 0;  for y, x of the part: acc[ii, oi] += data[...] * gradient[...]     (in registers)
               w[h, v, i, o] += acc[ii, oi]

    A share has inputs and outputs of its own, or parts of the pixels and sums for these, which are added up at the
    end; it goes through its parts in order: sums come out the same each time.
    """
    sch = context.sch
    (anchor,) = blocks_of_kind(context, _KIND)
    outputs = [handle for handle in sch.get_output_blocks() if handle.name != anchor.name]
    work = prod(context.sizes(sch.get_loops(anchor)))
    *_, inputs, columns = context.sizes(_spatial(context, anchor))
    tile = _tile(context, anchor, inputs, columns)
    _arrange(context, anchor, tile)
    for producer in sch.get_producers(anchor):
        schedule_injective(context, producer)
    n, y, x = _reduced(context, anchor)
    blocks = _blocks(tile, inputs, columns)
    least = -(-context.target.cores // min(prod(blocks), context.target.cores))
    part = _fuse_parts(context, [n, y, x], inputs + columns, _weight_bytes(context, anchor), least)
    shares = _shares(context, anchor, blocks, part)
    partial_sums = sch.rfactor(part)
    sums = _sums_of_shares(context, anchor, shares.parts) if shares.parts > 1 else anchor
    *outer, row, column = sch.get_loops(sums)[:4]
    *share, part = sch.get_loops(sums)[4:]
    own_panels, panel, vector, lane = sch.split(column, [shares.panels, None, tile.vectors, tile.lanes])
    own_rows, row_outer, row_inner = sch.split(row, [shares.rows, None, tile.rows])
    own = [*share, own_rows, own_panels]
    sch.reorder(*own, part, *outer, row_outer, panel, row_inner, vector, lane)
    start = sch.decompose_reduction(sums, part)
    sch.compute_at(partial_sums, panel, preserve_unit_loops=True)
    reduction = schedule_tile(context, partial_sums, panel, tile)
    for loop in (row_inner, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.vectorize(sch.get_loops(start)[-1])
    context.parallelize(own, work)
    unroll_reduction(context, reduction, tile)
    for handle in outputs:
        schedule_injective(context, handle)


def _sums_of_shares(context: ScheduleContext, anchor: BlockHandle, count: int) -> BlockHandle:
    """Divide the parts into so many shares, each with sums of its own; gives these, which the anchor adds up."""
    sch = context.sch
    part = sch.get_loops(anchor)[-1]
    share, _ = sch.split(part, [count, None])
    sums = sch.rfactor(share, 0)
    *outer, column, share = sch.get_loops(anchor)
    size = prod(context.sizes([*outer, column, share]))
    (columns,) = context.sizes([column])
    vector, lane = sch.split(column, [None, choose_vector_length(context, columns, context.lanes(anchor), size)])
    sch.reorder(*outer, vector, share, lane)
    start = sch.decompose_reduction(anchor, share)
    sch.vectorize(lane)
    sch.vectorize(sch.get_loops(start)[-1])
    context.parallelize([*outer, vector], size)
    return sums


def _spatial(context: ScheduleContext, anchor: BlockHandle) -> list[LoopHandle]:
    return context.sch.get_loops(anchor)[:-3]


def _reduced(context: ScheduleContext, anchor: BlockHandle) -> list[LoopHandle]:
    return context.sch.get_loops(anchor)[-3:]


def _tile(context: ScheduleContext, anchor: BlockHandle, rows: int, columns: int) -> RegisterTile:
    lanes, registers = context.lanes(anchor), context.target.vector_registers
    return choose_tile(context, register_tile(rows, columns, lanes, registers, context.cpu), rows, columns)


@dataclass(frozen=True, slots=True)
class _Shares:
    """How a gradient is divided over cores: by blocks of inputs, by panels of outputs, by parts of the pixels."""

    rows: int = 1
    panels: int = 1
    parts: int = 1

    @property
    def count(self) -> int:
        return self.rows * self.panels * self.parts


def _blocks(tile: RegisterTile, inputs: int, outputs: int) -> tuple[int, int]:
    """How many blocks of inputs and panels of outputs there are to share out."""
    rows = inputs // tile.rows if inputs % tile.rows == 0 else 1
    return rows, outputs // tile.columns if outputs % tile.columns == 0 else 1


def _shares(context: ScheduleContext, anchor: BlockHandle, blocks: tuple[int, int], part: LoopHandle) -> _Shares:
    """The quickest way to divide a gradient; where several are, one that adds up no sums of shares.

    A share of the inputs reads all of its outputs' gradient, and the other way round; a share of the pixels has sums
    for all weights, which are written and read again.
    """
    if context.target.cores < 2:
        return _Shares()
    rows, panels = blocks
    parts = context.extent(part) or 1
    found = [
        _Shares(row, panel, share)
        for share in divisors(parts, context.target.cores)
        for row in divisors(rows, 2 * context.target.cores)
        for panel in divisors(panels, 2 * context.target.cores)
        if row * panel * share <= 2 * context.target.cores
    ]
    return min(found, key=lambda shares: _cycles(context, anchor, shares))


def _cycles(context: ScheduleContext, anchor: BlockHandle, shares: _Shares) -> float:
    """An estimate of what all cores together take: products, what they read, and sums of shares."""
    core = context.cpu.core
    sizes = context.sizes(context.sch.get_loops(anchor))
    *_, inputs, outputs, images, lines, pixels = sizes
    products = prod(sizes) / (core.fma_per_cycle * context.lanes(anchor) * core.efficiency)
    read = images * lines * pixels * _ITEM * (inputs * shares.panels + outputs * shares.rows)
    added = 2 * shares.parts * _weight_bytes(context, anchor) if shares.parts > 1 else 0
    moved = core.memory_bytes_per_cycle
    return context.idle(shares.count) * (products + read / moved) + added / moved


def _weight_bytes(context: ScheduleContext, anchor: BlockHandle) -> int:
    total = context.block(anchor).writes[0].buffer
    return prod(total.static_shape or ()) * total.dtype.itemsize


def _fuse_parts(
    context: ScheduleContext, loops: list[LoopHandle], channels: int, weight_bytes: int, least: int
) -> LoopHandle:
    """The loop over parts of the pixels: whole images, or lines of one, that fit the second cache level together.

    Every part reads and writes all weights: where these are larger than the cache, parts are larger too. There are at
    least so many parts as cores need that have no channels to share.
    """
    sch = context.sch
    n, y, x = loops
    images, lines, pixels = context.sizes([n, y, x])
    cache = context.target.l2_bytes
    space = max(cache // 2, min(weight_bytes // 4, 2 * cache))
    most = max(1, min(space // (channels * _ITEM * pixels), images * lines // least))
    if context.is_symbolic(n):
        return n
    if most >= lines and images > 1:
        part, _ = sch.split(n, [None, max(divisors(images, min(most // lines, images - 1)))])
        return part
    part, _ = sch.split(y, [None, max(divisors(lines, min(most, lines - 1)))])
    return sch.fuse(n, part) if images > 1 else part


def _arrange(context: ScheduleContext, anchor: BlockHandle, tile: RegisterTile) -> None:
    """Let the sums read data and gradient from copies in panels of channels: each step reads what lies next.

    Channels of one pixel lie a power of two from those of the next in many networks, and would drive each other out of
    the first cache level.
    """
    sch = context.sch
    block = context.block(anchor)
    *_, row, column = (item.var for item in block.iters if item.kind is IterKind.SPATIAL)
    sizes = context.sizes(_spatial(context, anchor))[-2:]
    loads = [item for item in find_all(block.body, BufferLoad) if item.buffer is not block.writes[0].buffer]
    produced = {context.block(handle).writes[0].buffer: handle for handle in sch.get_producers(anchor)}
    for load in loads:
        for variable, size, width in ((row, sizes[0], tile.rows), (column, sizes[1], tile.columns)):
            if width in (1, size) or size % width or not uses_any(load.indices[-1], [variable]):
                continue
            handle = produced.get(load.buffer)
            if handle is None and _uses(context, anchor, variable is row, tile) < _LEAST_USES:
                continue
            handle = handle or sch.cache_read(anchor, load.buffer.name, "global")
            sch.transform_layout(handle, context.block(handle).writes[0].buffer.name, _panels(width))


def _uses(context: ScheduleContext, anchor: BlockHandle, of_data: bool, tile: RegisterTile) -> int:
    """How often each panel of the data, or of the gradient, is read: once for each tap and tile of the other."""
    *outer, inputs, outputs = context.sizes(_spatial(context, anchor))
    tiles = -(-outputs // tile.columns) if of_data else -(-inputs // tile.rows)
    return prod(outer) * tiles


def _panels(width: int) -> IndexMap:
    """Pixels of some channels together: `[n, y, x, c]` becomes `[n, c // width, y, x, c % width]`."""

    def arrange(n: PrimExpr, y: PrimExpr, x: PrimExpr, c: PrimExpr) -> tuple[PrimExpr, ...]:
        return (n, c // width, y, x, c % width)

    return IndexMap.of(arrange, 4)


TEMPLATE = Template(
    "weight-gradient",
    "a part of the pixels at a time meets all taps and channels; cores share channels or pixels",
    _matches,
    schedule_weight_gradient,
)
