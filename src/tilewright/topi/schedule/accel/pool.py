"""The schedule of maxima in blocks: windows of a tile as accumulators, compared by ALU, and EPI at each tile's end."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.accel.config import AccelConfig, Memory
from tilewright.ir.expr import const_value
from tilewright.ir.visit import find_all
from tilewright.tir.accel_instructions import ACC, INP, OUT, PAR, WGT
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.topi.intrinsics.accel import epilogue, greatest, product
from tilewright.topi.schedule.accel.product import Requantized, find_requantized, first_lane, sum_loops, tile_loops
from tilewright.topi.schedule.accel.tiles import Tiling, divisors
from tilewright.topi.schedule.context import ScheduleContext, loops_below

_TILE_CYCLES = 200
"""What a tile costs beside its tensors: latencies that nothing hides."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """Maxima along an axis (2: rows, 3: columns): elements that are compared, and the step between results."""

    block: BlockHandle
    axis: int
    size: int
    step: int


@dataclass(frozen=True, slots=True)
class BlockedPool:
    """The stages of a maximum over windows."""

    wide: BlockHandle
    stages: tuple[_Stage, ...]
    requantized: Requantized
    image: BlockHandle | None
    data: Buffer
    weight: Buffer
    shape: tuple[int, ...]
    """Of the results: n, co, y, x."""
    ci: int


def find_pool(context: ScheduleContext, config: AccelConfig) -> BlockedPool | str:
    """The maximum over windows that a kernel is, else why it is none that the processor computes."""
    sch = context.sch
    anchors = [handle for handle in sch.blocks() if ANCHOR.of(context.block(handle)) is Anchor.BLOCKED_POOL]
    if len(anchors) != 1:
        return "no maximum over windows in blocks of channels"
    (wide,) = anchors
    chain, producers = _chain(context, wide), sch.get_producers(wide)
    if chain is None or len(producers) > 1 or len(sch.blocks()) != 1 + len(chain) + len(producers):
        return "more is computed than the maximum"
    requantized = find_requantized(context, chain[-1])
    if requantized is None or requantized.residual is not None:
        return "the maxima are not requantised in fixed point"
    block = context.block(wide)
    own = block.writes[0].buffer
    data, weight = list(dict.fromkeys(item.buffer for item in block.reads if item.buffer is not own))
    extents = [const_value(item.domain.extent) or 0 for item in block.iters]
    if (extents[4], extents[5], extents[-1]) != (config.batch, config.block_out, config.block_in):
        return f"its blocks are {extents[4]} x {extents[5]} x {extents[-1]}"
    shape = context.block(chain[-1]).writes[0].buffer.static_shape
    if shape is None or not all(extents):
        return "sizes are open"
    stages = [_stage(context, before, item) for before, item in zip([wide, *chain], chain[:-1], strict=False)]
    image = producers[0] if producers else None
    return BlockedPool(wide, tuple(stages), requantized, image, data, weight, shape[:4], extents[6])


def _chain(context: ScheduleContext, first: BlockHandle) -> list[BlockHandle] | None:
    """The stages behind one, each the only reader of the one before, to the kernel's result."""
    chain: list[BlockHandle] = []
    while True:
        consumers = context.sch.get_consumers(chain[-1] if chain else first)
        if not consumers:
            return chain if chain else None
        if len(consumers) > 1:
            return None
        chain += consumers


def _stage(context: ScheduleContext, before: BlockHandle, handle: BlockHandle) -> _Stage:
    """Maxima of neighbours, as `topi/accel.py` writes them: one read for each element that is compared."""
    block = context.block(handle)
    given, shape = (context.block(item).writes[0].buffer.static_shape for item in (before, handle))
    assert given is not None and shape is not None
    axis = 2 if given[2] != shape[2] else 3
    size = len(find_all(block.body, BufferLoad))
    step = (given[axis] - size) // (shape[axis] - 1) if shape[axis] > 1 else 1
    return _Stage(handle, axis, size, step)


