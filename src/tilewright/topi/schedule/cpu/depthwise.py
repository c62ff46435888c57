"""The schedule of depthwise convolutions: a row of pixels of one vector of channels, with taps unrolled."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.ir.expr import Select, Var, const_value
from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.analysis.linear import linear
from tilewright.tir.annotations import LAYOUT, Anchor, Layout
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.schedule.reducer import match_reducer
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.anchors import contraction_template, kind_of
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.prefetch import buffer_bytes
from tilewright.topi.schedule.cpu.register_tiles import (
    pack_weights,
    reduction_size,
    row_axis,
    schedule_tile,
    start_at_bias,
)
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors, vector_width

_FEW_ROWS = 4
"""Rows of taps that are unrolled even where lines of results share no rows of elements."""


def _matches(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> str | None:
    return None if kind_of(context, anchor) is Anchor.DEPTHWISE_CONV2D else "no depthwise convolution"


def schedule_depthwise(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> None:
    """Tile the output pixels x channels, compute each tile of the convolution in registers, apply the epilogue on it.

    The panels of channels are the innermost outer loop: there are hardly any weights, and results are written as they
    lie in memory. Many channels are taken some at a time, so that what a tile shares with the next stays near.
    """
    sch = context.sch
    for producer in sch.get_producers(anchor):
        schedule_injective(context, producer)
    if anchor.name == output.name:
        # The result itself is the convolution: accumulate in a tile of its own and copy it out.
        output = sch.cache_write(anchor, 0, "local")
    if has_dense_windows(context, anchor):
        start_at_bias(context, anchor)
    loops = sch.get_loops(output)
    extents = context.sizes(loops)
    if context.is_symbolic(loops[-1]) or prod(extents) == 0:
        schedule_injective(context, output)
        return
    row = row_axis(context, anchor, extents)
    rows = extents[row] if row is not None else 1
    tile = sliding_tile(rows, extents[-1], context.lanes(anchor), context.target.vector_registers)
    # Tiles of several lines are whole ones.
    known = row is not None and context.extents(loops[row - 1 : row + 1]) is not None
    windows = windows_of(context, anchor, extents, row) if known else None
    lines, whole = 1, None
    if windows is not None and row is not None:
        whole = tile_of_windows(context, windows, extents[row - 1], rows)
        lines = whole[0] if whole is not None else lines_together(context, windows, extents[row - 1], tile.rows)
    tile = choose_pixels(context, tile if whole is None else RegisterTile(whole[1], 1, tile.lanes), rows)
    pack_weights(context, anchor, tile)
    column_outer, lane = sch.split(loops[-1], [None, tile.lanes])
    inner: list[LoopHandle] = []
    order = [loop for n, loop in enumerate(loops[:-1]) if n != row]
    if row is not None:
        several = lines > 1 or whole is not None
        options = divisors(extents[row - 1], context.cpu.depthwise.most_lines) if several else [1]
        lines = context.choose("lines", options, lines)
        if lines > 1:
            order[-1], line = sch.split(loops[row - 1], [None, lines])
            inner.append(line)
        row_outer, row_inner = sch.split(loops[row], [None, tile.rows])
        order.append(row_outer)
        inner.append(row_inner)
    panels = context.extent(column_outer)
    assert panels is not None
    together = _channels_together(context, anchor, output, panels, (lines, tile.rows))
    if together < panels:
        some, column_outer = sch.split(column_outer, [None, together])
        order.insert(1, some)
    order.append(column_outer)
    sch.reorder(*order, *inner, lane)
    schedule_taps(context, anchor, order[-1], tile, lines)
    for loop in inner:
        sch.unroll(loop)
    sch.vectorize(lane)
    work = prod(extents) * reduction_size(context, anchor)
    context.parallelize_tiles(order, work)


def schedule_taps(
    context: ScheduleContext, anchor: BlockHandle, place: LoopHandle, tile: RegisterTile, lines: int
) -> None:
    """The taps of a tile of some lines under the loop over tiles, in registers."""
    context.sch.compute_at(anchor, place)
    reduction = schedule_tile(context, anchor, place, tile)
    matched = match_reducer(context.block(anchor))
    is_open = None in [const_value(dim) for dim in context.block(anchor).writes[0].buffer.shape[1:]]
    if reduction and matched is not None and isinstance(matched.sources[0], Select) and not is_open:
        if context.block(anchor).init is not None:
            # A tile of one element: nothing has taken the start of its sum apart yet.
            context.sch.decompose_reduction(anchor, reduction[0])
        # Windows that reach past the image have that much less to add up; at edges of open sizes nothing branches.
        context.sch.skip_neutral(anchor)
    # With all taps in sight, an element that several windows share is loaded once.
    taps = context.extents(reduction)
    if taps is None or prod(taps) > context.cpu.depthwise.most_unrolled_taps:
        return
    if context.choose("unroll_taps", (False, True), True):
        for loop in reduction[1:] if _rows_stay(context, taps, lines, is_open) else reduction:
            context.sch.unroll(loop)


def _rows_stay(context: ScheduleContext, taps: list[int], lines: int, is_open: bool) -> bool:
    """Whether rows of taps stay a loop.

    Those that are missing at the edge of an open size are left out there. Many rows of which each reads other elements
    are as quick unrolled, and take twice the time to compile.
    """
    if len(taps) < 2 or is_open:
        return len(taps) > 1
    return not context.choose("unroll_rows_of_taps", (False, True), lines > 1 or taps[0] <= _FEW_ROWS)


def _channels_together(
    context: ScheduleContext, anchor: BlockHandle, output: BlockHandle, panels: int, tile: tuple[int, int]
) -> int:
    """How many vectors of channels all pixels are worked on with, before the next ones.

    All of them, unless the windows, results and taps of a tile (of some lines and pixels) are too much for the first
    cache level: what the next tile shares would be gone. Images beyond the second level are read in order, and so are
    those that several cores share: each finds the lines near that it made itself.
    """
    block = context.block(anchor)
    taps = [const_value(item.domain.extent) or 1 for item in block.iters if item.kind is IterKind.REDUCE]
    spatial = [item.var for item in block.iters if item.kind is IterKind.SPATIAL]
    steps = _window_steps(context, anchor, spatial[1:3]) if LAYOUT.of(block) is Layout.NHWC else None
    default = panels
    if steps is not None and len(taps) == 2 and context.target.cores == 1:
        window = prod((count - 1) * step + tap for count, step, tap in zip(tile, steps, taps, strict=True))
        vector = (window + prod(tile) + prod(taps)) * context.target.vector_bits // 8
        whole = sum(map(buffer_bytes, {item.buffer for item in (*block.reads, *context.block(output).writes)}))
        near, shares = context.target.l1_bytes, context.cpu.depthwise
        crowded = vector * panels > near * shares.crowded_share
        if crowded and whole <= context.target.l2_bytes * shares.image_share:
            default = divisors(panels, max(1, int(near * shares.channels_share) // vector))[-1]
    return context.choose("channels_together", divisors(panels, panels), default)


def choose_pixels(context: ScheduleContext, tile: RegisterTile, rows: int) -> RegisterTile:
    """The pixels of a tile: the analytic number, or another one for which there are accumulators."""
    most = min(rows, context.target.vector_registers - 4)
    options = [n for n in range(1, most + 1) if -(-rows // n) * n <= context.cpu.depthwise.most_empty * rows]
    pixels = context.choose("pixels", sorted({*options, tile.rows}), tile.rows)
    return RegisterTile(pixels, tile.vectors, tile.lanes)


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of pixels: taps down and across, and how far those of neighbouring pixels are from each other."""

    taps: tuple[int, int]
    steps: tuple[int, int]

    def elements(self, lines: int, pixels: int) -> tuple[int, int]:
        """Rows and columns of the elements that a tile of pixels reads."""
        (height, width), (down, across) = self.taps, self.steps
        return (lines - 1) * down + height, (pixels - 1) * across + width


