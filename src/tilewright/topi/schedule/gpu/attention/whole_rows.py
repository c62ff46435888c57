"""Attention with whole rows: a block has some queries and all their scores, in registers and shared memory."""

from __future__ import annotations

from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.attention.sizes import AttentionSizes

_LANES = 32
"""Threads that share a query: its keys are dealt out to them."""
_WARPS = 8
"""Queries of a block that are at work at the same time."""
_TILE = 128
"""Keys that are in shared memory at a time."""
_VECTOR = 4
_AHEAD = 4
"""Vectors of exponentials, and the values that belong to them, that are on their way at once."""
_SPARE = 4096
"""Bytes of shared memory for sums across threads, on devices without shuffles."""


def _each(sizes: AttentionSizes) -> int:
    """Keys of a tile that a lane has, next to each other."""
    return min(_TILE, sizes.keys) // _LANES


def row_options(context: ScheduleContext, sizes: AttentionSizes) -> list[int]:
    """Numbers of queries of a block whose rows of scores registers and shared memory hold; none where sizes are odd."""
    return _query_options(context, sizes) if _fills_threads(context, sizes) else []


def schedule_whole_rows(context: ScheduleContext, sizes: AttentionSizes) -> None:
    """All stages of a tile of queries in one block.

    for tile of queries in blocks:
        for tile of keys:  keys_shared = ...;  for warp, lane: acc[query, key] += ...;  scores (registers) = scaled acc
        max, total over the lanes of a warp (shuffles);  exponentials (shared) = exp(scores - max)
        for warp, lane:  out[query, e] = sum of exponentials[query, j] * values[j, e] / total
    """
    sch = context.sch
    stage = {handle.name: handle for handle in sch.blocks()}
    output = stage["attention"]
    queries = _choose_queries(context, sizes, _query_options(context, sizes))
    for name in ("keys", "values", "factor"):
        sch.compute_inline(stage[f"attention_{name}"])
    batch, row, head, column = sch.get_loops(output)
    tile, inner = sch.split(row, [None, queries])
    sch.reorder(batch, head, tile, inner, column)
    block = sch.fuse(batch, head, tile)
    parts = {name: _partial(context, stage[f"attention_{name}"], sizes) for name in ("max", "total")}
    # Consumers first.
    sch.compute_at(stage["attention_mixed"], block)
    for name in ("total", "powers", "max", "scores", "products"):
        if name in parts:
            sch.compute_at(stage[f"attention_{name}"], block)
            sch.compute_at(parts[name], block)
        else:
            sch.compute_at(stage[f"attention_{name}"], block)
    for name in ("mixed", "products"):
        sch.set_scope(stage[f"attention_{name}"], 0, "local")
    sch.bind(block, "blockIdx.x")
    _schedule_accumulator(context, stage["attention_mixed"], output, block, [inner, column], sizes)
    for name in ("max", "total"):
        _schedule_row_sum(context, stage[f"attention_{name}"], parts[name], block)
    _schedule_exponentials(context, stage["attention_powers"], block, sizes)
    _schedule_scores(context, stage, block, queries, sizes)


def _fills_threads(context: ScheduleContext, sizes: AttentionSizes) -> bool:
    """Whether sizes are whole tiles of threads."""
    whole = sizes.keys % _LANES == 0 and sizes.depth % _VECTOR == 0
    whole = whole and sizes.width % _LANES == 0 and sizes.queries % _WARPS == 0
    tiles = sizes.keys % _TILE == 0 or sizes.keys < _TILE
    return whole and tiles and context.target.max_threads >= _LANES * _WARPS


def _query_options(context: ScheduleContext, sizes: AttentionSizes) -> list[int]:
    """Numbers of queries of a block whose exponentials memory holds."""
    options = []
    most = context.gpu.attention.row_scores
    (output,) = context.sch.get_output_blocks()
    item = max(4, context.block(output).writes[0].buffer.dtype.itemsize)
    for count in (8, 16, 32):
        memory = item * (count * sizes.keys + (count + min(_TILE, sizes.keys)) * (sizes.depth + _VECTOR))
        memory += _SPARE if context.target.shuffle_width == 1 else 0
        scores = count // _WARPS * sizes.keys // _LANES
        if sizes.queries % count == 0 and memory <= context.target.shared_bytes and scores <= most:
            options.append(count)
    return options


def _choose_queries(context: ScheduleContext, sizes: AttentionSizes, options: list[int]) -> int:
    """Queries of a block: more reuse of keys and values, if all cores have work."""
    # Many queries a block read keys and values less often; where blocks are few, or scores many, fewer do.
    few = sizes.batch * sizes.heads * sizes.queries // 32 < 2 * context.target.cores or sizes.keys > 4 * _TILE
    default = max(count for count in options if count == options[0] or count <= (16 if few else 32))
    return context.choose("queries", options, default)


def _below(context: ScheduleContext, handle: BlockHandle, loop: LoopHandle) -> list[LoopHandle]:
    own = context.sch.get_loops(handle)
    return own[own.index(loop) + 1 :]


def _partial(context: ScheduleContext, handle: BlockHandle, sizes: AttentionSizes) -> BlockHandle:
    """A reduction along keys in two: a part for each lane, and their combination."""
    sch = context.sch
    _, lane, _ = sch.split(sch.get_loops(handle)[-1], [None, _LANES, _each(sizes)])
    return sch.rfactor(lane, 0)


def _schedule_exponentials(
    context: ScheduleContext, handle: BlockHandle, block: LoopHandle, sizes: AttentionSizes
) -> None:
    sch = context.sch
    row, column = _below(context, handle, block)
    warp, step = sch.split(row, [_WARPS, None])
    tile, lane, key = sch.split(column, [None, _LANES, _each(sizes)])
    sch.reorder(warp, lane, step, tile, key)
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.unroll(step)
    sch.unroll(tile)
    if _each(sizes) > 1:
        sch.vectorize(key)


