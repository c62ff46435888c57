"""merge and partition: iteration ranges joined and divided."""

from __future__ import annotations

import pytest

from tests.tir.schedule.programs import check, check_compiled, elementwise, matmul, row_sum, stencil
from tilewright import te
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import Schedule, ScheduleError
from tilewright.tir.script import parse_script


def _first_loops(schedule: Schedule, *names: str) -> list:
    return [schedule.get_loops(schedule.get_block(name))[0] for name in names]


def test_merge_joins_neighbouring_loops() -> None:
    func = elementwise((12, 20), 2)
    schedule = Schedule(func)
    a, b = _first_loops(schedule, "B0", "B1")
    merged = schedule.merge(a, b)
    inner = [schedule.get_loops(schedule.get_block(name))[1] for name in ("B0", "B1")]
    schedule.merge(*inner)
    assert len(schedule._state.index.loops) == 2
    schedule.parallel(merged)
    check_compiled(schedule, func)


def test_merge_of_two_reductions() -> None:
    a = te.placeholder((6, 10), "int32", name="A")
    k, q = te.reduce_axis((0, 10), name="k"), te.reduce_axis((0, 10), name="q")
    total = te.compute((6,), lambda i: te.sum(a[i, k], axis=k), name="S")
    most = te.compute((6,), lambda i: te.max(a[i, q], axis=q), name="M")
    func = te.create_prim_func([a, total, most])
    schedule = Schedule(func)
    schedule.merge(*_first_loops(schedule, "S", "M"))
    inner = [schedule.get_loops(schedule.get_block(name))[1] for name in ("S", "M")]
    schedule.merge(*inner)
    check_compiled(schedule, func)


def test_merge_after_decompose_reduction() -> None:
    func = matmul()
    schedule = Schedule(func)
    block = schedule.get_block("C")
    i, _, _ = schedule.get_loops(block)
    schedule.decompose_reduction(block, i)
    schedule.merge(*_first_loops(schedule, "C_init", "C"))
    check_compiled(schedule, func)


def test_merge_refuses_reads_of_later_steps() -> None:
    schedule = Schedule(stencil(16))
    b = schedule.get_loops(schedule.get_block("B"))[0]
    (left, _) = schedule.partition(b, [16])
    c = schedule.get_loops(schedule.get_block("C"))[0]
    with pytest.raises(ScheduleError, match="does not stand right after"):
        schedule.merge(left, c)
    schedule = Schedule(stencil(16))
    with pytest.raises(ScheduleError, match="different ranges"):
        schedule.merge(*_first_loops(schedule, "B", "C"))
    func = stencil_back(16)
    schedule = Schedule(func)
    with pytest.raises(ScheduleError, match="is not certainly all written"):
        schedule.merge(*_first_loops(schedule, "B", "C"))
    assert schedule.func is func


def stencil_back(size: int) -> PrimFunc:
    """C[i] reads B[i + 1] where there is one."""
    a = te.placeholder((size,), "int32", name="A")
    b = te.compute((size,), lambda i: a[i] * 2, name="B")
    c = te.compute((size,), lambda i: te.select(i < size - 1, b[i + 1], 0), name="C")
    return te.create_prim_func([a, c])


def test_merge_refuses_writes_that_later_steps_read() -> None:
    """B[i] = A[i + 1]; then A is overwritten from its end: the second loop writes what the first still reads."""
    func = parse_script(
        """
@script.function
def main(A: Buffer[(9,), "int32"], B: Buffer[(8,), "int32"]):
    for i in range(8):
        with block("B"):
            v = spatial(8, i)
            reads(A[v + 1])
            writes(B[v])
            B[v] = A[v + 1]
    for j in range(8):
        with block("A"):
            v = spatial(8, j)
            reads()
            writes(A[8 - v])
            A[8 - v] = 0
    for k in range(8):
        with block("Z"):
            v = spatial(8, k)
            reads()
            writes(A[v])
            A[v] = 7
"""
    )
    schedule = Schedule(func)
    with pytest.raises(ScheduleError, match="does not stand right after"):
        schedule.merge(*_first_loops(schedule, "Z", "B"))
    with pytest.raises(ScheduleError, match="may still touch"):
        schedule.merge(*_first_loops(schedule, "A", "Z"))
    with pytest.raises(ScheduleError, match="may still touch"):
        schedule.merge(*_first_loops(schedule, "B", "A"))