def windows_of(context: ScheduleContext, anchor: BlockHandle, extents: list[int], row: int | None) -> Windows | None:
    """The windows of a convolution of NHWC images whose loop over the pixels of a line is that at `row`."""
    block = context.block(anchor)
    taps = [const_value(item.domain.extent) for item in block.iters if item.kind is IterKind.REDUCE]
    if row is None or row != len(extents) - 2 or row < 2 or LAYOUT.of(block) is not Layout.NHWC or len(taps) != 2:
        return None
    spatial = [item.var for item in block.iters if item.kind is IterKind.SPATIAL]
    steps = _window_steps(context, anchor, spatial[row - 1 : row + 1])
    (height, width) = taps
    if steps is None or height is None or width is None:
        return None
    return Windows((height, width), (steps[0], steps[1]))


def tile_of_windows(context: ScheduleContext, windows: Windows, height: int, width: int) -> tuple[int, int] | None:
    """Lines and pixels of a tile whose windows lie in registers as a whole; None if there is none to speak of.

    2 x 2 windows of 3 x 3 elements are 4 x 4 elements: each is loaded once for all of them, while a row of seven pixels
    loads 3 x 9 elements for little more results, and has no room for them.
    """
    best, least = None, 0.0
    room = context.target.vector_registers + context.cpu.depthwise.reloaded
    for lines in divisors(height, 2):
        for pixels in divisors(width, 4):
            elements = prod(windows.elements(lines, pixels))
            loads = elements / (lines * pixels)
            fits = elements + prod(windows.taps) + lines * pixels <= room
            if fits and lines * pixels > 2 and (best is None or loads < least):
                best, least = (lines, pixels), loads
    return best


