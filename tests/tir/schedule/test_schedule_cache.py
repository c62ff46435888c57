"""Tests of cache_read, cache_write and set_scope."""

from __future__ import annotations

import pytest

from tests.tir.schedule.programs import (
    block_of,
    check,
    check_compiled,
    convolution,
    elementwise,
    loops_of,
    matmul,
    matmul_relu,
    row_argmax,
    stencil,
)
from tilewright import te
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import Schedule, ScheduleError
from tilewright.tir.script.parser import parse_script


def test_cache_read_copies_first() -> None:
    func = matmul()
    schedule = Schedule(func)
    block = schedule.get_block("C")
    copy = schedule.cache_read(block, "A", "shared")
    assert copy.name == "A_shared"
    assert [b.name for b in schedule.blocks()] == ["A_shared", "C"]
    assert {region.buffer.name for region in block_of(schedule, "C").reads} == {"A_shared", "B"}
    assert schedule.func.root.allocations[0].scope == "shared"
    check(schedule, func)


def test_cache_read_then_compute_at() -> None:
    func = matmul(9, 10, 12)
    schedule = Schedule(func)
    block = schedule.get_block("C")
    i, j, k = schedule.get_loops(block)
    _outer_i, _outer_j, inner_i, inner_j = schedule.tile(i, j, 4, 4)
    outer_k, inner_k = schedule.split(k, [None, 5])
    schedule.reorder(outer_k, inner_i, inner_j, inner_k)
    for name in ("A", "B"):
        schedule.compute_at(schedule.cache_read(block, name, "local"), outer_k)
    assert len(loops_of(schedule, "A_local")) == 5
    check(schedule, func)


def test_cache_read_of_an_intermediate_computed_in_the_same_loop() -> None:
    func = stencil(18)
    schedule = Schedule(func)
    block = schedule.get_block("C")
    (i,) = schedule.get_loops(block)
    outer, _ = schedule.split(i, [None, 4])
    schedule.compute_at(schedule.get_block("B"), outer)
    schedule.cache_read(block, 0, "local")
    assert [extent for _, extent, _ in loops_of(schedule, "B_local")] == [5, 6]
    check(schedule, func)


def test_cache_read_for_several_consumers() -> None:
    a = te.placeholder((8,), name="A", dtype="int32")
    b = te.compute((8,), lambda i: a[i] * 2, name="B")
    c = te.compute((8,), lambda i: a[i] + b[i], name="C")
    func = te.create_prim_func([a, c])
    schedule = Schedule(func)
    schedule.cache_read(schedule.get_block("C"), "A", "local", [schedule.get_block("B")])
    assert [block.name for block in schedule.blocks()] == ["A_local", "B", "C"]
    assert all(region.buffer.name != "A" for region in block_of(schedule, "C").reads)
    check(schedule, func)


def test_cache_write_copies_afterwards() -> None:
    func = matmul()
    schedule = Schedule(func)
    copy = schedule.cache_write(schedule.get_block("C"), 0, "local")
    assert [block.name for block in schedule.blocks()] == ["C", "C_local"]
    i, j = schedule.get_loops(copy)
    _, outer_j, _, _ = schedule.tile(i, j, 4, 5)
    schedule.compute_at(schedule.get_block("C"), outer_j)
    check(schedule, func)


def test_cache_write_of_a_tiled_intermediate() -> None:
    func = convolution(2, 7, 3)
    schedule = Schedule(func)
    _, h, x = schedule.get_loops(schedule.get_block("out"))
    _, outer_x, _, _ = schedule.tile(h, x, 3, 3)
    conv = schedule.get_block("conv")
    schedule.compute_at(conv, outer_x)
    schedule.cache_write(conv, "conv", "local")
    # One loop a dimension, also where a single element is copied: templates count on it.
    assert len(loops_of(schedule, "conv_local")) == 6
    check(schedule, func)


def test_names_of_copies_are_unique() -> None:
    func = elementwise((4, 4), 2)
    schedule = Schedule(func)
    first = schedule.cache_read(schedule.get_block("B0"), "A", "local")
    second = schedule.cache_read(first, "A", "local")
    assert second.name == "A_local_1"
    check(schedule, func)


