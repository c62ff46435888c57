"""The schedules of products with packed codes: unpacked in registers for few rows, once for many."""

from __future__ import annotations

from math import prod

from tilewright.ir.dtype import FLOAT32, INT8, INT32
from tilewright.ir.expr import PrimExpr, const_value
from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.annotations import PREFETCH_NEAR, Anchor
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.addend import find_addend
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.schedule.trace import Value
from tilewright.tir.stmt import IterKind
from tilewright.topi.intrinsics.dot import DotInstruction, dot_instruction
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.cpu.anchors import blocks_of_kind
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.prefetch import run_ahead
from tilewright.topi.schedule.cpu.register_tiles import schedule_tile, unroll_reduction
from tilewright.topi.schedule.cpu.staged_products import own_loops, reduction_first
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors
from tilewright.topi.schedule.packing import constant_parameters
from tilewright.topi.schedule.template import Template

_MOST_FLOATS, _MOST_BYTES = 4, 8
"""Vectors across a tile of few rows, of floats and of sums of bytes: longer bodies only fill the instruction cache."""


_FEW_STEPS = (1, 2)
"""Iterations over a group's bytes for which there is no loop."""


def _few_rows_match(context: ScheduleContext) -> str | None:
    """Few rows of a product with packed constant codes, in whole vectors, with one result."""
    sums = blocks_of_kind(context, Anchor.PACKED)
    if not sums:
        return "no sums of products with packed codes"
    if context.block(sums[0]).writes[0].buffer.dtype is not FLOAT32:
        return "sums of integers"
    if sum(item.kind is IterKind.REDUCE for item in context.block(sums[0]).iters) != 2:
        return "sums of single words, as devices have them"
    return _cannot_tile(context, *sums)


def _digits_match(context: ScheduleContext) -> str | None:
    """Few rows of bytes with packed constant codes, on a processor that has dot products of both."""
    sums = blocks_of_kind(context, Anchor.PACKED)
    if not sums or context.block(sums[0]).writes[0].buffer.dtype is not INT32:
        return "no sums of products of bytes with packed codes"
    if _instruction(context, sums[0]) is None:
        return "no dot products of such bytes on this processor"
    return _cannot_tile(context, *sums, *blocks_of_kind(context, Anchor.UNPACKED))


def _instruction(context: ScheduleContext, sums: BlockHandle) -> DotInstruction | None:
    """The dot product of a row of signed bytes with the codes' type."""
    column = next(item.var for item in reversed(context.block(sums).iters) if item.kind is IterKind.SPATIAL)
    loads = [load for load in find_all(context.block(sums).body, BufferLoad) if load.buffer.dtype.bits == 8]
    codes = next(load for load in loads if uses_any(load, [column]))
    return dot_instruction(context.target, INT8, codes.dtype)


def _cannot_tile(context: ScheduleContext, *readers: BlockHandle) -> str | None:
    """Why codes that blocks read cannot be read in tiles of whole vectors."""
    if len(context.sch.get_output_blocks()) != 1:
        return "several outputs"
    if not _constants(context, *readers):
        return "no constant codes"
    columns = const_value(context.block(readers[0]).writes[0].buffer.shape[-1])
    return None if columns and columns % context.target.lanes(32) == 0 else "columns are not whole vectors"


def _constants(context: ScheduleContext, *readers: BlockHandle) -> list[Buffer]:
    """The constant matrices that blocks read: codes and what goes with them."""
    constants = constant_parameters(context.sch.func)
    loads = [load for handle in readers for load in find_all(context.block(handle).body, BufferLoad)]
    matrices = dict.fromkeys(load.buffer for load in loads if load.buffer in constants)
    return [item for item in matrices if const_value(item.shape[1]) != 1]


