"""The schedule of Winograd convolutions of few tiles whose weights are transformed in registers, as they are used."""

from __future__ import annotations

from tilewright.graph.ops.winograd import KERNEL
from tilewright.ir.expr import PrimExpr, Var
from tilewright.tir.annotations import PLAIN_ADDRESSES, PREFETCH, PREFETCH_NEAR, Anchor
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.cpu.anchors import requires_kind
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.tiling import divisors, vector_width
from tilewright.topi.schedule.cpu.winograd import (
    inline_others,
    open_images,
    output_block,
    pack_taps,
    split_tiles,
    stage_shape,
)
from tilewright.topi.schedule.template import Template

_PART, _MOST_PART = 32, 128
"""Input channels whose weights stay in the first cache level while one row of points after the other meets them.

More than the second number do not stay there.
"""
_TOGETHER, _MOST_TOGETHER, _LEAST_STEPS = 2, 4, 8
"""Input channels in one iteration, the most to ask for, and the iterations that there are at least: LLVM would unroll
fewer."""


def schedule_winograd_plain(context: ScheduleContext) -> None:
    """Schedule a kernel whose anchor is the product of a Winograd convolution with plain weights.

    for vector of channels:  pad the image;  for tile:  V[:, :, tile, channels] = B d B'
    for vector of output channels:
        for part of the input channels, row i of points:
            for channel:  U[i, :] = G g G';  sum[j, tile] += V[i, j, tile] U[i, j]      (all of this in registers)
            M[i, j, tile] += sum[j, tile]
        for tile:  epilogue(A M A') to the output                                       (partial tiles are cut here)

    Points, tiles and rows of results are unrolled: what each of them multiplies by, and which products a tile at the
    border does without, is settled in the code. Images of an open number are computed one after the other.
    """
    sch = context.sch
    target = output_block(context)
    inline_others(context, target)
    size, _, tiles, outputs = stage_shape(context, "winograd_product")
    *_, channels = stage_shape(context, "winograd_input")
    width = vector_width(outputs, context.lanes(sch.get_block("winograd_product")))
    weights = pack_taps(context, width)
    panel = _schedule_output(context, target, width)
    options = divisors(channels, _MOST_PART)
    part = context.choose("part", options, max(n for n in options if n <= _PART))
    row = _schedule_product(context, panel, part)
    chunk = _schedule_input(context, target)
    if weights is not None:
        # The rows of points fetch the weights of the next part between them.
        sch.annotate(row, PREFETCH, {weights: part * KERNEL * KERNEL * width})
    if context.target.cores > 1 and size * size * tiles * channels * outputs >= context.cpu.parallel.least_work:
        sch.parallel(chunk)
        sch.parallel(panel)
    for handle in sch.get_output_blocks():
        if handle.name != target.name:
            schedule_injective(context, handle)


def _schedule_output(context: ScheduleContext, target: BlockHandle, width: int) -> LoopHandle:
    """Loops (panel, tile, row, column, lane) around the output with its transforms inside; gives that over panels."""
    sch = context.sch
    _, tile, *_ = stage_shape(context, "winograd_output")
    tiles, row, column, o = split_tiles(context, target, tile)
    panel, lane = sch.split(o, [None, width])
    sch.reorder(panel, tiles, row, column, lane)
    for name in ("winograd_output", "winograd_output_rows"):
        _compute_in_registers(context, name, tiles)
    _unroll(context, [tiles, row, column, lane])
    return panel


def _compute_in_registers(context: ScheduleContext, name: str, place: LoopHandle) -> None:
    """A stage of a transform under a loop: all its loops unrolled but the last, which is a vector."""
    sch = context.sch
    stage = sch.get_block(name)
    sch.compute_at(stage, place, preserve_unit_loops=True)
    _unroll(context, loops_below(context, stage, place))
    sch.set_scope(stage, 0, "local")


def _unroll(context: ScheduleContext, loops: list[LoopHandle]) -> None:
    """The last loop in a vector, the others unrolled."""
    *others, lane = loops
    if context.extent(lane) != 1:
        context.sch.vectorize(lane)
    for loop in others:
        context.sch.unroll(loop)


