"""Tests of decompose_reduction, skip_neutral and rfactor."""

from __future__ import annotations

import pytest

from tests.tir.schedule.programs import (
    block_of,
    check,
    check_compiled,
    loops_of,
    matmul,
    matmul_relu,
    row_argmax,
    row_sum,
)
from tilewright import te
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import Schedule, ScheduleError


@pytest.mark.parametrize("place", [0, 1, 2])
def test_decompose_before_any_loop_around_the_reduction(place: int) -> None:
    func = matmul()
    schedule = Schedule(func)
    block = schedule.get_block("C")
    loops = schedule.get_loops(block)
    init = schedule.decompose_reduction(block, loops[place])
    assert init.name == "C_init"
    assert len(loops_of(schedule, "C_init")) == 2
    assert block_of(schedule, "C").init is None
    assert any(region.buffer.name == "C" for region in block_of(schedule, "C").reads)
    check(schedule, func)


def test_decompose_of_tiled_and_guarded_loops() -> None:
    func = matmul(9, 10, 7)
    schedule = Schedule(func)
    block = schedule.get_block("C")
    i, j, k = schedule.get_loops(block)
    _, _outer_j, inner_i, inner_j = schedule.tile(i, j, 4, 4)
    outer_k, inner_k = schedule.split(k, [None, 3])
    schedule.reorder(outer_k, inner_k, inner_i, inner_j)
    schedule.vectorize(inner_j)
    schedule.decompose_reduction(block, outer_k)
    assert [kind for _, _, kind in loops_of(schedule, "C_init")][-1] == "vectorized"
    assert [extent for _, extent, _ in loops_of(schedule, "C_init")] == [3, 3, 4, 4]
    check(schedule, func)


def test_parallel_over_decomposed_reductions() -> None:
    func = matmul_relu(8, 12, 5)
    schedule = Schedule(func)
    d = schedule.get_block("D")
    i, _ = schedule.get_loops(d)
    outer, _ = schedule.split(i, [None, 4])
    c = schedule.get_block("C")
    schedule.compute_at(c, outer)
    schedule.decompose_reduction(c, schedule.get_loops(c)[1])
    schedule.parallel(outer)
    check(schedule, func)


def test_decompose_errors() -> None:
    schedule = Schedule(matmul_relu())
    c, d = schedule.get_block("C"), schedule.get_block("D")
    i, _j, k = schedule.get_loops(c)
    x, _ = schedule.get_loops(d)
    with pytest.raises(ScheduleError, match="block D is not a reduction"):
        schedule.decompose_reduction(d, x)
    with pytest.raises(ScheduleError, match="loop i is not around block C"):
        schedule.decompose_reduction(c, x)
    schedule.reorder(k, i)
    with pytest.raises(ScheduleError, match="loop k is a reduction loop outside loop i"):
        schedule.decompose_reduction(c, i)


def test_decompose_of_a_loop_that_mixes_is_refused() -> None:
    schedule = Schedule(matmul(4, 4, 4))
    c = schedule.get_block("C")
    _, j, k = schedule.get_loops(c)
    fused = schedule.fuse(j, k)
    with pytest.raises(ScheduleError, match="serves spatial and reduce iterators at once"):
        schedule.decompose_reduction(c, fused)
    with pytest.raises(ScheduleError, match="serves spatial and reduce iterators at once"):
        schedule.rfactor(fused)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("factors", [[None, 4], [None, 5], [3, 10]])
@pytest.mark.parametrize("which", [0, 1])
def test_rfactor(axis: int, factors: list[int | None], which: int) -> None:
    func = row_sum(5, 24)
    schedule = Schedule(func)
    block = schedule.get_block("S")
    _, j = schedule.get_loops(block)
    parts = schedule.split(j, factors)
    partial = schedule.rfactor(parts[which], axis)
    assert partial.name == "S_rf"
    check(schedule, func)
    loops = schedule.get_loops(partial)
    schedule.reorder(loops[1 + which], loops[0])
    schedule.parallel(loops[1 + which])
    check(schedule, func)


def test_rfactor_of_the_whole_reduction() -> None:
    func = row_sum(5, 6)
    schedule = Schedule(func)
    _, j = schedule.get_loops(schedule.get_block("S"))
    partial = schedule.rfactor(j)
    check(schedule, func)
    schedule.parallel(schedule.get_loops(partial)[1])
    schedule.vectorize(schedule.get_loops(partial)[0])
    check(schedule, func)


