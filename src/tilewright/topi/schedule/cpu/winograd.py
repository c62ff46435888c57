"""The schedule of Winograd convolutions: groups of tiles that stay in cache, matrix products in registers."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.visit import find_all
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.cpu.context import PARALLEL_WORK, CpuContext
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors, register_tile, vector_width
from tilewright.topi.schedule.packing import constant_parameters

_STAGES = (
    "winograd_input_rows",
    "winograd_input",
    "winograd_product",
    "winograd_output_rows",
    "winograd_output",
)
_ASSUMED_CACHE = 1 << 20
"""The second cache level of a target that does not say."""
_CACHE_SHARE = 0.5
"""The part of the second cache level that the transformed input of a group of tiles may fill."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes of one kernel: tiles, channels, and how they are divided."""

    tile: int
    tiles: int
    channels: int
    outputs: int
    register: RegisterTile
    chunk: int
    """Channels in a vector of the input transform."""
    group: int
    """Register blocks of tiles whose transformed input is made at a time."""
    parallel: bool
    """Whether cores share the work."""
    together: bool
    """Whether all cores work on one group at a time, instead of each on groups of its own."""

    @property
    def size(self) -> int:
        """Rows of a window."""
        return self.tile + 2

    @property
    def blocks(self) -> int:
        """Register blocks of tiles in all."""
        return -(-self.tiles // self.register.rows)


def schedule_winograd(context: CpuContext) -> None:
    """Schedule a kernel whose anchor is a Winograd product.

    for group of tiles (sized by the second cache level):
        for tile, vector of channels:  V[:, :, tile, channels] = B d B'     (both stages unrolled, in registers)
        for panel of output channels, block of tiles:
            for i, j:  M[i, j] = V[i, j] U[i, j]                            (a register tile of tiles x channels)
            for tile, vector of channels:  epilogue(A M A') to the output   (partial tiles are cut here only)
    """
    sch = context.sch
    target = _output_block(context)
    _inline_others(context, target)
    plan = _plan(context)
    for producer in sch.get_producers(sch.get_block("winograd_input_rows")):
        schedule_injective(context, producer)
    _pack_weights(context, plan)
    group, panel, block = _schedule_output(context, target, plan)
    _schedule_product(context, block, plan)
    tiles = _schedule_input(context, group, plan)
    if plan.together:
        sch.parallel(tiles)
        sch.parallel(sch.fuse(panel, block))
    elif plan.parallel:
        sch.parallel(group)
    for handle in sch.get_output_blocks():
        if handle.name != target.name:
            schedule_injective(context, handle)


def _output_block(context: CpuContext) -> BlockHandle:
    """The block that takes results out of their tiles: the output with its epilogue, where pixels stay in order."""
    sch = context.sch
    pixels = sch.get_block("winograd")
    outputs = sch.get_output_blocks()
    if len(outputs) != 1 or outputs[0].name == pixels.name:
        return pixels
    output = outputs[0]
    shape = context.block(pixels).writes[0].buffer.static_shape
    if context.block(output).is_reduction or context.block(output).writes[0].buffer.static_shape != shape:
        return pixels
    trial = CpuContext(sch.copy(), context.target)
    _inline_others(trial, output)
    own = [item.var for item in trial.block(output).iters]
    for load in find_all(trial.block(output).body, BufferLoad):
        if load.buffer.name == "winograd_output" and load.indices[-1] is not own[-1]:
            return pixels
    sources = {handle.name for handle in trial.sch.get_producers(trial.sch.get_block("winograd_input_rows"))}
    kept = {handle.name for handle in trial.sch.blocks()}
    return output if kept <= {*_STAGES, *sources, output.name} else pixels


def _inline_others(context: CpuContext, target: BlockHandle) -> None:
    """Inline every elementwise stage but those of the algorithm; what reads the target stays outside it."""
    sch = context.sch
    kept = {*_STAGES, target.name, *(handle.name for handle in sch.get_output_blocks())}
    kept.update(handle.name for handle in sch.get_producers(sch.get_block("winograd_input_rows")))
    for handle in sch.blocks():
        block = context.block(handle)
        if handle.name in kept:
            continue
        if block.is_reduction or block.init is not None or not block.iters:
            continue
        sch.compute_inline(handle)


def _plan(context: CpuContext) -> _Plan:
    sch = context.sch
    product = sch.get_block("winograd_product")
    buffer = context.block(product).writes[0].buffer
    size, _, tiles, outputs = buffer.static_shape or (0, 0, 0, 0)
    *_, channels = context.block(sch.get_block("winograd_input")).writes[0].buffer.static_shape or (0,)
    lanes = context.lanes(product)
    register = register_tile(tiles, outputs, lanes, context.target.vector_registers)
    blocks = -(-tiles // register.rows)
    block_bytes = size * size * channels * buffer.dtype.itemsize * register.rows
    fitting = int((context.target.l2_bytes or _ASSUMED_CACHE) * _CACHE_SHARE) // block_bytes
    group = divisors(blocks, max(1, fitting))[-1]
    parallel = context.target.cores > 1 and size * size * tiles * channels * outputs >= PARALLEL_WORK
    # Groups that do not divide over the cores leave some idle: then cores share the work of each group instead.
    together = parallel and (blocks // group) % context.target.cores != 0
    return _Plan(size - 2, tiles, channels, outputs, register, vector_width(channels, lanes), group, parallel, together)


def _pack_weights(context: CpuContext, plan: _Plan) -> None:
    """Constant weights in panels as wide as the register tile.

    Before: `u[i, j, c, o]`; after: `u[o // columns, i, j, c, o % columns]`.
    """
    product = context.sch.get_block("winograd_product")
    constants = constant_parameters(context.sch.func)
    columns = plan.register.columns
    for load in find_all(context.block(product).body, BufferLoad):
        number = constants.get(load.buffer)
        if number is not None:
            index_map = IndexMap.of(lambda i, j, c, o: _panels(i, j, c, *_parts(o, columns)), 4)
            context.sch.transform_layout(product, load.buffer.name, index_map)
            context.packing[number] = index_map
            return


def _panels(i: Var, j: Var, c: Var, panel: PrimExpr, *column: PrimExpr) -> tuple[PrimExpr, ...]:
    return (panel, i, j, c, *column)


def _schedule_output(
    context: CpuContext, target: BlockHandle, plan: _Plan
) -> tuple[LoopHandle, LoopHandle, LoopHandle]:
    """Loops (group, panel, block, tile, vector, row, column, lane) around the output, with its transforms inside.

    Gives the loops over groups of tiles, panels of channels, blocks of tiles.
    """
    sch = context.sch
    n, y, x, o = sch.get_loops(target)
    tile_row, row = sch.split(y, [None, plan.tile])
    tile_column, column = sch.split(x, [None, plan.tile])
    sch.reorder(n, tile_row, tile_column, row, column)
    tiles = sch.fuse(n, tile_row, tile_column)
    group, block, inner = sch.split(tiles, [None, plan.group, plan.register.rows])
    panel, vector, lane = sch.split(o, [None, plan.register.vectors, plan.register.lanes])
    sch.reorder(group, panel, block, inner, vector, row, column, lane)
    for name in ("winograd_output", "winograd_output_rows"):
        stage = sch.get_block(name)
        sch.compute_at(stage, vector)
        _unroll_below(context, stage, vector)
    sch.unroll(row)
    sch.unroll(column)
    sch.vectorize(lane)
    return group, panel, block


def _unroll_below(context: CpuContext, stage: BlockHandle, place: LoopHandle) -> None:
    """A transform stage under its loop: rows and columns unrolled, channels in one vector; values in registers."""
    sch = context.sch
    loops = sch.get_loops(stage)
    below = loops[[loop.var for loop in loops].index(place.var) + 1 :]
    if len(below) > 2:
        sch.vectorize(below[-1])
    for loop in below[:2]:
        sch.unroll(loop)
    sch.set_scope(stage, 0, "local")


def _schedule_product(context: CpuContext, block_loop: LoopHandle, plan: _Plan) -> None:
    """The products of a block of tiles: accumulated in registers for each (i, j), then stored."""
    sch = context.sch
    product = sch.get_block("winograd_product")
    store = sch.cache_write(product, 0, "local")
    sch.compute_at(store, block_loop)
    loops = sch.get_loops(store)
    _, j, *rest = loops[[loop.var for loop in loops].index(block_loop.var) + 1 :]
    sch.compute_at(product, j)
    loops = sch.get_loops(product)
    *spatial, ic = loops[[loop.var for loop in loops].index(j.var) + 1 :]
    reduction = sch.split(ic, [None, plan.chunk]) if plan.channels % plan.chunk == 0 else [ic]
    sch.reorder(*reduction, *spatial)
    start = sch.decompose_reduction(product, reduction[0])
    started = sch.get_loops(start)
    _pack_input(context, product, plan)
    for nest in (spatial, started[-len(spatial) :], rest):
        _vectorize(context, nest, plan.register.lanes)


def _pack_input(context: CpuContext, product: BlockHandle, plan: _Plan) -> None:
    """Store the transformed input in the order in which the products read it.

    Before: `v[i, j, p, c]`; after: `v[p // rows, i, j, c // chunk, p % rows, c % chunk]`.
    """
    rows, chunk_length = plan.register.rows, plan.chunk if plan.channels % plan.chunk == 0 else 1

    def arranged(i: Var, j: Var, p: Var, c: Var) -> tuple[PrimExpr, ...]:
        (block, *row), (chunk, *lane) = _parts(p, rows), _parts(c, chunk_length)
        return (block, i, j, chunk, *row, *lane) if lane else (block, i, j, *row, chunk)

    context.sch.transform_layout(product, "winograd_input", arranged)


def _parts(index: Var, length: int) -> tuple[PrimExpr, ...]:
    """An index divided into blocks: the block and the place in it, or the index alone for blocks of one."""
    return (index // length, index % length) if length > 1 else (index,)


def _vectorize(context: CpuContext, loops: list[LoopHandle], lanes: int) -> None:
    """The innermost loop in vectors of the given length, the others unrolled."""
    sch = context.sch
    if not loops:
        return
    *others, lane = loops
    extent = context.extent(lane)
    if extent is not None and extent > lanes:
        vector, lane = sch.split(lane, [None, lanes])
        others.append(vector)
    if (context.extent(lane) or 1) > 1:
        sch.vectorize(lane)
    for loop in others:
        sch.unroll(loop)


def _schedule_input(context: CpuContext, group_loop: LoopHandle, plan: _Plan) -> LoopHandle:
    """The input transform: for each tile and vector of channels, both stages unrolled; gives the loop over tiles."""
    sch = context.sch
    stage, rows = sch.get_block("winograd_input"), sch.get_block("winograd_input_rows")
    sch.compute_at(stage, group_loop, preserve_unit_loops=True)
    i, j, tiles, channel = sch.get_loops(stage)[-4:]
    outer, lane = sch.split(channel, [None, plan.chunk])
    sch.reorder(tiles, outer, i, j, lane)
    sch.compute_at(rows, outer)
    _unroll_below(context, rows, outer)
    sch.unroll(i)
    sch.unroll(j)
    sch.vectorize(lane)
    return tiles
