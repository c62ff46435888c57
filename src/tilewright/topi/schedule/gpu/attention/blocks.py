"""Blocks of an attention whose keys come in tiles, by what they belong to: a row, a thread of a row, a score.

What all of a row share is held by each of the threads that have the row's scores: of four threads with runs of two
columns each, the second has columns 2 and 3 of every eight. Queries, keys and elements of a head are padded to whole
tiles.

Several slices may each have a part of every tile of keys, and all queries of a block. Until they are merged, they are
heads of their own: slice s of head h is number h * slices + s. So are the parts of the keys that several blocks of
threads have: part p of head h is number h * parts + p, and has keys of its own, numbered from 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.graph.ops.attention import ANY_DIAGONAL
from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.expr import ONE, ZERO, PrimExpr, Range, Var
from tilewright.ir.visit import substitute
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.buffer import Buffer, make_buffer
from tilewright.tir.machine import machine_call
from tilewright.tir.row_instructions import POWER_OF_TWO
from tilewright.tir.stmt import Block, BlockIter, BufferStore, For, IterKind, LoopKind, Stmt
from tilewright.topi.schedule.gpu.attention.sizes import AttentionSizes, AttentionTile, round_up

MINUS_INFINITY = const(-math.inf, FLOAT32)
"""A score that no key has."""
ZERO_FLOAT = const(0.0, FLOAT32)
Axis = tuple[int, IterKind, PrimExpr]
"""An iterator of a stage: its extent, its kind, and its value in terms of loops."""


class AttentionBlocks:
    """Buffers and stages of one attention; its loops over sequences, heads and tiles stand around them."""

    def __init__(self, sizes: AttentionSizes, tile: AttentionTile) -> None:
        self.sizes, self.tile = sizes, tile
        self.rows = round_up(sizes.queries, tile.queries)
        self.part_keys = round_up(-(-sizes.keys // tile.parts), tile.keys * tile.slices)
        """Keys of a part, and among them those that are not there."""
        self.heads = sizes.heads * tile.parts
        """Parts of all heads."""
        self.columns = self.part_keys // tile.slices
        """Keys of a slice."""
        self.tiles = self.columns // tile.keys
        self.key_tile = Var("key_tile")
        self.loops, self.sequence, self.head, self.row_place = self._tiles_of_queries()
        """The loops around a tile of queries, with their extents; where it is."""
        self.buffers: list[Buffer] = []

    def _tiles_of_queries(self) -> tuple[list[tuple[Var, int]], PrimExpr, PrimExpr, PrimExpr]:
        """The loops over tiles of queries; the sequence, the head and the number of a tile in terms of them.

        Where blocks of threads take turns, the loop over the heads of one comes inside of those over blocks.
        """
        sequence, head, row_tile = Var("sequence"), Var("head"), Var("row_tile")
        batch, heads = self.sizes.batch // self.tile.sequence_turns, self.heads // self.tile.head_turns
        loops = [(sequence, batch), (head, heads), (row_tile, self.rows // self.tile.queries)]
        place = self._row_place(row_tile)
        if self.tile.sequence_turns * self.tile.head_turns == 1:
            return loops, sequence, head, place
        turns = Var("sequence_turn"), Var("head_turn")
        loops += zip(turns, (self.tile.sequence_turns, self.tile.head_turns), strict=True)
        counts = self.tile.sequence_turns, self.tile.head_turns
        return loops, sequence * counts[0] + turns[0], head * counts[1] + turns[1], place

    def _row_place(self, row_tile: PrimExpr) -> PrimExpr:
        """The tile of queries of an iteration: from the last on, where later ones see more keys.

        Blocks of threads start in the order of iterations: those with the most tiles of keys come first, and those with
        few fill what the others leave at the end.
        """
        if self.sizes.diagonals is None or self.tile.parts > 1:
            return row_tile
        first, last = self.sizes.diagonals
        is_longer = first <= -ANY_DIAGONAL and last < ANY_DIAGONAL
        return self.rows // self.tile.queries - 1 - row_tile if is_longer else row_tile

    # ---------------------------------------------------------------- pieces

    def _buffer(
        self, name: str, shape: tuple[int, ...], scope: str = "local", dtype: DataType = FLOAT32, sliced: bool = True
    ) -> Buffer:
        """A buffer with a place for each sequence, head and slice."""
        heads = self.heads * (self.tile.slices if sliced else 1)
        buffer = make_buffer(name, (self.sizes.batch, heads, *shape), dtype, scope)
        self.buffers.append(buffer)
        return buffer

    def _head(self, sliced: PrimExpr) -> PrimExpr:
        """The head, or the part of one, of a slice."""
        return sliced if self.tile.slices == 1 else sliced // self.tile.slices

    def _whole_head(self, part: PrimExpr) -> PrimExpr:
        """The head of a part."""
        return part if self.tile.parts == 1 else part // self.tile.parts

    def _of_all(self, part: PrimExpr, key: PrimExpr) -> PrimExpr:
        """The number among all keys of a key of a part."""
        return key if self.tile.parts == 1 else part % self.tile.parts * self.part_keys + key

    def _key_limit(self, part: PrimExpr, key: PrimExpr) -> tuple[PrimExpr, int, int]:
        """A limit: a key of a part is there."""
        return self._of_all(part, key), self.sizes.keys, self.part_keys * self.tile.parts

    def _of_part(self, sliced: PrimExpr, key: PrimExpr) -> PrimExpr:
        """The number among the keys of a part of a key of a slice."""
        if self.tile.slices == 1:
            return key
        count = self.tile.keys
        return (key // count * self.tile.slices + sliced % self.tile.slices) * count + key % count

    def _thread_of(self, element: PrimExpr) -> PrimExpr:
        """Which of the threads of a row has an element of its result."""
        return element % (self.tile.row_threads * self.tile.value_run) // self.tile.value_run

    def _row(self, loop: PrimExpr) -> Axis:
        return self.rows, IterKind.SPATIAL, self.row_place * self.tile.queries + loop

    def _key(self, loop: PrimExpr, kind: IterKind = IterKind.SPATIAL) -> Axis:
        return self.columns, kind, self.key_tile * self.tile.keys + loop

    def _any_key(self, loop: PrimExpr) -> Axis:
        """A key of any slice."""
        return self.part_keys, IterKind.SPATIAL, self.key_tile * (self.tile.keys * self.tile.slices) + loop

    def _step(self, kind: IterKind = IterKind.SPATIAL) -> Axis:
        """The tile of keys."""
        return self.tiles, kind, self.key_tile

    def _inside(self, value: PrimExpr, other: PrimExpr, *limits: tuple[PrimExpr, int, int]) -> PrimExpr:
        """A value where places are within limits; each limit comes with what it is padded to."""
        conditions = [build.lt(place, const(size)) for place, size, padded in limits if size < padded]
        return build.select(build.all_of(conditions), value, other) if conditions else value

    def _stage(
        self,
        name: str,
        loops: Sequence[int],
        axes: Callable[..., Sequence[Axis]],
        store: Callable[..., BufferStore],
        init: Callable[..., BufferStore] | None = None,
        predicate: Callable[..., PrimExpr] | None = None,
        sliced: bool = True,
    ) -> Stmt:
        """Loops around one block: `axes` from loops to iterators, the rest from iterators (sequence, head, ...)."""
        running = [Var(f"{name}_{letter}") for letter in "ijkl"[: len(loops)]]
        heads, head, slices = self.heads, self.head, self.tile.slices
        slice_loop = Var(f"{name}_slice") if sliced and slices > 1 else None
        outer: list[Axis] = [
            (self.sizes.batch, IterKind.SPATIAL, self.sequence),
            (heads, IterKind.SPATIAL, head)
            if slice_loop is None
            else (heads * slices, IterKind.SPATIAL, head * slices + slice_loop),
        ]
        iters = tuple(
            BlockIter(Var(f"v{number}"), Range(ZERO, const(extent)), kind, value)
            for number, (extent, kind, value) in enumerate([*outer, *axes(*running)])
        )
        places = [item.var for item in iters]
        guard = const(True) if predicate is None else substitute(predicate(*places), {i.var: i.value for i in iters})
        block = Block(f"attention_{name}", iters, (), (), store(*places), init(*places) if init else None, guard)
        result: Stmt = with_detected_accesses(block)
        for var, extent in reversed(list(zip(running, loops, strict=True))):
            result = For(var, ZERO, const(extent), LoopKind.SERIAL, result)
        return result if slice_loop is None else For(slice_loop, ZERO, const(slices), LoopKind.SERIAL, result)

    def _seen_tiles(self) -> tuple[PrimExpr, PrimExpr]:
        """The first tile of keys that some query of a tile sees, and how many follow from there on, at least one."""
        if self.sizes.diagonals is None or self.tile.parts > 1:
            return ZERO, const(self.tiles)
        first, last = self.sizes.diagonals
        keys, places = self.tile.keys * self.tile.slices, self.tile.queries // self.sizes.packed
        place = self.row_place * places
        start: PrimExpr = ZERO
        if first > -ANY_DIAGONAL:
            start = build.minimum(build.maximum(place + first, ZERO) // keys, const(self.tiles - 1))
        end: PrimExpr = const(self.tiles)
        if last < ANY_DIAGONAL:
            end = build.minimum(build.maximum(place + (places + last + keys - 1), ZERO) // keys, end)
        return start, build.maximum(end - start, ONE)

    def _hides_keys(self) -> PrimExpr:
        """Whether some query of a tile does not see all keys of a tile, or not all of these are there."""
        keys, places = self.tile.keys * self.tile.slices, self.tile.queries // self.sizes.packed
        place, key = self.row_place * places, self.key_tile * keys
        hidden: list[PrimExpr] = []
        first, last = self.sizes.diagonals or (-ANY_DIAGONAL, ANY_DIAGONAL)
        if first > -ANY_DIAGONAL:
            hidden.append(build.lt(key, place + (places - 1 + first)))
        if last < ANY_DIAGONAL:
            hidden.append(build.lt(place + last, key + (keys - 1)))
        if self.sizes.keys < self.part_keys:
            hidden.append(build.lt(const(self.sizes.keys), key + keys))
        return build.any_of(hidden)

    # ---------------------------------------------------------------- stages

    def _per_score(
        self, name: str, buffer: Buffer, value: Callable[..., PrimExpr], where: PrimExpr | None = None
    ) -> Stmt:
        """A value for each query and key of a tile, of all tiles or `where` something holds of them."""

        def axes(i: PrimExpr, j: PrimExpr) -> Sequence[Axis]:
            return [self._row(i), self._key(j)]

        def store(*place: PrimExpr) -> BufferStore:
            return BufferStore(buffer, place, value(*place))

        predicate = None if where is None else lambda *place: where
        return self._stage(name, [self.tile.queries, self.tile.keys], axes, store, predicate=predicate)

    def _per_row(
        self,
        buffer: Buffer,
        value: Callable[..., PrimExpr],
        extent: int,
        *,
        by_tile: bool = False,
        name: str = "",
        sliced: bool = True,
    ) -> Stmt:
        """What belongs to each row and thread, or to each row and element: (b, h, i, thread), and the tile of keys."""

        def axes(i: PrimExpr, thread: PrimExpr) -> Sequence[Axis]:
            step = [self._step()] if by_tile else []
            return [*step, self._row(i), (extent, IterKind.SPATIAL, thread)]

        def store(*place: PrimExpr) -> BufferStore:
            return BufferStore(buffer, place, value(*place))

        return self._stage(name or buffer.name, [self.tile.queries, extent], axes, store, sliced=sliced)

    def _update(self, name: str, buffer: Buffer, extent: int, value: Callable[..., PrimExpr]) -> Stmt:
        """A change in place of what belongs to each row and thread, or element, with each tile of keys."""

        def axes(i: PrimExpr, thread: PrimExpr) -> Sequence[Axis]:
            return [self._row(i), (extent, IterKind.SPATIAL, thread), self._step(IterKind.REDUCE)]

        def store(b: PrimExpr, h: PrimExpr, i: PrimExpr, thread: PrimExpr, step: PrimExpr) -> BufferStore:
            return BufferStore(buffer, (b, h, i, thread), value(buffer[b, h, i, thread], b, h, step, i, thread))

        return self._stage(name, [self.tile.queries, extent], axes, store)

    def _matmul(
        self,
        name: str,
        sums: Buffer,
        columns: tuple[int, Callable[[PrimExpr], Axis]],
        steps: tuple[int, Callable[[PrimExpr], Axis]],
        operands: Callable[..., tuple[PrimExpr, PrimExpr]],
        starts: bool = False,
    ) -> Stmt:
        """Sums of products; they must be zeros before, or what is added to, unless it starts them."""

        def init(b: PrimExpr, h: PrimExpr, i: PrimExpr, j: PrimExpr, k: PrimExpr) -> BufferStore:
            return BufferStore(sums, (b, h, i, j), ZERO_FLOAT)

        def store(b: PrimExpr, h: PrimExpr, i: PrimExpr, j: PrimExpr, k: PrimExpr) -> BufferStore:
            left, right = operands(b, h, i, j, k)
            return BufferStore(sums, (b, h, i, j), sums[b, h, i, j] + cast(left, FLOAT32) * cast(right, FLOAT32))

        def axes(i: PrimExpr, j: PrimExpr, k: PrimExpr) -> Sequence[Axis]:
            return [self._row(i), columns[1](j), steps[1](k)]

        return self._stage(name, [self.tile.queries, columns[0], steps[0]], axes, store, init if starts else None)

    def _reduce_columns(
        self,
        name: str,
        buffer: Buffer,
        value: Callable[[PrimExpr, PrimExpr], PrimExpr],
        source: Buffer,
        *,
        by_tile: bool,
    ) -> Stmt:
        """What each thread of a row reduces of its columns of a tile, with what is there before."""
        threads, span, run = self.tile.row_threads, self.tile.key_span, self.tile.key_run
        runs = self.tile.keys // span

        def axes(i: PrimExpr, thread: PrimExpr, number: PrimExpr, element: PrimExpr) -> Sequence[Axis]:
            return [
                self._row(i),
                (threads, IterKind.SPATIAL, thread),
                (self.columns // span, IterKind.REDUCE, self.key_tile * runs + number),
                (run, IterKind.REDUCE, element),
                *([self._step()] if by_tile else []),
            ]

        def store(
            b: PrimExpr,
            h: PrimExpr,
            i: PrimExpr,
            thread: PrimExpr,
            number: PrimExpr,
            element: PrimExpr,
            *step: PrimExpr,
        ) -> BufferStore:
            place = (b, h, *step, i, thread)
            return BufferStore(
                buffer, place, value(buffer[place], source[b, h, i, number * span + thread * run + element])
            )

        return self._stage(name, [self.tile.queries, threads, runs, run], axes, store)

    def _all_reduce(self, buffer: Buffer, held: Buffer, *, is_max: bool, by_tile: bool) -> Stmt:
        """What the threads of a row hold, reduced to one value that each of them gets."""
        threads = self.tile.row_threads

        def axes(i: PrimExpr, thread: PrimExpr, other: PrimExpr) -> Sequence[Axis]:
            places = [self._row(i), (threads, IterKind.SPATIAL, thread), (threads, IterKind.REDUCE, other)]
            return [*places, self._step()] if by_tile else places

        def store(
            b: PrimExpr, h: PrimExpr, i: PrimExpr, thread: PrimExpr, other: PrimExpr, *step: PrimExpr
        ) -> BufferStore:
            old, more = buffer[(b, h, *step, i, thread)], held[(b, h, *step, i, other)]
            return BufferStore(buffer, (b, h, *step, i, thread), build.maximum(old, more) if is_max else old + more)

        def init(
            b: PrimExpr, h: PrimExpr, i: PrimExpr, thread: PrimExpr, other: PrimExpr, *step: PrimExpr
        ) -> BufferStore:
            return BufferStore(buffer, (b, h, *step, i, thread), MINUS_INFINITY if is_max else ZERO_FLOAT)

        return self._stage(buffer.name, [self.tile.queries, threads, threads], axes, store, init)


def exp2(exponent: PrimExpr) -> PrimExpr:
    """A power of two."""
    return machine_call(POWER_OF_TWO, exponent)


def unless_masked(largest: PrimExpr, value: PrimExpr, masked: PrimExpr) -> PrimExpr:
    """A value, or another one for queries all of whose keys are masked."""
    return build.select(build.eq(largest, MINUS_INFINITY), masked, value)


def inverse_of(row_sum: PrimExpr) -> PrimExpr:
    """What an element of the accumulator is multiplied with, by the sum of exponentials."""
    return const(1.0, FLOAT32) / row_sum
