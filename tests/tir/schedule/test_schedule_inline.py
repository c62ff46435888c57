"""Tests of compute_inline and reverse_compute_inline."""

from __future__ import annotations

import pytest

from tests.tir.schedule.programs import check, convolution, elementwise, matmul_relu, row_sum, stencil
from tilewright import te
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import Schedule, ScheduleError
from tilewright.tir.script import parse_script


def test_inlining_a_chain() -> None:
    func = elementwise((4, 6), 4)
    schedule = Schedule(func)
    for name in ("B0", "B2", "B1"):
        schedule.compute_inline(schedule.get_block(name))
    assert [block.name for block in schedule.blocks()] == ["B3"]
    assert schedule.func.root.allocations == ()
    check(schedule, func)


def test_inlining_into_several_reads_and_offsets() -> None:
    func = stencil()
    schedule = Schedule(func)
    schedule.compute_inline(schedule.get_block("B"))
    assert len(schedule._state.index.blocks["C"].reads) == 3
    check(schedule, func)


def test_inlining_padding_into_a_reduction() -> None:
    func = convolution(2, 6, 3)
    schedule = Schedule(func)
    schedule.compute_inline(schedule.get_block("pad"))
    check(schedule, func)


def test_inlining_into_moved_and_tiled_consumers() -> None:
    func = convolution(2, 7, 3)
    schedule = Schedule(func)
    _, h, x = schedule.get_loops(schedule.get_block("out"))
    _, outer_x, _, _ = schedule.tile(h, x, 3, 3)
    schedule.compute_at(schedule.get_block("conv"), outer_x)
    schedule.compute_inline(schedule.get_block("pad"))
    check(schedule, func)


def test_inlining_of_nested_reads() -> None:
    a = te.placeholder((8,), name="A", dtype="int32")
    n = te.compute((8,), lambda i: 7 - i, name="N")
    b = te.compute((8,), lambda i: a[n[i]], name="B")
    func = te.create_prim_func([a, b])
    schedule = Schedule(func)
    schedule.compute_inline(schedule.get_block("N"))
    check(schedule, func)


def test_compute_inline_errors() -> None:
    schedule = Schedule(matmul_relu())
    with pytest.raises(ScheduleError, match="block C is a reduction"):
        schedule.compute_inline(schedule.get_block("C"))
    with pytest.raises(ScheduleError, match="D is a parameter of the function"):
        schedule.compute_inline(schedule.get_block("D"))


def test_reverse_inlining_a_chain() -> None:
    func = elementwise((4, 6), 3)
    schedule = Schedule(func)
    schedule.reverse_compute_inline(schedule.get_block("B1"))
    schedule.reverse_compute_inline(schedule.get_block("B2"))
    assert [block.name for block in schedule.blocks()] == ["B0"]
    check(schedule, func)


def test_reverse_inlining_keeps_the_producers_loops() -> None:
    a = te.placeholder((6, 8), name="A", dtype="int32")
    bias = te.placeholder((8,), name="bias", dtype="int32")
    b = te.compute((6, 8), lambda i, j: a[i, j] * 2, name="B")
    c = te.compute((8, 6), lambda j, i: b[i, j] + bias[j], name="C")
    func = te.create_prim_func([a, bias, c])
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("B"))
    schedule.tile(i, j, 4, 4)
    schedule.reverse_compute_inline(schedule.get_block("C"))
    assert len(schedule.get_loops(schedule.get_block("B"))) == 4
    check(schedule, func)


