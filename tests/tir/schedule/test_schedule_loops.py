"""Tests of split, fuse, reorder, tile, add_unit_loop."""

from __future__ import annotations

import pytest

from tests.tir.schedule.programs import (
    block_of,
    check,
    convolution,
    elementwise,
    loops_of,
    matmul,
    row_sum,
)
from tilewright import te
from tilewright.ir.expr import TRUE
from tilewright.support.errors import UserError
from tilewright.tir.schedule import BlockHandle, LoopHandle, Schedule, ScheduleError


def test_split_exact_adds_no_guard() -> None:
    func = elementwise((12, 20), 1)
    schedule = Schedule(func)
    i, _ = schedule.get_loops(schedule.get_block("B0"))
    outer, inner = schedule.split(i, [None, 4])
    assert loops_of(schedule, "B0") == [("i0_0", 3, "serial"), ("i0_1", 4, "serial"), ("i1", 20, "serial")]
    assert block_of(schedule, "B0").predicate is TRUE
    assert [handle.var for handle in schedule.get_loops(BlockHandle("B0"))][:2] == [outer.var, inner.var]
    check(schedule, func)


def test_split_that_does_not_divide_guards_the_blocks_below() -> None:
    func = elementwise((10, 7), 1)
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("B0"))
    schedule.split(i, [None, 4])
    schedule.split(j, [2, 2, 2])
    assert block_of(schedule, "B0").predicate is not TRUE
    assert [extent for _, extent, _ in loops_of(schedule, "B0")] == [3, 4, 2, 2, 2]
    check(schedule, func)


def test_split_in_three_with_the_middle_left_open() -> None:
    func = elementwise((48, 3), 1)
    schedule = Schedule(func)
    i, _ = schedule.get_loops(schedule.get_block("B0"))
    schedule.split(i, [2, None, 4])
    assert [extent for _, extent, _ in loops_of(schedule, "B0")] == [2, 6, 4, 3]
    check(schedule, func)


def test_split_by_one_factor_keeps_the_loop() -> None:
    schedule = Schedule(elementwise((12, 20), 1))
    i, _ = schedule.get_loops(schedule.get_block("B0"))
    assert schedule.split(i, [None]) == [i]


def test_split_of_a_symbolic_extent_guards_unless_divisible() -> None:
    n = te.var("n")
    a = te.placeholder((n,), name="A", dtype="int32")
    b = te.compute((n,), lambda i: a[i] + 1, name="B")
    func = te.create_prim_func([a, b])
    schedule = Schedule(func)
    (i,) = schedule.get_loops(schedule.get_block("B"))
    with pytest.raises(ScheduleError, match="extent of loop i is not constant"):
        schedule.split(i, [4, 4])
    schedule.split(i, [None, 8])
    assert block_of(schedule, "B").predicate is not TRUE


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ([], "are not factors"),
        ([None, None], "are not factors"),
        ([None, 0], "0 is not a factor"),
        ([None, True], "True is not a factor"),
        ([2, 3], "make 6 iterations, loop i0 has 12"),
    ],
)
def test_split_refuses_bad_factors(factors: list[int | None], message: str) -> None:
    schedule = Schedule(elementwise((12, 20), 1))
    i, _ = schedule.get_loops(schedule.get_block("B0"))
    before = schedule.func
    with pytest.raises(ScheduleError, match=message):
        schedule.split(i, factors)
    assert schedule.func is before


def test_split_of_a_parallel_loop_is_refused() -> None:
    schedule = Schedule(elementwise((12, 20), 1))
    i, _ = schedule.get_loops(schedule.get_block("B0"))
    schedule.parallel(i)
    with pytest.raises(ScheduleError, match="loop i0 is parallel"):
        schedule.split(i, [None, 4])


def test_fuse_and_split_again() -> None:
    func = elementwise((6, 10), 1)
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("B0"))
    fused = schedule.fuse(i, j)
    assert loops_of(schedule, "B0") == [("i0_i1", 60, "serial")]
    schedule.split(fused, [None, 16])
    check(schedule, func)


def test_fuse_of_three_with_a_reduction() -> None:
    func = matmul(3, 4, 5)
    schedule = Schedule(func)
    i, j, k = schedule.get_loops(schedule.get_block("C"))
    schedule.fuse(i, j, k)
    check(schedule, func)


def test_fuse_needs_directly_nested_loops() -> None:
    schedule = Schedule(matmul())
    i, j, k = schedule.get_loops(schedule.get_block("C"))
    with pytest.raises(ScheduleError, match="loop k is not directly inside loop i"):
        schedule.fuse(i, k)
    with pytest.raises(UserError, match="fuse needs loops"):
        schedule.fuse()
    schedule.unroll(j)
    with pytest.raises(ScheduleError, match="loop j is unrolled"):
        schedule.fuse(i, j)


def test_reorder_moves_loops_to_the_given_order() -> None:
    func = matmul()
    schedule = Schedule(func)
    i, j, k = schedule.get_loops(schedule.get_block("C"))
    schedule.reorder(k, i)
    assert [name for name, _, _ in loops_of(schedule, "C")] == ["k", "j", "i"]
    schedule.reorder(i, j, k)
    assert [name for name, _, _ in loops_of(schedule, "C")] == ["i", "j", "k"]
    check(schedule, func)