def test_rfactor_of_a_matmul_inside_spatial_tiles() -> None:
    func = matmul(6, 7, 12)
    schedule = Schedule(func)
    block = schedule.get_block("C")
    i, j, k = schedule.get_loops(block)
    outer_k, inner_k = schedule.split(k, [None, 4])
    schedule.reorder(i, outer_k, inner_k, j)
    schedule.rfactor(inner_k, 1)
    check(schedule, func)


def test_rfactor_of_a_tuple_reduction() -> None:
    func = row_argmax(4, 12)
    schedule = Schedule(func)
    _, j = schedule.get_loops(schedule.get_block("arg"))
    outer, _ = schedule.split(j, [None, 5])
    partial = schedule.rfactor(outer)
    assert len(block_of(schedule, partial.name).writes) == 2
    check(schedule, func)


@pytest.mark.parametrize("reduce", [te.max, te.min, te.prod])
def test_rfactor_of_other_reducers(reduce: object) -> None:
    a = te.placeholder((3, 8), name="A", dtype="int32")
    j = te.reduce_axis((0, 8), name="j")
    s = te.compute((3,), lambda i: reduce(a[i, j], axis=j), name="S")  # type: ignore[operator]
    func = te.create_prim_func([a, s])
    schedule = Schedule(func)
    _, loop = schedule.get_loops(schedule.get_block("S"))
    _, inner = schedule.split(loop, [None, 3])
    schedule.rfactor(inner)
    check(schedule, func)


def test_rfactor_errors() -> None:
    schedule = Schedule(matmul())
    i, _, k = schedule.get_loops(schedule.get_block("C"))
    with pytest.raises(ScheduleError, match="loop i is not a reduction loop"):
        schedule.rfactor(i)
    with pytest.raises(ScheduleError, match="factor_axis 5 is not a place among the 2 dimensions"):
        schedule.rfactor(k, 5)
    odd = te.comm_reducer(lambda x, y: x + y * 2, lambda t: te.const(0, t), name="odd")
    a = te.placeholder((3, 8), name="A", dtype="int32")
    j = te.reduce_axis((0, 8), name="j")
    s = te.compute((3,), lambda i: odd(a[i, j] - te.minimum(a[i, j], 0), axis=j), name="S")
    schedule = Schedule(te.create_prim_func([a, s]))
    _, loop = schedule.get_loops(schedule.get_block("S"))
    outer, _ = schedule.split(loop, [None, 4])
    schedule.rfactor(outer)


def test_a_reduction_that_is_computed_twice_is_not_decomposed_outside() -> None:
    a = te.placeholder((20, 4), name="A", dtype="int32")
    k = te.reduce_axis((0, 4), name="k")
    b = te.compute((18,), lambda i: te.sum(a[i, k], axis=k), name="B")
    c = te.compute((16,), lambda i: b[i] + b[i + 2], name="C")
    func = te.create_prim_func([a, c])
    schedule = Schedule(func)
    (i,) = schedule.get_loops(schedule.get_block("C"))
    outer, _ = schedule.split(i, [None, 4])
    block = schedule.get_block("B")
    schedule.compute_at(block, outer)
    with pytest.raises(ScheduleError, match="may run more than once in the loops from i_0 inward"):
        schedule.decompose_reduction(block, outer)
    schedule.decompose_reduction(block, schedule.get_loops(block)[1])
    check(schedule, func)


def windows(product: bool = False) -> PrimFunc:
    """C[i, j] combines the elements of A from i - 1 to i + 1, where they are."""
    a = te.placeholder((7, 8), name="A", dtype="int32")
    k = te.reduce_axis((0, 3), name="k")
    combine = te.prod if product else te.sum
    c = te.compute(
        (7, 8),
        lambda i, j: combine(a[i + k - 1, j] * (k + 1), axis=k, where=te.all_of([0 <= i + k - 1, i + k - 1 < 7])),
        name="C",
    )
    return te.create_prim_func([a, c])


@pytest.mark.parametrize("product", [False, True])
def test_what_changes_nothing_is_skipped(product: bool) -> None:
    func = windows(product)
    schedule = Schedule(func)
    block = schedule.get_block("C")
    i, j, k = schedule.get_loops(block)
    schedule.reorder(i, k, j)
    schedule.decompose_reduction(block, k)
    schedule.skip_neutral(block)
    text = schedule.show()
    assert "where(1 <= i + k and i + k < 8)" in text
    assert f"C[v_i, v_j] = C[v_i, v_j] {'*' if product else '+'}" in text and " else " not in text
    check_compiled(schedule, func)
    # Tiles whose borders are told apart.
    schedule = Schedule(func)
    outer, inner = schedule.split(schedule.get_loops(block)[0], [None, 2])
    *_, j, k = schedule.get_loops(block)
    schedule.reorder(outer, k, inner, j)
    schedule.decompose_reduction(block, k)
    schedule.skip_neutral(block)
    for loop in (k, inner):
        schedule.unroll(loop)
    schedule.vectorize(j)
    check_compiled(schedule, func)