def lines_together(context: ScheduleContext, windows: Windows, height: int, pixels: int) -> int:
    """Lines of a tile whose windows do not lie in registers as a whole: as many as share rows of elements there.

    Two lines of 5 x 5 windows read six rows of the image, where one after the other reads ten. There must be room for
    the sums, a row of elements and a row of taps.
    """
    best = 1
    for lines in divisors(height, 2):
        _, columns = windows.elements(lines, pixels)
        shares = windows.steps[0] < windows.taps[0]
        if shares and lines * pixels + columns + windows.taps[1] <= context.target.vector_registers:
            best = lines
    return best


def has_dense_windows(context: ScheduleContext, anchor: BlockHandle) -> bool:
    """Whether windows of neighbouring pixels share all but a row or column: arithmetic is then most of the work.

    With a stride it is loading, and sums that begin at the bias, loaded before all else, take up to a tenth longer.
    """
    block = context.block(anchor)
    spatial = [item.var for item in block.iters if item.kind is IterKind.SPATIAL]
    return LAYOUT.of(block) is Layout.NHWC and _window_steps(context, anchor, spatial[1:3]) == [1, 1]


def _window_steps(context: ScheduleContext, anchor: BlockHandle, pixel: list[Var]) -> list[int] | None:
    """How far windows of neighbouring pixels are from each other, down and across."""
    block = context.block(anchor)
    for load in find_all(block.body, BufferLoad):
        if load.buffer is not block.writes[0].buffer and uses_any(load, pixel):
            steps = [linear(load.indices[n + 1]).terms.get(var) for n, var in enumerate(pixel)]
            return [step for step in steps if step is not None] if None not in steps else None
    return None


def sliding_tile(rows: int, columns: int, lanes: int, registers: int) -> RegisterTile:
    """The tile of a depthwise convolution: one vector of channels, as many pixels of a row as registers allow.

    Each pixel needs an accumulator and a loaded element; taps of one kernel row stay loaded. A rest of channels runs
    as a shorter vector: better than shorter ones for all of them, though vectors then lie across cache lines.
    """
    width = lanes if columns > lanes else vector_width(columns, lanes)
    most = max(1, (registers - 6) // 2)
    return RegisterTile(max(divisors(rows, most)), 1, width)


TEMPLATE = contraction_template(
    "depthwise", "a vector of channels x a few pixels in registers, taps unrolled", _matches, schedule_depthwise
)
