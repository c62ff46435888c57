"""transform_layout: every access follows the buffer's new arrangement."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import te
from tilewright.ir.structural import structural_equal
from tilewright.support.errors import UserError
from tilewright.tir.function import PrimFunc
from tilewright.tir.index_map import IndexMap
from tilewright.tir.interpreter import interpret
from tilewright.tir.schedule import replay
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.schedule import Schedule


def matmul(n: int = 20) -> PrimFunc:
    a, b = te.placeholder((4, 6), name="A"), te.placeholder((6, n), name="B")
    k = te.reduce_axis((0, 6), "k")
    c = te.compute((4, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    d = te.compute((4, n), lambda i, j: c[i, j] + 1.0, name="D")
    return te.create_prim_func([a, b, d], "matmul")


@pytest.mark.parametrize("n", [32, 20, 5])
def test_packed_parameter(n: int) -> None:
    schedule = Schedule(matmul(n))
    packing = IndexMap.of(lambda k, j: (j // 16, k, j % 16), 2)
    schedule.transform_layout(schedule.get_block("C"), "B", packing)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 6)).astype(np.float32), rng.standard_normal((6, n)).astype(np.float32)
    before, after = np.zeros((4, n), np.float32), np.zeros((4, n), np.float32)
    interpret(matmul(n), a, b, before)
    packed = packing.rearrange(b)
    assert schedule.func.buffers[1].static_shape == packed.shape
    interpret(schedule.func, a, packed, after)
    np.testing.assert_array_equal(after, before)


def test_intermediate_buffer() -> None:
    schedule = Schedule(matmul())
    schedule.transform_layout(schedule.get_block("C"), "C", lambda i, j: (j, i))
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 6)).astype(np.float32), rng.standard_normal((6, 20)).astype(np.float32)
    before, after = np.zeros((4, 20), np.float32), np.zeros((4, 20), np.float32)
    interpret(matmul(), a, b, before)
    interpret(schedule.func, a, b, after)
    np.testing.assert_array_equal(after, before)


def test_dimensions_that_stay_may_be_symbolic() -> None:
    n = te.var("n")
    a = te.placeholder((n, 6), name="A")
    b = te.compute((n, 3, 2), lambda i, j, h: a[i, j * 2 + h] * 2.0, name="B")
    c = te.compute((n, 3), lambda i, j: b[i, j, 0] + b[i, j, 1], name="C")
    func = te.create_prim_func([a, c], "pairs")
    schedule = Schedule(func)
    schedule.transform_layout(schedule.get_block("B"), "B", lambda i, j, h: (i, j * 2 + h))
    (buffer,) = schedule.func.root.allocations
    assert buffer.ndim == 2 and buffer.static_shape is None
    data = np.arange(24, dtype=np.float32).reshape(4, 6)
    before, after = np.zeros((4, 3), np.float32), np.zeros((4, 3), np.float32)
    interpret(func, data, before)
    interpret(schedule.func, data, after)
    np.testing.assert_array_equal(after, before)
    with pytest.raises(ScheduleError, match="dimensions of B that change must be constant"):
        Schedule(func).transform_layout(schedule.get_block("B"), "B", lambda i, j, h: (j, h, i // 2, i % 2))


def test_trace_replays() -> None:
    func = matmul()
    schedule = Schedule(func)
    schedule.transform_layout(schedule.get_block("C"), "B", lambda k, j: (j // 4, k, j % 4))
    assert structural_equal(replay(schedule.trace, func).func, schedule.func)


def test_refused() -> None:
    schedule = Schedule(matmul())
    block = schedule.get_block("C")
    with pytest.raises(UserError, match="an index map of 1 indices for a buffer of 2 dimensions"):
        schedule.transform_layout(block, "B", lambda k: (k,))
    with pytest.raises(ScheduleError, match="takes 1 indices, buffer B has 2"):
        schedule.transform_layout(block, "B", IndexMap.of(lambda k: (k,), 1))
    with pytest.raises(ScheduleError, match="does not provably keep the elements of B apart"):
        schedule.transform_layout(block, "B", lambda k, j: (k, j // 2))
    with pytest.raises(ScheduleError, match="no such buffer 'Z'"):
        schedule.transform_layout(block, "Z", lambda k, j: (j, k))