def schedule_few_rows(context: ScheduleContext) -> None:
    """Tile the columns; a word is loaded once, and its codes are unpacked one after the other for all rows.

    Before:  sums[g, i, j] += x[i, g, w, n] * (code n of words[g, w, j] - zero[g, j])
             total[i, j] += sums[g, i, j] * scale[g, j];  out[i, j] = epilogue(total[i, j])
    After:   for jo:
               total[i, ji] = 0
               for g: { sums[i, ji] = 0;  for w, n: sums[i, ji] += ...;  total[i, ji] += sums[i, ji] * scale[..] }
               out[i, j] = epilogue(total[i, ji])                                     (everything in registers)
    """
    (sums,), (total,) = blocks_of_kind(context, Anchor.PACKED), blocks_of_kind(context, Anchor.PACKED_TOTAL)
    sch, lanes = context.sch, context.target.lanes(32)
    _tile_few_rows(context, sums, total)
    word, number = reduction_first(context, sums)
    start = sch.decompose_reduction(sums, word)
    for handle in (sums, start):
        _vectorize(context, handle, lanes)
    sch.unroll(number)
    _fetch_ahead(context, word, _constants(context, sums)[0], total)


def _fetch_ahead(context: ScheduleContext, steps: LoopHandle, codes: Buffer, total: BlockHandle) -> None:
    """Ask for codes some pages ahead of those in use, where prefetchers end at a page of 4 KiB, as those of x86 do.

    The scales of the groups, which the total reads, are a stream beside them, and slower: their pages end, too.
    """
    row = prod((codes.static_shape or (0,))[2:])
    used = (context.extent(steps) or 1) * row
    ahead = context.cpu.prefetch.codes_ahead
    proposed = ahead if ahead > 1 else 0
    distance = context.choose("fetch_distance", (0, 2048, 4096, 8192), proposed) // codes.dtype.itemsize
    if not distance:
        return
    fetched: dict[str, Value] = {codes.name: run_ahead(used, distance)}
    for scales in _constants(context, total):
        bytes_ahead = context.cpu.prefetch.scales_ahead
        if scales.dtype is FLOAT32 and bytes_ahead > 1:
            width = prod((scales.static_shape or (0,))[2:])
            fetched[scales.name] = run_ahead(width, bytes_ahead // scales.dtype.itemsize)
    context.sch.annotate(steps, PREFETCH_NEAR, fetched)


def _tile_few_rows(context: ScheduleContext, sums: BlockHandle, total: BlockHandle) -> LoopHandle:
    """Tile the result in rows x some vectors, with the sums of a group in a loop over groups, which it gives."""
    sch, lanes = context.sch, context.target.lanes(32)
    unpacked = blocks_of_kind(context, Anchor.UNPACKED)
    for producer in sch.get_producers(sums):
        if producer not in unpacked:
            schedule_injective(context, producer)
    (output,) = sch.get_output_blocks()
    if output.name == total.name:
        output = sch.cache_write(total, 0, "local")
    *_, row, column = sch.get_loops(output)
    rows, columns = context.sizes([row, column])
    constants = {buffer: reader for reader in (*unpacked, sums, total) for buffer in _constants(context, reader)}
    # Bytes of pairs are half as many as columns.
    halves = [columns // (const_value(buffer.shape[1]) or columns) for buffer in constants]
    tile = _small_tile(context, sums, rows, columns // lanes, max(halves))
    for (buffer, reader), half in zip(constants.items(), halves, strict=True):
        _pack(context, reader, buffer, tile.columns // half)
    row_outer, row_inner = sch.split(row, [None, tile.rows])
    panel, vector, lane = sch.split(column, [None, tile.vectors, tile.lanes])
    sch.reorder(panel, row_outer, row_inner, vector, lane)
    sch.vectorize(lane)
    for loop in (row_inner, vector):
        sch.unroll(loop)
    sch.compute_at(total, row_outer, preserve_unit_loops=True)
    (group,) = reduction_first(context, total)
    sch.compute_at(sums, group, preserve_unit_loops=True)
    depth = prod(context.sizes([group, *_loops_of_sums(context, sums)]))
    start = sch.decompose_reduction(total, group)
    context.parallelize([panel], rows * columns * depth)
    for handle in (sums, total):
        sch.set_scope(handle, 0, "local")
    for handle in (total, start):
        _vectorize(context, handle, tile.lanes)
    return group


def _loops_of_sums(context: ScheduleContext, sums: BlockHandle) -> list[LoopHandle]:
    """The loops of the reduction of a group."""
    count = sum(item.kind is IterKind.REDUCE for item in context.block(sums).iters)
    return context.sch.get_loops(sums)[-count:]


def _small_tile(context: ScheduleContext, sums: BlockHandle, rows: int, vectors: int, unit: int) -> RegisterTile:
    """The tile of rows and units of vectors with the fewest instructions a product that registers have room for."""
    registers = context.target.vector_registers - 2
    buffer = context.block(sums).writes[0].buffer
    is_float = buffer.dtype is FLOAT32
    kinds, most = (1, _MOST_FLOATS) if is_float else (const_value(buffer.shape[1]) or 1, _MOST_BYTES)
    # Words stay while their codes are unpacked; floats have zero points beside them.
    held = 2 if is_float else len(blocks_of_kind(context, Anchor.UNPACKED))
    shapes = [
        (height, width)
        for height in divisors(rows, rows)
        for width in divisors(vectors, most)
        if width % unit == 0 and (kinds * height * (width + 1) + held * width <= registers or height * width == unit)
    ]
    # Each value of a row is spread over a vector, each code unpacked.
    best = min(shapes, key=lambda shape: (kinds / shape[1] + 2 * held / shape[0], -shape[1]))
    width = context.choose("tile_vectors", sorted({n for height, n in shapes if height == best[0]}), best[1])
    return RegisterTile(best[0], width, context.target.lanes(32))


def schedule_digits(context: ScheduleContext) -> None:
    """The same for rows of whole numbers, by dot products of their bytes with the codes of four steps.

    Before:  sums[g, d, i, j] += digits[i, d, 4 f + b] * code[4 f + b, j]
             total[i, j] += whole(float(sums[g, :, i, j] + base)) * scale[g, j]
    After:   for jo:
               for g: { sums[d, i, ji] = base
                        for f: { code = unpacked(bytes[jo, f]);  sums[d, i, ji] += dot(digits[i, d, f], code) }
                        total[i, ji] += whole(float(sums[:, i, ji])) * scale[jo, g, ji] }
               out[i, j] = epilogue(total[i, ji])
    """
    sch = context.sch
    (sums,), (total,) = blocks_of_kind(context, Anchor.PACKED), blocks_of_kind(context, Anchor.PACKED_TOTAL)
    instruction = _instruction(context, sums)
    assert instruction is not None
    (floats,) = sch.get_consumers(sums)
    if find_addend(context.block(floats), context.block(sums).writes[0].buffer) is not None:
        sch.start_at_addend(sums)
    sch.compute_inline(floats)
    unpacked = blocks_of_kind(context, Anchor.UNPACKED)
    group = _tile_few_rows(context, sums, total)
    four, byte = reduction_first(context, sums)
    count = _codes_in_byte(context, unpacked[0]) if unpacked else 1
    steps = context.extent(four) or count
    # A load of a row gives several steps, which some instructions take as they are.
    together = instruction.steps if steps % instruction.steps == 0 and instruction.steps % count == 0 else count
    four_outer, four_inner = sch.split(four, [None, together])
    *outer, column = own_loops(context, sums)
    vector, lane = sch.split(column, [None, instruction.lanes])
    sch.reorder(four_outer, four_inner, vector, *outer, lane, byte)
    start = sch.decompose_reduction(sums, four_outer)
    if unpacked:
        sch.compute_at(unpacked[0], vector, preserve_unit_loops=True)
        sch.set_scope(unpacked[0], 0, "local")
        sch.transform_layout(
            unpacked[0], context.block(unpacked[0]).writes[0].buffer.name, lambda f, j, b: (f, j * 4 + b)
        )
        *_, code_column, code_byte = own_loops(context, unpacked[0])
        sch.vectorize(sch.fuse(code_column, code_byte))
    sch.tensorize(lane, instruction.intrinsic)
    if context.extent(four_outer) in _FEW_STEPS:
        sch.unroll(four_outer)
    else:
        _fetch_ahead(context, four_outer, _constants(context, *(unpacked or [sums]))[0], total)
    *start_loops, start_lane = loops_below(context, start, group)
    sch.vectorize(start_lane)
    for loop in (four_inner, vector, *outer, *start_loops):
        sch.unroll(loop)


def _codes_in_byte(context: ScheduleContext, unpacked: BlockHandle) -> int:
    """How many codes each byte has that a block unpacks."""
    (packed,) = _constants(context, unpacked)
    return (context.block(unpacked).writes[0].buffer.static_shape or (1,))[0] // (const_value(packed.shape[1]) or 1)


def _vectorize(context: ScheduleContext, handle: BlockHandle, lanes: int) -> None:
    """The columns of a stage in vectors, everything around them in its tile unrolled."""
    sch = context.sch
    *outer, column = own_loops(context, handle)
    vector, lane = sch.split(column, [None, lanes])
    sch.vectorize(lane)
    for loop in (*outer, vector):
        sch.unroll(loop)


def _pack(context: ScheduleContext, reader: BlockHandle, buffer: Buffer, width: int) -> None:
    """Arrange a matrix in panels of columns: `w[k, j]` becomes `w[j // width, k, j % width]`.

    Bytes `w[k, j, b]` become `w[j // width, k, j % width, b]`.
    """

    def arrange(k: PrimExpr, j: PrimExpr, *b: PrimExpr) -> tuple[PrimExpr, ...]:
        return (j // width, k, j % width, *b)

    context.pack(reader, buffer, IndexMap.of(arrange, buffer.ndim))


def _many_rows_match(context: ScheduleContext) -> str | None:
    """A product with numbers that are unpacked from constant codes, in whole vectors, with one result."""
    unpacked = blocks_of_kind(context, Anchor.UNPACKED)
    if not unpacked or not blocks_of_kind(context, Anchor.MATMUL):
        return "no packed codes that many rows meet"
    if 0 in context.sizes(context.sch.get_loops(blocks_of_kind(context, Anchor.MATMUL)[0])):
        return "no elements"
    return _cannot_tile(context, unpacked[0])


def schedule_many_rows(context: ScheduleContext) -> None:
    """Sums in parts of some steps: a panel of codes of a part is unpacked to near memory, where all rows meet it.

    Before:  unpacked[k, j] = (code of words[k, j] - zero) * scale;  c[i, j] += a[i, k] * unpacked[k, j]
    After:   for part, jo:
               unpacked[k, ji] = ...                                                 (in the second cache level)
               for io: { acc[ii, ji] = 0;  for k: acc[ii, ji] += a[i, part + k] * unpacked[k, ji]
                         c[i, j] += acc[ii, ji] }
             out[i, j] = epilogue(c[i, j])
    """
    sch = context.sch
    (unpacked,), (anchor,) = blocks_of_kind(context, Anchor.UNPACKED), blocks_of_kind(context, Anchor.MATMUL)
    (output,) = sch.get_output_blocks()
    for producer in sch.get_producers(anchor):
        if producer.name != unpacked.name:
            schedule_injective(context, producer)
    i, j, k = sch.get_loops(anchor)
    rows, columns, depth = context.sizes([i, j, k])
    tile = _tile(context, rows, columns, depth)
    for buffer in _constants(context, unpacked):
        _pack(context, unpacked, buffer, tile.columns)
    part = _part(context, unpacked, rows, depth, tile)
    if part == depth:
        panel, reduction = _tile_whole_sums(context, anchor, output, tile)
        place = panel
    else:
        panel, place, reduction = _tile_parts_of_sums(context, anchor, k, part, tile)
        if output.name != anchor.name:
            schedule_injective(context, output)
    sch.compute_at(unpacked, place, preserve_unit_loops=True)
    _schedule_unpacking(context, unpacked, tile)
    context.parallelize([panel], rows * columns * depth)
    unroll_reduction(context, reduction, tile)


def _tile_whole_sums(
    context: ScheduleContext, anchor: BlockHandle, output: BlockHandle, tile: RegisterTile
) -> tuple[LoopHandle, list[LoopHandle]]:
    """A register tile around whole sums, the epilogue on it; gives the loop over panels and those of the sums."""
    sch = context.sch
    if output.name == anchor.name:
        output = sch.cache_write(anchor, 0, "local")
    panel, row_outer = _split_tile(context, output, tile)
    sch.compute_at(anchor, row_outer)
    return panel, schedule_tile(context, anchor, row_outer, tile)


def _split_tile(context: ScheduleContext, stage: BlockHandle, tile: RegisterTile) -> tuple[LoopHandle, LoopHandle]:
    """Split a stage's rows and columns by a tile; other loops stay around them. Gives loops over panels and rows."""
    sch = context.sch
    i, j, *outer = sch.get_loops(stage)
    panel, vector, lane = sch.split(j, [None, tile.vectors, tile.lanes])
    row_outer, row_inner = sch.split(i, [None, tile.rows])
    sch.reorder(*outer, panel, row_outer, row_inner, vector, lane)
    for loop in (row_inner, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    return panel, row_outer


def _tile_parts_of_sums(
    context: ScheduleContext, anchor: BlockHandle, depth: LoopHandle, part: int, tile: RegisterTile
) -> tuple[LoopHandle, LoopHandle, list[LoopHandle]]:
    """A register tile around a part of the sums, which are added up in memory.

    Gives the loop over panels, the loop in which a panel's part is unpacked, and those of the sums. Several cores have
    whole panels each: they meet once, and sums stay in their caches.
    """
    sch = context.sch
    parts, _ = sch.split(depth, [None, part])
    partial_sums = sch.rfactor(parts)
    parts = sch.get_loops(anchor)[-1]
    panel, row_outer = _split_tile(context, anchor, tile)
    place = panel
    if context.target.cores > 1:
        sch.reorder(panel, parts)
        place = parts
    sch.decompose_reduction(anchor, parts)
    sch.compute_at(partial_sums, row_outer, preserve_unit_loops=True)
    return panel, place, schedule_tile(context, partial_sums, row_outer, tile)


def _tile(context: ScheduleContext, rows: int, columns: int, depth: int) -> RegisterTile:
    """The register tile with the best ratio of arithmetic to loads whose columns divide all columns.

    Rows that would drive each other out of the first cache level are few.
    """
    lanes, registers, limits = context.target.lanes(32), context.target.vector_registers, context.cpu.split_k
    aliased = depth * 4 % limits.alias_bytes == 0
    highest = min(rows, limits.most_aliased_rows if aliased else registers)
    costs, in_flight = context.cpu.register_tile, context.cpu.core.fma_in_flight
    widths = divisors(columns // lanes, registers // 2)
    by_lanes = context.target.multiplies_by_lanes
    # Where multiply-adds take lanes, a vector of each row is held, else the value in use.
    shapes = [(h, v) for v in widths for h in range(1, highest + 1) if h * v + v + (h if by_lanes else 1) <= registers]

    def score(shape: tuple[int, int]) -> float:
        height, vectors = shape
        reuse = height * vectors / (height + costs.column_load * vectors)
        return reuse * min(1.0, height * vectors / in_flight) * rows / (-(-rows // height) * height)

    height, vectors = max(shapes, key=score)
    return choose_tile(context, RegisterTile(height, vectors, lanes), rows, columns, widths=widths)


def _part(context: ScheduleContext, unpacked: BlockHandle, rows: int, depth: int, tile: RegisterTile) -> int:
    """Steps of a part of the sums: whole words, whose rows and panel of numbers stay in the second cache level."""
    words = _constants(context, unpacked)[0].shape
    codes = depth // (const_value(words[1]) or depth)
    step = (rows + tile.columns) * 4
    most = max(codes, int(context.target.l2_bytes * context.cpu.split_k.operands_share) // step)
    options = [n for n in divisors(depth, depth) if n % codes == 0]
    return context.choose("sum_part", options, max(n for n in options if n <= most))


def _schedule_unpacking(context: ScheduleContext, unpacked: BlockHandle, tile: RegisterTile) -> None:
    """A row of words at a time, all codes of each; columns in vectors."""
    sch = context.sch
    step, column = own_loops(context, unpacked)
    words = _constants(context, unpacked)[0].shape
    codes = (const_value(context.block(unpacked).iters[0].domain.extent) or 1) // (const_value(words[1]) or 1)
    word, number = sch.split(step, [None, codes])
    vector, lane = sch.split(column, [None, tile.lanes])
    sch.reorder(word, vector, number, lane)
    sch.vectorize(lane)
    sch.unroll(number)


FEW_ROWS = Template(
    "packed-product-of-few-rows",
    "codes of weights unpacked in registers, the sums of a group in registers too",
    _few_rows_match,
    schedule_few_rows,
)

DIGITS_OF_ROWS = Template(
    "packed-product-of-digits",
    "dot products of the bytes of few rows with codes of weights, unpacked in registers",
    _digits_match,
    schedule_digits,
)

MANY_ROWS = Template(
    "packed-product-of-many-rows",
    "a panel of codes unpacked to near memory for all rows, a register tile around each part of the sums",
    _many_rows_match,
    schedule_many_rows,
)
