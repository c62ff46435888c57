"""Attention on tensor cores: scores are fragments in the registers of warps from their product to the next one.

for tile of queries in blocks:                              (program: `online_softmax.py`)
    queries_held = fragments of queries                     (each thread its own, from global memory)
    for tile of keys:                                       (the next tiles of keys and values are under way meanwhile)
        for warps: scores += queries_held * fragments of keys           (ldmatrix, mma)
        maximum, rescaling, exponentials, sum: where the scores lie; the four threads of a row exchange its maximum
        for warps: accumulator = accumulator * rescale + rounded exponentials * fragments of values

The sums of one product lie as the rows' operand of the next has to: thread by thread, rounding is all there is between.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.tir.schedule.handles import LoopHandle
from tilewright.topi.intrinsics.rows import PARTS, begin_product, load_turned, round_pairs, row_layout, turned_layout
from tilewright.topi.intrinsics.tensor_core import COLUMNS, ROWS, Layout, WarpProduct
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.gpu.attention.sizes import AttentionSizes, AttentionTile, round_up
from tilewright.topi.schedule.gpu.attention.thread_mapping import RowMapping, ThreadMapping


@dataclass(frozen=True, slots=True)
class WarpsTile:
    """How attention is mapped to warps."""

    rows: int
    """Queries of a warp."""
    warps: int
    keys: int
    """Keys of a tile."""
    stages: int = 2
    """Tiles of keys and values in shared memory: one is computed with, the others are on their way."""
    slices: int = 1
    """Groups of warps that each have so many keys of a tile; their results are added up (split-K)."""
    parts: int = 1
    """Blocks that each have a part of the keys; another kernel merges their results."""

    @property
    def answer(self) -> tuple[int, ...]:
        """The tile as an answer of a tuner, with its parts where there are several."""
        parts = (self.parts,) if self.parts > 1 else ()
        return self.rows, self.warps, self.keys, self.stages, self.slices, *parts

    def fills_parts(self, sizes: AttentionSizes) -> bool:
        """Whether every part has keys."""
        each = round_up(-(-sizes.keys // self.parts), self.keys * self.slices)
        return (self.parts - 1) * each < sizes.keys

    def shared_bytes(self, sizes: AttentionSizes, item: WarpProduct) -> int:
        """Shared memory that a block needs: rows are padded by 16 bytes against bank conflicts."""
        depth, width = round_up(sizes.depth, item.depth), round_up(sizes.width, 2 * COLUMNS)
        keys = self.keys * self.slices
        rows = keys * (item.row.itemsize * (depth + width) + 3 * 16)
        merged = self.rows * self.warps * self.slices * (width + 16) * 4 if self.slices > 1 else 0
        return max(self.stages * (rows + sizes.mask_tile_bytes(self.rows * self.warps, keys + 16)), merged)


def map_to_warps(context: ScheduleContext, sizes: AttentionSizes, item: WarpProduct, tile: WarpsTile) -> None:
    """Compute an attention by a tile of warps."""
    depth, width = round_up(sizes.depth, item.depth), round_up(sizes.width, 2 * COLUMNS)
    # A thread has two neighbouring keys of a row; operands of 32 bits have the second four steps further.
    pairs = 0 if item.group == 2 else 2 * PARTS
    shape = AttentionTile(
        tile.rows * tile.warps, tile.keys, depth, width, PARTS, 2, 2, True, item.depth, tile.slices, pairs, tile.parts
    )
    WarpMapping(context, sizes, shape, RowMapping(tile.warps, (tile.rows // ROWS, 2), 8), tile.stages).schedule(item)


class WarpMapping(ThreadMapping):
    """An attention on fragments, being mapped."""

    def schedule(self, item: WarpProduct) -> None:
        """All stages."""
        self._arrange(item)
        self.copy_operands(item)
        self._hold_queries(item)
        self.multiply(item, "products_start", "keys_shared")
        if "products" in self.stage:
            self.multiply(item, "products", "keys_shared")
        self.multiply(item, "mixed", "values_shared")
        self.map_rows()
        self.map_scores(("mixed_start", *self.scores(), "powers", "mixed_shrunk"), 2)
        if self.tile.slices > 1:
            self.map_merge(2)
        else:
            self.map_scores(("result",), 2)
        if self.tile.parts > 1:
            self.map_parts()
        self._round_exponentials(item)
        self.map_row_reductions()
        self.map_all_reductions()
        self.pipeline()

    def copy_operands(self, item: WarpProduct) -> None:
        """Keys and values in shared memory."""
        self.copy("keys_shared", item.lanes, item.lanes)
        # Elements of 32 bits are read one by one, by threads along rows and columns.
        self.copy("values_shared", item.lanes, item.lanes if item.load_columns else 2 * item.lanes)

    def _arrange(self, item: WarpProduct) -> None:
        """Everything that stays in registers gets a dimension for the threads."""
        layouts: dict[str, Layout] = {
            **dict.fromkeys(("products_start", *self.other_scores(), "powers", "mixed_start"), item.sums_layout),
            **dict.fromkeys(("queries_held", "rounded"), item.rows_layout),
            **dict.fromkeys(("largest_start", "total_start", "own_start", "top", "sums"), row_layout),
            **dict.fromkeys(("inverse",) if self.tile.divides_rows else (), row_layout),
            **dict.fromkeys(("shift", "shrink"), row_layout),
            **dict.fromkeys(("best", "weight") if self.tile.slices > 1 else (), row_layout),
        }
        for name, layout in layouts.items():
            self.set_layout(self.stage[name], layout)

    def _round_exponentials(self, item: WarpProduct) -> None:
        """Exponentials as an operand of the next product."""
        row, column = self.below("rounded")
        warp, own, row_thread = self.split_rows(row)
        if item.group == 1:
            eight, half, part = self.sch.split(column, [None, 2, PARTS])
            self.sch.reorder(warp, row_thread, part, *own, eight, half)
            self.bind(warp, row_thread, part)
            self.unroll(*own, eight, half)
            return
        column_tile, column_inside = self.sch.split(column, [None, COLUMNS])
        self.sch.reorder(warp, *own, column_tile, row_thread, column_inside)
        self.sch.tensorize(row_thread, round_pairs(item.row))
        self.bind_warps(warp)
        self.unroll(*own, column_tile)

    def _tiles(self, row: LoopHandle) -> list[LoopHandle]:
        """Rows as warps, tiles, and those inside."""
        return self.sch.split(row, [self.rows.warps, self.rows.own[0], ROWS])

    def _hold_queries(self, item: WarpProduct) -> None:
        """Fragments of queries, which stay: each thread reads its own."""
        row, depth = self.below("queries_held")
        warp, own, row_thread = self.split_rows(row)
        step, half, part, element = self.sch.split(depth, [None, 2, PARTS, item.group])
        self.sch.reorder(warp, row_thread, part, *own, step, half, element)
        self.bind(warp, row_thread, part)
        self.unroll(*own, step, half)
        if self.sizes.depth % item.group == 0:
            self.sch.vectorize(element)
        else:
            self.sch.unroll(element)

    def multiply(self, item: WarpProduct, name: str, operand: str) -> None:
        """A product of fragments: that of the rows is there, those of the columns are read for each slab of steps."""
        sch, sums = self.sch, self.stage[name]
        row, column, steps = self.below(name)
        slab, step_inside = sch.split(steps, [None, item.depth])
        warp, row_tile, row_inside = self._tiles(row)
        column_tile, column_inside = sch.split(column, [None, COLUMNS])
        sch.reorder(warp, slab, row_tile, column_tile, row_inside, column_inside, step_inside)
        shared = self.context.block(self.stage[operand]).writes[0].buffer
        fragment = sch.cache_read(sums, shared.name, "local")
        sch.compute_at(fragment, slab, preserve_unit_loops=True)
        turned = operand == "keys_shared"
        *_, first, second = loops_below(self.context, fragment, slab)
        self.set_layout(fragment, (lambda *index: turned_layout(item, *index)) if turned else item.columns_layout)
        sizes = (2 * COLUMNS, item.depth) if turned else (item.depth, 2 * COLUMNS)
        outer_first, inner_first = sch.split(first, [None, sizes[0]])
        outer_second, inner_second = sch.split(second, [None, sizes[1]])
        sch.reorder(outer_first, outer_second, inner_first, inner_second)
        load = load_turned(item) if turned else item.load_columns
        if load is not None:
            sch.tensorize(inner_first, load)
        else:
            half, part = sch.split(inner_first, [2, PARTS])
            again, column_thread = sch.split(inner_second, [2, COLUMNS])
            sch.reorder(column_thread, part, again, half)
            sch.bind(sch.fuse(column_thread, part), "threadIdx.x")
            self.unroll(again, half)
        sch.tensorize(row_inside, begin_product(item) if name == "products_start" else item.multiply)
        self.bind_warps(warp)
        self.unroll(slab, row_tile, column_tile, outer_first, outer_second)