def schedule_pool(context: ScheduleContext, config: AccelConfig) -> None:
    """Tiles of results in accumulators.

    Before:  wide[..] = inp[..] * wgt[..];  row[..] = max(wide[..], ...);  best[..] = max(row[..], ...)
    After:   for tiles: for threads:
               load INP; ACC = INP * WGT                               (GEMM)
               ACC = max(ACC, ...)                                     (ALU, once for each direction)
               OUT = requantize(ACC, PAR)                              (EPI)
               out = OUT                                               (STORE)
    """
    found = find_pool(context, config)
    assert isinstance(found, BlockedPool)
    tiling = _tiling(context, found, config)
    sch, last = context.sch, found.requantized
    store = sch.cache_write(last.block, 0, OUT)
    stages = [found.wide, *(stage.block for stage in found.stages)]
    for handle in stages:
        sch.set_scope(handle, 0, ACC)
    if found.image is None:
        image = sch.cache_read(found.wide, found.data.name, INP)
    else:
        image = found.image
        sch.set_scope(image, 0, INP)
    sch.cache_read(found.wide, found.weight.name, WGT)
    parameters = sch.cache_read(last.block, last.parameters.name, PAR)
    tile = tile_loops(context, store, tiling)
    sch.compute_at(last.block, tile)
    if found.shape[1] > config.depth[Memory.PAR]:
        sch.compute_at(parameters, tile)
    for handle in reversed(stages):
        sch.compute_at(handle, tile)
    step, inside = sum_loops(context, found.wide, tile, tiling)
    sch.compute_at(image, step)
    sch.tensorize(inside, product(config))
    for stage in found.stages:
        below = loops_below(context, stage.block, tile)
        sch.tensorize(first_lane(context, stage.block, below), greatest(config, stage.size))
    below = loops_below(context, last.block, tile)
    sch.tensorize(first_lane(context, last.block, below), epilogue(config, last.form))


def _tiling(context: ScheduleContext, pool: BlockedPool, config: AccelConfig) -> Tiling:
    """The tiles with the fewest cycles, about: of one block of channels, whole rows or parts of one."""
    n, co, height, width = pool.shape
    threads = context.choose("threads", (1, 2), 2)
    pixels = [(y, width) for y in divisors(height)] + [(1, x) for x in divisors(width) if x < width]
    best: tuple[float, Tiling] | None = None
    for y, x in pixels:
        counts = {"co": co, "y": height // y, "x": width // x, "n": n}
        axis = next((name for name, count in counts.items() if count % 2 == 0), "") if threads == 2 else ""
        tiling = Tiling(1, y, x, pool.ci, axis)
        if _fits(pool, tiling, config):
            cycles = _cycles(pool, tiling, config) * prod(counts.values())
            best = (cycles, tiling) if best is None or cycles < best[0] else best
    if best is None:
        raise ScheduleError("no tile of the maximum fits in the on-chip memories", func=context.sch.func)
    return best[1]


def _accumulators(pool: BlockedPool, tiling: Tiling) -> list[int]:
    """Accumulators of each stage for a tile, that of bytes first."""
    sizes = []
    for number in range(len(pool.stages) + 1):
        rows, columns = tiling.y, tiling.x
        for stage in pool.stages[number:]:
            reach = ((rows if stage.axis == 2 else columns) - 1) * stage.step + stage.size
            rows, columns = (reach, columns) if stage.axis == 2 else (rows, reach)
        sizes.append(rows * columns)
    return sizes


def _fits(pool: BlockedPool, tiling: Tiling, config: AccelConfig) -> bool:
    sizes, depth = _accumulators(pool, tiling), config.depth
    threads, blocks = tiling.threads, pool.weight.static_shape
    assert blocks is not None
    return (
        sum(sizes) * threads <= depth[Memory.ACC]
        and pool.ci * sizes[0] * threads <= depth[Memory.INP]
        and tiling.y * tiling.x * threads <= depth[Memory.OUT]
        and prod(blocks[:4]) <= depth[Memory.WGT]
        and min(pool.shape[1], threads) <= depth[Memory.PAR]
    )


def _cycles(pool: BlockedPool, tiling: Tiling, config: AccelConfig) -> float:
    """Cycles of a tile."""
    words = {memory: config.dma_bytes[memory] // config.bus_bytes for memory in (Memory.INP, Memory.OUT)}
    sizes = _accumulators(pool, tiling)
    results = tiling.y * tiling.x
    compute = sizes[0] * pool.ci + sum(
        count * (1 + 2 * stage.size) for count, stage in zip(sizes[1:], pool.stages, strict=True)
    )
    bus = sizes[0] * pool.ci * words[Memory.INP] + results * words[Memory.OUT]
    busy = max(compute, bus) if tiling.threads == 2 else compute + bus + results
    return busy + _TILE_CYCLES
