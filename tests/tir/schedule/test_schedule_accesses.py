"""annotate_buffer_access, reindex_cache_read and reindex_cache_write."""

from __future__ import annotations

import pytest

from tests.tir.schedule.programs import block_of, check, check_compiled, elementwise, loops_of, matmul
from tilewright.ir.expr import const_value
from tilewright.support.errors import UserError
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import Schedule, ScheduleError, Trace, replay
from tilewright.tir.script import parse_script

RESIZED = """
@script.function
def resized(X: Buffer[(8, 4), "int32"], Y: Buffer[(16, 4), "int32"]):
    T = alloc_buffer((8, 4), "int32")
    for i, j in grid(8, 4):
        with block("T"):
            v, w = spatial(8, i), spatial(4, j)
            T[v, w] = X[v, w] * 2
    for i, j in grid(16, 4):
        with block("Y"):
            v, w = spatial(16, i), spatial(4, j)
            Y[v, w] = T[int64(floor(float32(v) * 0.5)), w]
"""


def _resized() -> PrimFunc:
    func = parse_script(RESIZED)
    assert isinstance(func, PrimFunc)
    return func


def test_moves_go_by_the_region_that_is_said() -> None:
    func = _resized()
    schedule = Schedule(func)
    t, y = schedule.get_block("T"), schedule.get_block("Y")
    schedule.annotate_buffer_access(y, "T", "read", lambda v, w: [(v // 2, v // 2 + 1), (w, w + 1)])
    outer, _ = schedule.split(schedule.get_loops(y)[0], [None, 4])
    schedule.compute_at(t, outer)
    assert [extent for _, extent, _ in loops_of(schedule, "T")] == [4, 2, 4]
    check_compiled(schedule, func)
    again = replay(Trace.from_json(schedule.trace.to_json()), func)
    assert again.show() == schedule.show()


def test_without_it_all_of_the_buffer_is_computed() -> None:
    schedule = Schedule(_resized())
    outer, _ = schedule.split(schedule.get_loops(schedule.get_block("Y"))[0], [None, 4])
    schedule.compute_at(schedule.get_block("T"), outer)
    assert [extent for _, extent, _ in loops_of(schedule, "T")] == [4, 8, 4]


def test_what_the_indices_tell_must_be_in_the_region() -> None:
    func = _resized()
    schedule = Schedule(func)
    t, y = schedule.get_block("T"), schedule.get_block("Y")
    with pytest.raises(ScheduleError, match="block Y may read T outside the range given for dimension 1"):
        schedule.annotate_buffer_access(y, "T", "read", lambda v, w: [(v // 2, v // 2 + 1), (w + 1, w + 2)])
    schedule.annotate_buffer_access(y, "T", "read", lambda v, w: [(v // 2, v // 2 + 1), (0, 4)])
    with pytest.raises(ScheduleError, match="does not certainly write all of T that is given for dimension 0"):
        schedule.annotate_buffer_access(t, "T", "write", lambda v, w: [(v, v + 2), (w, w + 1)])
    schedule.annotate_buffer_access(t, 0, "write", lambda v, w: [(v, v + 1), (w, w + 1)])
    check(schedule, func)


def test_regions_that_do_not_fit() -> None:
    schedule = Schedule(_resized())
    y = schedule.get_block("Y")
    with pytest.raises(ScheduleError, match="the mode 'both' is not read or write"):
        schedule.annotate_buffer_access(y, "T", "both", lambda v, w: [(v, v), (w, w)])
    with pytest.raises(ScheduleError, match="1 ranges for the 2 dimensions of T"):
        schedule.annotate_buffer_access(y, "T", "read", lambda v, w: [(v, v + 1)])
    with pytest.raises(ScheduleError, match="a dimension has a start and an end"):
        schedule.annotate_buffer_access(y, "T", "read", "i0, i0 + 1, i1")
    with pytest.raises(ScheduleError, match="has no such buffer 'Z'"):
        schedule.annotate_buffer_access(y, "Z", "read", lambda v, w: [(v, v + 1), (w, w + 1)])


@pytest.mark.parametrize(
    ("buffer", "index_map", "shape"),
    [
        ("A", lambda i, j, k: (k, i), (10, 8)),
        ("A", lambda i, j, k: (k // 5, i, k % 5), (2, 8, 5)),
        ("B", lambda i, j, k: (j * 10 + k,), (120,)),
        ("B", lambda i, j, k: (j // 4, k, j % 4), (3, 10, 4)),
    ],
)
def test_operands_are_staged_in_another_arrangement(buffer: str, index_map: object, shape: tuple[int, ...]) -> None:
    func = matmul()
    schedule = Schedule(func)
    copy = schedule.reindex_cache_read(schedule.get_block("C"), buffer, "shared", index_map)  # type: ignore[arg-type]
    staged = block_of(schedule, copy.name).writes[0].buffer
    assert (staged.static_shape, staged.scope, staged.name) == (shape, "shared", f"{buffer}_shared")
    check_compiled(schedule, func)


OPEN = """
@script.function
def product(A: Buffer[(n, 8), "int32"], C: Buffer[(n, 8), "int32"]):
    for i, j in grid(n, 8):
        with block("C"):
            v, w = spatial(n, i), spatial(8, j)
            C[v, w] = A[v, w] * 2
"""


def test_open_extents_are_staged_as_they_are() -> None:
    func = parse_script(OPEN)
    assert isinstance(func, PrimFunc)
    schedule = Schedule(func)
    copy = schedule.reindex_cache_read(schedule.get_block("C"), "A", "global", lambda i, j: (j // 4, i, j % 4))
    staged = block_of(schedule, copy.name).writes[0].buffer
    assert staged.shape[1] is func.buffers[0].shape[0]
    assert [const_value(extent) for extent in staged.shape] == [2, None, 4]
    with pytest.raises(ScheduleError, match="not provably within bounds"):
        schedule.reindex_cache_read(schedule.get_block("C"), "A_global", "local", lambda i, j: (i + 1, j))


def test_results_are_staged_in_another_arrangement() -> None:
    func = matmul()
    schedule = Schedule(func)
    block = schedule.get_block("C")
    copy = schedule.reindex_cache_write(block, 0, "local", lambda i, j, k: (j // 4, i, j % 4))
    assert block_of(schedule, copy.name).reads[0].buffer.static_shape == (3, 8, 4)
    i, _, _ = schedule.get_loops(block)
    schedule.reverse_compute_at(copy, i)
    check_compiled(schedule, func)
    assert "reindex_cache_write" in str(schedule.trace)


def test_arrangements_that_do_not_fit() -> None:
    schedule = Schedule(matmul())
    block = schedule.get_block("C")
    with pytest.raises(ScheduleError, match="the map uses the iterator v_j, which does not move A"):
        schedule.reindex_cache_read(block, "A", "shared", lambda i, j, k: (i, j, k))
    with pytest.raises(ScheduleError, match="does not provably keep the elements apart"):
        schedule.reindex_cache_read(block, "A", "shared", lambda i, j, k: (i, k // 2))
    with pytest.raises(ScheduleError, match="not provably within bounds"):
        schedule.reindex_cache_read(block, "A", "shared", lambda i, j, k: (i, k - 3))
    with pytest.raises(ScheduleError, match="is not a memory scope"):
        schedule.reindex_cache_read(block, "A", "sha red", lambda i, j, k: (i, k))
    with pytest.raises(UserError, match="an index map of 2 indices"):
        schedule.reindex_cache_read(block, "A", "shared", lambda i, k: (i, k))
    schedule = Schedule(elementwise((4, 6), 2))
    with pytest.raises(ScheduleError, match="has no such buffer 'Q'"):
        schedule.reindex_cache_write(schedule.get_block("B0"), "Q", "shared", lambda i, j: (j, i))