def test_reverse_inlining_errors() -> None:
    schedule = Schedule(matmul_relu())
    with pytest.raises(ScheduleError, match="has no producer that it alone reads") as caught:
        schedule.reverse_compute_inline(schedule.get_block("D"))
    assert "use reverse_compute_at to run it beside the reduction C" in str(caught.value)
    schedule = Schedule(stencil())
    with pytest.raises(ScheduleError, match="reads B at 3 different indices"):
        schedule.reverse_compute_inline(schedule.get_block("C"))
    a = te.placeholder((8,), name="A", dtype="int32")
    b = te.compute((8,), lambda i: a[i] * 2, name="B")
    d = te.compute((8, 3), lambda i, j: b[i] + j, name="D")
    schedule = Schedule(te.create_prim_func([a, d]))
    with pytest.raises(ScheduleError, match="does not determine its iterator v_j"):
        schedule.reverse_compute_inline(schedule.get_block("D"))


def test_a_sum_is_not_inlined() -> None:
    schedule = Schedule(row_sum())
    with pytest.raises(ScheduleError, match="is a reduction"):
        schedule.reverse_compute_inline(schedule.get_block("S"))


def test_reverse_inlining_waits_for_all_inputs() -> None:
    a = te.placeholder((6,), name="A", dtype="int32")
    b = te.compute((6,), lambda i: a[i] * 2, name="B")
    c = te.compute((6,), lambda i: a[i] + 3, name="C")
    d = te.compute((6,), lambda i: b[i] - te.maximum(c[i], 1), name="D")
    e = te.compute((6,), lambda i: d[i] + c[i], name="E")
    func = te.create_prim_func([a, e])
    schedule = Schedule(func)
    with pytest.raises(ScheduleError, match="it would run before block C, which writes C"):
        schedule.reverse_compute_inline(schedule.get_block("D"))
    schedule.reverse_compute_inline(schedule.get_block("E"))
    check(schedule, func)


DEAD = """
@script.function
def dead(A: Buffer[(8, 4), "int32"], C: Buffer[(8,), "int32"]):
    B = alloc_buffer((8,), "int32")
    for i, k in grid(8, 4):
        with block("B"):
            v, w = spatial(8, i), reduce(4, k)
            with init():
                B[v] = 0
            B[v] = B[v] + A[v, w]
    for i in range(8):
        with block("C"):
            v = spatial(8, i)
            C[v] = A[v, 0] + 1
"""


def _parsed(text: str) -> PrimFunc:
    func = parse_script(text)
    assert isinstance(func, PrimFunc)
    return func


def test_a_block_that_nothing_reads_goes_away() -> None:
    func = _parsed(DEAD)
    schedule = Schedule(func)
    schedule.compute_inline(schedule.get_block("B"))
    assert [block.name for block in schedule.blocks()] == ["C"]
    assert schedule.func.root.allocations == ()
    check(schedule, func)


def test_blocks_that_do_more_stay() -> None:
    schedule = Schedule(_parsed(DEAD.replace("B[v] + A[v, w]", 'B[v] + call_extern("int32", "count", A[v, w])')))
    with pytest.raises(ScheduleError, match="but it may do more than write"):
        schedule.compute_inline(schedule.get_block("B"))
    text = DEAD[: DEAD.index("    for i in range(8):")]
    schedule = Schedule(_parsed(text))
    with pytest.raises(ScheduleError, match="nothing would be left of its scope without block B"):
        schedule.compute_inline(schedule.get_block("B"))


def test_what_is_read_outside_a_block_stays_inside_it() -> None:
    schedule = Schedule(
        _parsed(
            """
@script.function
def nested(A: Buffer[(8,), "int32"], D: Buffer[(8,), "int32"], C: Buffer[(8,), "int32"]):
    B = alloc_buffer((8,), "int32")
    with block("outer"):
        for i in range(8):
            with block("B"):
                v = spatial(8, i)
                B[v] = A[v] * 2
        for i in range(8):
            with block("D"):
                v = spatial(8, i)
                D[v] = A[v]
    for i in range(8):
        with block("C"):
            v = spatial(8, i)
            C[v] = B[v] + 1
"""
        )
    )
    with pytest.raises(ScheduleError, match="block C, outside block outer, uses B"):
        schedule.compute_inline(schedule.get_block("B"))