def test_cache_errors() -> None:
    schedule = Schedule(matmul_relu())
    c, d = schedule.get_block("C"), schedule.get_block("D")
    with pytest.raises(ScheduleError, match="block C has no such buffer 'X'") as caught:
        schedule.cache_read(c, "X", "local")
    assert "it has: A, B" in str(caught.value)
    with pytest.raises(ScheduleError, match="block C has no buffer number 2"):
        schedule.cache_read(c, 2, "local")
    with pytest.raises(ScheduleError, match="block D does not read A"):
        schedule.cache_read(c, "A", "local", [d])
    schedule.decompose_reduction(c, schedule.get_loops(c)[2])
    with pytest.raises(ScheduleError, match="is written by block C_init too"):
        schedule.cache_write(c, 0, "local")


def test_set_scope() -> None:
    func = matmul_relu()
    schedule = Schedule(func)
    schedule.set_scope(schedule.get_block("C"), 0, "local")
    (buffer,) = schedule.func.root.allocations
    assert (buffer.name, buffer.scope) == ("C", "local")
    assert block_of(schedule, "D").reads[0].buffer is buffer
    check(schedule, func)
    with pytest.raises(ScheduleError, match="D is a parameter of the function"):
        schedule.set_scope(schedule.get_block("D"), "D", "local")


UPDATES = {
    "element": "A[vi, vj] = A[vi, vj] + 5",
    "transposed": "A[vj, vi] = A[vj, vi] * 2 + 1",
    "several reads": "A[vi, vj] = A[vi, vj] * A[vi, vj] + B[vi, vj]",
    "let": "t: int32 = A[vi, vj]\n            A[vi, vj] = t - 3",
}


def _in_place(body: str) -> PrimFunc:
    func = parse_script(f"""
@script.function
def f(A: Buffer[(6, 6), "int32"], B: Buffer[(6, 6), "int32"]):
    for i, j in grid(6, 6):
        with block("A"):
            vi, vj = spatial(6, i), spatial(6, j)
            {body}
    for i, j in grid(6, 6):
        with block("B"):
            vi, vj = spatial(6, i), spatial(6, j)
            B[vi, vj] = A[vj, vi]
""")
    assert isinstance(func, PrimFunc)
    return func


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("stages", ["read", "write", "read write", "write read"])
def test_updates_in_place_are_staged(update: str, stages: str) -> None:
    func = _in_place(UPDATES[update])
    schedule = Schedule(func)
    schedule.split(schedule.get_loops(schedule.get_block("A"))[1], [None, 4])
    for stage in stages.split():
        move = schedule.cache_read if stage == "read" else schedule.cache_write
        move(schedule.get_block("A"), "A", "local")
    assert len(schedule.blocks()) == 2 + len(stages.split())
    check_compiled(schedule, func)


@pytest.mark.parametrize(
    "body",
    [
        "A[vi, vj] = A[vj, vi] + 1",  # reads what another instance writes
        "A[vi, 0] = A[vi, 0] + B[vi, vj]",  # several instances, one element
        "A[vi, vj] = A[vi, vj] + 1\n            A[vi, vj] = A[vi, vj] * 2",
        "for q in range(2):\n                A[vi, vj] = A[vi, vj] + 1",
        "if vi < 3:\n                A[vi, vj] = 1\n            B[vi, vj] = A[vi, vj]",
    ],
)
def test_other_updates_are_not(body: str) -> None:
    schedule = Schedule(_in_place(body))
    with pytest.raises(ScheduleError, match="cache_read: block A also writes A") as caught:
        schedule.cache_read(schedule.get_block("A"), "A", "local")
    assert "each instance reads the one element that it then writes" in str(caught.value)
    with pytest.raises(ScheduleError, match="cache_write: block A reads A, which it writes"):
        schedule.cache_write(schedule.get_block("A"), "A", "local")