def test_merge_of_steps_that_keep_to_elements_of_their_own() -> None:
    """B[i] = A[i + 1]; A[i + 1] = 0: each step writes what it alone has read."""
    func = parse_script(
        """
@script.function
def main(A: Buffer[(9,), "int32"], B: Buffer[(8,), "int32"]):
    for i in range(8):
        with block("B"):
            v = spatial(8, i)
            B[v] = A[v + 1]
    for j in range(8):
        with block("A"):
            v = spatial(8, j)
            A[v + 1] = 0
"""
    )
    assert isinstance(func, PrimFunc)
    schedule = Schedule(func)
    schedule.parallel(schedule.merge(*_first_loops(schedule, "B", "A")))
    check_compiled(schedule, func)


def test_partition_divides_a_range() -> None:
    func = elementwise((13, 7), 2)
    schedule = Schedule(func)
    i, _ = schedule.get_loops(schedule.get_block("B1"))
    first, second, third = schedule.partition(i, [4, 12])
    schedule.parallel(second)
    schedule.unroll(first)
    assert [block.name for block in schedule.blocks()] == ["B0", "B1", "B1_1", "B1_1_1"]
    assert schedule.loop(third).var.name == "i0"
    check_compiled(schedule, func)


def test_partition_of_a_reduction_initialises_once() -> None:
    func = row_sum(6, 24)
    schedule = Schedule(func)
    _, j = schedule.get_loops(schedule.get_block("S"))
    schedule.partition(j, [5])
    check_compiled(schedule, func)


@pytest.mark.parametrize("points", [[], [0], [13], [5, 5], [7, 3], [20]])
def test_partition_refuses_points_outside(points: list[int]) -> None:
    schedule = Schedule(elementwise((13, 7), 1))
    i, _ = schedule.get_loops(schedule.get_block("B0"))
    with pytest.raises(ScheduleError, match="do not divide the range"):
        schedule.partition(i, points)


def test_merge_refuses_unfinished_reductions() -> None:
    """The difference from row minima must not run before the minima are complete."""
    a = te.placeholder((6, 6), "int32", name="A")
    k = te.reduce_axis((0, 6), name="k")
    low = te.compute((6,), lambda i: te.min(a[k, i], axis=k), name="low")
    out = te.compute((6, 6), lambda i, j: a[i, j] - low[i], name="out")
    func = te.create_prim_func([a, out])
    schedule = Schedule(func)
    schedule.merge(*_first_loops(schedule, "low", "out"))
    inner = [schedule.get_loops(schedule.get_block(name))[1] for name in ("low", "out")]
    with pytest.raises(ScheduleError, match="is not finished in one step of loop k"):
        schedule.merge(*inner)
    check_compiled(schedule, func)


def test_merge_of_whole_nests() -> None:
    func = elementwise((4, 6, 5), 3)
    schedule = Schedule(func)
    loops = [schedule.get_loops(schedule.get_block(f"B{n}")) for n in range(3)]
    merged = schedule.merge(loops[0][2], loops[1][2])
    assert merged == loops[0][2]
    schedule.merge(merged, loops[2][2])
    assert [schedule.get_loops(schedule.get_block(f"B{n}")) for n in range(3)] == [loops[0]] * 3
    check(schedule, func)


def test_merge_of_nests_below_a_common_loop() -> None:
    func = elementwise((4, 6, 5), 2)
    schedule = Schedule(func)
    outer, *_ = _first_loops(schedule, "B0", "B1")
    schedule.merge(*_first_loops(schedule, "B0", "B1"))
    last = [schedule.get_loops(schedule.get_block(name))[2] for name in ("B0", "B1")]
    schedule.merge(*last)
    assert len(schedule.get_loops(schedule.get_block("B1"))) == 3
    assert schedule.get_loops(schedule.get_block("B1"))[0] == outer
    check(schedule, func)


def test_merge_of_nests_that_do_not_match() -> None:
    func = elementwise((4, 6), 3)
    schedule = Schedule(func)
    first, second, third = (schedule.get_loops(schedule.get_block(f"B{n}")) for n in range(3))
    before = schedule.func
    with pytest.raises(ScheduleError, match="loop i0 is 1 loops deep beside the 2 of loop i1"):
        schedule.merge(first[0], second[1])
    with pytest.raises(ScheduleError, match="is loop i0 or inside it"):
        schedule.merge(first[0], first[1])
    with pytest.raises(ScheduleError, match="does not stand right after"):
        schedule.merge(first[1], third[1])
    assert schedule.func is before
    schedule.merge(first[0], second[0])
    with pytest.raises(ScheduleError, match="loop i0 has more inside than loop i1"):
        schedule.merge(first[1], third[1])
    # The outer loops have the same range, the inner ones have not: nothing is merged.
    schedule = Schedule(func)
    first, second, third = (schedule.get_loops(schedule.get_block(f"B{n}")) for n in range(3))
    outer, _ = schedule.split(second[1], [None, 2])
    before = schedule.func
    with pytest.raises(ScheduleError, match="have different ranges"):
        schedule.merge(first[1], outer)
    assert schedule.func is before
