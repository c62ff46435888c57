"""Tests of compute_at and reverse_compute_at."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir.schedule.programs import (
    block_of,
    check,
    check_compiled,
    convolution,
    elementwise,
    loops_of,
    matmul_relu,
    run,
    stencil,
)
from tilewright import te
from tilewright.ir.expr import TRUE
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import Schedule, ScheduleError
from tilewright.tir.script import parse_script


@pytest.mark.parametrize(("size", "tile"), [(8, 4), (9, 4), (10, 3), (7, 16)])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_under_the_tile_of_its_consumer(size: int, tile: int, stride: int) -> None:
    func = convolution(2, size, 4, stride)
    schedule = Schedule(func)
    out, conv, pad = (schedule.get_block(name) for name in ("out", "conv", "pad"))
    _, h, x = schedule.get_loops(out)
    outer_h, outer_x, inner_h, inner_x = schedule.tile(h, x, tile, tile)
    schedule.compute_at(conv, outer_x)
    schedule.compute_at(pad, outer_h)
    check(schedule, func)
    _, _, _, *rest = schedule.get_loops(conv)
    if len(rest) == 5:
        yi, xi, c, r, q = rest
        schedule.reorder(c, r, q, yi, xi)
        schedule.vectorize(xi)
        schedule.unroll(yi)
        schedule.decompose_reduction(conv, c)
    schedule.vectorize(inner_x)
    schedule.unroll(inner_h)
    check(schedule, func)


def test_dividing_tiles_need_no_guards() -> None:
    func = convolution(2, 8, 4)
    schedule = Schedule(func)
    _, h, x = schedule.get_loops(schedule.get_block("out"))
    _, outer_x, _, _ = schedule.tile(h, x, 4, 4)
    schedule.compute_at(schedule.get_block("conv"), outer_x)
    schedule.compute_at(schedule.get_block("pad"), outer_x)
    assert block_of(schedule, "conv").predicate is TRUE
    assert block_of(schedule, "pad").predicate is TRUE
    assert [extent for _, extent, _ in loops_of(schedule, "pad")] == [4, 2, 2, 2, 6, 6]
    check(schedule, func)


def test_compute_at_under_a_reduction_loop() -> None:
    func = convolution(4, 6, 2)
    schedule = Schedule(func)
    loops = schedule.get_loops(schedule.get_block("conv"))
    schedule.reorder(loops[3], loops[0])
    schedule.compute_at(schedule.get_block("pad"), loops[3])
    assert [extent for _, extent, _ in loops_of(schedule, "pad")] == [4, 8, 8]
    check(schedule, func)


def test_compute_at_keeps_unit_loops_on_request() -> None:
    func = elementwise((4, 6), 2)
    schedule = Schedule(func)
    i, _ = schedule.get_loops(schedule.get_block("B1"))
    schedule.compute_at(schedule.get_block("B0"), i, preserve_unit_loops=True)
    assert [extent for _, extent, _ in loops_of(schedule, "B0")] == [4, 1, 6]
    check(schedule, func)


def test_compute_at_with_several_consumers_under_the_loop() -> None:
    a = te.placeholder((12,), name="A", dtype="int32")
    b = te.compute((12,), lambda i: a[i] * 3, name="B")
    c = te.compute((12,), lambda i: b[i] + 1, name="C")
    d = te.compute((12,), lambda i: b[i] + c[i], name="D")
    func = te.create_prim_func([a, d])
    schedule = Schedule(func)
    (i,) = schedule.get_loops(schedule.get_block("D"))
    outer, _ = schedule.split(i, [None, 5])
    with pytest.raises(ScheduleError, match="block C reads B and is not under loop i_0"):
        schedule.compute_at(schedule.get_block("B"), outer)
    schedule.compute_at(schedule.get_block("C"), outer)
    schedule.compute_at(schedule.get_block("B"), outer)
    check(schedule, func)


def test_compute_at_of_broadcast_and_transposed_inputs() -> None:
    a = te.placeholder((6, 9), name="A", dtype="int32")
    b = te.compute((9,), lambda j: a[2, j] + 1, name="B")
    t = te.compute((9, 6), lambda j, i: a[i, j] * 2, name="T")
    c = te.compute((6, 9), lambda i, j: b[j] + t[j, i], name="C")
    func = te.create_prim_func([a, c])
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("C"))
    outer, _ = schedule.split(j, [None, 4])
    schedule.reorder(outer, i)
    schedule.compute_at(schedule.get_block("B"), outer)
    schedule.compute_at(schedule.get_block("T"), i)
    check(schedule, func)


def test_compute_at_twice_deepens() -> None:
    func = stencil(20)
    schedule = Schedule(func)
    (i,) = schedule.get_loops(schedule.get_block("C"))
    outer, middle, inner = schedule.split(i, [None, 3, 2])
    block = schedule.get_block("B")
    schedule.compute_at(block, outer)
    schedule.compute_at(block, middle)
    schedule.compute_at(block, inner)
    check(schedule, func)


def test_compute_at_errors() -> None:
    schedule = Schedule(matmul_relu())
    c, d = schedule.get_block("C"), schedule.get_block("D")
    i, _j, k = schedule.get_loops(c)
    with pytest.raises(ScheduleError, match="block D writes the output D"):
        schedule.compute_at(d, i)
    with pytest.raises(ScheduleError, match="block C is already under loop i"):
        schedule.compute_at(c, i)
    with pytest.raises(ScheduleError, match="the root block does not move"):
        schedule.compute_at(schedule.get_block("root"), i)
    schedule.decompose_reduction(c, k)
    x, _ = schedule.get_loops(d)
    with pytest.raises(ScheduleError, match="is written by block C_init too") as caught:
        schedule.compute_at(c, x)
    assert "comes before decompose_reduction" in str(caught.value)


def test_compute_at_after_fused_loops() -> None:
    func = matmul_relu(6, 10, 4)
    schedule = Schedule(func)
    d = schedule.get_block("D")
    fused = schedule.fuse(*schedule.get_loops(d))
    outer, _ = schedule.split(fused, [None, 8])
    schedule.compute_at(schedule.get_block("C"), outer)
    check(schedule, func)


def test_compute_at_of_a_block_with_split_loops() -> None:
    func = matmul_relu(7, 10, 5)
    schedule = Schedule(func)
    c, d = schedule.get_block("C"), schedule.get_block("D")
    for loop in schedule.get_loops(c):
        schedule.split(loop, [None, 3])
    i, _ = schedule.get_loops(d)
    outer, _ = schedule.split(i, [None, 4])
    schedule.compute_at(c, outer)
    assert [extent for _, extent, _ in loops_of(schedule, "C")] == [2, 4, 10, 5]
    check(schedule, func)


@pytest.mark.parametrize(("n", "m"), [(8, 12), (9, 13)])
def test_reverse_compute_at_under_a_tile(n: int, m: int) -> None:
    func = matmul_relu(n, m, 5)
    schedule = Schedule(func)
    c, d = schedule.get_block("C"), schedule.get_block("D")
    i, j, _ = schedule.get_loops(c)
    _, outer_j, _, _ = schedule.tile(i, j, 4, 4)
    schedule.reverse_compute_at(d, outer_j)
    assert len(loops_of(schedule, "D")) == 4
    check(schedule, func)


def test_reverse_compute_at_inside_a_reduction_is_refused() -> None:
    schedule = Schedule(matmul_relu())
    _, _, k = schedule.get_loops(schedule.get_block("C"))
    with pytest.raises(ScheduleError, match="the reduction of block C is not finished in one iteration of loop k"):
        schedule.reverse_compute_at(schedule.get_block("D"), k)


def test_reverse_compute_at_of_a_reduction() -> None:
    a = te.placeholder((6, 12), name="A", dtype="int32")
    b = te.compute((6, 12), lambda i, j: a[i, j] * 2, name="B")
    k = te.reduce_axis((0, 12), name="k")
    s = te.compute((6,), lambda i: te.sum(b[i, k], axis=k), name="S")
    func = te.create_prim_func([a, s])
    schedule = Schedule(func)
    _i, j = schedule.get_loops(schedule.get_block("B"))
    outer, _ = schedule.split(j, [None, 5])
    schedule.reverse_compute_at(schedule.get_block("S"), outer)
    check(schedule, func)


def test_reverse_compute_at_needs_all_of_its_input() -> None:
    func = stencil()
    schedule = Schedule(func)
    (i,) = schedule.get_loops(schedule.get_block("B"))
    outer, _ = schedule.split(i, [None, 6])
    with pytest.raises(ScheduleError, match="is not certainly all written"):
        schedule.reverse_compute_at(schedule.get_block("C"), outer)


def test_reverse_compute_at_keeps_padding() -> None:
    a = te.placeholder((8,), name="A", dtype="int32")
    b = te.compute((8,), lambda i: a[i] * 2, name="B")
    p = te.compute((10,), lambda i: te.select(te.all_of([i >= 1, i < 9]), b[i - 1], 7), name="P")
    schedule = Schedule(te.create_prim_func([a, p]))
    (i,) = schedule.get_loops(schedule.get_block("B"))
    with pytest.raises(ScheduleError, match="cannot be told"):
        schedule.reverse_compute_at(schedule.get_block("P"), i)


def test_reverse_compute_at_of_an_outer_product_is_refused() -> None:
    a = te.placeholder((8,), name="A", dtype="int32")
    b = te.compute((8,), lambda i: a[i] * 2, name="B")
    p = te.compute((8, 8), lambda i, j: b[i] * b[j], name="P")
    schedule = Schedule(te.create_prim_func([a, p]))
    (i,) = schedule.get_loops(schedule.get_block("B"))
    with pytest.raises(ScheduleError, match="is not certainly all written"):
        schedule.reverse_compute_at(schedule.get_block("P"), i)


def test_reverse_compute_at_needs_a_producer_there() -> None:
    schedule = Schedule(matmul_relu())
    i, _ = schedule.get_loops(schedule.get_block("D"))
    with pytest.raises(ScheduleError, match="no block under loop i writes what block C reads"):
        schedule.reverse_compute_at(schedule.get_block("C"), i)


def test_compute_at_of_a_rearranged_buffer() -> None:
    func = matmul_relu(6, 20, 5)
    schedule = Schedule(func)
    c = schedule.get_block("C")
    copy = schedule.cache_read(c, "B", "global")
    schedule.transform_layout(c, "B_global", lambda k, j: (j // 4, k, j % 4))
    i, j, k = schedule.get_loops(c)
    outer, inner = schedule.split(j, [None, 4])
    schedule.reorder(outer, i, k, inner)
    schedule.compute_at(copy, outer)
    assert [extent for _, extent, _ in loops_of(schedule, copy.name)] == [5, 5, 4]
    schedule.parallel(outer)
    schedule.vectorize(inner)
    for expected, found in zip(run(func), run(schedule.func), strict=True):
        np.testing.assert_array_equal(expected, found)


def test_loops_split_after_the_move_stay_parallel() -> None:
    func = matmul_relu(10, 12, 5)
    schedule = Schedule(func)
    i, _ = schedule.get_loops(schedule.get_block("D"))
    schedule.compute_at(schedule.get_block("C"), i)
    outer, _ = schedule.split(i, [None, 4])
    schedule.parallel(outer)
    check(schedule, func)


def recurrence(back: int) -> PrimFunc:
    """h[t] = sum over k of h[t - 1][k] * w[n][k], plus x[t]; with `back` 0 the product reads the row being written."""
    steps, size = 4, 6
    x = te.placeholder((steps, size), "int32", "x")
    w = te.placeholder((size, size), "int32", "w")
    state = te.placeholder((steps, size), "int32", "h")
    first = te.compute((1, size), lambda _, n: x[0, n], name="first")
    k = te.reduce_axis((0, size), "k")
    product = te.compute((steps, size), lambda t, n: te.sum(state[t - back, k] * w[n, k], axis=k), name="product")
    step = te.compute((steps, size), lambda t, n: product[t, n] + x[t, n], name="step")
    return te.create_prim_func([x, w, te.scan(first, step, state, inputs=[x, w], name="out")])


def test_a_product_moves_into_the_step_of_a_recurrence() -> None:
    func = recurrence(back=1)
    schedule = Schedule(func)
    product, step = schedule.get_block("product"), schedule.get_block("step")
    column = schedule.get_loops(step)[-1]
    outer, _ = schedule.split(column, [None, 4])
    schedule.compute_at(product, outer)
    schedule.parallel(outer)
    check(schedule, func)
    with pytest.raises(ScheduleError, match="the opaque iterator v_t: its order is fixed"):
        Schedule(func).reverse_compute_at(step, schedule.get_loops(product)[0])


@pytest.mark.parametrize("back", [0, 1])
def test_states_of_a_recurrence_are_copied_in_each_step(back: int) -> None:
    """What is written once a step has read everything is copied by the next step."""
    func = recurrence(back)
    schedule = Schedule(func)
    schedule.cache_read(schedule.get_block("product"), "out", "shared")
    assert schedule.get_loops(schedule.get_block("out_shared"))[0].var.name == "t"
    check(schedule, func)


def test_copied_states_move_into_the_step_with_their_product() -> None:
    func = recurrence(back=1)
    schedule = Schedule(func)
    product, step = schedule.get_block("product"), schedule.get_block("step")
    copy = schedule.cache_read(product, "out", "shared")
    outer, _ = schedule.split(schedule.get_loops(step)[-1], [None, 4])
    schedule.compute_at(product, outer)
    schedule.compute_at(copy, outer)
    assert outer in schedule.get_loops(copy)
    check(schedule, func)


def test_a_product_that_reads_the_row_being_written_stays() -> None:
    schedule = Schedule(recurrence(back=0))
    product, step = schedule.get_block("product"), schedule.get_block("step")
    outer, _ = schedule.split(schedule.get_loops(step)[-1], [None, 4])
    with pytest.raises(ScheduleError, match="it would run before block step, which writes out"):
        schedule.compute_at(product, outer)


def _siblings(all_read: bool = False) -> PrimFunc:
    """P and Q are made from A, R from P, D from R and Q (or all of them): places to choose between."""
    a = te.placeholder((8, 4), name="A", dtype="int32")
    p = te.compute((8, 4), lambda i, j: a[i, j] * 2, name="P")
    q = te.compute((8, 4), lambda i, j: a[i, j] + 3, name="Q")
    r = te.compute((8, 4), lambda i, j: p[i, j] - 1, name="R")
    if all_read:
        d = te.compute((8, 4), lambda i, j: p[i, j] + q[i, j] - r[i, j], name="D")
    else:
        d = te.compute((8, 4), lambda i, j: r[i, j] - q[i, j], name="D")
    return te.create_prim_func([a, d])


@pytest.mark.parametrize(
    ("index", "order"),
    [(None, "P R Q D"), (-1, "P R Q D"), (-2, "Q P R D"), (0, "Q P R D"), (1, "P Q R D"), (2, "P R Q D")],
)
def test_a_place_among_the_statements_of_a_loop(index: int | None, order: str) -> None:
    func = _siblings()
    schedule = Schedule(func)
    loop = schedule.get_loops(schedule.get_block("D"))[0]
    for name in "RP":
        schedule.compute_at(schedule.get_block(name), loop)
    schedule.compute_at(schedule.get_block("Q"), loop, index=index)
    assert [block.name for block in schedule.blocks()] == order.split()
    check(schedule, func)


@pytest.mark.parametrize(("index", "order"), [(None, "P R Q D"), (-1, "P Q R D"), (-2, "P R Q D"), (2, "P Q R D")])
def test_a_place_for_a_consumer(index: int | None, order: str) -> None:
    func = _siblings(all_read=True)
    schedule = Schedule(func)
    loop = schedule.get_loops(schedule.get_block("P"))[0]
    schedule.merge(loop, schedule.get_loops(schedule.get_block("Q"))[0])
    schedule.reverse_compute_at(schedule.get_block("R"), loop, index=index)
    assert [block.name for block in schedule.blocks()] == order.split()
    check(schedule, func)


@pytest.mark.parametrize("index", [2, 7, -3])
def test_places_that_are_too_early_or_too_late(index: int) -> None:
    schedule = Schedule(_siblings())
    loop = schedule.get_loops(schedule.get_block("D"))[0]
    schedule.compute_at(schedule.get_block("Q"), loop)
    schedule.compute_at(schedule.get_block("R"), loop)
    message = f"block P cannot stand at place {index} of the body of loop i"
    with pytest.raises(ScheduleError, match=message) as caught:
        schedule.compute_at(schedule.get_block("P"), loop, index=index)
    assert "places 0 to 1 are after its producers and before its consumers" in str(caught.value)


IN_PLACE = """
@script.function
def f(X: Buffer[(8, 8), "int32"], A: Buffer[(8, 8), "int32"], O: Buffer[(8, 8), "int32"]):
    T = alloc_buffer((8, 8), "int32")
    for i, j in grid(8, 8):
        with block("T"):
            vi, vj = spatial(8, i), spatial(8, j)
            T[vi, vj] = X[vi, vj] * 2
    for i, j in grid(8, 8):
        with block("U"):
            vi, vj = spatial(8, i), spatial(8, j)
            UPDATE
    for i, j in grid(8, 8):
        with block("O"):
            vi, vj = spatial(8, i), spatial(8, j)
            O[vi, vj] = T[vj, vi] - A[vj, vi]
