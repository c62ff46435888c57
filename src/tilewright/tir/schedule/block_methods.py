"""Methods of `Schedule` about the inside of blocks: their iterators and what they compute, done in other files."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.support.errors import UserError
from tilewright.tir.equivalents import Equivalent, Parameters, find_equivalent
from tilewright.tir.index_map import IndexMap, MapLike
from tilewright.tir.schedule import epilogue, iterators, replacement
from tilewright.tir.schedule.base import ScheduleBase
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle


class BlockMethods(ScheduleBase):
    """Other iterators for a block, more work in it, and other programs for what blocks compute."""

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

    def replace_by_equivalent(
        self, *blocks: BlockHandle, equivalent: Equivalent | str, tolerance: float, parameters: Parameters | None = None
    ) -> list[BlockHandle]:
        """Compute what some stages compute by the program of a declared equivalent; gives its blocks.

        S[i, j] = ...;  m[i] = max(S[i, :]);  P[i, j] = exp(S[i, j] - m[i]);  o[i] = sum(P[i, :] * V[:])
          ->  for tile of j: { S = ...;  top = max(m, S);  o = o * exp(m - top) + sum(exp(S - top) * V);  m = top }

        Results may differ, relatively, by `tolerance`: this is checked on random inputs where TILEWRIGHT_VERIFY is set.
        """
        if not blocks:
            raise UserError("replace_by_equivalent needs blocks")
        chosen = find_equivalent(equivalent) if isinstance(equivalent, str) else equivalent
        nodes = [self._block(block, "replace_by_equivalent") for block in blocks]
        numbers = {} if parameters is None else {name: int(value) for name, value in parameters.items()}
        names = replacement.replace_by_equivalent(self._state, nodes, chosen, float(tolerance), numbers)
        result = [BlockHandle(name) for name in names]
        attributes = {"equivalent": chosen.name, "tolerance": float(tolerance), "parameters": numbers}
        self._record("replace_by_equivalent", blocks, attributes, result)
        return result