def _schedule_row_sum(context: ScheduleContext, handle: BlockHandle, part: BlockHandle, block: LoopHandle) -> None:
    sch = context.sch
    lane, row, *steps = _below(context, part, block)
    warp, step = sch.split(row, [_WARPS, None])
    sch.reorder(warp, lane, step, *steps)
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    for loop in (step, *steps):
        sch.unroll(loop)
    row, lane = _below(context, handle, block)
    warp, step = sch.split(row, [_WARPS, None])
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.unroll(step)


def _schedule_accumulator(
    context: ScheduleContext,
    mixed: BlockHandle,
    output: BlockHandle,
    block: LoopHandle,
    loops: list[LoopHandle],
    sizes: AttentionSizes,
) -> None:
    """The sums of values: a warp has the same queries as before, its lanes some elements next to each other."""
    sch = context.sch
    row, column = loops
    warp, query = sch.split(row, [_WARPS, None])
    lane, element = sch.split(column, [_LANES, sizes.width // _LANES])
    sch.reorder(warp, lane, query, element)
    sch.compute_at(mixed, lane)
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    if sizes.width > _LANES:
        sch.vectorize(element)
    own = _below(context, mixed, lane)
    key = own[-1]
    results = own[:-1]
    step, outer, inner = sch.split(key, [None, _AHEAD, _VECTOR])
    sch.reorder(step, outer, inner, *results)
    powers = next(region.buffer for region in context.block(mixed).reads if region.buffer.name == "attention_powers")
    copy = sch.cache_read(mixed, powers.name, "local")
    sch.compute_at(copy, outer)
    sch.vectorize(sch.get_loops(copy)[-1])
    if sizes.width > _LANES:
        sch.vectorize(results[-1])
        results = results[:-1]
    for loop in (outer, inner, *results):
        sch.unroll(loop)


def _schedule_scores(
    context: ScheduleContext, stage: dict[str, BlockHandle], block: LoopHandle, queries: int, sizes: AttentionSizes
) -> None:
    """The products of queries and keys: tiles of keys in shared memory, a few scores of each thread at a time."""
    sch = context.sch
    scores, products = stage["attention_scores"], stage["attention_products"]
    row, column = _below(context, scores, block)
    warp, step = sch.split(row, [_WARPS, None])
    tile, lane, key = sch.split(column, [None, _LANES, _each(sizes)])
    sch.reorder(tile, warp, lane, step, key)
    sch.compute_at(products, lane)
    own = _below(context, products, lane)
    results, depth = own[:-1], own[-1]
    outer, inner = sch.split(depth, [None, _VECTOR])
    sch.reorder(outer, inner, *results)
    reads = context.block(products).reads
    names = [region.buffer.name for region in reads if not region.buffer.name.startswith("attention")]
    by_head = _keys_by_head(context, stage["attention_products"])
    for number, (name, place) in enumerate(zip(names, (block, tile), strict=True)):
        each, heads_first = (_each(sizes), by_head) if number else (queries // _WARPS, False)
        shared = sch.cache_read(products, name, "shared")
        sch.compute_at(shared, place)
        near = sch.cache_read(products, context.block(shared).writes[0].buffer.name, "local")
        _stage(context, shared, place, each, heads_first)
        sch.compute_at(near, outer)
        sch.vectorize(sch.get_loops(near)[-1])
        for loop in _below(context, near, outer)[:-1]:
            sch.unroll(loop)
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    for loop in (inner, *results, step, key):
        sch.unroll(loop)
    _arrange(context, scores, queries // _WARPS, sizes)


def _arrange(context: ScheduleContext, scores: BlockHandle, rows: int, sizes: AttentionSizes) -> None:
    """The threads that hold scores get axes of their own, so that each has its scores in registers."""
    each, step = _each(sizes), _LANES * _each(sizes)
    name = context.block(scores).writes[0].buffer.name
    context.sch.transform_layout(scores, name, lambda b, h, i, c: (b, h, i // rows, i % rows, c // step, c % step))
    context.sch.transform_layout(scores, name, lambda b, h, w, r, t, c: (b, h, w, r, t, c // each, c % each))


def _keys_by_head(context: ScheduleContext, products: BlockHandle) -> bool:
    """Whether the heads of keys come before their places: the last iterators are those of keys and of elements."""
    block = context.block(products)
    key = block.iters[3].var
    loads = [load for load in find_all(block.body, BufferLoad) if uses_any(load, [key])]
    return any(load.indices[2] is key for load in loads if load.buffer is not block.writes[0].buffer)


def _stage(
    context: ScheduleContext, copy: BlockHandle, place: LoopHandle, each: int, heads_first: bool = False
) -> None:
    """Copy rows to shared memory by all threads, in vectors; rows are so far apart that lanes do not collide."""
    sch = context.sch
    loops = _below(context, copy, place)
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    _, warp, lane, vector = sch.split(fused, [None, _WARPS, _LANES, _VECTOR])
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.vectorize(vector)
    # Rows of one thread are far apart, those of neighbouring lanes next to each other.
    name = context.block(copy).writes[0].buffer.name
    if heads_first:
        sch.transform_layout(copy, name, lambda b, h, i, d: (b, i % each, i // each, h, d))
    else:
        sch.transform_layout(copy, name, lambda b, i, h, d: (b, i % each, i // each, h, d))
    sch.storage_align(copy, 0, 2, 2 * _VECTOR, _VECTOR)