"""


def _in_place(update: str) -> PrimFunc:
    func = parse_script(IN_PLACE.replace("UPDATE", update))
    assert isinstance(func, PrimFunc)
    return func


@pytest.mark.parametrize(
    "update",
    ["A[vi, vj] = A[vi, vj] + T[vi, vj]", "T[vi, vj] = max(T[vi, vj], 1)", "T[vj, vi] = T[vj, vi] + A[vj, vi]"],
)
@pytest.mark.parametrize("tiles", [False, True])
def test_an_update_in_place_moves_to_what_it_updates(update: str, tiles: bool) -> None:
    func = _in_place(update)
    schedule = Schedule(func)
    loops = schedule.get_loops(schedule.get_block("T"))
    place = schedule.tile(*loops, 4, 3)[1] if tiles else loops[0]
    schedule.reverse_compute_at(schedule.get_block("U"), place)
    assert schedule.get_loops(schedule.get_block("U"))[0] == schedule.get_loops(schedule.get_block("T"))[0]
    check_compiled(schedule, func)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ("T[vi, vj] = T[vj, vi] + 1", "reads what it writes|is written by block T too"),
        ("T[vi, 0] = T[vi, 0] + A[vi, vj]", "is written by block T too"),
    ],
)
def test_other_updates_do_not_move(update: str, message: str) -> None:
    schedule = Schedule(_in_place(update))
    with pytest.raises(ScheduleError, match=message):
        schedule.reverse_compute_at(schedule.get_block("U"), schedule.get_loops(schedule.get_block("T"))[0])


def test_an_element_that_is_written_again_is_not_updated_before() -> None:
    func = parse_script(
        """
@script.function
def f(X: Buffer[(4, 8), "int32"], O: Buffer[(8,), "int32"]):
    for t, i in grid(4, 8):
        with block("O"):
            vt, v = spatial(4, t), spatial(8, i)
            O[v] = X[vt, v]
    for i in range(8):
        with block("U"):
            v = spatial(8, i)
            O[v] = O[v] + 1
"""
    )
    assert isinstance(func, PrimFunc)
    schedule = Schedule(func)
    t, i = schedule.get_loops(schedule.get_block("O"))
    for loop in (t, i):
        with pytest.raises(ScheduleError, match="reverse_compute_at"):
            schedule.reverse_compute_at(schedule.get_block("U"), loop)
    schedule.reorder(i, t)
    schedule.reverse_compute_at(schedule.get_block("U"), i)
    check(schedule, func)
