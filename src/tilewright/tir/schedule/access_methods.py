"""Methods of `Schedule` about how blocks access buffers: other arrangements, regions and promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir.expr import ExprLike
from tilewright.tir.index_map import IndexMap, MapLike
from tilewright.tir.schedule import access_regions, loop_kinds, padding, reindexing
from tilewright.tir.schedule.base import ScheduleBase
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle


class AccessMethods(ScheduleBase):
    """Staging in other arrangements, regions that cannot be found out, promises about indices from memory."""

    def reindex_cache_read(
        self,
        block: BlockHandle,
        buffer: int | str,
        scope: str,
        index_map: MapLike,
    ) -> BlockHandle:
        """Stage what a block reads in another scope and another arrangement; gives the copying block.

        `index_map` is a function of the block's iterators, `lambda i, j, k: (k // 4, i, k % 4)`.
        """
        return self._reindex_cache(block, buffer, "read", scope, index_map)

    def reindex_cache_write(
        self,
        block: BlockHandle,
        buffer: int | str,
        scope: str,
        index_map: MapLike,
    ) -> BlockHandle:
        """Let a block write to another scope in another arrangement, and copy it out; gives the copying block."""
        return self._reindex_cache(block, buffer, "write", scope, index_map)

    def _reindex_cache(
        self,
        block: BlockHandle,
        buffer: int | str,
        mode: str,
        scope: str,
        index_map: MapLike,
    ) -> BlockHandle:
        kind = f"reindex_cache_{mode}"
        node = self._block(block, kind)
        arrangement = IndexMap.given(index_map, len(node.iters), f"block {node.name} of {len(node.iters)} iterators")
        text = arrangement.to_text()
        result = BlockHandle(reindexing.reindex_cache(self._state, node, buffer, mode, scope, arrangement))
        self._record(kind, [block], {"buffer": buffer, "scope": scope, "index_map": text}, [result])
        return result

    def annotate_buffer_access(
        self,
        block: BlockHandle,
        buffer: int | str,
        mode: str,
        region: Callable[..., Sequence[tuple[ExprLike, ExprLike]]] | str,
    ) -> None:
        """Say what a block reads or writes of a buffer where that cannot be found out; see `access_regions.py`.

        `region` is a function of the block's iterators that gives the start and end of each dimension:
        `lambda i: [(i // 2, i // 2 + 2)]`.
        """
        node = self._block(block, "annotate_buffer_access")
        if callable(region):
            arrangement = IndexMap.of(lambda *i: [end for pair in region(*i) for end in pair], len(node.iters))
        else:
            arrangement = IndexMap.from_text(len(node.iters), region)
        ends = arrangement.apply([item.var for item in node.iters])
        if len(ends) % 2:
            self._state.fail("annotate_buffer_access: a dimension has a start and an end", node)
        bounds = list(zip(ends[::2], ends[1::2], strict=True))
        access_regions.annotate_buffer_access(self._state, node, buffer, mode, bounds)
        attributes: dict[str, object] = {"buffer": buffer, "mode": mode, "region": arrangement.to_text()}
        self._record("annotate_buffer_access", [block], attributes)

    def promise_padding(self, block: BlockHandle) -> None:
        """Promise that a parameter holds zeros where a block would put them past its elements; nobody checks it.

        for i in 16: B[i] = A[i] if i < 14 else 0  ->  for i in 16: B[i] = A[i]     (A has 16 elements)
        """
        padding.promise_padding(self._state, self._block(block, "promise_padding"))
        self._record("promise_padding", [block])

    def promise_independent(self, loop: LoopHandle) -> None:
        """Promise that the iterations of a loop never meet where data decide what they write; nobody checks it.

        for i: B[I[i]] = A[i]  ->  for i in serial(n, annotations={"independent": True}): B[I[i]] = A[i]
        """
        loop_kinds.promise_independent(self._state, self._loop(loop, "promise_independent"))
        self._record("promise_independent", [loop])
