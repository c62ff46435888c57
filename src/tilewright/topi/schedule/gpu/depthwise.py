"""Convolutions by channels with large windows: a tile of the image in shared memory, runs of results in registers.

    for blocks of rows, of columns, of channels:
        tile = image                                          (zeros around it, 16 bytes a thread)
        for threads (row, run of pixels, few channels):
            for r: for s, x, c:  sums[x, c] += tile[row + r, run + x + s, c] * weights[r, s, c]
            result = epilogue(sums)

A thread has a run of neighbouring pixels: what it reads of a row serves several of them, and is widened once. Nothing
is asked about borders where sums are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import partial
from itertools import product
from math import hypot

from tilewright.ir.expr import const_value
from tilewright.target import Target
from tilewright.target.machine import gpu_parameters
from tilewright.tir.annotations import WINDOW
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.gpu.matrix_form import lanes_along
from tilewright.topi.schedule.gpu.stage import StageContext, reduce_loops
from tilewright.topi.schedule.template import Template, apply_first_legal

_LEAST_TAPS = 10
"""Taps from which on windows are read from shared memory."""
_LEAST_RESULTS = 4
"""Results of each thread, were all of a device at work, from which on threads have several."""
_COPY_BYTES = 16
"""What a thread copies at once."""
_RUNS = (2, 4, 5, 6, 7, 8, 10, 12, 14)
"""Neighbouring pixels of a thread: as few share what they read, and more have too many registers."""
_LANES = (4, 2)
"""Neighbouring channels of a thread."""
_CHANNEL_BYTES = (32, 256)
"""The fewest and most bytes of a pixel that a block has: memory is moved in 32 of them."""
_THREADS = (64, 512)
"""The fewest and most threads of a block."""
_MOST_SIDE = 32
"""Rows or columns of a block's tile, at most."""
_OPTIONS = 24
"""Tiles that a tuner chooses from."""
_TRIED = 4
"""Tiles that are tried: the first that is legal is taken."""

_COPY = 36
"""Instructions for 16 bytes of a tile: where they lie, whether that is inside, and the copy;"""
_MOVE = 14
"""for those of the next rows."""
_ALONE = 120
"""Instructions of a thread beside sums and copies."""
_RESULT = 3
"""Instructions for each result at the end."""
_LATENCY = 1500
"""Cycles until a tile has been copied and results are written, where nothing else goes on."""
_WARPS_AT_WORK = 3
"""Warps of a quarter of a multiprocessor that keep it busy."""
_L2_BYTES = 24
"""Bytes from the second-level cache for a multiprocessor, each cycle."""


@dataclass(frozen=True, slots=True)
class Window:
    """A convolution by channels, in numbers."""

    images: int
    rows: int
    columns: int
    channels: int
    taps: tuple[int, int]
    strides: tuple[int, int]
    itemsize: int
    """Bytes of an element of the image in memory;"""
    shared_item: int
    """and in shared memory."""


