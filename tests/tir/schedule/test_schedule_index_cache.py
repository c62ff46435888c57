"""cache_index: indices that take divisions, computed once into buffers."""

from __future__ import annotations

import pytest

from tests.tir.schedule.scripts import check_script, parse
from tilewright.tir.schedule import Schedule, ScheduleError

RESIZE = """
def f(A: Buffer[(5, 8), "int32"], B: Buffer[(10, 12), "int32"]):
    for i, j in grid(10, 12):
        with block("B"):
            vi, vj = spatial(10, i), spatial(12, j)
            B[vi, vj] = A[vi // 2, vj * 2 // 3] + A[vi // 2, min(vj, 7)]
"""


def test_each_distinct_index_has_a_buffer() -> None:
    expected = """
def f(A: Buffer[(5, 8), "int32"], B: Buffer[(10, 12), "int32"]):
    B_index = alloc_buffer((10,), "int64", scope="local")
    B_index_1 = alloc_buffer((12,), "int64", scope="local")
    B_index_2 = alloc_buffer((12,), "int64", scope="local")
    for i in range(10):
        with block("B_index"):
            vi = spatial(10, i)
            B_index[vi] = vi // 2
    for j in range(12):
        with block("B_index_1"):
            vj = spatial(12, j)
            B_index_1[vj] = vj * 2 // 3
    for j in range(12):
        with block("B_index_2"):
            vj = spatial(12, j)
            B_index_2[vj] = min(vj, 7)
    for i, j in grid(10, 12):
        with block("B"):
            vi, vj = spatial(10, i), spatial(12, j)
            B[vi, vj] = A[B_index[vi], B_index_1[vj]] + A[B_index[vi], B_index_2[vj]]
"""

    def apply(s: Schedule) -> None:
        assert [handle.name for handle in s.cache_index(s.get_block("B"), "local")] == [
            "B_index",
            "B_index_1",
            "B_index_2",
        ]

    check_script(RESIZE, apply, expected)


def test_the_indices_are_blocks_like_others() -> None:
    def apply(s: Schedule) -> None:
        block = s.get_block("B")
        i, j = s.get_loops(block)
        first, *_ = s.cache_index(block, "local")
        s.compute_at(first, i)
        s.vectorize(j)
        s.parallel(i)

    check_script(RESIZE, apply)


def test_reductions_whose_domains_do_not_begin_at_zero() -> None:
    text = """
def f(A: Buffer[(9,), "int32"], B: Buffer[(6,), "int32"]):
    for i, k in grid(6, 4):
        with block("B"):
            v, vk = spatial(6, i + 2, start=2), reduce(4, k)
            with init():
                B[(v - 2) // 1 % 6] = 0
            B[(v - 2) // 1 % 6] = B[(v - 2) // 1 % 6] + A[(v + vk) % 9]
"""
    schedule = check_script(text, lambda s: s.cache_index(s.get_block("B"), "global"))
    assert schedule.show().count("_index[") >= 2 and "B[B_index" not in schedule.show()


def test_refused() -> None:
    plain = """
def f(A: Buffer[(40,), "int32"], I: Buffer[(8,), "int32"], n: int64, B: Buffer[(8,), "int32"]):
    for i in range(8):
        with block("B"):
            v = spatial(8, i)
            B[v // 1 * 1] = A[v * 4 + 3] + A[I[v] // 2] + A[v // max(n, 1)]
"""
    schedule = Schedule(parse(plain))
    with pytest.raises(ScheduleError, match="reads at no index that takes more than sums and products"):
        schedule.cache_index(schedule.get_block("B"), "local")
    schedule = Schedule(parse(RESIZE))
    tile = schedule.blockize(schedule.get_loops(schedule.get_block("B"))[1])
    with pytest.raises(ScheduleError, match="block B_o holds other blocks"):
        schedule.cache_index(tile, "local")
