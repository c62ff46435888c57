"""Schedules of programs whose dimensions are known only when they run."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import te
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.schedule import Schedule, ScheduleError
from tilewright.tir.verify import verify


def program() -> PrimFunc:
    """D = max(A @ B + 1, 0) of (n, m) and (m, 7)."""
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), name="A", dtype="int32")
    b = te.placeholder((m, 7), name="B", dtype="int32")
    k = te.reduce_axis((0, m), name="k")
    c = te.compute((n, 7), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    d = te.compute((n, 7), lambda i, j: te.maximum(c[i, j] + 1, 0), name="D")
    return te.create_prim_func([a, b, d])


def check(schedule: Schedule, original: PrimFunc) -> None:
    verify(schedule.func, "scheduled")
    random = np.random.default_rng(0)
    for n, m in [(13, 10), (8, 4), (1, 1)]:
        a = random.integers(-5, 6, (n, m)).astype("int32")
        b = random.integers(-5, 6, (m, 7)).astype("int32")
        expected, found = np.zeros((n, 7), "int32"), np.ones((n, 7), "int32")
        interpret(original, a, b, expected)
        interpret(schedule.func, a, b, found)
        np.testing.assert_array_equal(expected, found)


def test_a_tiled_producer_under_its_consumer() -> None:
    func = program()
    schedule = Schedule(func)
    c, d = schedule.get_block("C"), schedule.get_block("D")
    i, _ = schedule.get_loops(d)
    outer, _ = schedule.split(i, [None, 4])
    schedule.compute_at(c, outer)
    _, row, column, k = schedule.get_loops(c)
    outer_k, inner_k = schedule.split(k, [None, 4])
    schedule.reorder(outer_k, inner_k, row, column)
    schedule.vectorize(column)
    schedule.decompose_reduction(c, outer_k)
    schedule.parallel(outer)
    check(schedule, func)


def test_a_consumer_under_its_producer() -> None:
    func = program()
    schedule = Schedule(func)
    i, j, k = schedule.get_loops(schedule.get_block("C"))
    outer, inner = schedule.split(i, [None, 4])
    schedule.reorder(outer, j, inner, k)
    schedule.reverse_compute_at(schedule.get_block("D"), outer)
    schedule.parallel(outer)
    check(schedule, func)


def test_fused_loops() -> None:
    func = program()
    schedule = Schedule(func)
    i, j, _ = schedule.get_loops(schedule.get_block("C"))
    outer, inner = schedule.split(schedule.fuse(i, j), [None, 8])
    schedule.parallel(outer)
    schedule.vectorize(inner)
    check(schedule, func)


def test_staging_and_partial_results() -> None:
    func = program()
    schedule = Schedule(func)
    copy = schedule.cache_write(schedule.get_block("D"), 0, "local")
    i, _ = schedule.get_loops(copy)
    outer, _ = schedule.split(i, [None, 4])
    schedule.compute_at(schedule.get_block("D"), outer)
    schedule.compute_at(schedule.get_block("C"), outer)
    schedule.parallel(outer)
    check(schedule, func)
    schedule = Schedule(func)
    _, _, k = schedule.get_loops(schedule.get_block("C"))
    _, inner = schedule.split(k, [None, 4])
    partial = schedule.rfactor(inner)
    schedule.vectorize(schedule.get_loops(partial)[3])
    check(schedule, func)


def test_sampling_needs_a_constant_extent() -> None:
    schedule = Schedule(program())
    i, _ = schedule.get_loops(schedule.get_block("D"))
    with pytest.raises(ScheduleError, match="loop i has no constant positive extent"):
        schedule.sample_perfect_tile(i, 2)


def test_iterators_that_are_alone_in_their_group_may_have_any_size() -> None:
    n = te.var("n")
    a = te.placeholder((n, 3, 4), name="A", dtype="int32")
    rows, columns = te.reduce_axis((0, 3), name="rows"), te.reduce_axis((0, 4), name="columns")
    b = te.compute((n,), lambda i: te.sum(a[i, rows, columns], axis=[rows, columns]), name="B")
    func = te.create_prim_func([a, b])
    schedule = Schedule(func)
    schedule.fuse_iterators(schedule.get_block("B"), [[0], [1, 2]])
    assert len(schedule.get_loops(schedule.get_block("B"))) == 2
    verify(schedule.func, "scheduled")
    data, found = np.arange(60, dtype="int32").reshape(5, 3, 4), np.zeros(5, "int32")
    interpret(schedule.func, data, found)
    np.testing.assert_array_equal(found, data.sum(axis=(1, 2)))
    with pytest.raises(ScheduleError, match="have no constant domains"):
        Schedule(program()).fuse_iterators(Schedule(program()).get_block("D"), [[0, 1]])
