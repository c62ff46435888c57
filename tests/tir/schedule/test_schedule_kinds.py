"""Tests of parallel, vectorize, unroll, zigzag, bind, annotate, unannotate."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.tir.schedule.programs import (
    block_of,
    check,
    check_compiled,
    elementwise,
    loops_of,
    matmul,
    row_sum,
    stencil,
    with_parallel_loops_backwards,
)
from tilewright import te
from tilewright.ir.expr import const_value
from tilewright.ir.structural import structural_equal
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.passes.zigzag_loops import zigzag_loops
from tilewright.tir.schedule import Schedule, ScheduleError, replay
from tilewright.tir.script import parse_script, to_script


def test_data_parallel_loops_run_in_any_way() -> None:
    func = matmul()
    schedule = Schedule(func)
    i, j, k = schedule.get_loops(schedule.get_block("C"))
    schedule.parallel(i)
    schedule.vectorize(j)
    schedule.unroll(k)
    assert [kind for _, _, kind in loops_of(schedule, "C")] == ["parallel", "vectorized", "unrolled"]
    check(schedule, func)


@pytest.mark.parametrize("primitive", ["parallel", "vectorize"])
def test_reduction_loops_are_refused(primitive: str) -> None:
    schedule = Schedule(matmul())
    _, _, k = schedule.get_loops(schedule.get_block("C"))
    with pytest.raises(ScheduleError, match=r"not independent: block C uses it for the reduce iterator v_k"):
        getattr(schedule, primitive)(k)


def test_a_loop_has_one_kind() -> None:
    schedule = Schedule(matmul())
    i, _, _ = schedule.get_loops(schedule.get_block("C"))
    schedule.parallel(i)
    with pytest.raises(ScheduleError, match="loop i is already parallel"):
        schedule.vectorize(i)


def test_vectors_and_unrolled_loops_need_constant_extents() -> None:
    n = te.var("n")
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: a[i] + 1, name="B")
    schedule = Schedule(te.create_prim_func([a, b]))
    (i,) = schedule.get_loops(schedule.get_block("B"))
    for primitive in (schedule.vectorize, schedule.unroll):
        with pytest.raises(ScheduleError, match="the extent of loop i is not constant"):
            primitive(i)
    schedule.parallel(i)


def test_fused_loops_stay_parallel() -> None:
    func = elementwise((6, 10), 1)
    schedule = Schedule(func)
    fused = schedule.fuse(*schedule.get_loops(schedule.get_block("B0")))
    outer, inner = schedule.split(fused, [None, 4])
    schedule.parallel(outer)
    schedule.vectorize(inner)
    check(schedule, func)


def test_parallel_loops_make_a_parallel_one() -> None:
    func = elementwise((6, 1, 10), 1)
    schedule = Schedule(func)
    i, unit, j = schedule.get_loops(schedule.get_block("B0"))
    schedule.parallel(i)
    with pytest.raises(ScheduleError, match="fuse: loop i0 is parallel"):
        schedule.copy().fuse(i, unit, j)
    schedule.parallel(j)
    schedule.fuse(i, unit, j)
    assert loops_of(schedule, "B0") == [("i0_i1_i2", 60, "parallel")]
    check(schedule, func)


def test_tiles_that_end_inside_a_block_of_rows_are_independent() -> None:
    """Rows in blocks of eight, the last of which is not whole, and tiles of three: two guards for one index."""
    a = te.placeholder((13, 5), name="A")
    b = te.compute((13, 5), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((13, 5), lambda i, j: b[i, j] * 2.0, name="C")
    func = te.create_prim_func([a, c])
    schedule = Schedule(func)
    i, _ = schedule.get_loops(schedule.get_block("C"))
    block, _ = schedule.split(i, [None, 8])
    schedule.compute_at(schedule.get_block("B"), block)
    rows = schedule.get_loops(schedule.get_block("B"))[1]
    schedule.split(rows, [None, 3])
    schedule.parallel(block)
    check(schedule, func)


def test_overlapping_stages_are_private_to_parallel_iterations() -> None:
    func = stencil()
    schedule = Schedule(func)
    (i,) = schedule.get_loops(schedule.get_block("C"))
    outer, _ = schedule.split(i, [None, 4])
    schedule.compute_at(schedule.get_block("B"), outer)
    with pytest.raises(ScheduleError, match="several iterations may write the same elements of B"):
        schedule.vectorize(outer)
    schedule.parallel(outer)
    check(schedule, func)


def test_a_parallel_loop_limits_what_moves_under_it() -> None:
    func = stencil()
    schedule = Schedule(func)
    (i,) = schedule.get_loops(schedule.get_block("C"))
    outer, inner = schedule.split(i, [None, 4])
    schedule.vectorize(inner)
    with pytest.raises(ScheduleError, match="loop i_1 is vectorized"):
        schedule.compute_at(schedule.get_block("B"), inner)
    schedule.compute_at(schedule.get_block("B"), outer)
    check(schedule, func)


def test_bind_to_threads() -> None:
    func = matmul(8, 12, 10)
    schedule = Schedule(func)
    i, j, _ = schedule.get_loops(schedule.get_block("C"))
    schedule.bind(i, "blockIdx.x")
    outer, inner = schedule.split(j, [None, 4])
    schedule.bind(outer, "vthread")
    schedule.bind(inner, "threadIdx.x")
    assert [kind for _, _, kind in loops_of(schedule, "C")][:3] == ["thread", "vthread", "thread"]
    check(schedule, func)


def test_bind_errors() -> None:
    schedule = Schedule(matmul())
    i, j, k = schedule.get_loops(schedule.get_block("C"))
    with pytest.raises(ScheduleError, match=r"there is no thread axis 'threadIdx.w'"):
        schedule.bind(i, "threadIdx.w")
    schedule.bind(i, "blockIdx.x")
    with pytest.raises(ScheduleError, match=r"loop i around it is bound to blockIdx.x already"):
        schedule.bind(j, "blockIdx.x")
    with pytest.raises(ScheduleError, match="reduce iterator"):
        schedule.bind(k, "blockIdx.y")
    schedule.bind(k, "threadIdx.x")


def test_annotations() -> None:
    func = row_sum()
    schedule = Schedule(func)
    block = schedule.get_block("S")
    i, _ = schedule.get_loops(block)
    schedule.annotate(block, "tile", [4, 8])
    schedule.annotate(i, "pragma", "nontemporal")
    assert block_of(schedule, "S").annotations == {"tile": [4, 8]}
    check(schedule, func)
    schedule.unannotate(block, "tile")
    assert block_of(schedule, "S").annotations == {}
    with pytest.raises(ScheduleError, match="no annotation 'tile'"):
        schedule.unannotate(block, "tile")


def test_zigzag_turns_in_every_second_iteration() -> None:
    func = matmul()
    schedule = Schedule(func)
    i, j, k = schedule.get_loops(schedule.get_block("C"))
    with pytest.raises(ScheduleError, match="there is no serial loop around loop i to turn with"):
        schedule.zigzag(i)
    schedule.reorder(k, i, j)
    schedule.zigzag(j)
    check_compiled(schedule, func)
    text = to_script(zigzag_loops(lower_blocks(schedule.func)))
    extent = const_value(schedule.loop(j).extent)
    assert extent is not None
    assert f"j if i % 2 == 0 else {extent - 1} - j" in text


def test_zigzag_of_blocks_of_threads_with_the_loop_inside() -> None:
    """In every second iteration of the parallel loop the last block is the first."""
    func = matmul()
    schedule = Schedule(func)
    i, j, _ = schedule.get_loops(schedule.get_block("C"))
    schedule.bind(i, "blockIdx.x")
    with pytest.raises(ScheduleError, match="there is no parallel loop just inside loop i to turn with"):
        schedule.zigzag(i)
    schedule.parallel(j)
    schedule.zigzag(i)
    check(schedule, func)
    turned = zigzag_loops(lower_blocks(schedule.func))
    extent = const_value(schedule.loop(i).extent)
    assert extent is not None
    assert f"i if j % 2 == 0 else {extent - 1} - i" in to_script(turned) and "zigzag" not in to_script(turned)


def test_zigzag_of_the_steps_of_a_reduction() -> None:
    """In any order, as long as sums begin elsewhere: an init at the first step would come last."""
    func = matmul()
    schedule = Schedule(func)
    block = schedule.get_block("C")
    *_, k = schedule.get_loops(block)
    with pytest.raises(ScheduleError, match="zigzag: the iterations of loop k are not independent"):
        schedule.zigzag(k)
    schedule.decompose_reduction(block, k)
    schedule.zigzag(k)
    check_compiled(schedule, func)


def test_loops_of_one_iteration_turn_nothing() -> None:
    func = matmul()
    schedule = Schedule(func)
    block = schedule.get_block("C")
    _, j, k = schedule.get_loops(block)
    unit = schedule.add_unit_loop(k)
    schedule.decompose_reduction(block, unit)
    schedule.zigzag(k)
    check_compiled(schedule, func)
    assert f"if {schedule.loop(j).var.name} % 2 == 0 else" in to_script(zigzag_loops(lower_blocks(schedule.func)))


SCATTER = """
@script.function
def scatter(A: Buffer[(16, 4), "int32"], I: Buffer[(16,), "int32"], B: Buffer[(16, 4), "int32"]):
    for i, j in grid(16, 4):
        with block("B"):
            v, w = spatial(16, i), spatial(4, j)
            B[I[v], w] = A[v, w] + 1
