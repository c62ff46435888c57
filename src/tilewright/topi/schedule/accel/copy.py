"""The schedule of copies in blocks: tiles pass through OUT, loaded and stored by DMA alone."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.accel.config import AccelConfig, Memory
from tilewright.ir.expr import FloorDiv, const_value
from tilewright.ir.visit import find_all
from tilewright.tir.accel_instructions import OUT
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.tir.buffer import Buffer
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.topi.schedule.accel.tiles import divisors
from tilewright.topi.schedule.context import ScheduleContext


@dataclass(frozen=True, slots=True)
class BlockedCopy:
    """A copy of each element to `down` x `across` places."""

    block: BlockHandle
    data: Buffer
    down: int
    across: int
    phases: bool
    """Whether each of the places has channels of its own."""
    shape: tuple[int, ...]


def find_copy(context: ScheduleContext, config: AccelConfig) -> BlockedCopy | str:
    """The copy that a kernel is, else why it is none that the processor makes."""
    sch = context.sch
    (handle, *others) = sch.blocks()
    block = context.block(handle)
    if others or ANCHOR.of(block) is not Anchor.BLOCKED_COPY:
        return "no copy in blocks of channels"
    (data,) = (item.buffer for item in block.reads)
    given, shape = data.static_shape, block.writes[0].buffer.static_shape
    if given is None or shape is None:
        return "sizes are open"
    if shape[4:] != (config.batch, config.block_out):
        return f"its blocks are {shape[4]} x {shape[5]}"
    # Each result of a single row (or column) is a place of its own.
    down, across = [shape[place] if given[place] == 1 else _factor(context, handle, place) for place in (2, 3)]
    if shape[2] % down or shape[3] % across:
        return f"results of {shape[2:4]} are not {down} x {across} for each element"
    return BlockedCopy(handle, data, down, across, given[1] != shape[1], shape)


def _factor(context: ScheduleContext, handle: BlockHandle, place: int) -> int:
    """By what the index of a dimension is divided."""
    indices = context.block(handle).reads[0].region[place].min
    divisions = find_all(indices, FloorDiv)
    return max((const_value(item.b) or 1 for item in divisions), default=1)


def schedule_copy(context: ScheduleContext, config: AccelConfig) -> None:
    """Tiles of rows, loaded once and stored at all their places.

    Before:  out[c, y, x] = data[c, y / 2, x / 2]
    After:   for tiles: for threads:
               load OUT
               for p, q: out[c, y * 2 + p, x * 2 + q] = OUT            (STORE, with strides)
    """
    found = find_copy(context, config)
    assert isinstance(found, BlockedCopy)
    sch = context.sch
    threads = context.choose("threads", (1, 2), 2)
    n, c, y, x, rows, lanes = sch.get_loops(found.block)
    y, p = sch.split(y, [None, found.down])
    x, q = sch.split(x, [None, found.across])
    height, width = found.shape[2] // found.down, found.shape[3] // found.across
    most = config.depth[Memory.OUT] // (width * threads)
    if not most:
        raise ScheduleError("no row of the copy fits in the memory of results", func=sch.func)
    tiles, within = sch.split(y, [None, max(item for item in divisors(height) if item <= most)])
    outer = [n, c, tiles]
    extents = context.sizes(outer)
    thread = next((number for number in (1, 2, 0) if extents[number] % 2 == 0), None) if threads == 2 else None
    places = [p, q]
    # Channels of their own are loaded for each place; what is the same at all places once.
    outer += places if found.phases else []
    if thread is not None:
        outer[thread], inner = sch.split(outer[thread], [None, 2])
        outer.append(inner)
    sch.reorder(*outer, *([] if found.phases else places), within, x, rows, lanes)
    loaded = sch.cache_read(found.block, found.data.name, OUT)
    sch.compute_at(loaded, outer[-1])
    for loop in places:
        sch.unroll(loop)
    if thread is not None:
        sch.bind(outer[-1], "vthread")