def test_only_what_indices_tell_to_change_nothing_is_skipped() -> None:
    schedule = Schedule(windows())
    block = schedule.get_block("C")
    with pytest.raises(ScheduleError, match="has an init, which would be skipped too"):
        schedule.skip_neutral(block)
    schedule = Schedule(matmul())
    block = schedule.get_block("C")
    schedule.decompose_reduction(block, schedule.get_loops(block)[2])
    with pytest.raises(ScheduleError, match="does not choose between a value and what changes nothing"):
        schedule.skip_neutral(block)
    schedule = Schedule(row_argmax())
    with pytest.raises(ScheduleError, match="is not a reduction of one value"):
        schedule.skip_neutral(schedule.get_block("arg"))
    a = te.placeholder((3, 8), name="A", dtype="int32")
    k = te.reduce_axis((0, 8), name="k")
    one = te.compute((3,), lambda i: te.sum(te.select(i + k > 1, a[i, k], 1), axis=k), name="S")
    by_value = te.compute((3,), lambda i: te.sum(te.select(a[i, k] > 1, a[i, k], 0), axis=k), name="S")
    for result, message in ((one, "what changes nothing"), (by_value, "is not told by indices")):
        schedule = Schedule(te.create_prim_func([a, result]))
        block = schedule.get_block("S")
        schedule.decompose_reduction(block, schedule.get_loops(block)[1])
        with pytest.raises(ScheduleError, match=message):
            schedule.skip_neutral(block)


@pytest.mark.parametrize("kind", ["unrolled", "thread"])
@pytest.mark.parametrize("which", [0, 1])
def test_rfactor_of_loops_that_run_in_another_way(kind: str, which: int) -> None:
    func = matmul()
    schedule = Schedule(func)
    i, _, k = schedule.get_loops(schedule.get_block("C"))
    parts = schedule.split(k, [None, 3])
    if kind == "unrolled":
        schedule.unroll(parts[which])
    else:
        schedule.bind(i, "blockIdx.x")
        schedule.bind(parts[which], "threadIdx.x")
    partial = schedule.rfactor(parts[which])
    kinds = [(name, how) for name, _, how in loops_of(schedule, partial.name) if how == kind]
    assert (f"k_{which}", kind) in kinds
    assert [how for _, _, how in loops_of(schedule, "C")] == ["serial"] * 3
    check(schedule, func)


def test_partial_results_of_threads_are_seen_by_all() -> None:
    func = matmul()
    schedule = Schedule(func)
    block = schedule.get_block("C")
    copy = schedule.cache_write(block, 0, "local")
    k = schedule.get_loops(block)[2]
    schedule.bind(k, "threadIdx.x")
    with pytest.raises(ScheduleError, match="would be in the local memory of each, as C_local is"):
        schedule.rfactor(k)
    schedule.set_scope(block, 0, "shared")
    schedule.rfactor(k)
    assert copy.name == "C_local"
    check(schedule, func)


def test_a_reduction_across_threads_keeps_its_init() -> None:
    schedule = Schedule(matmul())
    block = schedule.get_block("C")
    outer, inner = schedule.split(schedule.get_loops(block)[2], [None, 5])
    schedule.bind(inner, "threadIdx.x")
    with pytest.raises(ScheduleError, match="without its init all would add to the result at once"):
        schedule.decompose_reduction(block, outer)


@pytest.mark.parametrize("kinds", ["parallel", "vectorize", "unroll", "blockIdx.x", "threadIdx.x", "vthread"])
@pytest.mark.parametrize("inside", [False, True])
def test_decompose_under_and_over_loops_of_any_kind(kinds: str, inside: bool) -> None:
    func = matmul()
    schedule = Schedule(func)
    block = schedule.get_block("C")
    i, j, k = schedule.get_loops(block)
    schedule.reorder(i, k, j)
    loop = j if inside else i
    if kinds in ("parallel", "vectorize", "unroll"):
        getattr(schedule, kinds)(loop)
    else:
        schedule.bind(loop, kinds)
    schedule.decompose_reduction(block, k)
    assert [how for _, _, how in loops_of(schedule, "C_init")] == [
        schedule.loop(i).kind.value,
        schedule.loop(j).kind.value,
    ]
    check(schedule, func)
