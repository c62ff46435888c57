"""Attention on Hopper's tensor cores by warp groups: as by warps, but products themselves read keys and values.

Queries, exponentials and sums are fragments in registers (`by_warps.py`); tiles of keys and values lie in shared
memory in swizzled rows of 128 bytes (`intrinsics/group_rows.py`). Products of one group go on while others compute
exponentials, so that a core needs several groups. These are of several blocks, or of one, where a group more copies
keys and values for them (`specialize_warps`): then they need not meet either.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

from tilewright.tir.annotations import BEHIND, PRODUCERS
from tilewright.tir.schedule.handles import LoopHandle
from tilewright.topi.intrinsics.group_rows import PANEL, ROWS, WARPS, HeldProduct
from tilewright.topi.intrinsics.rows import PARTS
from tilewright.topi.intrinsics.tensor_core import WarpProduct
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.attention.by_warps import WarpMapping
from tilewright.topi.schedule.gpu.attention.sizes import AttentionSizes, AttentionTile, round_up
from tilewright.topi.schedule.gpu.attention.thread_mapping import RowMapping

COPYING: Final = {2: (40, 232), 3: (32, 160)}
"""Registers of a thread that copies for others, and of one of these, by the groups that compute: all together."""
_MOST_REGISTERS = 224
"""Registers of a thread for fragments, where compilers are free to choose how many it has."""
_MOST_COUNTED: Final = {2: (208, 200), 3: (144, 128)}
"""The same where a group copies for so many: where products are waited for at once, and where they go on, since their
registers cannot be moved meanwhile. With more, compilers keep some in memory, and wait for every product."""
_LEAST_BUSY = 0.9
"""The part of all multiprocessors that have a block, at least, where blocks compute several tiles."""
_BARRIER_BYTES = 48
"""Bytes of the barriers of a stage: two each for keys, values and masks."""


def whole_panels(sizes: AttentionSizes) -> tuple[int, int]:
    """Elements of a query, and of a value, padded to what products take."""
    return round_up(sizes.depth, PANEL), round_up(sizes.width, PANEL)


@dataclass(frozen=True, slots=True)
class WarpGroupsTile:
    """How attention is mapped to warp groups."""

    groups: int
    """Warp groups of a block: each has 64 queries."""
    keys: int
    """Keys of a tile."""
    stages: int = 2
    """Tiles of keys and values in shared memory: one is computed with, the others are on their way."""
    copying: int = 0
    """Warp groups that do nothing but copy keys and values for the others."""
    behind: int = 0
    """Tiles of keys by which products with values are behind those with keys: they go on during the softmax."""

    @property
    def answer(self) -> tuple[int, ...]:
        """The tile as an answer of a tuner: its last numbers where they are not zeros."""
        more = (self.copying, self.behind) if self.behind else (self.copying,) if self.copying else ()
        return self.groups, self.keys, self.stages, *more

    @property
    def most_registers(self) -> int:
        """Registers of a thread for fragments: the others hold places and what is on its way."""
        if not self.copying:
            return _MOST_REGISTERS
        return _MOST_COUNTED[self.groups][self.behind]

    def registers(self, sizes: AttentionSizes) -> int:
        """Registers of a thread for queries, sums, scores and exponentials: of 64 rows it has one in 128."""
        depth, width = whole_panels(sizes)
        return depth // 4 + width // 2 + self.keys // 2 + self.keys // 4

    def shared_bytes(self, sizes: AttentionSizes) -> int:
        """Shared memory that a block needs."""
        rows = self.keys * 2 * sum(whole_panels(sizes))
        barriers = _BARRIER_BYTES if self.copying else 0
        return self.stages * (rows + sizes.mask_tile_bytes(self.groups * ROWS, self.keys + 16) + barriers)


def turns_of(sizes: AttentionSizes, tile: WarpGroupsTile, cores: int) -> tuple[int, int]:
    """Sequences of which a block computes a tile, one after the other, and heads of each.

    What the next tile needs is copied while results of one are written, and no block has to begin anew. Where tiles
    cannot be divided so, each block has one, and multiprocessors that are done take another.
    """
    tiles = sizes.batch * sizes.heads * -(-sizes.queries // (tile.groups * ROWS))
    sequences, heads = ([n for n in range(1, size + 1) if size % n == 0] for size in (sizes.batch, sizes.heads))
    # Tiles that see many keys and few alternate.
    multiple = 1 if sizes.diagonals is None else 2
    options = [
        turns
        for turns in product(sequences, heads)
        if _LEAST_BUSY * cores <= tiles // prod(turns) <= cores and prod(turns) % multiple == 0
    ]
    return min(options, key=prod) if options and tile.copying else (1, 1)


def map_to_warp_groups(
    context: ScheduleContext, sizes: AttentionSizes, item: WarpProduct, tile: WarpGroupsTile
) -> None:
    """Compute an attention by a tile of warp groups; elements of a head are padded to whole panels."""
    panels, turns = whole_panels(sizes), turns_of(sizes, tile, context.target.cores)
    shape = AttentionTile(tile.groups * ROWS, tile.keys, *panels, PARTS, 2, 2, True, PANEL, 1, 0, 1, *turns)
    rows = RowMapping(tile.groups * WARPS, (1, 2), 8, WARPS * tile.copying)
    mapping = _WarpGroupMapping(context, sizes, shape, rows, tile.stages)
    mapping.schedule(item)
    if tile.copying:
        context.sch.annotate(mapping.step, PRODUCERS, list(COPYING[tile.groups]))
    if tile.behind:
        context.sch.annotate(mapping.step, BEHIND, ["values_shared"])


class _WarpGroupMapping(WarpMapping):
    """One attention being mapped."""

    def bind_warps(self, warp: LoopHandle) -> None:
        """Warps of groups."""
        group, inside = self.sch.split(warp, [None, WARPS])
        self.sch.bind(group, "threadIdx.z")
        self.sch.bind(inside, "threadIdx.y")

    def bind_copying(self, warp: LoopHandle) -> None:
        """The warps of one group, or of all."""
        if self.rows.copying:
            self.sch.bind(warp, "threadIdx.y")
        else:
            self.bind_warps(warp)

    def copy_operands(self, item: WarpProduct) -> None:
        """Keys and values in swizzled rows."""
        for name in ("keys_shared", "values_shared"):
            self.copy(name, item.lanes)
            self.set_layout(self.stage[name], HeldProduct(item.row, PANEL, PANEL, True).columns_layout)
            self.sch.storage_swizzle(self.stage[name], 0)

    def multiply(self, item: WarpProduct, name: str, operand: str) -> None:
        """A product of a warp group."""
        turned = operand == "keys_shared"
        fresh = name == "products_start"
        columns, steps = (self.tile.keys, PANEL) if turned else (self.tile.width, self.tile.keys)
        row, _, step = self.below(name)
        group, row_inside = self.sch.split(row, [None, ROWS])
        slab, step_inside = self.sch.split(step, [None, steps])
        column = self.below(name)[2]
        self.sch.reorder(group, slab, row_inside, column, step_inside)
        self.sch.tensorize(row_inside, HeldProduct(item.row, columns, steps, turned, fresh).multiply)
        self.sch.bind(group, "threadIdx.z")
        self.unroll(slab)
