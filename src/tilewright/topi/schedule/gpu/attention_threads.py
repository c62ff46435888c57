"""Attention in true float32: tiles of scores in the registers of threads, their powers by way of shared memory.

for tile of queries in blocks:                              (program: `attention_stream.py`)
    for tile of keys:                                       (the next tiles of keys and values are under way meanwhile)
        for warps, threads: scores[4, 8] += queries_shared * keys_shared
        largest, shrink, powers, total: where the scores lie; the eight threads of a row exchange its maximum
        rounded (shared) = powers
        for warps, threads: mixed[4, 8] = mixed * shrink + rounded * values_shared

A thread has every fourth row of its warp and every eighth key, so that neighbours read neighbouring rows of shared
memory, which lie in different banks; of results it has runs of four.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import PrimExpr
from tilewright.tir.machine import find_instruction
from tilewright.tir.row_instructions import ROW_MAX
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.gpu.attention_division import WARP, Division, Rows
from tilewright.topi.schedule.gpu.attention_operands import operands_of
from tilewright.topi.schedule.gpu.attention_tile import AttentionSizes, AttentionTile, whole

_PARTS = 8
"""Threads of a row."""
_VECTOR = 4
_MOST_SIZE = 128
"""Elements of a head up to which results stay in registers."""


@dataclass(frozen=True, slots=True)
class AttentionThreads:
    """How attention is divided over threads."""

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
        return self.rows * self.warps * (WARP // _PARTS)

    @property
    def answer(self) -> tuple[int, ...]:
        """The tile as an answer of a tuner."""
        return self.rows, self.warps, self.keys, self.stages

    def shape(self, sizes: AttentionSizes) -> AttentionTile:
        """What a block has at a time."""
        depth, width = whole(sizes.depth, _VECTOR), whole(sizes.width, _PARTS * _VECTOR)
        return AttentionTile(self.queries, self.keys, depth, width, _PARTS, 1, _VECTOR, False)

    def shared_bytes(self, sizes: AttentionSizes) -> int:
        """Shared memory that a block needs."""
        shape = self.shape(sizes)
        rows = self.queries * (shape.depth + _VECTOR + self.keys + 2 * _VECTOR)
        rows += self.stages * self.keys * (shape.depth + shape.width + 2 * _VECTOR)
        return 4 * rows + self.stages * sizes.tile_bytes(self.queries, self.keys + 16)


_TILES = tuple(
    AttentionThreads(rows, warps, keys, stages)
    for rows in (2, 4, 8)
    for warps in (1, 2, 4, 8)
    for keys in (32, 64)
    for stages in (1, 2)
)


def schedule_attention_threads(context: ScheduleContext, sizes: AttentionSizes) -> bool:
    """Compute a float32 attention by threads; False where the GPU does not have what it takes."""
    target = context.target
    blocks = {handle.name: context.block(handle) for handle in context.sch.blocks()}
    is_float = operands_of(blocks)[0].dtype is FLOAT32
    if not is_float or not find_instruction(ROW_MAX[_PARTS]).is_on(target) or sizes.width > _MOST_SIZE:
        return False
    options = [tile for tile in _TILES if tile.shared_bytes(sizes) <= target.shared_bytes]
    # As measured on an H200: more rows of a thread read keys less often, and take its registers.
    is_long = sizes.keys >= 512 and sizes.width <= 64
    default = AttentionThreads(8, 2, 64) if is_long else AttentionThreads(4, 4, 32)
    if default not in options:
        return False
    tile = AttentionThreads(*context.choose("attention_threads", [tile.answer for tile in options], default.answer))
    divide_over_threads(context, sizes, tile)
    return True


def divide_over_threads(context: ScheduleContext, sizes: AttentionSizes, tile: AttentionThreads) -> None:
    """Compute an attention by a tile of threads."""
    rows = Rows(tile.warps, (tile.rows,), WARP // _PARTS)
    _Threads(context, sizes, tile.shape(sizes), rows, tile.stages).schedule()


class _Threads(Division):
    """One attention being divided."""

    def schedule(self) -> None:
        """All stages."""
        self._arrange()
        for name in ("queries_shared", "keys_shared", "values_shared"):
            self.copy(name, _VECTOR, 0 if name == "values_shared" else _VECTOR)
        self._part_rows()
        self._multiply_keys()
        self._multiply_values()
        self.by_parts()
        self.by_cells(("products_start", *self.scores(), "powers", "rounded"), 1)
        self.by_cells(("mixed_start", "mixed_shrunk", "result"), _VECTOR)
        self.over_columns()
        self.combine()
        self.pipeline()

    def _arrange(self) -> None:
        """Everything that stays in registers gets a dimension for the threads."""
        for names, run in ((("products_start", *self.scores(), "powers"), 1), (("mixed_start",), _VECTOR)):
            for name in names:
                self.lay(self.stage[name], partial(self._cells_layout, run))
        for name in ("largest_start", "total_start", "own_start", "top", "sums", "shift", "shrink"):
            self.lay(self.stage[name], self._row_layout)
        self.sch.set_scope(self.stage["rounded"], 0, "shared")
        # Rows that are written by neighbouring threads, eight elements each, lie in different banks.
        self.sch.storage_align(self.stage["rounded"], 0, -2, 4 * _VECTOR, 2 * _VECTOR)

    def _cells_layout(self, run: int, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """[..., i, j] as [..., warp, run, thread, row of the thread, element of the run]."""
        *outer, i, j = index
        count, threads, span = self.rows.count, self.rows.threads, _PARTS * run
        thread = i % threads * _PARTS + j % span // run
        return (*outer, i // count, j // span, thread, i % count // threads, j % run)

    def _row_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """[..., i, part] as [..., warp, thread, row of the thread]."""
        *outer, i, part = index
        count, threads = self.rows.count, self.rows.threads
        return (*outer, i // count, i % threads * _PARTS + part, i % count // threads)

    def _part_rows(self) -> None:
        """Rows of shared memory that a thread reads get a dimension of their own: it reads nothing between them."""
        rows = self.rows

        def of_queries(*index: PrimExpr) -> tuple[PrimExpr, ...]:
            *outer, i, last = index
            return (*outer, i // rows.threads, i % rows.threads, last)

        def of_keys(*index: PrimExpr) -> tuple[PrimExpr, ...]:
            *outer, j, last = index
            return (*outer, j // _PARTS, j % _PARTS, last)

        def of_values(*index: PrimExpr) -> tuple[PrimExpr, ...]:
            *outer, last = index
            return (*outer, last // (_PARTS * _VECTOR), last % (_PARTS * _VECTOR))

        self.lay(self.stage["queries_shared"], of_queries)
        self.lay(self.stage["rounded"], of_queries)
        self.lay(self.stage["keys_shared"], of_keys)
        self.lay(self.stage["values_shared"], of_values)

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
        number, part = self.sch.split(column, [None, _PARTS])
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
        number, part, element = self.sch.split(column, [None, _PARTS, _VECTOR])
        outer, inner = self.sch.split(key, [None, _VECTOR])
        self.sch.reorder(warp, row_thread, part, outer, inner, *own, number, element)
        self._near(self.stage["mixed"], "rounded", outer)
        self._near(self.stage["mixed"], "values_shared", inner)
        self.bind(warp, row_thread, part)
        self.unroll(inner, *own, number, element)
