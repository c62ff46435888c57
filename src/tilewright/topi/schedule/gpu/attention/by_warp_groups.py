"""Attention on Hopper's tensor cores by warp groups: as by warps, but products themselves read keys and values.

Queries, exponentials and sums are fragments in registers (`by_warps.py`); tiles of keys and values lie in shared
memory in swizzled rows of 128 bytes (`intrinsics/group_rows.py`). Products of one group go on while others compute
exponentials, so that a core needs several groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.tir.schedule.handles import LoopHandle
from tilewright.topi.intrinsics.group_rows import PANEL, ROWS, WARPS, HeldProduct
from tilewright.topi.intrinsics.rows import PARTS
from tilewright.topi.intrinsics.tensor_core import WarpProduct
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.attention.by_warps import WarpMapping
from tilewright.topi.schedule.gpu.attention.sizes import AttentionSizes, AttentionTile
from tilewright.topi.schedule.gpu.attention.thread_mapping import RowMapping


@dataclass(frozen=True, slots=True)
class WarpGroupsTile:
    """How attention is mapped to warp groups."""

    groups: int
    """Warp groups of a block: each has 64 queries."""
    keys: int
    """Keys of a tile."""
    stages: int = 2
    """Tiles of keys and values in shared memory: one is computed with, the others are on their way."""

    @property
    def answer(self) -> tuple[int, ...]:
        """The tile as an answer of a tuner."""
        return self.groups, self.keys, self.stages

    def registers(self, sizes: AttentionSizes) -> int:
        """Registers of a thread for queries, sums, scores and exponentials: of 64 rows it has one in 128."""
        return sizes.depth // 4 + sizes.width // 2 + self.keys // 2 + self.keys // 4

    def shared_bytes(self, sizes: AttentionSizes) -> int:
        """Shared memory that a block needs."""
        rows = self.keys * 2 * (sizes.depth + sizes.width)
        return self.stages * (rows + sizes.mask_tile_bytes(self.groups * ROWS, self.keys + 16))


def map_to_warp_groups(
    context: ScheduleContext, sizes: AttentionSizes, item: WarpProduct, tile: WarpGroupsTile
) -> None:
    """Compute an attention by a tile of warp groups; elements of a head are whole panels."""
    shape = AttentionTile(tile.groups * ROWS, tile.keys, sizes.depth, sizes.width, PARTS, 2, 2, True, PANEL)
    rows = RowMapping(tile.groups * WARPS, (1, 2), 8)
    _WarpGroupMapping(context, sizes, shape, rows, tile.stages).schedule(item)


class _WarpGroupMapping(WarpMapping):
    """One attention being mapped."""

    def bind_warps(self, warp: LoopHandle) -> None:
        """Warps of groups."""
        group, inside = self.sch.split(warp, [None, WARPS])
        self.sch.bind(group, "threadIdx.z")
        self.sch.bind(inside, "threadIdx.y")

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