def test_an_instance_that_runs_twice_updates_twice() -> None:
    func = parse_script("""
@script.function
def f(A: Buffer[(6,), "int32"]):
    for t, i in grid(2, 6):
        with block("A"):
            v = spatial(6, i)
            A[v] = A[v] + 1
""")
    assert isinstance(func, PrimFunc)
    schedule = Schedule(func)
    with pytest.raises(ScheduleError, match="block A also writes A"):
        schedule.cache_read(schedule.get_block("A"), "A", "local")


def test_results_used_inside_the_block_are_staged() -> None:
    func = parse_script("""
@script.function
def f(A: Buffer[(6, 8), "int32"], B: Buffer[(6, 8), "int32"], C: Buffer[(6, 16), "int32"]):
    for i, j in grid(6, 8):
        with block("B"):
            vi, vj = spatial(6, i), spatial(8, j)
            B[vi, vj] = A[vi, vj] + 1
            C[vi, vj * 2] = B[vi, vj] * 2
            C[vi, vj * 2 + 1] = B[vi, vj] * 3
""")
    assert isinstance(func, PrimFunc)
    schedule = Schedule(func)
    block = schedule.get_block("B")
    copies = [schedule.cache_write(block, name, "local") for name in "BC"]
    for copy in copies:
        schedule.reverse_compute_at(copy, schedule.get_loops(block)[0])
    check_compiled(schedule, func)


def test_several_outputs_are_copied_by_one_block() -> None:
    func = row_argmax()
    schedule = Schedule(func)
    block = schedule.blocks()[0]
    copy = schedule.cache_write(block, [0, 1], "local")
    schedule.split(schedule.get_loops(block)[0], [None, 2])
    schedule.reverse_compute_at(copy, schedule.get_loops(block)[0])
    assert len(schedule.blocks()) == 2
    check_compiled(schedule, func)
    with pytest.raises(ScheduleError, match="no buffer is given"):
        schedule.cache_write(block, [], "local")


def test_outputs_of_different_parts_are_copied_one_by_one() -> None:
    func = parse_script("""
@script.function
def f(A: Buffer[(6,), "int32"], B: Buffer[(6,), "int32"], C: Buffer[(8,), "int32"]):
    for i in range(6):
        with block("B"):
            v = spatial(6, i)
            B[v] = A[v] + 1
            C[v + 2] = A[v] * 2
""")
    assert isinstance(func, PrimFunc)
    schedule = Schedule(func)
    with pytest.raises(ScheduleError, match="does not write the same part of B and C"):
        schedule.cache_write(schedule.get_block("B"), ["B", "C"], "local")
    for name in "BC":
        schedule.cache_write(schedule.get_block("B"), name, "local")
    check_compiled(schedule, func)


def test_what_is_written_under_a_condition_is_not_copied() -> None:
    func = parse_script("""
@script.function
def f(A: Buffer[(6,), "int32"], B: Buffer[(6,), "int32"]):
    for i in range(6):
        with block("B"):
            v = spatial(6, i)
            if v % 2 == 0:
                B[v] = A[v] + 1
""")
    assert isinstance(func, PrimFunc)
    schedule = Schedule(func)
    with pytest.raises(ScheduleError, match="writes B only where a condition inside it holds"):
        schedule.cache_write(schedule.get_block("B"), 0, "local")


@pytest.mark.parametrize("scope", ["no such scope!!", "", "shared.", "3d", 7])
def test_scopes_are_names(scope: str) -> None:
    schedule = Schedule(elementwise((4, 6), 2))
    block = schedule.get_block("B0")
    for call in (schedule.cache_read, schedule.cache_write, schedule.set_scope):
        with pytest.raises(ScheduleError, match="is not a memory scope"):
            call(block, 0, scope)
    schedule.set_scope(block, 0, "shared.cluster")


def test_set_scope_of_what_a_tile_writes() -> None:
    func = elementwise((8, 8), 2)
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("B0"))
    _, _, inner, _ = schedule.tile(i, j, 4, 4)
    schedule.blockize(inner)
    schedule.set_scope(schedule.get_block("B0"), 0, "shared")
    assert {region.buffer.scope for name in ("B0", "B0_o") for region in block_of(schedule, name).writes} == {"shared"}
    assert block_of(schedule, "B1").reads[0].buffer.scope == "shared"
    check(schedule, func)
