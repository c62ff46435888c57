"""Attention on tensor cores: scores are fragments in the registers of warps from their product to the next one.

for tile of queries in blocks:                              (program: `attention_stream.py`)
    queries_held = fragments of queries
    for tile of keys:                                       (the next tiles of keys and values are under way meanwhile)
        for warps: scores += queries_held * fragments of keys           (ldmatrix, mma)
        largest, shrink, powers, total: where the scores lie; the four threads of a row exchange its maximum
        for warps: mixed = mixed * shrink + rounded powers * fragments of values

The sums of one product lie as the rows' operand of the next has to: thread by thread, rounding is all there is between.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.schedule.schedule import Schedule
from tilewright.topi.intrinsics.rows import PARTS, combine_row, load_turned, round_pairs, row_layout, turned_layout
from tilewright.topi.intrinsics.tensor_core import COLUMNS, ROWS, Layout, WarpProduct, warp_product
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.register_tiles import loops_below
from tilewright.topi.schedule.gpu.attention_stream import (
    AttentionSizes,
    AttentionTile,
    streamed_attention,
    whole,
)
from tilewright.topi.schedule.gpu.matrix_form import lanes_along


@dataclass(frozen=True, slots=True)
class AttentionWarps:
    """How attention is divided over warps."""

    rows: int
    """Queries of a warp."""
    warps: int
    keys: int
    """Keys of a tile."""
    stages: int = 2
    """Tiles of keys and values in shared memory: one is computed with, the others are on their way."""

    @property
    def answer(self) -> tuple[int, ...]:
        """The tile as an answer of a tuner."""
        return self.rows, self.warps, self.keys, self.stages

    def shared_bytes(self, sizes: AttentionSizes, item: WarpProduct) -> int:
        """Shared memory that a block needs: rows are padded by 16 bytes against bank conflicts."""
        depth, width = whole(sizes.depth, ROWS), whole(sizes.width, ROWS)
        padding = 16 // item.row.itemsize
        rows = self.rows * self.warps * (depth + padding)
        return item.row.itemsize * (rows + self.stages * self.keys * (depth + width + 2 * padding))


def schedule_attention_warps(context: ScheduleContext, sizes: AttentionSizes) -> bool:
    """Compute an attention of 16-bit types by warps; False where the GPU does not have what it takes.

    The schedule goes on with the program of `attention_stream.py`.
    """
    dtype = context.sch.func.buffers[0].dtype
    item = warp_product(context.target, dtype, dtype) if dtype.bits == 16 else None
    if item is None:
        return False
    options = [tile for tile in _TILES if tile.shared_bytes(sizes, item) <= context.target.shared_bytes]
    if not options:
        return False
    default = _default(context, sizes, options)
    tile = AttentionWarps(*context.choose("attention_tile", [tile.answer for tile in options], default.answer))
    divide_over_warps(context, sizes, item, tile)
    return True


_TILES = tuple(
    AttentionWarps(rows, warps, keys, stages)
    for rows, warps in ((16, 1), (16, 2), (16, 4), (16, 8), (32, 2), (32, 4))
    for keys in (32, 64, 128)
    for stages in (2, 3)
    if rows * keys <= 2048
)


def _default(context: ScheduleContext, sizes: AttentionSizes, options: list[AttentionWarps]) -> AttentionWarps:
    """Large tiles where there is work for all cores: they read keys and values less often."""
    heads = sizes.batch * sizes.heads
    for rows, warps in ((32, 4), (16, 4), (16, 2), (16, 1)):
        wanted = AttentionWarps(rows, warps, 64)
        blocks = heads * whole(sizes.queries, rows * warps) // (rows * warps)
        if wanted in options and (blocks >= 2 * context.target.cores or warps == 1):
            return wanted
    return options[0]


def divide_over_warps(context: ScheduleContext, sizes: AttentionSizes, item: WarpProduct, tile: AttentionWarps) -> None:
    """Compute an attention by a tile of warps."""
    blocks = {handle.name: context.block(handle) for handle in context.sch.blocks()}
    depth, width = whole(sizes.depth, item.depth), whole(sizes.width, 2 * COLUMNS)
    shape = AttentionTile(tile.rows * tile.warps, tile.keys, depth, width, PARTS, 2)
    context.sch = Schedule(streamed_attention(context.sch.func, blocks, sizes, shape))
    _Warps(context, item, tile, sizes.width % 2 == 0).schedule()


class _Warps:
    """One attention being divided."""

    def __init__(self, context: ScheduleContext, item: WarpProduct, tile: AttentionWarps, is_even: bool) -> None:
        self.context, self.sch, self.item, self.tile = context, context.sch, item, tile
        self.is_even = is_even
        """Whether pairs of results can be written at once."""
        self.stage = {handle.name.removeprefix("attention_"): handle for handle in self.sch.blocks()}
        self.block, self.step = self._outer()
        self.count = sum(self.step in self.sch.get_loops(handle) for handle in self.stage.values())
        """Stages of a step."""

    def _outer(self) -> tuple[LoopHandle, LoopHandle]:
        """The loop over blocks of threads, and that over tiles of keys."""
        sch = self.sch
        loops = sch.get_loops(self.stage["products"])
        block = sch.fuse(*loops[:3])
        sch.bind(block, "blockIdx.x")
        return block, loops[3]

    def schedule(self) -> None:
        """All stages."""
        self._arrange()
        for name in ("queries_shared", "keys_shared", "values_shared"):
            self._stage(name)
        self._hold_queries()
        self._multiply("products", "keys_shared")
        self._multiply("mixed", "values_shared")
        for name in (
            "largest_start",
            "total_start",
            "own_start",
            "before",
            "largest",
            "shift",
            "shrink",
            "total_shrunk",
        ):
            self._by_parts(name)
        for name in ("mixed_start", "products_start", "scores", "powers", "mixed_shrunk", "result"):
            self._by_cells(name)
        self._round()
        for name in ("own", "total_own"):
            self._own_columns(name)
        for name, largest in (("top", True), ("sums", False)):
            self._combine(name, largest)
        if self.tile.stages > 1 and (self.context.extent(self.step) or 0) > 1:
            self.sch.software_pipeline(self.step, [0, 0, *[self.tile.stages - 1] * (self.count - 2)])

    def _below(self, name: str) -> list[LoopHandle]:
        loops = self.sch.get_loops(self.stage[name])
        place = self.step if self.step in loops else self.block
        return loops[loops.index(place) + 1 :]

    # ---------------------------------------------------------------- where things lie

    def _arrange(self) -> None:
        """Everything that stays in registers gets a dimension for the threads."""
        item = self.item
        layouts: dict[str, Layout] = {
            **dict.fromkeys(("products_start", "scores", "powers", "mixed_start"), item.sums_layout),
            **dict.fromkeys(("queries_held", "rounded"), item.rows_layout),
            **dict.fromkeys(("largest_start", "total_start", "own_start", "top", "sums"), row_layout),
            **dict.fromkeys(("before", "shift", "shrink"), row_layout),
        }
        for name, layout in layouts.items():
            self._lay(self.stage[name], layout)

    def _lay(self, handle: BlockHandle, layout: Layout) -> None:
        buffer = self.context.block(handle).writes[0].buffer
        self.sch.transform_layout(handle, buffer.name, IndexMap.of(layout, buffer.ndim))

    # ---------------------------------------------------------------- stages

    def _bind(self, warp: LoopHandle, *threads: LoopHandle) -> None:
        if self.tile.warps > 1:
            self.sch.bind(warp, "threadIdx.y")
        self.sch.bind(self.sch.fuse(*threads), "threadIdx.x")

    def _stage(self, name: str) -> None:
        """Copy a tile to shared memory, 16 bytes a thread where possible."""
        sch, handle = self.sch, self.stage[name]
        lanes = lanes_along(self.context, handle, len(self.context.block(handle).iters) - 1, self.item.lanes)
        outer, inner = self._below(name)
        lane: LoopHandle | None = None
        if lanes > 1:
            inner, lane = sch.split(inner, [None, lanes])
        own, warp, thread = sch.split(sch.fuse(outer, inner), [None, self.tile.warps, 32])
        self._bind(warp, thread)
        sch.unroll(own)
        if lane is not None:
            sch.vectorize(lane)
        size = self.item.row.itemsize
        sch.storage_align(handle, 0, -2, 32 // size, 16 // size)

    def _rows(self, loop: LoopHandle) -> tuple[LoopHandle, LoopHandle, LoopHandle, LoopHandle]:
        """Rows of a block as warps, tiles, halves and threads."""
        warp, tile, half, thread = self.sch.split(loop, [self.tile.warps, self.tile.rows // ROWS, 2, 8])
        return warp, tile, half, thread

    def _by_cells(self, name: str) -> None:
        """A stage of every row and column, where sums lie."""
        sch = self.sch
        row, column = self._below(name)
        warp, row_tile, half, row_thread = self._rows(row)
        column_tile, column_thread, element = sch.split(column, [None, PARTS, 2])
        sch.reorder(warp, row_thread, column_thread, row_tile, half, column_tile, element)
        self._bind(warp, row_thread, column_thread)
        for loop in (row_tile, half, column_tile):
            sch.unroll(loop)
        if name == "result" and self.is_even:
            sch.vectorize(element)
        else:
            sch.unroll(element)

    def _by_parts(self, name: str) -> None:
        """A stage of every row and part."""
        row, part = self._below(name)
        warp, row_tile, half, row_thread = self._rows(row)
        self.sch.reorder(warp, row_thread, part, row_tile, half)
        self._bind(warp, row_thread, part)
        for loop in (row_tile, half):
            self.sch.unroll(loop)

    def _own_columns(self, name: str) -> None:
        """What each part combines of its columns."""
        row, part, eight, element = self._below(name)
        warp, row_tile, half, row_thread = self._rows(row)
        self.sch.reorder(warp, row_thread, part, row_tile, half, eight, element)
        self._bind(warp, row_thread, part)
        for loop in (row_tile, half, eight, element):
            self.sch.unroll(loop)

    def _combine(self, name: str, largest: bool) -> None:
        """What the threads of a row combine."""
        warp, row_tile, half, row_thread = self._rows(self._below(name)[0])
        self.sch.tensorize(row_thread, combine_row(largest))
        if self.tile.warps > 1:
            self.sch.bind(warp, "threadIdx.y")
        for loop in (row_tile, half):
            self.sch.unroll(loop)

    def _round(self) -> None:
        """Powers as an operand of the next product."""
        sch = self.sch
        row, column = self._below("rounded")
        warp, row_tile, half, row_thread = self._rows(row)
        column_tile, column_inside = sch.split(column, [None, COLUMNS])
        sch.reorder(warp, row_tile, half, column_tile, row_thread, column_inside)
        sch.tensorize(row_thread, round_pairs(self.item.row))
        if self.tile.warps > 1:
            sch.bind(warp, "threadIdx.y")
        for loop in (row_tile, half, column_tile):
            sch.unroll(loop)

    def _hold_queries(self) -> None:
        """Fragments of queries, which stay."""
        sch = self.sch
        row, depth = self._below("queries_held")
        warp, row_tile, row_inside = sch.split(row, [self.tile.warps, self.tile.rows // ROWS, ROWS])
        step, inside = sch.split(depth, [None, self.item.depth])
        sch.reorder(warp, row_tile, step, row_inside, inside)
        sch.tensorize(row_inside, self.item.load_rows)
        if self.tile.warps > 1:
            sch.bind(warp, "threadIdx.y")
        for loop in (row_tile, step):
            sch.unroll(loop)

    def _multiply(self, name: str, operand: str) -> None:
        """A product of fragments: that of the rows is there, those of the columns are read for each slab of steps."""
        sch, item, sums = self.sch, self.item, self.stage[name]
        row, column, steps = self._below(name)
        slab, step_inside = sch.split(steps, [None, item.depth])
        warp, row_tile, row_inside = sch.split(row, [self.tile.warps, self.tile.rows // ROWS, ROWS])
        column_tile, column_inside = sch.split(column, [None, COLUMNS])
        sch.reorder(warp, slab, row_tile, column_tile, row_inside, column_inside, step_inside)
        shared = self.context.block(self.stage[operand]).writes[0].buffer
        fragment = sch.cache_read(sums, shared.name, "local")
        sch.compute_at(fragment, slab, preserve_unit_loops=True)
        turned = operand == "keys_shared"
        *_, first, second = loops_below(self.context, fragment, slab)
        self._lay(fragment, (lambda *index: turned_layout(item, *index)) if turned else item.columns_layout)
        sizes = (2 * COLUMNS, item.depth) if turned else (item.depth, 2 * COLUMNS)
        outer_first, inner_first = sch.split(first, [None, sizes[0]])
        outer_second, inner_second = sch.split(second, [None, sizes[1]])
        sch.reorder(outer_first, outer_second, inner_first, inner_second)
        load = load_turned(item) if turned else item.load_columns
        assert load is not None
        sch.tensorize(inner_first, load)
        sch.tensorize(row_inside, item.multiply)
        if self.tile.warps > 1:
            sch.bind(warp, "threadIdx.y")
        for loop in (slab, row_tile, column_tile, outer_first, outer_second):
            sch.unroll(loop)
