"""The schedule of some rows of halves times packed codes on tensor cores: codes become halves in registers.

for tiles of rows and columns in blocks:                (eight rows, sixteen columns; several where rows are many)
    for runs, one for each warp in threadIdx.y:
        shared = words, rows and scales of the runs     (few rows: some steps ahead, by asynchronous copies)
        for warp in threadIdx.y:
            for 16 words of steps:
                own = words of the thread               (a line of constants for each four threads)
                rows = rows of the thread
                sums += product of rows and own         (codes less the zero point; the instruction unpacks them)
            part += sums * scale
    shared[warp] = part
    result = epilogue(the sum of shared over warps)

Constants are on their way to shared memory before a kernel waits for those in front of it, and those of the next kernel
come while this one computes: a product of one row takes little longer than reading its words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from tilewright.ir.dtype import FLOAT16
from tilewright.ir.expr import PrimExpr
from tilewright.tir.annotations import MEMORY_BOUND
from tilewright.tir.buffer import Buffer
from tilewright.tir.index_map import IndexMap
from tilewright.tir.machine import find_instruction
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.warp_instructions import CODE_PRODUCTS, WARP
from tilewright.topi.intrinsics.packed_codes import (
    COLUMNS,
    multiply_codes,
    rows_layout,
    steps_of,
    sums_layout,
    words_layout,
    words_tiles,
)
from tilewright.topi.packed_products import PRODUCT_ROWS
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.gpu.packed_product import packed_stages
from tilewright.topi.schedule.gpu.rows import KernelContext
from tilewright.topi.schedule.inline import inline_stages
from tilewright.topi.schedule.packing import constant_parameters
from tilewright.topi.schedule.template import Template

_WARPS_OF_A_CORE = 16
"""Warps that a core should have to hide the latency of memory: fewer columns mean more warps to share their steps."""
_MOST_WARPS = 32
_VECTOR_BYTES = 16
_ROW_TILES, _COLUMN_TILES = 4, 4
"""Tiles of a warp, at most: rows are read again by all blocks of columns, words by all blocks of rows."""
_REGISTERS = 65536
"""Registers of a multiprocessor."""
_MOST_REGISTERS = 180
"""Those of a thread, with which a block has eight warps or more."""
_RUNS_TOGETHER = 4
"""Runs of a warp that are unrolled where they are few: their words are then on their way together."""
_STAGES = 4
"""Copies in shared memory of what warps read in a step."""
_STAGED_WARPS = 8
"""Warps of a block, at most, that read from shared memory: several blocks are on a multiprocessor."""
_ALIGNMENT = 1024
"""Bytes of shared memory that buffers there may lose to their alignment."""
_LEAST_STAGED_WARPS = 8
"""Warps of a core there, at least."""


@dataclass(frozen=True, slots=True)
class _Tile:
    """Products of a warp, down and across, and the warps that share their steps."""

    down: int
    across: int
    warps: int
    stages: int = 1
    """Copies in shared memory of what warps read in a step; 1 where they read global memory."""

    @property
    def registers(self) -> int:
        """Registers of a thread: sums of a run and of all, rows, words, and what else it takes."""
        return 8 * self.down * self.across + 16 * self.down + 8 * self.across + 32

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.down * PRODUCT_ROWS

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.across * COLUMNS


def _why_not(context: KernelContext) -> str | None:
    stages = packed_stages(context)
    if isinstance(stages, str):
        return stages
    sums, total = stages
    loops = context.extents(context.sch.get_loops(sums))
    if loops is None or len(loops) != 5 or loops[1] % PRODUCT_ROWS:
        return "sums are not of runs of words, or have open sizes"
    bits = 32 // loops[-1]
    name = CODE_PRODUCTS.get(bits)
    if name is None or not find_instruction(name).is_on(context.target):
        return "no product of tensor cores with such codes"
    if _words_of(context, sums) not in constant_parameters(context.sch.func):
        return "words that are no constants"
    if loops[3] * loops[4] % steps_of(bits) or loops[2] % COLUMNS:
        return "steps or columns are not whole tiles"
    if loops[0] == 1:
        return "a single run"
    outputs = context.sch.get_output_blocks()
    if len(outputs) != 1 or len(context.sch.get_loops(outputs[0])) != 2 or outputs[0] == total:
        return "several results, or other axes than the product's"
    return None


def _schedule(context: KernelContext) -> None:
    inline_stages(context)
    sch = context.sch
    stages = packed_stages(context)
    assert not isinstance(stages, str)
    sums, total = stages
    runs, rows, columns, _, codes = context.sizes(sch.get_loops(sums))
    bits = 32 // codes
    _arrange(context, sums, total)
    tile = _choose_tile(context, runs, rows, columns, _run_bytes(context, sums))
    *_, run = sch.get_loops(total)
    # Where warps read together they take turns: what all of them read in a step lies side by side.
    warp = sch.split(run, [None, tile.warps])[1] if tile.stages > 1 else sch.split(run, [tile.warps, None])[0]
    part = sch.rfactor(warp, 0)
    written = sch.cache_write(part, 0, "local")
    sch.set_scope(written, 0, "shared")
    block = _place_output(context, total, written, part, tile)
    warp, row, column = loops_below(context, written, block)
    sch.bind(warp, "threadIdx.y")
    sch.unroll(_divide_tile(context, row, column))
    run, warp = _place_parts(context, part, block)
    copies = _shared_copies(context, sums, part, runs) if tile.stages > 1 else []
    _place_sums(context, sums, warp, bits)
    for copy in copies:
        _stage(context, copy, run, tile.warps)
    if copies:
        sch.software_pipeline(run, [0] * len(copies) + [tile.stages - 1])
        sch.annotate(run, MEMORY_BOUND, True)
    elif tile.down * tile.across == 1 and (context.extent(run) or 0) <= _RUNS_TOGETHER:
        sch.unroll(run)


def _arrange(context: ScheduleContext, sums: BlockHandle, total: BlockHandle) -> None:
    """Store constant words and scales by tiles of columns, in the order of threads."""
    for reader, layout in ((sums, words_tiles), (total, _scale_tiles)):
        for buffer, number in _matrices(context, reader).items():
            index_map = IndexMap.of(layout, 2)
            context.sch.transform_layout(reader, buffer.name, index_map)
            context.packing[number] = index_map


def _matrices(context: ScheduleContext, reader: BlockHandle) -> dict[Buffer, int]:
    """The constants with an axis of columns that a stage reads, and their numbers among the parameters."""
    constants = constant_parameters(context.sch.func)
    read = dict.fromkeys(region.buffer for region in context.block(reader).reads)
    shapes = {buffer: buffer.static_shape for buffer in read if buffer in constants}
    return {
        buffer: constants[buffer]
        for buffer, sizes in shapes.items()
        if sizes is not None and max(sizes[1:], default=1) > 1
    }


def _scale_tiles(group: PrimExpr, j: PrimExpr) -> tuple[PrimExpr, ...]:
    return j // COLUMNS, group, j % COLUMNS


def _run_bytes(context: KernelContext, sums: BlockHandle) -> int:
    """What a warp reads of words, rows and scales in a run, or a little more."""
    _, _, _, words, codes = context.sizes(context.sch.get_loops(sums))
    rows = context.block(_rows_of(context, sums)).reads[0].buffer
    count = (rows.static_shape or (PRODUCT_ROWS,))[0]
    return 4 * words * COLUMNS + 4 * COLUMNS + count * words * codes * rows.dtype.itemsize


def _choose_tile(context: KernelContext, runs: int, rows: int, columns: int, run_bytes: int) -> _Tile:
    """Tiles of several rows and columns where there are many rows; as many warps as fill the device."""
    down = max(n for n in range(1, _ROW_TILES + 1) if rows // PRODUCT_ROWS % n == 0)
    wide = [n for n in range(1, _COLUMN_TILES + 1) if columns // COLUMNS % n == 0]
    fitting = [n for n in wide if _Tile(down, n, 1).registers <= _MOST_REGISTERS]
    across = context.choose_again("column_tiles", fitting, fitting[-1] if rows > PRODUCT_ROWS else 1)
    tile = _Tile(down, across, 1)
    # What warps leave for each other to add up lies in shared memory.
    room = context.target.shared_bytes // (4 * tile.rows * tile.columns)
    most = min(_MOST_WARPS, context.target.max_threads // WARP, room, _REGISTERS // (WARP * tile.registers))
    options = [n for n in range(1, most + 1) if runs % n == 0]
    tiles = rows // tile.rows * (columns // tile.columns)
    staged = _staged_warps(context, tile, runs, tiles, run_bytes)
    enough = [n for n in options if tiles * n >= context.target.cores * _WARPS_OF_A_CORE]
    warps = context.choose_again("warps", options, staged or min(enough, default=options[-1]))
    deepest = min(2 * _STAGES - 1, runs // warps, _most_stages(context, tile, warps, run_bytes)) if staged else 1
    depths = list(range(1, max(1, deepest) + 1))
    return replace(tile, warps=warps, stages=context.choose_again("stages", depths, min(_STAGES, depths[-1])))


def _most_stages(context: KernelContext, tile: _Tile, warps: int, run_bytes: int) -> int:
    """How many copies of what warps read in a step shared memory holds, beside the sums that they leave."""
    room = context.target.shared_bytes - _ALIGNMENT - warps * 4 * tile.rows * tile.columns
    return room // (warps * run_bytes)


def _staged_warps(context: KernelContext, tile: _Tile, runs: int, tiles: int, run_bytes: int) -> int:
    """Warps of a block that read shared memory, in several steps each; 0 where they would be too few."""
    if tile.down * tile.across > 1 or not context.target.capabilities.async_copies:
        return 0
    least = context.target.cores * _LEAST_STAGED_WARPS
    options = [n for n in range(1, _STAGED_WARPS + 1) if runs % n == 0 and runs >= n * _STAGES and tiles * n >= least]
    return max((n for n in options if _most_stages(context, tile, n, run_bytes) >= _STAGES), default=0)


def _place_output(
    context: ScheduleContext, total: BlockHandle, written: BlockHandle, part: BlockHandle, tile: _Tile
) -> LoopHandle:
    """The loops of the result: columns of blocks, elements of threads, each the sum of what warps have."""
    sch = context.sch
    (output,) = sch.get_output_blocks()
    row, column = sch.get_loops(output)
    # All rows of a product, whether they are there or not: what it reads is then whole as well.
    outer, row = sch.split(row, [None, tile.rows])
    block, column = sch.split(column, [None, tile.columns])
    sch.reorder(outer, block, row, column)
    element = sch.fuse(row, column)
    sch.set_scope(total, 0, "local")
    sch.compute_at(total, element, preserve_unit_loops=True)
    for loop in loops_below(context, total, element):
        sch.unroll(loop)
    block = sch.fuse(outer, block)
    sch.bind(block, "blockIdx.x")
    for stage in (written, part):
        sch.compute_at(stage, block, preserve_unit_loops=True)
    # After the placement: threads that have nothing to do would hide that all of it is read.
    own, warp, lane = sch.split(element, [None, min(tile.warps, tile.rows * tile.columns // WARP), WARP])
    sch.unroll(own)
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    return block


def _divide_tile(context: ScheduleContext, row: LoopHandle, column: LoopHandle) -> LoopHandle:
    """Loops over the sums of a warp, by what threads hold; gives the loop over a thread's rows."""
    sch = context.sch
    down, row_thread, own = sch.split(row, [None, PRODUCT_ROWS // 2, 2])
    across, half, column_thread = sch.split(column, [None, 2, COLUMNS // 2])
    sch.reorder(column_thread, row_thread, down, across, half, own)
    sch.bind(sch.fuse(column_thread, row_thread), "threadIdx.x")
    for loop in (down, across, half):
        sch.unroll(loop)
    return own


def _place_parts(context: ScheduleContext, part: BlockHandle, block: LoopHandle) -> tuple[LoopHandle, LoopHandle]:
    """The scaled sums of each warp; gives the loops over its runs and over warps."""
    sch = context.sch
    warp, row, column, *runs = loops_below(context, part, block)
    run = runs[0] if runs else sch.add_unit_loop(row)
    sch.reorder(run, warp, row, column)
    start = sch.decompose_reduction(part, run)
    buffer = context.block(part).writes[0].buffer
    sch.transform_layout(part, buffer.name, IndexMap.of(sums_layout, buffer.ndim))
    sch.unroll(_divide_tile(context, row, column))
    first_warp, *first = loops_below(context, start, block)
    sch.unroll(_divide_tile(context, *first))
    for loop in (warp, first_warp):
        sch.bind(loop, "threadIdx.y")
    return run, warp


def _shared_copies(context: ScheduleContext, sums: BlockHandle, part: BlockHandle, runs: int) -> list[BlockHandle]:
    """Copies of words, of rows, and of scales if each run has its own, in shared memory."""
    rows = _rows_of(context, sums)
    read = [(sums, _words_of(context, sums)), (rows, context.block(rows).reads[0].buffer)]
    read += [(part, buffer) for buffer in _matrices(context, part) if (buffer.static_shape or ())[1] == runs]
    return [context.sch.cache_read(reader, buffer.name, "shared") for reader, buffer in read]


def _stage(context: ScheduleContext, copy: BlockHandle, run: LoopHandle, warps: int) -> None:
    """Copy what all warps read in a step to shared memory, by all threads, in vectors."""
    sch = context.sch
    sch.compute_at(copy, run, preserve_unit_loops=True)
    place = sch.fuse(*loops_below(context, copy, run))
    lanes = _VECTOR_BYTES // context.block(copy).writes[0].buffer.dtype.itemsize
    # Exactly as many threads as there are vectors: a guard would hide that all of it is written.
    vectors = (context.extent(place) or 0) // (warps * lanes)
    threads = max(n for n in range(1, WARP + 1) if vectors % n == 0)
    own, warp, thread, lane = sch.split(place, [None, warps, threads, lanes])
    sch.bind(warp, "threadIdx.y")
    sch.bind(thread, "threadIdx.x")
    sch.unroll(own)
    sch.vectorize(lane)


def _place_sums(context: ScheduleContext, sums: BlockHandle, warp: LoopHandle, bits: int) -> None:
    """The products of a warp's run, and what they read, in registers."""
    sch = context.sch
    sch.set_scope(sums, 0, "local")
    sch.compute_at(sums, warp, preserve_unit_loops=True)
    _, row, column, word, number = loops_below(context, sums, warp)
    step, word = sch.split(word, [None, steps_of(bits) * bits // 32])
    down, row = sch.split(row, [None, PRODUCT_ROWS])
    across, column = sch.split(column, [None, COLUMNS])
    sch.reorder(step, across, down, row, column, word, number)
    for loop in (across, down):
        sch.unroll(loop)
    start = sch.decompose_reduction(sums, step)
    buffer = context.block(sums).writes[0].buffer
    sch.transform_layout(sums, buffer.name, IndexMap.of(sums_layout, buffer.ndim))
    *_, first_row, first_column = loops_below(context, start, warp)
    sch.unroll(_divide_tile(context, first_row, first_column))
    copy = sch.cache_read(sums, _words_of(context, sums).name, "local")
    sch.compute_at(copy, step, preserve_unit_loops=True)
    *tiles, column, word = loops_below(context, copy, step)
    half, column = sch.split(column, [2, COLUMNS // 2])
    thread, own = sch.split(word, [4, None])
    sch.reorder(column, thread, *tiles, half, own)
    sch.bind(sch.fuse(column, thread), "threadIdx.x")
    for loop in (*tiles, half):
        sch.unroll(loop)
    sch.vectorize(own)
    sch.transform_layout(copy, context.block(copy).writes[0].buffer.name, IndexMap.of(words_layout, 4))
    _place_rows(context, sums, step, bits)
    sch.tensorize(row, multiply_codes(bits))
    sch.unroll(step)


def _words_of(context: ScheduleContext, sums: BlockHandle) -> Buffer:
    """The words that sums read."""
    return next(item.buffer for item in context.block(sums).reads if item.buffer.dtype.name == "uint32")


def _rows_of(context: ScheduleContext, sums: BlockHandle) -> BlockHandle:
    """The stage that makes whole tiles of the rows."""
    producers = context.sch.get_producers(sums)
    return next(item for item in producers if context.block(item).writes[0].buffer.dtype is FLOAT16)


def _place_rows(context: ScheduleContext, sums: BlockHandle, step: LoopHandle, bits: int) -> None:
    """The halves of each thread."""
    sch = context.sch
    rows = _rows_of(context, sums)
    sch.set_scope(rows, 0, "local")
    sch.compute_at(rows, step, preserve_unit_loops=True)
    row, k = loops_below(context, rows, step)
    down, row = sch.split(row, [None, PRODUCT_ROWS])
    thread, own = sch.split(k, [4, None])
    sch.reorder(row, thread, down, own)
    sch.bind(sch.fuse(row, thread), "threadIdx.x")
    sch.unroll(down)
    _vectorize(context, own, _VECTOR_BYTES // FLOAT16.itemsize)
    buffer = context.block(rows).writes[0].buffer
    sch.transform_layout(rows, buffer.name, IndexMap.of(partial(rows_layout, bits), buffer.ndim))


def _vectorize(context: ScheduleContext, loop: LoopHandle, lanes: int) -> None:
    """A loop over neighbours by vectors."""
    several, loop = context.sch.split(loop, [None, lanes])
    context.sch.unroll(several)
    context.sch.vectorize(loop)


TEMPLATE = Template(
    "packed_fragments",
    "few rows of halves times packed codes on tensor cores: codes become halves in registers, warps share the steps",
    _why_not,
    _schedule,
)
