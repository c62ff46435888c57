"""The schedule of Winograd convolutions of images whose height or width is open: blocks of tiles, in groups."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import PrimExpr, Var
from tilewright.tir.annotations import PREFETCH, Anchor
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.cpu.anchors import requires_kind
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, register_tile, vector_width
from tilewright.topi.schedule.cpu.unrolling import unroll_steps
from tilewright.topi.schedule.cpu.winograd import (
    ASSUMED_CACHE,
    inline_others,
    line_by_line,
    output_block,
    pack_weights,
    stage_shape,
    sum_in_registers,
    transform_lines,
    transform_results,
)
from tilewright.topi.schedule.template import Template

_MOST_BLOCKS = 8
"""Blocks in a group: more would only be fewer parts for cores."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes of one kernel that are known, and how they are divided."""

    tile: int
    channels: int
    outputs: int
    register: RegisterTile
    """A block of tiles x some vectors of output channels."""
    chunk: int
    """Channels in a vector of the input transform."""
    group: int
    """Blocks of tiles whose transformed input is made at a time."""


def schedule_winograd_open(context: ScheduleContext) -> None:
    """Schedule a kernel whose anchor is a Winograd product over blocks of tiles of an open number.

    for image, group of blocks (sized by the second cache level):
        for block, tile, vector of channels:  V[block, :, :, tile, channels] = B d B'   (line by line)
        for panel of output channels:
            for i, j, block:  M[block, i, j] = V[block, i, j] U[i, j]      (U[i, j] stays in the first cache level)
            for block, tile, vector of channels:  epilogue(A M A') to the output

    Windows inside the image and tiles whose results are all wanted have code without tests (`partition_loops`).
    """
    sch = context.sch
    target = output_block(context)
    inline_others(context, target)
    plan = _plan(context)
    pack_weights(context, plan.register.columns)
    group, panel = _schedule_output(context, target, plan)
    depth = _schedule_product(context, panel, plan)
    _schedule_input(context, group, plan)
    accumulators = plan.register.rows * plan.register.vectors
    if (context.extent(depth) or 0) * accumulators <= context.cpu.register_tile.most_unrolled:
        sch.unroll(depth)
    else:
        step = unroll_steps(context, depth, accumulators)
        # Weights come from afar: while all blocks of a group meet U[i, j], the next one is fetched.
        weights = [param.name for n, param in enumerate(sch.func.params) if n in context.packing]
        sch.annotate(step, PREFETCH, dict.fromkeys(weights, plan.channels * plan.register.columns))
    if context.target.cores > 1:
        context.parallel_nest([group])
    for handle in sch.get_output_blocks():
        if handle.name != target.name:
            schedule_injective(context, handle)


def _plan(context: ScheduleContext) -> _Plan:
    product = context.sch.get_block("winograd_product")
    _, size, _, block, outputs = stage_shape(context, "winograd_product")
    *_, channels = stage_shape(context, "winograd_input")
    lanes = context.lanes(product)
    registers = context.target.vector_registers
    register = register_tile(block, outputs, lanes, registers, context.cpu, heights=(block,))
    register = choose_tile(context, register, block, outputs, heights=(block,))
    cache = context.target.l2_bytes or ASSUMED_CACHE
    item = size * size * (channels + register.columns) * context.block(product).writes[0].buffer.dtype.itemsize
    fitting = int(cache * context.cpu.winograd.group_share) // (block * item)
    options = range(1, _MOST_BLOCKS + 1)
    return _Plan(
        tile=size - 2,
        channels=channels,
        outputs=outputs,
        register=register,
        chunk=vector_width(channels, lanes),
        group=context.choose("group", options, min(max(1, fitting), _MOST_BLOCKS)),
    )


def _schedule_output(context: ScheduleContext, target: BlockHandle, plan: _Plan) -> tuple[LoopHandle, LoopHandle]:
    """Loops (image, group, panel, block, tile, vector, row, column, lane) around the output, its transforms inside.

    Gives the loops over groups of blocks and over panels of channels.
    """
    sch = context.sch
    n, y, x, o = sch.get_loops(target)
    tile_row, row = sch.split(y, [None, plan.tile])
    tile_column, column = sch.split(x, [None, plan.tile])
    sch.reorder(n, tile_row, tile_column, row, column)
    blocks, inner = sch.split(sch.fuse(tile_row, tile_column), [None, plan.register.rows])
    group, block = sch.split(blocks, [None, plan.group])
    panel, vector, lane = sch.split(o, [None, plan.register.vectors, plan.register.lanes])
    sch.reorder(group, panel, block, inner, vector, row, column, lane)
    transform_results(context, vector, row)
    sch.unroll(column)
    sch.vectorize(lane)
    return group, panel


def _schedule_product(context: ScheduleContext, panel: LoopHandle, plan: _Plan) -> LoopHandle:
    """The products of a group and panel: each (i, j) meets all blocks. Gives the innermost loop over input channels."""
    sch = context.sch
    product = sch.get_block("winograd_product")
    store = sch.cache_write(product, 0, "local")
    sch.compute_at(store, panel, preserve_unit_loops=True)
    _, block, i, j, *rest = loops_below(context, store, panel)
    sch.reorder(i, j, block)
    sch.compute_at(product, block, preserve_unit_loops=True)
    chunk = plan.chunk if plan.channels % plan.chunk == 0 else 0
    nest = loops_below(context, product, block)
    depth = sum_in_registers(context, product, nest, rest, (chunk, plan.register.lanes))
    _pack_input(context, product, plan)
    return depth


def _pack_input(context: ScheduleContext, product: BlockHandle, plan: _Plan) -> None:
    """Store the transformed input in the order in which the products read it.

    Before: `v[n, b, i, j, p, c]`; after: `v[n, b, i, j, c // chunk, p, c % chunk]`.
    """
    length = plan.chunk if plan.channels % plan.chunk == 0 else 1

    def arranged(n: Var, b: Var, i: Var, j: Var, p: Var, c: Var) -> tuple[PrimExpr, ...]:
        return (n, b, i, j, c // length, p, c % length) if length > 1 else (n, b, i, j, c, p)

    context.sch.transform_layout(product, "winograd_input", arranged)


def _schedule_input(context: ScheduleContext, group: LoopHandle, plan: _Plan) -> None:
    """The input transform: for each tile and vector of channels, window and both stages line by line."""
    sch = context.sch
    stage, rows, window = (sch.get_block(f"winograd_{name}") for name in ("input", "input_rows", "window"))
    sch.compute_at(stage, group, preserve_unit_loops=True)
    block, i, j, tile, channel = sch.get_loops(stage)[-5:]
    chunk, lane = sch.split(channel, [None, plan.chunk])
    sch.reorder(block, tile, chunk, i, j, lane)
    transform_lines(context, rows, chunk)
    sch.compute_at(window, chunk)
    line_by_line(context, *loops_below(context, window, chunk))
    sch.set_scope(window, 0, "local")
    line_by_line(context, i, j, lane)


TEMPLATE = Template(
    "winograd-open",
    "blocks of Winograd tiles of images of open sizes, in groups whose transformed input stays in cache",
    requires_kind(Anchor.WINOGRAD_OPEN),
    schedule_winograd_open,
)