def test_reorder_of_split_reduction_loops() -> None:
    func = row_sum(5, 10)
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("S"))
    outer, inner = schedule.split(j, [None, 4])
    schedule.reorder(inner, outer, i)
    check(schedule, func)


def test_reorder_errors() -> None:
    schedule = Schedule(elementwise((12, 20), 2))
    i, j = schedule.get_loops(schedule.get_block("B0"))
    other, _ = schedule.get_loops(schedule.get_block("B1"))
    with pytest.raises(ScheduleError, match="a loop is given twice"):
        schedule.reorder(i, i)
    with pytest.raises(ScheduleError, match="is not nested with loop"):
        schedule.reorder(j, other)


def test_reorder_keeps_reductions_that_would_run_twice() -> None:
    a = te.placeholder((20, 4), name="A", dtype="int32")
    k = te.reduce_axis((0, 4), name="k")
    b = te.compute((18,), lambda i: te.sum(a[i, k], axis=k), name="B")
    c = te.compute((16,), lambda i: b[i] + b[i + 2], name="C")
    func = te.create_prim_func([a, c])
    schedule = Schedule(func)
    (i,) = schedule.get_loops(schedule.get_block("C"))
    outer, _ = schedule.split(i, [None, 4])
    schedule.compute_at(schedule.get_block("B"), outer)
    check(schedule, func)
    loops = schedule.get_loops(schedule.get_block("B"))
    schedule.reorder(loops[2], loops[1])
    check(schedule, func)


def test_reorder_of_outer_loops_around_covered_stages() -> None:
    func = convolution(2, 8, 3)
    schedule = Schedule(func)
    k, h, x = schedule.get_loops(schedule.get_block("out"))
    outer_h, outer_x, _, _ = schedule.tile(h, x, 4, 4)
    schedule.compute_at(schedule.get_block("conv"), outer_x)
    schedule.compute_at(schedule.get_block("pad"), outer_x)
    schedule.reorder(outer_x, outer_h, k)
    check(schedule, func)


def test_reorder_refuses_dependences_between_iterations() -> None:
    func = elementwise((4, 6), 2)
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("B1"))
    schedule.compute_at(schedule.get_block("B0"), j)
    schedule.reorder(j, i)
    check(schedule, func)
    scan = _scan()
    schedule = Schedule(scan)
    loops = schedule.get_loops(schedule.get_block("next"))
    with pytest.raises(ScheduleError, match="promises nothing about the order"):
        schedule.reorder(loops[1], loops[0])


def _scan() -> object:
    x = te.placeholder((6, 4), name="X", dtype="int32")
    state = te.placeholder((6, 4), name="state", dtype="int32")
    init = te.compute((1, 4), lambda t, i: x[0, i], name="first")
    update = te.compute((6, 4), lambda t, i: state[t - 1, i] + x[t, i], name="next")
    result = te.scan(init, update, state, name="running")
    result = result if not isinstance(result, (list, tuple)) else result[0]
    return te.create_prim_func([x, result])


def test_tile_gives_outer_and_inner_loops() -> None:
    func = matmul(9, 10, 4)
    schedule = Schedule(func)
    i, j, _ = schedule.get_loops(schedule.get_block("C"))
    schedule.tile(i, j, 4, 4)
    assert [name for name, _, _ in loops_of(schedule, "C")] == ["i_0", "j_0", "i_1", "j_1", "k"]
    check(schedule, func)


def test_add_unit_loop_around_blocks_and_loops() -> None:
    func = row_sum()
    schedule = Schedule(func)
    block = schedule.get_block("S")
    unit = schedule.add_unit_loop(block)
    schedule.add_unit_loop(schedule.get_loops(block)[0])
    assert [extent for _, extent, _ in loops_of(schedule, "S")] == [1, 6, 24, 1]
    assert isinstance(unit, LoopHandle)
    check(schedule, func)
    with pytest.raises(ScheduleError, match="the root block has no loops"):
        schedule.add_unit_loop(schedule.get_block("root"))


def test_handles_of_consumed_loops_say_so() -> None:
    schedule = Schedule(matmul())
    i, _, _ = schedule.get_loops(schedule.get_block("C"))
    schedule.split(i, [None, 4])
    with pytest.raises(ScheduleError, match="the loop i is no longer in the program"):
        schedule.split(i, [None, 4])
    with pytest.raises(UserError, match="is not a loop"):
        schedule.parallel("i")  # type: ignore[arg-type]


def test_errors_show_the_program_with_the_place_marked() -> None:
    schedule = Schedule(matmul())
    _, _, k = schedule.get_loops(schedule.get_block("C"))
    with pytest.raises(ScheduleError) as caught:
        schedule.parallel(k)
    text = str(caught.value)
    assert "the program as it is" in text
    (marked,) = [line for line in text.splitlines() if "<-- here:" in line]
    assert "C" in marked
    assert "hint: use rfactor" in text