@dataclass(frozen=True, slots=True)
class DepthwiseTile:
    """What a block has of a convolution by channels, and what a thread has of that."""

    rows: int
    columns: int
    channels: int
    run: int
    """Neighbouring pixels of a thread,"""
    lanes: int
    """and channels."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows * (self.columns // self.run) * (self.channels // self.lanes)

    def elements(self, window: Window) -> int:
        """Elements of the image that a block reads."""
        sides = zip((self.rows, self.columns), window.strides, window.taps, strict=True)
        height, width = ((side - 1) * stride + taps for side, stride, taps in sides)
        return height * width * self.channels


def depthwise_tiles(window: Window, target: Target) -> list[DepthwiseTile]:
    """The tiles that fit a target, cheapest first."""
    return sorted(_all_tiles(window, target), key=lambda tile: _cost(window, tile, target))


def _all_tiles(window: Window, target: Target) -> Iterator[DepthwiseTile]:
    vector = _COPY_BYTES // window.itemsize
    least, most = (size // window.itemsize for size in _CHANNEL_BYTES)
    sides = [[n for n in range(1, _MOST_SIDE + 1) if size % n == 0] for size in (window.rows, window.columns)]
    channels = [n for n in range(least, most + 1) if window.channels % n == 0 and n % vector == 0]
    for rows, columns, count, run, lanes in product(*sides, channels, _RUNS, _LANES):
        if columns % run or count % lanes:
            continue
        tile = DepthwiseTile(rows, columns, count, run, lanes)
        fits = tile.elements(window) * window.shared_item <= target.shared_bytes
        if fits and _THREADS[0] <= tile.threads <= min(_THREADS[1], target.max_threads):
            yield tile


def _cost(window: Window, tile: DepthwiseTile, target: Target) -> float:
    """Cycles that a convolution takes by a tile."""
    core = gpu_parameters(target).multiprocessor
    blocks = window.images * (window.rows // tile.rows) * (window.columns // tile.columns)
    blocks *= window.channels // tile.channels
    height, width = window.taps
    row = (tile.run - 1) * window.strides[1] + width
    # Of each row of taps: vectors that are read and widened, of the image and of the weights, and products.
    step = (row + width) * (1 + tile.lanes) + width * tile.run * tile.lanes
    instructions = height * step + _RESULT * tile.run * tile.lanes + _copy_instructions(window, tile) + _ALONE
    registers = (tile.run + width) * tile.lanes + 32
    held = min(
        target.shared_bytes // (tile.elements(window) * window.shared_item + core.block_shared_bytes) or 1,
        core.registers // (registers * tile.threads) or 1,
        core.resident_threads // tile.threads,
    )
    share = -(-blocks // target.cores)
    warps = share * -(-tile.threads // 32)
    at_work = min(share, held) * tile.threads / 32
    idle = max(1.0, _WARPS_AT_WORK * core.partitions / at_work)
    issue = warps * instructions / core.partitions * idle
    shared = warps * height * row * _turns(window, tile)
    memory = share * tile.elements(window) * window.itemsize / _L2_BYTES
    return hypot(issue, shared, memory) + -(-share // held) * _LATENCY


def _copy_instructions(window: Window, tile: DepthwiseTile) -> int:
    """What a thread does to copy its part of the image."""
    rows = (tile.rows - 1) * window.strides[0] + window.taps[0]
    wide = tile.elements(window) * window.itemsize // (rows * _COPY_BYTES)
    together = tile.threads // wide
    return _MOVE * -(-rows // together) if together else _COPY * -(-rows * wide // tile.threads)


def _turns(window: Window, tile: DepthwiseTile) -> int:
    """Cycles in which shared memory gives a warp what its threads read at once: a word of each bank."""
    words: dict[int, set[int]] = {}
    turns = 0
    pitch = tile.elements(window) // ((tile.rows - 1) * window.strides[0] + window.taps[0])
    size = tile.lanes * window.shared_item
    for thread in range(min(32, tile.threads)):
        others, channel = divmod(thread, tile.channels // tile.lanes)
        row, run = divmod(others, tile.columns // tile.run)
        place = row * window.strides[0] * pitch + run * tile.run * window.strides[1] * tile.channels
        first = (place + channel * tile.lanes) * window.shared_item // 4
        for word in range(first, first + max(1, size // 4)):
            words.setdefault(word % 32, set()).add(word)
        if (thread + 1) * size % 128 == 0 or thread == 31:
            turns += max(map(len, words.values()), default=0)
            words = {}
    return turns


# ---------------------------------------------------------------- the template


def _why_not(context: StageContext) -> str | None:
    window = window_of(context, context.stage)
    if isinstance(window, str):
        return window
    if window.taps[0] * window.taps[1] < _LEAST_TAPS:
        return "threads have the whole window in registers"
    many = context.target.cores * context.gpu.elementwise.block_threads * _LEAST_RESULTS
    if window.images * window.rows * window.columns * window.channels < many:
        return "results are few"
    return None if depthwise_tiles(window, context.target) else "no tile fits"


def keeps_image(context: ScheduleContext, handle: BlockHandle) -> bool:
    """Whether the padded image of a convolution is to be kept for this template."""
    return _why_not(StageContext.of(context, handle)) is None


def window_of(context: ScheduleContext, handle: BlockHandle) -> Window | str:
    """The numbers of a convolution by channels, channels last; or why it is none that tiles are for."""
    images = [item for item in context.sch.get_producers(handle) if WINDOW.of(context.block(item))]
    if len(images) != 1 or context.target.is_software:
        return "the stage is no convolution by channels of a padded image, or there is no shared memory"
    block, loops = context.block(handle), context.sch.get_loops(handle)
    spatial = [number for number, item in enumerate(block.iters) if item.kind is IterKind.SPATIAL]
    sizes, taps = context.extents(loops), context.extents(reduce_loops(context, handle))
    if sizes is None or taps is None or len(spatial) != 4 or len(taps) != 2 or len(loops) != len(block.iters):
        return "it has other axes"
    image = context.block(images[0]).writes[0].buffer
    shape = [const_value(size) for size in image.shape]
    vector = _COPY_BYTES // image.dtype.itemsize
    if None in shape or lanes_along(context, handle, spatial[-1], vector) < vector:
        return "channels are not the last axis, or no whole vectors"
    n, rows, columns, channels = (sizes[number] for number in spatial)
    # The padded image is as large as the windows need.
    strides = [
        max(1, (whole or 0) - width) // max(1, count - 1)
        for whole, width, count in zip(shape[1:3], taps, (rows, columns), strict=True)
    ]
    by_row, by_column = (max(1, stride) for stride in strides)
    item = image.dtype.itemsize
    shared = context.target.shared_item(item)
    return Window(n, rows, columns, channels, (taps[0], taps[1]), (by_row, by_column), item, shared)


def _schedule(context: StageContext) -> None:
    window = window_of(context, context.stage)
    assert isinstance(window, Window)
    ranked = depthwise_tiles(window, context.target)
    options = [astuple(tile) for tile in ranked[:_OPTIONS]]
    chosen = DepthwiseTile(*context.choose_again("depthwise_tile", options, options[0]))
    tiles = [chosen, *(tile for tile in ranked[:_TRIED] if tile != chosen)]
    apply_first_legal([partial(_schedule_tile, window=window, tile=tile) for tile in tiles], context)


def _schedule_tile(context: StageContext, window: Window, tile: DepthwiseTile) -> None:
    sch, handle = context.sch, context.stage
    (image,) = (item for item in sch.get_producers(handle) if WINDOW.of(context.block(item)))
    output = context.epilogue or sch.cache_write(handle, 0, "local")
    n, y, x, c = sch.get_loops(output)
    y, row = sch.split(y, [None, tile.rows])
    x, run, pixel = sch.split(x, [None, tile.columns // tile.run, tile.run])
    c, channel, lane = sch.split(c, [None, tile.channels // tile.lanes, tile.lanes])
    sch.reorder(n, y, x, c, row, run, channel, pixel, lane)
    block, thread = sch.fuse(n, y, x, c), sch.fuse(row, run, channel)
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.unroll(pixel)
    sch.vectorize(lane)
    sch.set_scope(handle, 0, "local")
    sch.compute_at(handle, thread)
    _schedule_sums(context, handle, thread)
    sch.set_scope(image, 0, "shared")
    sch.compute_at(image, block, preserve_unit_loops=True)
    _schedule_copy(context, image, block, window, tile)


def _schedule_copy(
    context: ScheduleContext, image: BlockHandle, block: LoopHandle, window: Window, tile: DepthwiseTile
) -> None:
    """The copy of a block's part of the image: whole rows of it, where threads are enough, so that places move on."""
    sch = context.sch
    *_, row, column, channel = loops_below(context, image, block)
    channel, vector = sch.split(channel, [None, _COPY_BYTES // window.itemsize])
    wide = sch.fuse(column, channel)
    rows = tile.threads // (context.extent(wide) or 1)
    if rows:
        turn, some = sch.split(row, [None, rows])
        own = sch.fuse(some, wide)
    else:
        turn, own = sch.split(sch.fuse(row, wide), [None, tile.threads])
    # A thread has all of its turns at once: they do not wait for each other.
    sch.reorder(own, turn)
    sch.bind(own, "threadIdx.x")
    sch.unroll(turn)
    sch.vectorize(vector)


def _schedule_sums(context: ScheduleContext, handle: BlockHandle, thread: LoopHandle) -> None:
    """The loops of a thread's sums: rows of taps outside, and all of a row written out."""
    sch = context.sch
    height, width = reduce_loops(context, handle)
    below = loops_below(context, handle, thread)
    results = [loop for loop in below if loop not in (height, width)]
    sch.reorder(height, width, *results)
    start = sch.decompose_reduction(handle, height)
    for nest in (loops_below(context, handle, height), loops_below(context, start, thread)):
        for loop in nest[:-1]:
            sch.unroll(loop)
        sch.vectorize(nest[-1])


TEMPLATE = Template(
    "depthwise_tile",
    "a convolution by channels with a large window: its part of the image in shared memory, runs of results a thread",
    _why_not,
    _schedule,
)
