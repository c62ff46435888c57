"""Tests of cache_read, cache_write and set_scope."""

from __future__ import annotations

import pytest

from tests.tir.schedule.programs import (
    block_of,
    check,
    convolution,
    elementwise,
    loops_of,
    matmul,
    matmul_relu,
    stencil,
)
from tilewright import te
from tilewright.tir.schedule import Schedule, ScheduleError


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