def _schedule_product(context: ScheduleContext, panel: LoopHandle, part: int) -> LoopHandle:
    """The products under a panel, in parts of some input channels; gives the loop over rows of points."""
    sch = context.sch
    partial, row, rest = _divide_sums(context, panel, part)
    *spatial, step = loops_below(context, partial, row)
    sch.reorder(step, *spatial)
    sch.set_scope(partial, 0, "local")
    begin = sch.decompose_reduction(partial, step)
    together = [n for n in divisors(part, _MOST_TOGETHER) if n == 1 or part // n >= _LEAST_STEPS]
    count = context.choose("channels_together", together, max(n for n in together if n <= _TOGETHER))
    walk = step
    if count > 1:
        walk, step = sch.split(step, [None, count])
        sch.unroll(step)
    names = [param.name for n, param in enumerate(sch.func.params) if n in context.packing]
    sch.annotate(walk, PLAIN_ADDRESSES, ["winograd_input", *names])
    # The image comes from the second cache level for each panel, one row of points after the other.
    _, points, tiles, _ = stage_shape(context, "winograd_product")
    sch.annotate(walk, PREFETCH_NEAR, {"winograd_input": points * tiles * part})
    # Each transformed weight is used at once.
    _compute_in_registers(context, "winograd_weight", spatial[-3])
    _compute_in_registers(context, "winograd_weight_rows", step)
    for nest in (spatial, loops_below(context, begin, row), rest):
        _unroll(context, nest)
    sch.unroll(row)
    return row


def _divide_sums(
    context: ScheduleContext, panel: LoopHandle, part: int
) -> tuple[BlockHandle, LoopHandle, list[LoopHandle]]:
    """Sums of a part of the input channels, for a row of points at a time, and the loops that add them up.

    Gives the block of those sums, the loop over rows of points around it, and the others around what adds up.
    """
    sch = context.sch
    product = sch.get_block("winograd_product")
    *_, depth = sch.get_loops(product)
    if context.extent(depth) == part:
        # A single part: its sums are copied.
        total, partial = sch.cache_write(product, 0, "local"), product
        sch.compute_at(total, panel, preserve_unit_loops=True)
        _, row, *rest = loops_below(context, total, panel)
    else:
        parts, _ = sch.split(depth, [None, part])
        partial = sch.rfactor(parts)
        sch.compute_at(product, panel, preserve_unit_loops=True)
        _, row, *rest, parts = loops_below(context, product, panel)
        sch.reorder(parts, row, *rest)
        *_, lane = sch.get_loops(sch.decompose_reduction(product, parts))
        if context.extent(lane) != 1:
            sch.vectorize(lane)
    _pack_input(context, partial, part)
    sch.compute_at(partial, row, preserve_unit_loops=True)
    return partial, row, rest


def _pack_input(context: ScheduleContext, product: BlockHandle, part: int) -> None:
    """Store the transformed input as it is read: `v[n, i, j, p, c]` becomes `v[n, c // part, i, j, p, c % part]`."""

    def arranged(n: Var, i: Var, j: Var, p: Var, c: Var) -> tuple[PrimExpr, ...]:
        return (n, c // part, i, j, p, c % part) if part > 1 else (n, c, i, j, p)

    context.sch.transform_layout(product, "winograd_input", arranged)


def _schedule_input(context: ScheduleContext, target: BlockHandle) -> LoopHandle:
    """The input transform of one vector of channels after the other, all tiles; gives the loop over vectors.

    That part of the image gets its border there too, in the first cache level.
    """
    sch = context.sch
    stage, rows = sch.get_block("winograd_input"), sch.get_block("winograd_input_rows")
    producers = sch.get_producers(rows)
    images = open_images(context, target)
    if images is not None:
        sch.compute_at(stage, images, preserve_unit_loops=True)
    i, j, tiles, channel = sch.get_loops(stage)[-4:]
    *_, channels = stage_shape(context, "winograd_input_rows")
    chunk, lane = sch.split(channel, [None, vector_width(channels, context.lanes(stage))])
    sch.reorder(chunk, tiles, i, j, lane)
    _compute_in_registers(context, "winograd_input_rows", tiles)
    _unroll(context, [tiles, i, j, lane])
    for producer in producers:
        sch.compute_at(producer, chunk)
        *_, lane = sch.get_loops(producer)
        if context.extent(lane) != 1:
            sch.vectorize(lane)
    return chunk


TEMPLATE = Template(
    "winograd-plain-weights",
    "few tiles: weights are transformed in registers, as they are used",
    requires_kind(Anchor.WINOGRAD_PLAIN),
    schedule_winograd_plain,
)
