"""The schedule of Winograd convolutions: groups of tiles that stay in cache, matrix products in registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.ir.visit import find_all, substitute
from tilewright.tir.annotations import COLUMNS, PREFETCH, ROLLED, TILES, Anchor
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.schedule.trace import Value
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.cpu.anchors import requires_kind
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.prefetch import add_prefetch, result_places
from tilewright.topi.schedule.cpu.register_tiles import schedule_copy
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors, register_tile, vector_width
from tilewright.topi.schedule.cpu.unrolling import unroll_steps
from tilewright.topi.schedule.packing import constant_parameters
from tilewright.topi.schedule.template import Template

_STAGES = (
    "winograd_window",
    "winograd_input_rows",
    "winograd_input",
    "winograd_weight_rows",
    "winograd_weight",
    "winograd_product",
    "winograd_output_rows",
    "winograd_output",
)
ASSUMED_CACHE = 1 << 20
"""The second cache level of a target that does not say."""
_IMAGE_RANK = 4


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes of one kernel: tiles, channels, and how they are divided."""

    tile: int
    tiles: int
    columns: int
    """Tiles side by side in an image."""
    repeated: bool
    """Whether the last tile is repeated to make a good number of tiles."""
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
    streamed: bool
    """Whether weights come from beyond the second cache level: each slice then meets all tiles of a group at once."""
    transforms: bool
    """Whether weights of 3 x 3 taps are transformed here, a panel at a time, for all tiles."""
    passing: bool
    """Whether weights, image and results are more than the second cache level holds: pixels come from beyond it."""

    @property
    def size(self) -> int:
        """Rows of a window."""
        return self.tile + 2

    @property
    def whole_rows(self) -> bool:
        """Whether a group is made of whole rows of tiles."""
        return self.group * self.register.rows % self.columns == 0

    @property
    def in_rows(self) -> bool:
        """Whether the tiles of a group lie in whole rows, or in one row."""
        in_one = self.columns % (self.group * self.register.rows) == 0
        return not self.repeated and (self.whole_rows or in_one)

    @property
    def blocks(self) -> int:
        """Register blocks of tiles in all."""
        return -(-self.tiles // self.register.rows)


def schedule_winograd(context: ScheduleContext) -> None:
    """Schedule a kernel whose anchor is a Winograd product.

    for group of tiles (sized by the second cache level):
        for tile, vector of channels:  V[:, :, tile, channels] = B d B'     (line by line)
        for panel of output channels, block of tiles:
            for i, j:  M[i, j] = V[i, j] U[i, j]                            (a register tile of tiles x channels)
            for tile, vector of channels:  epilogue(A M A') to the output   (partial tiles are cut here only)

    Transforms unroll the points of a line, not those of a window: a window is more than fits in registers, and its code
    would be most of the kernel's, and of the time to compile it. Images of an open number are a loop around all of it.

    Weights of 3 x 3 taps are transformed in the kernel, and all tiles are one group:

    for tile, vector of channels:  V[:, :, tile, channels] = B d B'
    for panel of output channels:
        for i:
            for channel, vector of output channels:  U[i, :] = (G g G')[i, :]
            for j, block of tiles:  M[i, j] = V[i, j] U[i, j]
        for tile, vector of channels:  epilogue(A M A') to the output
    """
    sch = context.sch
    target = output_block(context)
    inline_others(context, target)
    plan = _plan(context, target)
    pack_weights(context, plan.register.columns)
    group, panel, block = _schedule_output(context, target, plan)
    depth = _schedule_product(context, panel if plan.streamed else block, plan)
    if plan.transforms:
        _schedule_weights(context, panel, plan)
    images = open_images(context, target)
    tiles, chunk = _schedule_input(context, images, group, plan)
    # What changes little is decided last: schedules that a tuner compares have the more in common.
    step = _unroll_product(context, depth, plan)
    _prefetch_next_group(context, target, step, plan)
    if plan.together:
        context.parallel_nest([tiles, chunk])
        context.parallel_nest([panel] if plan.streamed else [panel, block])
    elif plan.parallel:
        # Groups of several images may run at once, unless each image is padded first.
        context.parallel_nest([group] if images is None or not plan.in_rows else [images, group])
    for handle in sch.get_output_blocks():
        if handle.name != target.name:
            schedule_injective(context, handle)


def output_block(context: ScheduleContext) -> BlockHandle:
    """The block that takes results out of their tiles: the output with its epilogue, where pixels stay in order."""
    sch = context.sch
    pixels = sch.get_block("winograd")
    outputs = sch.get_output_blocks()
    if len(outputs) != 1 or outputs[0].name == pixels.name:
        return pixels
    output = outputs[0]
    shape = context.block(pixels).writes[0].buffer.shape
    if context.block(output).is_reduction or context.block(output).writes[0].buffer.shape != shape:
        return pixels
    trial = ScheduleContext(sch.copy(), context.target)
    inline_others(trial, output)
    # The epilogue must read each result at its own pixel.
    source, result = context.block(pixels), trial.block(output)
    (pixel,) = find_all(source.body, BufferLoad)
    mapping: dict[Var, PrimExpr] = {a.var: b.var for a, b in zip(source.iters, result.iters, strict=True)}
    for load in find_all(result.body, BufferLoad):
        pairs = zip(load.indices, pixel.indices, strict=True) if load.buffer is pixel.buffer else ()
        if any(a is not substitute(b, mapping) for a, b in pairs):
            return pixels
    sources = {handle.name for handle in trial.sch.get_producers(trial.sch.get_block("winograd_input_rows"))}
    kept = {handle.name for handle in trial.sch.blocks()}
    return output if kept <= {*_STAGES, *sources, output.name} else pixels


def inline_others(context: ScheduleContext, target: BlockHandle) -> None:
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


def _plan(context: ScheduleContext, target: BlockHandle) -> _Plan:
    sch = context.sch
    product = sch.get_block("winograd_product")
    buffer = context.block(product).writes[0].buffer
    size, _, tiles, outputs = stage_shape(context, "winograd_product")
    *_, channels = stage_shape(context, "winograd_input")
    lanes = context.lanes(product)
    image_tiles, columns = TILES.of(context.block(product)), COLUMNS.of(context.block(product))
    assert image_tiles is not None and columns is not None
    images, *_ = context.block(target).writes[0].buffer.static_shape or (1,)
    per_image = image_tiles // images

    def fits(count: int) -> bool:
        """Whether blocks of so many tiles lie in one image, or are whole images."""
        return images == 1 or per_image % count == 0 or count % per_image == 0

    register = _register_tile(context, tiles, outputs, lanes, fits)
    transforms = _transforms_weights(context)
    blocks = -(-tiles // register.rows)
    item = size * size * channels * buffer.dtype.itemsize
    cache = context.target.l2_bytes or ASSUMED_CACHE
    # All tiles meet weights that are transformed here, or that would be done several times.
    allowed = [blocks] if transforms else [n for n in divisors(blocks, blocks) if fits(n * register.rows)]
    limits = context.cpu.winograd
    are_far = item * outputs > int(cache * limits.group_share)
    most = int(cache * limits.group_share) // item
    if are_far and most < limits.few_tiles:
        most = int(cache * limits.small_group_share) // item
    fitting = [n for n in allowed if n <= max(1, most // register.rows)] or allowed
    # Weights that stay in the cache may be used for one row of tiles after the other; others are read once a group.
    in_rows = [n for n in fitting if n * register.rows % columns == 0 or columns % (n * register.rows) == 0]
    moved = item * outputs + sum(map(_bytes, {*result_places(context, target), *_images(context)}))
    if moved > cache:
        # Only the pixels of whole rows are fetched ahead.
        in_rows = [n for n in in_rows if n * register.rows % columns == 0] or in_rows
    streamed = context.choose("streamed", (True,) if transforms else (False, True), transforms or are_far)
    group = fitting[-1] if streamed else (in_rows or fitting)[0]
    # Some more than fit may still be better than fewer.
    group = context.choose("group", [n for n in allowed if n <= 2 * fitting[-1]], group)
    parallel = context.target.cores > 1 and size * size * tiles * channels * outputs >= context.cpu.parallel.least_work
    together = parallel and not _divides_well(context, blocks // group)
    if together:
        streamed = transforms or (streamed and _divides_well(context, -(-outputs // register.columns)))
    return _Plan(
        tile=size - 2,
        tiles=tiles,
        columns=columns,
        repeated=image_tiles != tiles,
        channels=channels,
        outputs=outputs,
        register=register,
        chunk=vector_width(channels, lanes),
        group=fitting[-1] if together else group,
        parallel=parallel,
        together=together,
        streamed=streamed,
        transforms=transforms,
        passing=moved > cache,
    )


def _register_tile(
    context: ScheduleContext, tiles: int, outputs: int, lanes: int, fits: Callable[[int], bool]
) -> RegisterTile:
    """The register tile, whose tiles fit images; where weights are transformed, panels are whole."""
    registers = context.target.vector_registers
    register = register_tile(tiles, outputs, lanes, registers, context.cpu)
    heights = [height for height in divisors(tiles, registers) if fits(height)]
    if not fits(register.rows):
        register = replace(register, rows=max(height for height in heights if height <= register.rows))
    if _transforms_weights(context) and outputs % lanes == 0:
        register = replace(register, vectors=divisors(outputs // lanes, register.vectors)[-1])
    return choose_tile(context, register, tiles, outputs, heights=heights)


def _transforms_weights(context: ScheduleContext) -> bool:
    """Whether weights of 3 x 3 taps are transformed in the kernel."""
    return any(handle.name == "winograd_weight" for handle in context.sch.blocks())


def stage_shape(context: ScheduleContext, name: str) -> tuple[int, ...]:
    """The sizes of what a stage makes, without the axis of images."""
    _, *shape = context.block(context.sch.get_block(name)).writes[0].buffer.shape
    return tuple(const_value(dim) or 0 for dim in shape)


def _bytes(buffer: Buffer) -> int:
    """The size of a buffer of images: of one image where their number is open."""
    return prod(const_value(dim) or 1 for dim in buffer.shape) * buffer.dtype.itemsize


def _images(context: ScheduleContext) -> list[Buffer]:
    """The parameters that the input transform reads, or what pads them."""
    sch = context.sch
    rows = sch.get_block("winograd_input_rows")
    reads = [region.buffer for handle in (*sch.get_producers(rows), rows) for region in context.block(handle).reads]
    return [buffer for buffer in dict.fromkeys(reads) if buffer in sch.func.params and buffer.ndim == _IMAGE_RANK]


def _divides_well(context: ScheduleContext, count: int) -> bool:
    """Whether cores that each take whole items are seldom idle."""
    cores = context.target.cores
    return -(-count // cores) * cores <= context.cpu.winograd.most_idle * count


def pack_weights(context: ScheduleContext, columns: int) -> None:
    """Weights in panels as wide as the register tile: constant ones as the model is compiled, others by a copy.

    Before: `u[i, j, c, o]`; after: `u[o // columns, i, j, c, o % columns]`.
    """
    sch = context.sch
    if _transforms_weights(context):
        pack_taps(context, columns)
        return
    product = sch.get_block("winograd_product")
    constants = constant_parameters(sch.func)
    index_map = _in_panels(columns)
    for load in find_all(context.block(product).body, BufferLoad):
        if load.buffer in constants:
            context.pack(product, load.buffer, index_map)
            return
        outputs = const_value(load.buffer.shape[-1])
        if load.buffer in sch.func.params and columns > 1 and outputs is not None and outputs % columns == 0:
            copy = sch.cache_read(product, load.buffer.name, "global")
            sch.transform_layout(copy, context.block(copy).writes[0].buffer.name, index_map)
            schedule_copy(context, copy, columns)
            return


def pack_taps(context: ScheduleContext, columns: int) -> str | None:
    """Constant weights of 3 x 3 taps in the order in which they are transformed; gives their name.

    Before: `w[y, x, c, o]`; after: `w[o // columns, c, y, x, o % columns]`.
    """
    rows = context.sch.get_block("winograd_weight_rows")
    constants = constant_parameters(context.sch.func)

    def arranged(y: Var, x: Var, c: Var, o: Var) -> tuple[PrimExpr, ...]:
        panel, *column = _parts(o, columns)
        return (panel, c, y, x, *column)

    for load in find_all(context.block(rows).body, BufferLoad):
        if load.buffer in constants:
            context.pack(rows, load.buffer, IndexMap.of(arranged, 4))
            return load.buffer.name
    return None


def _in_panels(columns: int) -> IndexMap:
    """Transformed weights in panels of output channels."""

    def arranged(i: Var, j: Var, c: Var, o: Var) -> tuple[PrimExpr, ...]:
        panel, *column = _parts(o, columns)
        return (panel, i, j, c, *column)

    return IndexMap.of(arranged, 4)


def _schedule_weights(context: ScheduleContext, panel: LoopHandle, plan: _Plan) -> None:
    """The weights of a panel, transformed for one row of points after the other: those stay in the cache."""
    sch = context.sch
    stage, rows = sch.get_block("winograd_weight"), sch.get_block("winograd_weight_rows")
    if plan.outputs % plan.register.columns:
        # What the last panel reads is not a whole one: all weights are transformed first.
        for handle in (rows, stage):
            schedule_injective(context, handle)
        return
    sch.transform_layout(stage, context.block(stage).writes[0].buffer.name, _in_panels(plan.register.columns))
    _, row, *_ = loops_below(context, sch.get_block("winograd_product"), panel)
    sch.compute_at(stage, row)
    point, channel, column = loops_below(context, stage, row)
    vector, lane = sch.split(column, [None, plan.register.lanes])
    sch.reorder(channel, vector, point, lane)
    sch.compute_at(rows, vector)
    line, *lanes = loops_below(context, rows, vector)
    for loop in (point, line):
        sch.unroll(loop)
    for loop in (lane, *lanes):
        sch.vectorize(loop)
    sch.set_scope(rows, 0, "local")


def _schedule_output(
    context: ScheduleContext, target: BlockHandle, plan: _Plan
) -> tuple[LoopHandle, LoopHandle, LoopHandle]:
    """Loops (group, panel, block, tile, vector, row, column, lane) around the output, with its transforms inside.

    Gives the loops over groups of tiles, panels of channels, blocks of tiles.
    """
    sch = context.sch
    tiles, row, column, o = split_tiles(context, target, plan.tile)
    group, block, inner = sch.split(tiles, [None, plan.group, plan.register.rows])
    panel, vector, lane = sch.split(o, [None, plan.register.vectors, plan.register.lanes])
    sch.reorder(group, panel, block, inner, vector, row, column, lane)
    transform_results(context, vector, row)
    sch.unroll(column)
    sch.vectorize(lane)
    return group, panel, block


def transform_results(context: ScheduleContext, vector: LoopHandle, row: LoopHandle) -> None:
    """Both stages of the output transform, under the loop over vectors of channels and that over rows of results."""
    results = context.sch.get_block("winograd_output")
    context.sch.compute_at(results, row)
    line_by_line(context, row, *loops_below(context, results, row))
    context.sch.set_scope(results, 0, "local")
    transform_lines(context, context.sch.get_block("winograd_output_rows"), vector)


def transform_lines(context: ScheduleContext, stage: BlockHandle, place: LoopHandle) -> None:
    """A stage that transforms the columns of a window, under a loop: one column after the other."""
    context.sch.compute_at(stage, place)
    point, line, *channels = loops_below(context, stage, place)
    context.sch.reorder(line, point)
    line_by_line(context, line, point, *channels)
    context.sch.set_scope(stage, 0, "local")


def line_by_line(context: ScheduleContext, line: LoopHandle, point: LoopHandle, *channels: LoopHandle) -> None:
    """A loop over the lines of a window, in which their points are unrolled and channels are in one vector.

    Loops are divided around it as if it were unrolled, too: guards are tested once for all of a window.
    """
    sch = context.sch
    for loop in (line, point):
        sch.unroll(loop)
    sch.annotate(line, ROLLED, True)
    for lane in channels:
        sch.vectorize(lane)


def split_tiles(
    context: ScheduleContext, target: BlockHandle, tile: int
) -> tuple[LoopHandle, LoopHandle, LoopHandle, LoopHandle]:
    """Loops (tile, row, column, channel) around results; images of an open number are a loop around them."""
    sch = context.sch
    n, y, x, o = sch.get_loops(target)
    tile_row, row = sch.split(y, [None, tile])
    tile_column, column = sch.split(x, [None, tile])
    sch.reorder(n, tile_row, tile_column, row, column)
    counted = [n, tile_row, tile_column] if open_images(context, target) is None else [tile_row, tile_column]
    return sch.fuse(*counted), row, column, o


def open_images(context: ScheduleContext, target: BlockHandle) -> LoopHandle | None:
    """The loop over images whose number is open, around all others."""
    first, *_ = context.sch.get_loops(target)
    return first if context.is_symbolic(first) else None


def _schedule_product(context: ScheduleContext, place: LoopHandle, plan: _Plan) -> LoopHandle:
    """The products of a block of tiles: accumulated in registers for each (i, j), then stored.

    Under the loop over panels all blocks take part in each (i, j). Gives the innermost loop over input channels.
    """
    sch = context.sch
    product = sch.get_block("winograd_product")
    store = sch.cache_write(product, 0, "local")
    sch.compute_at(store, place, preserve_unit_loops=True)
    _, _, inner, *rest = loops_below(context, store, place)
    if plan.streamed:
        inner, row = sch.split(rest[0], [None, plan.register.rows])
        rest = [row, *rest[1:]]
    sch.compute_at(product, inner, preserve_unit_loops=True)
    _, *nest = loops_below(context, product, inner)
    chunk = plan.chunk if plan.channels % plan.chunk == 0 else 0
    depth = sum_in_registers(context, product, nest, rest, (chunk, plan.register.lanes))
    _pack_input(context, product, plan)
    return depth


def sum_in_registers(
    context: ScheduleContext,
    product: BlockHandle,
    nest: list[LoopHandle],
    stored: list[LoopHandle],
    lengths: tuple[int, int],
) -> LoopHandle:
    """Products of a register tile: channels outermost (in chunks of a length), the rest in vectors.

    Before: `for p, o, c: acc[p, o] += ...; for p, o: m[p, o] = acc[p, o]`; after, for `lengths` of a chunk and of a
    vector: `acc = 0; for c // chunk, c % chunk: unrolled p, o: acc[p, o] += ...; unrolled p, o: m[p, o] = acc[p, o]`.
    The last loop of the nest is over channels; `stored` are the loops that store the tile. Gives the innermost loop
    over channels.
    """
    sch = context.sch
    chunk, lanes = lengths
    *spatial, channel = nest
    reduction = sch.split(channel, [None, chunk]) if chunk else [channel]
    sch.reorder(*reduction, *spatial)
    started = sch.get_loops(sch.decompose_reduction(product, reduction[0]))
    for loops in (spatial, started[-len(spatial) :], stored):
        _unroll_vectors(context, loops, lanes)
    return reduction[-1]


def _unroll_product(context: ScheduleContext, depth: LoopHandle, plan: _Plan) -> LoopHandle:
    """Several input channels in one step; slices of weights that come from afar are fetched one ahead.

    Gives the loop over steps.
    """
    sch = context.sch
    step = unroll_steps(context, depth, plan.register.rows * plan.register.vectors)
    if plan.transforms:
        # It is the transformed image that comes from afar, one block of tiles after the other.
        block = plan.channels * plan.register.rows
        sch.annotate(step, PREFETCH, {"winograd_input": [block, plan.size**2 * block]})
    elif plan.streamed:
        names = [param.name for n, param in enumerate(sch.func.params) if n in context.packing]
        sch.annotate(step, PREFETCH, dict.fromkeys(names, plan.channels * plan.register.columns))
    return step


def _prefetch_next_group(context: ScheduleContext, target: BlockHandle, step: LoopHandle, plan: _Plan) -> None:
    """While a group is multiplied, fetch the pixels that the next one reads, and the places of its results.

    Transforms only move data: what does not stay in the second cache level they would wait for. Done for groups of
    whole rows of tiles, whose pixels lie one after the other.
    """
    if not plan.in_rows or not plan.whole_rows or plan.group == plan.blocks:
        return
    if not context.choose("fetch_group", (False, True), plan.passing):
        return
    results, images = result_places(context, target), _images(context)
    tile_rows = plan.group * plan.register.rows // plan.columns
    runs: dict[str, Value] = {}
    for buffer in dict.fromkeys([*results, *images]):
        width, channels = (const_value(dim) or 0 for dim in buffer.shape[-2:])
        length = tile_rows * plan.tile * width * channels
        # Windows of the next rows begin above these: the first lines have been read already.
        runs[buffer.name] = [length, length + (plan.size - plan.tile) * width * channels * (buffer in images)]
    add_prefetch(context, step, runs)


def _pack_input(context: ScheduleContext, product: BlockHandle, plan: _Plan) -> None:
    """Store the transformed input in the order in which the products read it.

    Before: `v[n, i, j, p, c]`; after: `v[n, p // rows, i, j, c // chunk, p % rows, c % chunk]`.
    """
    rows, chunk_length = plan.register.rows, plan.chunk if plan.channels % plan.chunk == 0 else 1

    def arranged(n: Var, i: Var, j: Var, p: Var, c: Var) -> tuple[PrimExpr, ...]:
        (block, *row), (chunk, *lane) = _parts(p, rows), _parts(c, chunk_length)
        return (n, block, i, j, chunk, *row, *lane) if lane else (n, block, i, j, *row, chunk)

    context.sch.transform_layout(product, "winograd_input", arranged)


def _parts(index: Var, length: int) -> tuple[PrimExpr, ...]:
    """An index divided into blocks: the block and the place in it, or the index alone for blocks of one."""
    return (index // length, index % length) if length > 1 else (index,)


def _unroll_vectors(context: ScheduleContext, loops: list[LoopHandle], lanes: int) -> None:
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


def _schedule_input(
    context: ScheduleContext, images: LoopHandle | None, group_loop: LoopHandle, plan: _Plan
) -> tuple[LoopHandle, LoopHandle]:
    """The input transform: for each tile and vector of channels, line by line in both directions.

    Where a group lies in rows of tiles, its part of the image is padded row by row, in the first cache level. Gives the
    loops over rows (or blocks) of tiles and over vectors of channels.
    """
    sch = context.sch
    stage, rows = sch.get_block("winograd_input"), sch.get_block("winograd_input_rows")
    producers = sch.get_producers(rows)
    sch.compute_at(stage, group_loop, preserve_unit_loops=True)
    i, j, tiles, channel = sch.get_loops(stage)[-4:]
    chunk, lane = sch.split(channel, [None, plan.chunk])
    outer, inner = sch.split(tiles, [None, plan.columns if plan.whole_rows else plan.register.rows])
    sch.reorder(outer, chunk, inner, i, j, lane)
    transform_lines(context, rows, inner)
    line_by_line(context, i, j, lane)
    for producer in producers:
        if plan.in_rows:
            sch.compute_at(producer, chunk)
            sch.vectorize(sch.get_loops(producer)[-1])
        elif images is None:
            schedule_injective(context, producer)
        else:
            sch.compute_at(producer, images)
            *lines, channel = loops_below(context, producer, images)
            sch.vectorize(channel)
            context.parallelize(lines, prod(context.sizes([*lines, channel])))
    return outer, chunk


TEMPLATE = Template(
    "winograd",
    "groups of tiles whose transformed input stays in cache, batched products in registers",
    requires_kind(Anchor.WINOGRAD),
    schedule_winograd,
)