"""


@pytest.mark.parametrize("update", [False, True])
@pytest.mark.parametrize("let", [False, True])
@pytest.mark.parametrize("kind", ["parallel", "vectorize", "blockIdx.x"])
def test_a_promise_about_indices_from_memory(update: bool, let: bool, kind: str) -> None:
    text = SCATTER.replace("A[v, w] + 1", "B[I[v], w] + A[v, w]") if update else SCATTER
    if let:
        text = text.replace("            B[I[v], w]", "            t: int32 = I[v]\n            B[t, w]").replace(
            "B[I[v]", "B[t"
        )
    func = parse_script(text)
    assert isinstance(func, PrimFunc)
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("B"))

    def choose() -> None:
        if kind in ("parallel", "vectorize"):
            getattr(schedule, kind)(i)
        else:
            schedule.bind(i, kind)

    with pytest.raises(ScheduleError, match="are not independent") as caught:
        choose()
    assert "say so with promise_independent" in str(caught.value)
    schedule.promise_independent(i)
    choose()
    schedule.reorder(i, j)
    random = np.random.default_rng(0)
    places = random.permutation(16).astype("int32")
    arrays = [random.integers(0, 9, (16, 4)).astype("int32") for _ in range(2)]
    expected, found = arrays[1].copy(), arrays[1].copy()
    interpret(func, arrays[0], places, expected)
    interpret(with_parallel_loops_backwards(schedule.func), arrays[0], places, found)
    np.testing.assert_array_equal(found, expected)
    assert structural_equal(replay(schedule.trace, func).func, schedule.func)
    assert structural_equal(parse_script(to_script(schedule.func)), schedule.func)
    if kind != "blockIdx.x":
        found = arrays[1].copy()
        tw.build(schedule.func)(arrays[0], places, found)
        np.testing.assert_array_equal(found, expected)


def test_a_promise_covers_nothing_else() -> None:
    schedule = Schedule(matmul())
    i, _, k = schedule.get_loops(schedule.get_block("C"))
    with pytest.raises(ScheduleError, match="no block under loop k writes at indices that are read from memory"):
        schedule.promise_independent(k)
    func = parse_script(
        SCATTER.replace("B[I[v], w] = A[v, w] + 1", "B[I[v], w] = A[v, w] + 1\n            A[0, w] = 7")
    )
    assert isinstance(func, PrimFunc)
    schedule = Schedule(func)
    i, _ = schedule.get_loops(schedule.get_block("B"))
    schedule.promise_independent(i)
    with pytest.raises(ScheduleError, match="several iterations may write the same elements of A"):
        schedule.parallel(i)
