"""What all mappings of an online softmax to threads share: each stage by rows, threads of a row and columns.

A warp has some rows; the threads of a row are neighbours, and each has some runs of its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.intrinsics.rows import combine_row
from tilewright.topi.intrinsics.tensor_core import Layout
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.attention.online_softmax import use_online_softmax
from tilewright.topi.schedule.gpu.attention.sizes import AttentionSizes, AttentionTile
from tilewright.topi.schedule.gpu.matrix_form import lanes_along

WARP = 32
_MERGED = 64
"""Results of a block of threads that merges parts."""
_SHARED_BY_SLICES = ("keys_shared", "values_shared", "mask_shared", "part_max", "part_sum", "result")
"""Stages that all slices compute together."""


@dataclass(frozen=True, slots=True)
class RowMapping:
    """Rows of a block: warps, what a thread has of a warp's rows (outermost first), and threads beside each other."""

    warps: int
    own: tuple[int, ...]
    threads: int
    copying: int = 0
    """Warps that copy tiles for all; 0 if all do."""

    @property
    def count(self) -> int:
        """Rows of a warp."""
        return prod(self.own) * self.threads


class ThreadMapping:
    """One attention being mapped to threads: the schedule goes on with the program of `online_softmax.py`."""

    def __init__(
        self, context: ScheduleContext, sizes: AttentionSizes, tile: AttentionTile, rows: RowMapping, stages: int
    ) -> None:
        self.context, self.sch, self.sizes, self.tile, self.rows = context, context.sch, sizes, tile, rows
        self.stages = stages
        blocks = use_online_softmax(self.sch, tile)
        self.stage = {handle.name.removeprefix("attention_"): handle for handle in blocks}
        loops = self.sch.get_loops(self.stage["keys_shared"])[:-2]
        self.step = loops.pop()
        self.block = self._blocks(loops)
        """The loop just around what a block computes at a time."""
        self.count = sum(self.step in self.sch.get_loops(handle) for handle in self.stage.values())
        """Stages of a step of keys."""
        if "mask_shared" in self.stage:
            vector = 16 // sizes.mask_bytes
            self.copy("mask_shared", vector, vector if sizes.masks_rows else 0)

    def _blocks(self, loops: Sequence[LoopHandle]) -> LoopHandle:
        """Blocks of threads, and the loop over the turns of each: where tiles see more and more keys, a block has the
        first of one head, the last of another, and so on, and all have as much to do."""
        sch = self.sch
        block = sch.fuse(*loops[:3])
        sch.bind(block, "blockIdx.x")
        if len(loops) == 3:
            return block
        turn = sch.fuse(*loops[3:])
        sch.parallel(turn)
        if self.sizes.diagonals is not None:
            sch.zigzag(block)
        return turn

    def scores(self) -> tuple[str, ...]:
        """The stage of scores, where they are not the products; or that which leaves keys out, in place."""
        return tuple(name for name in ("scores", "hidden") if name in self.stage)

    def other_scores(self) -> tuple[str, ...]:
        """The stage of scores that are not the products."""
        return ("scores",) if "scores" in self.stage else ()

    def below(self, name: str) -> list[LoopHandle]:
        """The loops of a stage inside a block of threads and, if it is there, the loop over tiles of keys.

        A loop over slices is bound here.
        """
        loops = self.sch.get_loops(self.stage[name])
        place = self.step if self.step in loops else self.block
        inside = loops[loops.index(place) + 1 :]
        if self.tile.slices > 1 and name not in _SHARED_BY_SLICES:
            self.sch.bind(inside.pop(0), "threadIdx.z")
        return inside

    def set_layout(self, handle: BlockHandle, layout: Layout) -> None:
        """Arrange what a stage writes."""
        buffer = self.context.block(handle).writes[0].buffer
        self.sch.transform_layout(handle, buffer.name, IndexMap.of(layout, buffer.ndim))

    def bind_warps(self, warp: LoopHandle) -> None:
        """A loop over warps."""
        if self.rows.warps > 1:
            self.sch.bind(warp, "threadIdx.y")

    def bind_copying(self, warp: LoopHandle) -> None:
        """A loop over the warps that copy."""
        self.bind_warps(warp)

    def bind(self, warp: LoopHandle, *threads: LoopHandle) -> None:
        """Loops over warps and the threads of each."""
        self.bind_warps(warp)
        self.sch.bind(self.sch.fuse(*threads), "threadIdx.x")

    def unroll(self, *loops: LoopHandle) -> None:
        """Loops over what a thread has in registers."""
        for loop in loops:
            self.sch.unroll(loop)

    def split_rows(self, loop: LoopHandle) -> tuple[LoopHandle, list[LoopHandle], LoopHandle]:
        """Rows as warps, those of a thread, and threads."""
        warp, *own, thread = self.sch.split(loop, [self.rows.warps, *self.rows.own, self.rows.threads])
        return warp, own, thread

    def copy(self, name: str, vector: int, padding: int = 0) -> None:
        """Copy a tile to shared memory, in vectors where possible; rows padded by some elements lie in other banks."""
        sch, handle = self.sch, self.stage[name]
        lanes = lanes_along(self.context, handle, len(self.context.block(handle).iters) - 1, vector)
        outer, inner = self.below(name)
        lane: LoopHandle | None = None
        if lanes > 1:
            inner, lane = sch.split(inner, [None, lanes])
        self.spread(outer, inner)
        if lane is not None:
            sch.vectorize(lane)
        if padding:
            sch.storage_align(handle, 0, -2, 2 * padding, padding)

    def spread(self, outer: LoopHandle, inner: LoopHandle) -> None:
        """Divide rows of vectors over all threads that copy: a warp has some neighbours of several rows."""
        beside, warps = gcd(self.context.extent(inner) or 1, WARP), self.rows.copying or self.rows.warps
        own, part, warp, row_thread = self.sch.split(outer, [None, self.tile.slices, warps, WARP // beside])
        again, thread = self.sch.split(inner, [None, beside])
        self.sch.reorder(own, again, part, warp, row_thread, thread)
        self.unroll(own, again)
        if self.tile.slices > 1:
            self.sch.bind(part, "threadIdx.z")
        self.bind_copying(warp)
        self.sch.bind(self.sch.fuse(row_thread, thread), "threadIdx.x")

    def map_merge(self, run: int) -> None:
        """The partial results of slices, and the result, in vectors over all threads."""
        self.map_scores(("mixed_shared",), run)
        self.sch.storage_align(self.stage["mixed_shared"], 0, -2, 16, 8)
        row, column = self.below("result")
        vector = gcd(self.sizes.width, 4)
        column, lane = self.sch.split(column, [None, vector])
        self.spread(row, column)
        if vector > 1:
            self.sch.vectorize(lane)

    def map_parts(self) -> None:
        """The kernel that merges parts: each thread has a result."""
        loops = self.sch.get_loops(self.stage["merged"])
        block, thread = self.sch.split(self.sch.fuse(*loops[:4]), [None, _MERGED])
        self.sch.bind(block, "blockIdx.x")
        self.sch.bind(thread, "threadIdx.x")
        for name in ("best_part", "merged_sum", "merged"):
            self.unroll(self.sch.get_loops(self.stage[name])[-1])

    def map_scores(self, names: Sequence[str], run: int) -> None:
        """Stages of every row and column, of which a thread has runs."""
        for name in names:
            row, column = self.below(name)
            warp, own, row_thread = self.split_rows(row)
            number, thread, element = self.sch.split(column, [None, self.tile.row_threads, run])
            self.sch.reorder(warp, row_thread, thread, *own, number, element)
            self.bind(warp, row_thread, thread)
            self.unroll(*own, number)
            if name == "result" and run > 1 and self.sizes.width % run == 0:
                self.sch.vectorize(element)
            else:
                self.sch.unroll(element)

    def map_rows(self) -> None:
        """Stages of every row and thread of it."""
        starts = ("largest_start", "total_start", "own_start")
        merged = ("peaks_shared", "best", "weight", "portions_shared") if self.tile.slices > 1 else ()
        left = ("part_max", "part_sum") if self.tile.parts > 1 else ("inverse",) if self.tile.divides_rows else ()
        for name in (*starts, "largest", "shift", "shrink", "total_shrunk", *merged, *left):
            row, thread = self.below(name)
            warp, own, row_thread = self.split_rows(row)
            self.sch.reorder(warp, row_thread, thread, *own)
            self.bind(warp, row_thread, thread)
            self.unroll(*own)

    def map_row_reductions(self) -> None:
        """What each thread of a row reduces of its columns."""
        for name in ("own", "total_own"):
            row, thread, number, element = self.below(name)
            warp, own, row_thread = self.split_rows(row)
            self.sch.reorder(warp, row_thread, thread, *own, number, element)
            self.bind(warp, row_thread, thread)
            self.unroll(*own, number, element)

    def map_all_reductions(self) -> None:
        """What the threads of a row reduce together."""
        for name, largest in (("top", True), ("sums", False)):
            warp, own, row_thread = self.split_rows(self.below(name)[0])
            self.sch.tensorize(row_thread, combine_row(largest, self.tile.row_threads))
            self.bind_warps(warp)
            self.unroll(*own)

    def pipeline(self) -> None:
        """Copies of keys and values run ahead."""
        if self.stages > 1:
            copies = 3 if "mask_shared" in self.stage else 2
            self.sch.software_pipeline(self.step, [0] * copies + [self.stages - 1] * (self.count - copies))
