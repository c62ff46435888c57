"""Methods of `Schedule` about data: where it lies and in which form, done in other files."""

from __future__ import annotations

from tilewright.ir.dtype import DataType
from tilewright.tir.schedule import copies, index_cache, rolling, storage_type
from tilewright.tir.schedule.base import ScheduleBase
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle


class DataMethods(ScheduleBase):
    """Copies, circular buffers, layouts and types of buffers."""

    def read_at(self, loop: LoopHandle, block: BlockHandle, buffer: int | str, scope: str) -> BlockHandle:
        """Copy, in each iteration of a loop, just what the blocks there read of a buffer; gives the copying block.

        for i: for j: C(i, j)  # reads A  ->  for i: { A_local[...] = A[...]; for j: C(i, j)  # reads A_local }
        """
        place, node = self._loop(loop, "read_at"), self._block(block, "read_at")
        result = BlockHandle(copies.read_at(self._state, place, node, buffer, scope))
        self._record("read_at", [loop, block], {"buffer": buffer, "scope": scope}, [result])
        return result

    def write_at(self, loop: LoopHandle, block: BlockHandle, buffer: int | str, scope: str) -> BlockHandle:
        """Write to another scope in each iteration of a loop and copy out just that; gives the copying block.

        for i: for j: C(i, j)  # writes C  ->  for i: { for j: C(i, j)  # writes C_local; C[...] = C_local[...] }
        """
        place, node = self._loop(loop, "write_at"), self._block(block, "write_at")
        result = BlockHandle(copies.write_at(self._state, place, node, buffer, scope))
        self._record("write_at", [loop, block], {"buffer": buffer, "scope": scope}, [result])
        return result

    def rolling_buffer(self, block: BlockHandle, buffer: int | str) -> None:
        """Keep what successive windows of a producer share in a circular buffer, and compute only what is new.

        for i: { for r in 3: B[i + r] = f(i + r);  C[i] = g(B[i : i + 3]) }
          ->  for i: { for r in 3: B[(i + r) % 3] = f(i + r)  where i <= 0 or r >= 2;  C[i] = g(B[i % 3], ...) }
        """
        rolling.rolling_buffer(self._state, self._block(block, "rolling_buffer"), buffer)
        self._record("rolling_buffer", [block], {"buffer": buffer})

    def cache_index(self, block: BlockHandle, scope: str) -> list[BlockHandle]:
        """Compute the indices of a block's reads that take divisions first, into buffers; gives the computing blocks.

        for i: B[i] = A[i // 3 % 5]  ->  for i: B_index[i] = i // 3 % 5;  for i: B[i] = A[B_index[i]]
        """
        names = index_cache.cache_index(self._state, self._block(block, "cache_index"), scope)
        result = [BlockHandle(name) for name in names]
        self._record("cache_index", [block], {"scope": scope}, result)
        return result

    def set_dtype(self, block: BlockHandle, buffer: int | str, dtype: str) -> None:
        """Store an intermediate buffer that a block writes in another type. Changes results: floats are rounded.

        B[i] = A[i] * 2.0;  C[i] = B[i] + 1.0  ->  B[i] = float16(A[i] * 2.0);  C[i] = float32(B[i]) + 1.0
        """
        chosen = DataType.of(dtype)
        storage_type.set_dtype(self._state, self._block(block, "set_dtype"), buffer, chosen)
        self._record("set_dtype", [block], {"buffer": buffer, "dtype": str(chosen)})
