"""Methods of `Schedule` about the inside of blocks: their iterators and what they compute, done in other files."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.tir.index_map import IndexMap, MapLike
from tilewright.tir.schedule import epilogue, iterators
from tilewright.tir.schedule.base import ScheduleBase
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle


class BlockMethods(ScheduleBase):
    """Other iterators for a block, and more work in it."""

    def transform_block_layout(self, block: BlockHandle, index_map: MapLike) -> list[LoopHandle]:
        """Give a block other iterators, which a map makes of the old ones, and a loop for each; gives the loops.

        for i in 8, j in 12: B(i, j)  ->  for i in 8, n in 3, m in 4: B(i, n * 4 + m)   lambda i, j: (i, j // 4, j % 4)
        """
        node = self._block(block, "transform_block_layout")
        rank = len(node.iters)
        chosen = IndexMap.given(index_map, rank, f"block {node.name} of {rank} iterators")
        text = chosen.to_text()
        result = [LoopHandle(var) for var in iterators.transform_block_layout(self._state, node, chosen)]
        self._record("transform_block_layout", [block], {"index_map": text}, result)
        return result

    def reorder_block_iter_var(self, block: BlockHandle, new_order: Sequence[int]) -> None:
        """Name the iterators of a block in another order; its loops and what it computes stay.

        vi, vj = spatial(8, i), spatial(12, j)  ->  vj, vi = spatial(12, j), spatial(8, i)     new_order = [1, 0]
        """
        node = self._block(block, "reorder_block_iter_var")
        iterators.reorder_block_iter_var(self._state, node, [int(number) for number in new_order])
        self._record("reorder_block_iter_var", [block], {"new_order": list(new_order)})

    def fuse_reduction_epilogue(self, reduction: BlockHandle, epilogue_block: BlockHandle) -> None:
        """Let a reduction do what its elementwise consumer does with the result; the consumer goes away.

        C = 0; for k: C += x;  D = max(C + b, 0)
          ->  D = b; for k: D = max(D + x, 0) if k is the last else D + x
        """
        node = self._block(reduction, "fuse_reduction_epilogue")
        consumer = self._block(epilogue_block, "fuse_reduction_epilogue")
        epilogue.fuse_reduction_epilogue(self._state, node, consumer)
        self._record("fuse_reduction_epilogue", [reduction, epilogue_block])
