"""Attention in true float32: tiles of scores in the registers of threads, their exponentials by way of shared memory.

for tile of queries in blocks:                              (program: `online_softmax.py`)
    for tile of keys:                                       (the next tiles of keys and values are under way meanwhile)
        for warps, threads: scores[4, 8] += queries_shared * keys_shared
        maximum, rescaling, exponentials, sum: where the scores lie; the eight threads of a row exchange its maximum
        rounded (shared) = exponentials
        for warps, threads: accumulator[4, 8] = accumulator * rescale + rounded * values_shared

A thread has every fourth row of its warp and every eighth key, so that neighbours read neighbouring rows of shared
memory, which lie in different banks; of results it has runs of four.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import PrimExpr
from tilewright.target import Target
from tilewright.target.machine import gpu_parameters
from tilewright.tir.buffer import Buffer
from tilewright.tir.machine import find_instruction
from tilewright.tir.row_instructions import ROW_MAX
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.gpu.attention.sizes import AttentionSizes, AttentionTile, round_up
from tilewright.topi.schedule.gpu.attention.thread_mapping import WARP, RowMapping, ThreadMapping

_ROW_THREADS = 8
"""Threads of a row."""
_VECTOR = 4


@dataclass(frozen=True, slots=True)
class ThreadsTile:
    """How attention is mapped to threads."""

    rows: int
    """Queries of a thread."""
    warps: int
    keys: int
    """Keys of a tile."""
    stages: int = 2
    """Tiles of keys and values in shared memory: one is computed with, the others are on their way."""

    @property
    def queries(self) -> int:
        """Queries of a block."""
        return self.rows * self.warps * (WARP // _ROW_THREADS)

    @property
    def answer(self) -> tuple[int, ...]:
        """The tile as an answer of a tuner."""
        return self.rows, self.warps, self.keys, self.stages

    def shape(self, sizes: AttentionSizes) -> AttentionTile:
        """What a block has at a time."""
        depth, width = round_up(sizes.depth, _VECTOR), round_up(sizes.width, _ROW_THREADS * _VECTOR)
        return AttentionTile(self.queries, self.keys, depth, width, _ROW_THREADS, 1, _VECTOR, False)

    def shared_bytes(self, sizes: AttentionSizes) -> int:
        """Shared memory that a block needs."""
        shape = self.shape(sizes)
        rows = self.queries * (shape.depth + _VECTOR + self.keys + 2 * _VECTOR)
        rows += self.stages * self.keys * (shape.depth + shape.width + 2 * _VECTOR)
        return 4 * rows + self.stages * sizes.mask_tile_bytes(self.queries, self.keys + 16)


_TILES = tuple(
    ThreadsTile(rows, warps, keys, stages)
    for rows in (2, 4, 8)
    for warps in (1, 2, 4, 8)
    for keys in (32, 64)
    for stages in (1, 2)
)


def tile_options(sizes: AttentionSizes, target: Target) -> list[ThreadsTile]:
    """Tiles that fit a target."""
    return [tile for tile in _TILES if tile.shared_bytes(sizes) <= target.shared_bytes]


def preferred_tile(sizes: AttentionSizes, target: Target) -> ThreadsTile:
    """The best tile as measured on an H200: more rows of a thread read keys less often, and take its registers."""
    machine = gpu_parameters(target).attention
    has_registers = sizes.keys >= machine.many_keys and sizes.width <= machine.narrow_values
    return ThreadsTile(8, 2, 64) if has_registers else ThreadsTile(4, 4, 32)


def why_not_threads(sizes: AttentionSizes, query: Buffer, target: Target) -> str | None:
    """Why threads cannot have tiles of scores; None where they can."""
    if query.dtype is not FLOAT32:
        return f"operands are of {query.dtype}, not float32"
    if not find_instruction(ROW_MAX[_ROW_THREADS]).is_on(target):
        return "threads of the target do not exchange registers"
    if sizes.width > gpu_parameters(target).attention.most_tiled_size:
        return f"{sizes.width} elements of a value are too many for registers"
    return None if preferred_tile(sizes, target) in tile_options(sizes, target) else "tiles do not fit shared memory"


def map_to_threads(context: ScheduleContext, sizes: AttentionSizes, tile: ThreadsTile) -> None:
    """Compute an attention by a tile of threads."""
    rows = RowMapping(tile.warps, (tile.rows,), WARP // _ROW_THREADS)
    _BareThreadMapping(context, sizes, tile.shape(sizes), rows, tile.stages).schedule()


class _BareThreadMapping(ThreadMapping):
    """One attention being mapped."""

    def schedule(self) -> None:
        """All stages."""
        self._arrange()
        for name in ("queries_shared", "keys_shared", "values_shared"):
            self.copy(name, _VECTOR, 0 if name == "values_shared" else _VECTOR)
        self._part_rows()
        self._multiply_keys()
        self._multiply_values()
        self.map_rows()
        self.map_scores(("products_start", *self.scores(), "powers", "rounded"), 1)
        self.map_scores(("mixed_start", "mixed_shrunk", "result"), _VECTOR)
        self.map_row_reductions()
        self.map_all_reductions()
        self.pipeline()

    def _arrange(self) -> None:
        """Everything that stays in registers gets a dimension for the threads."""
        for names, run in ((("products_start", *self.other_scores(), "powers"), 1), (("mixed_start",), _VECTOR)):
            for name in names:
                self.set_layout(self.stage[name], partial(self._cells_layout, run))
        for name in ("largest_start", "total_start", "own_start", "top", "sums", "inverse", "shift", "shrink"):
            self.set_layout(self.stage[name], self._row_layout)
        self.sch.set_scope(self.stage["rounded"], 0, "shared")
        # Rows that are written by neighbouring threads, eight elements each, lie in different banks.
        self.sch.storage_align(self.stage["rounded"], 0, -2, 4 * _VECTOR, 2 * _VECTOR)

    def _cells_layout(self, run: int, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """[..., i, j] as [..., warp, run, thread, row of the thread, element of the run]."""
        *outer, i, j = index
        count, threads, span = self.rows.count, self.rows.threads, _ROW_THREADS * run
        thread = i % threads * _ROW_THREADS + j % span // run
        return (*outer, i // count, j // span, thread, i % count // threads, j % run)

    def _row_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """[..., i, part] as [..., warp, thread, row of the thread]."""
        *outer, i, part = index
        count, threads = self.rows.count, self.rows.threads
        return (*outer, i // count, i % threads * _ROW_THREADS + part, i % count // threads)

    def _part_rows(self) -> None:
        """Rows of shared memory that a thread reads get a dimension of their own: it reads nothing between them."""
        rows = self.rows

        def of_queries(*index: PrimExpr) -> tuple[PrimExpr, ...]:
            *outer, i, last = index
            return (*outer, i // rows.threads, i % rows.threads, last)

        def of_keys(*index: PrimExpr) -> tuple[PrimExpr, ...]:
            *outer, j, last = index
            return (*outer, j // _ROW_THREADS, j % _ROW_THREADS, last)

        def of_values(*index: PrimExpr) -> tuple[PrimExpr, ...]:
            *outer, last = index
            return (*outer, last // (_ROW_THREADS * _VECTOR), last % (_ROW_THREADS * _VECTOR))

        self.set_layout(self.stage["queries_shared"], of_queries)
        self.set_layout(self.stage["rounded"], of_queries)
        self.set_layout(self.stage["keys_shared"], of_keys)
        self.set_layout(self.stage["values_shared"], of_values)

    def _near(self, sums: BlockHandle, name: str, place: LoopHandle) -> None:
        """Copy what a thread reads of shared memory to registers, in vectors."""
        shared = self.context.block(self.stage[name]).writes[0].buffer
        near = self.sch.cache_read(sums, shared.name, "local")
        self.sch.compute_at(near, place)
        *outer, last = loops_below(self.context, near, place)
        self.sch.vectorize(last)
        self.unroll(*outer)

    def _multiply_keys(self) -> None:
        """Scores: some rows by some keys, four elements of each at a time."""
        row, column, depth = self.below("products")
        warp, own, row_thread = self.split_rows(row)
        number, part = self.sch.split(column, [None, _ROW_THREADS])
        outer, inner = self.sch.split(depth, [None, _VECTOR])
        self.sch.reorder(warp, row_thread, part, outer, inner, *own, number)
        for name in ("queries_shared", "keys_shared"):
            self._near(self.stage["products"], name, outer)
        self.bind(warp, row_thread, part)
        self.unroll(inner, *own, number)

    def _multiply_values(self) -> None:
        """Results: some rows, runs of four elements, four keys at a time."""
        row, column, key = self.below("mixed")
        warp, own, row_thread = self.split_rows(row)
        number, part, element = self.sch.split(column, [None, _ROW_THREADS, _VECTOR])
        outer, inner = self.sch.split(key, [None, _VECTOR])
        self.sch.reorder(warp, row_thread, part, outer, inner, *own, number, element)
        self._near(self.stage["mixed"], "rounded", outer)
        self._near(self.stage["mixed"], "values_shared", inner)
        self.bind(warp, row_thread, part)
        self.unroll(inner, *own, number, element)
