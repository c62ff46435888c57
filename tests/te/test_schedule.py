"""The `s[C]` facade: every primitive keeps what is computed, axes stay good, and errors name the stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.te.running import run
from tilewright import te
from tilewright.support.errors import UserError
from tilewright.te.schedule import Schedule
from tilewright.te.tensor import Tensor
from tilewright.tir.schedule import ScheduleError
from tilewright.tir.stmt import For, LoopKind


def _matmul(n: int, m: int, depth: int) -> tuple[Tensor, Tensor, Tensor]:
    a = te.placeholder((n, depth), "int32", "A")
    b = te.placeholder((depth, m), "int32", "B")
    k = te.reduce_axis((0, depth), "k")
    return a, b, te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")


def _check(schedule: Schedule, args: Sequence[Tensor], seed: int = 0) -> None:
    """The scheduled program computes what the plain one does (integers: exactly)."""
    rng = np.random.default_rng(seed)
    inputs = [
        rng.integers(-9, 9, tuple(dim.value for dim in arg.shape)).astype(arg.dtype.numpy())  # type: ignore[attr-defined]
        for arg in args
        if not arg.op.inputs and not arg.op.axis
    ]
    got = run(args, *inputs, func=schedule.func(args))
    wanted = run(args, *inputs)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def _kinds(schedule: Schedule, stage: Any) -> dict[str, LoopKind]:
    index = schedule.index
    return {loop.var.name: loop.kind for loop in index.loops_above(schedule[stage].block)}


def test_an_unscheduled_program() -> None:
    a, b, c = _matmul(4, 5, 3)
    for target in (c.op, c, [c.op], [c]):
        _check(te.create_schedule(target), [a, b, c])


def test_tile_reorder_vectorize_parallel_unroll() -> None:
    a, b, c = _matmul(16, 16, 8)
    s = te.create_schedule(c.op)
    xo, yo, xi, yi = s[c].tile(c.op.axis[0], c.op.axis[1], 4, 8)
    (k,) = s[c].op.reduce_axis
    ko, ki = s[c].split(k, factor=4)
    s[c].reorder(xo, yo, ko, xi, ki, yi)
    s[c].parallel(xo)
    s[c].unroll(ki)
    s[c].vectorize(yi)
    assert list(_kinds(s, c).items()) == [
        ("i_0", LoopKind.PARALLEL),
        ("j_0", LoopKind.SERIAL),
        ("k_0", LoopKind.SERIAL),
        ("i_1", LoopKind.SERIAL),
        ("k_1", LoopKind.UNROLLED),
        ("j_1", LoopKind.VECTORIZED),
    ]
    _check(s, [a, b, c])


def test_split_by_parts_and_fuse() -> None:
    a, b, c = _matmul(10, 6, 3)
    s = te.create_schedule(c)
    outer, inner = s[c].split(c.op.axis[0], nparts=4)
    assert [axis.domain.extent.value for axis in (outer, inner)] == [4, 3]  # type: ignore[attr-defined]
    fused = s[c].fuse(inner, c.op.axis[1])
    s[c].parallel(outer)
    assert fused.domain.extent.value == 18  # type: ignore[attr-defined]
    _check(s, [a, b, c])


@pytest.mark.parametrize("sizes", [(16, 16, 8), (13, 11, 7), (5, 3, 2)])
def test_write_cache_under_a_tile(sizes: tuple[int, int, int]) -> None:
    """The blocked matrix product of the papers, with sizes that tiles divide and do not divide."""
    a, b, c = _matmul(*sizes)
    s = te.create_schedule(c.op)
    cl = s.cache_write(c, "local")
    _, yo, _, yi = s[c].tile(c.op.axis[0], c.op.axis[1], 4, 4)
    s[cl].compute_at(s[c], yo)
    x, y = s[cl].op.axis
    (k,) = s[cl].op.reduce_axis
    ko, ki = s[cl].split(k, factor=4)
    s[cl].reorder(ko, x, ki, y)
    s[cl].unroll(ki)
    s[cl].vectorize(y)
    s[c].vectorize(yi)
    _check(s, [a, b, c])


def test_axes_of_a_cached_stage_by_either_name() -> None:
    a, b, c = _matmul(8, 8, 4)
    s = te.create_schedule(c.op)
    own = c.op.axis
    s.cache_write(c, "local")
    # The tensor's own axes and those of the stage name the loops of the copy.
    assert s[c].loop(own[0]) is s[c].loop(s[c].op.axis[0])
    s[c].vectorize(s[c].op.axis[1])
    _check(s, [a, b, c])


def test_read_caches_at_scopes() -> None:
    a, b, c = _matmul(8, 8, 8)
    s = te.create_schedule(c.op)
    al = s.cache_read(a, "shared", [c])
    bl = s.cache_read(b, "shared")
    xo, yo, xi, yi = s[c].tile(*s[c].op.axis, 4, 4)
    ko, ki = s[c].split(s[c].op.reduce_axis[0], 2)
    s[c].reorder(xo, yo, ko, ki, xi, yi)
    s[al].compute_at(s[c], ko)
    s[bl].compute_at(s[c], ko)
    s[al].vectorize(s[al].op.axis[1])
    names = {buffer.name: buffer.scope for buffer in s.loops.func.root.allocations}
    assert names == {"A_shared": "shared", "B_shared": "shared"}
    _check(s, [a, b, c])


def test_a_read_cache_of_a_computed_tensor_for_several_readers() -> None:
    a = te.placeholder((8,), "int32", "A")
    b = te.compute((8,), lambda i: a[i] + 1, name="B")
    c = te.compute((8,), lambda i: b[i] * 2, name="C")
    d = te.compute((8,), lambda i: b[i] * 3 + c[i], name="D")
    s = te.create_schedule(d.op)
    cached = s.cache_read(b, "local")
    assert s[c].reads("B_local")
    assert s[d].reads("B_local")
    assert [axis.name for axis in s[cached].op.axis] == ["ax0"]
    _check(s, [a, d])


def test_inline_and_root() -> None:
    a = te.placeholder((8,), "int32", "A")
    b = te.compute((8,), lambda i: a[i] + 1, name="B")
    c = te.compute((8,), lambda i: b[i] * b[i], name="C")
    s = te.create_schedule(c.op)
    s[b].compute_root()
    s[b].compute_inline()
    assert [stage.name for stage in s.stages] == ["B", "C"]
    assert len(s.index.blocks) == 2
    _check(s, [a, c])
    with pytest.raises(UserError, match="stage B is no longer in the program"):
        s[b].vectorize(b.op.axis[0])


def test_compute_at_keeps_single_iterations() -> None:
    a = te.placeholder((8, 8), "int32", "A")
    b = te.compute((8, 8), lambda i, j: a[i, j] + 1, name="B")
    c = te.compute((8, 8), lambda i, j: b[i, j] * 2, name="C")
    s = te.create_schedule(c.op)
    s[b].compute_at(s[c], c.op.axis[0])
    i, j = s[b].op.axis
    assert s[b].loop(i).extent.value == 1  # type: ignore[attr-defined]
    jo, ji = s[b].split(j, 4)
    s[b].reorder(i, jo, ji)
    s[b].vectorize(ji)
    _check(s, [a, c])
    with pytest.raises(UserError, match="stage B was moved by compute_at and does not go back"):
        s[b].compute_root()


def test_axes_stay_good_when_others_move_in() -> None:
    """An operation's axis names its loop after the loop was made anew and other stages moved under it."""
    a = te.placeholder((8, 8), "int32", "A")
    b = te.compute((8, 8), lambda i, j: a[i, j] + 1, name="B")
    c = te.compute((8, 8), lambda i, j: b[i, j] * 2, name="C")
    d = te.compute((8, 8), lambda i, j: c[i, j] - 3, name="D")
    s = te.create_schedule(d.op)
    xo, _, _, _ = s[d].tile(*d.op.axis, 4, 4)
    s[c].compute_at(s[d], xo)
    s[b].compute_at(s[c], c.op.axis[0])
    s[c].unroll(c.op.axis[0])
    s[b].vectorize(b.op.axis[1])
    s[d].parallel(xo)
    _check(s, [a, d])


def test_a_single_iteration_has_a_loop_when_it_is_asked_for() -> None:
    a = te.placeholder((8, 1), "int32", "A")
    b = te.compute((8, 1), lambda i, j: a[i, j] + 1, name="B")
    s = te.create_schedule(b.op)
    cached = s.cache_read(a, "local")
    _, j = s[cached].op.axis
    assert s[cached].loop(j) is s[cached].loop(j)
    s[cached].vectorize(j)
    _check(s, [a, b])


@pytest.mark.parametrize("factor_axis", [0, 1])
def test_rfactor(factor_axis: int) -> None:
    a = te.placeholder((4, 32), "int32", "A")
    k = te.reduce_axis((0, 32), "k")
    b = te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="B")
    s = te.create_schedule(b.op)
    _, ki = s[b].split(k, factor=8)
    bf = s.rfactor(b, ki, factor_axis)
    shape = tuple(dim.value for dim in bf.shape)  # type: ignore[attr-defined]
    assert shape == ((8, 4) if factor_axis == 0 else (4, 8))
    assert len(s[bf].op.reduce_axis) == 1
    (combined,) = s[b].op.reduce_axis
    s[b].unroll(combined)
    s[bf].unroll(s[bf].op.reduce_axis[0])
    _check(s, [a, b])


def test_argmax_with_rfactor() -> None:
    a = te.placeholder((3, 16), "int32", "A")
    k = te.reduce_axis((0, 16), "k")
    place, value = te.compute_many((3,), lambda i: te.argmax((k, a[i, k]), axis=k), name="best")
    s = te.create_schedule(place.op)
    ko, _ = s[place].split(k, 4)
    partial = s.rfactor(place, ko)
    assert s[partial].op.reduce_axis
    _check(s, [a, place, value])


def test_bind_and_scopes() -> None:
    a = te.placeholder((32,), "int32", "A")
    b = te.compute((32,), lambda i: a[i] + 1, name="B")
    c = te.compute((32,), lambda i: b[i] * 2, name="C")
    s = te.create_schedule(c.op)
    s[b].set_scope("shared")
    for tensor in (b, c):
        outer, inner = s[tensor].split(tensor.op.axis[0], factor=8)
        s[tensor].bind(outer, te.thread_axis("blockIdx.x"))
        s[tensor].bind(inner, te.thread_axis("threadIdx.x"))
    assert set(_kinds(s, c).values()) == {LoopKind.THREAD}
    assert s.loops.func.root.allocations[0].scope == "shared"
    _check(s, [a, c])


def test_the_steps_of_a_scan_are_stages() -> None:
    x = te.placeholder((4, 16), "int32", "X")
    state = te.placeholder((4, 16), "int32", "state")
    first = te.compute((1, 16), lambda _, i: x[0, i], name="first")
    step = te.compute((4, 16), lambda t, i: state[t - 1, i] + x[t, i], name="step")
    result = te.scan(first, step, state, name="cumsum")
    assert isinstance(result, Tensor)
    s = te.create_schedule(result.op)
    _, inner = s[step].split(step.op.axis[1], factor=8)
    s[step].vectorize(inner)
    func = s.func([x, result])
    values = np.random.default_rng(0).integers(-9, 9, (4, 16)).astype(np.int32)
    (out,) = run([x, result], values, func=func)
    np.testing.assert_array_equal(out, values.cumsum(axis=0))


# ---------------------------------------------------------------- the program


def test_parameters_come_in_the_order_of_the_arguments() -> None:
    a, b, c = _matmul(4, 4, 4)
    s = te.create_schedule(c)
    for args in ([a, b, c], [c, b, a]):
        func = te.lower(s, args, name="product")
        assert func.name == "product"
        assert [buffer.name for buffer in func.buffers] == [arg.name for arg in args]
        _check(s, args)
    assert "C" in str(s)


def test_intermediate_tensors_and_unused_inputs_as_arguments() -> None:
    a = te.placeholder((8,), "int32", "A")
    unused = te.placeholder((2,), "int32", "U")
    b = te.compute((8,), lambda i: a[i] + 1, name="B")
    c = te.compute((8,), lambda i: b[i] * 2, name="C")
    s = te.create_schedule(c.op)
    s[b].vectorize(b.op.axis[0])
    _check(s, [a, unused, b, c])
    assert s.func([a, b, c]).root.allocations == ()
    s[c].split(c.op.axis[0], 4)
    s[b].compute_inline()
    with pytest.raises(UserError, match="B is not computed as a whole by this schedule"):
        s.func([a, b, c])


def test_scalar_parameters_and_symbolic_sizes() -> None:
    n = te.var("n")
    scale = te.var("scale", "int32")
    a = te.placeholder((n,), "int32", "A")
    b = te.compute((n,), lambda i: a[i] * scale + te.cast(n, "int32"), name="B")
    s = te.create_schedule(b.op)
    _, inner = s[b].split(b.op.axis[0], factor=4)
    s[b].vectorize(inner)
    (out,) = run([a, scale, b], np.arange(7, dtype=np.int32), 3, func=s.func([a, scale, b]))
    assert out.tolist() == (np.arange(7) * 3 + 7).tolist()


# ---------------------------------------------------------------- messages


def _stage() -> tuple[Tensor, Tensor, Schedule]:
    a = te.placeholder((8, 8), name="A")
    b = te.compute((8, 8), lambda i, j: a[i, j] + 1, name="B")
    return a, b, te.create_schedule(b.op)


def test_errors_name_the_stage() -> None:
    a, b, s = _stage()
    i, j = b.op.axis
    other = te.compute((8,), lambda x: a[x, 0], name="other")
    with pytest.raises(UserError, match="stage B: split takes either factor or nparts"):
        s[b].split(i)
    with pytest.raises(UserError, match="stage B: split takes either factor or nparts"):
        s[b].split(i, 2, 2)
    with pytest.raises(UserError, match="stage B: 3 is not an axis"):
        s[b].vectorize(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="stage B has no axis x"):
        s[b].vectorize(other.op.axis[0])
    with pytest.raises(UserError, match="the schedule has no stage for 'other'"):
        s[other]
    with pytest.raises(UserError, match="the schedule has no stage for 'A'"):
        s[a]
    with pytest.raises(UserError, match="stage B: compute_at takes a stage"):
        s[b].compute_at(b, i)  # type: ignore[arg-type]
    s[b].split(i, 4)
    with pytest.raises(UserError, match="stage B: axis i was split or fused before") as caught:
        s[b].parallel(i)
    assert "the loops around it are: i_0, i_1, j" in str(caught.value)
    with pytest.raises(ScheduleError, match="is not a factor"):
        s[b].split(j, 0)


def test_schedules_need_computed_tensors() -> None:
    a, _, _ = _stage()
    with pytest.raises(UserError, match="there is nothing to schedule"):
        te.create_schedule(a)
    with pytest.raises(UserError, match="a schedule is made of tensors or operations, not 3"):
        te.create_schedule([3])  # type: ignore[list-item]


def test_argument_errors() -> None:
    a, b, s = _stage()
    with pytest.raises(UserError, match="A is used by the schedule but is not among the arguments"):
        s.func([b])
    with pytest.raises(UserError, match="B is used by the schedule but is not among the arguments"):
        s.func([a])
    with pytest.raises(UserError, match="A is given twice among the arguments"):
        s.func([a, a, b])
    with pytest.raises(UserError, match="an argument must be a tensor or a variable, not 3"):
        s.func([a, 3, b])  # type: ignore[list-item]
    other = te.compute((8,), lambda x: a[x, 0], name="other")
    with pytest.raises(UserError, match="other is not computed as a whole by this schedule"):
        s.func([a, b, other])


def test_cache_errors() -> None:
    a, b, s = _stage()
    other = te.placeholder((2,), name="other")
    unused = te.compute((8, 8), lambda i, j: b[i, j], name="last")
    with pytest.raises(UserError, match="tensor other is no part of this schedule"):
        s.cache_read(other, "local")
    with pytest.raises(UserError, match="cache_read: no stage reads B"):
        s.cache_read(b, "local")
    s = te.create_schedule(unused.op)
    with pytest.raises(UserError, match="cache_read: stage last does not read A"):
        s.cache_read(a, "local", [unused])
    with pytest.raises(UserError, match="no stage for 'A'"):
        s.cache_write(a, "local")


# ---------------------------------------------------------------- random schedules


def _tried(schedule: Schedule, action: Callable[[], object]) -> bool:
    """Whether a primitive applied; one that does not must leave the program as it was."""
    before = schedule.loops.func
    try:
        action()
    except ScheduleError:
        assert schedule.loops.func is before
        return False
    return True


@given(data=st.data())
@settings(max_examples=40)
def test_random_schedules_keep_the_result(data: st.DataObject) -> None:
    """Random splits, tiles, orders, kinds and caches of a two-stage program; what is refused changes nothing."""
    n, m, depth = (data.draw(st.integers(1, 9)) for _ in range(3))
    a, b, c = _matmul(n, m, depth)
    d = te.compute((n, m), lambda i, j: c[i, j] * 2 + i, name="D")
    s = te.create_schedule(d.op)
    cached = s.cache_write(c, "local") if data.draw(st.booleans()) else c
    xo, yo, _, yi = s[d].tile(*d.op.axis, data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)))
    place = data.draw(st.sampled_from([xo, yo, None]))
    if place is not None and _tried(s, lambda: s[c].compute_at(s[d], place)) and cached is not c:
        _tried(s, lambda: s[cached].compute_at(s[c], s[c].op.axis[0]))
    x, y = s[cached].op.axis
    (k,) = s[cached].op.reduce_axis
    ko, ki = s[cached].split(k, factor=data.draw(st.integers(1, 4)))
    s[cached].reorder(*data.draw(st.permutations([ko, ki, x, y])))
    for stage, axis in ((s[cached], x), (s[cached], y), (s[d], yi), (s[d], xo)):
        action = data.draw(st.sampled_from(["vectorize", "unroll", "parallel", "none"]))
        if action != "none":
            _tried(s, lambda: getattr(stage, action)(axis))  # noqa: B023  (called at once)
    _check(s, [a, b, d], seed=n)


def test_loops_are_found_in_the_program() -> None:
    _, b, s = _stage()
    loop = s[b].loop(b.op.axis[0])
    assert isinstance(loop, For)
    assert repr(s[b]) == "stage B"


def test_double_buffer_and_storage_align() -> None:
    a = te.placeholder((8, 12), name="A")
    b = te.compute((8, 12), lambda i, j: a[i, j] + 1, name="B")
    c = te.compute((8, 12), lambda i, j: b[i, j] * 2, name="C")
    s = te.create_schedule(c.op)
    s[b].compute_at(s[c], c.op.axis[0])
    s[b].double_buffer()
    s[b].storage_align(s[b].op.axis[0], 16, 1)
    text = str(s)
    assert "software_pipeline" in text and "storage_align" in text
    values = np.arange(96, dtype=np.float32).reshape(8, 12)
    (found,) = run([a, c], values, func=te.lower(s, [a, c]))
    np.testing.assert_array_equal(found, (values + 1) * 2)
    with pytest.raises(UserError, match="is not an axis of its tensor"):
        s[b].storage_align(c.op.axis[0], 16, 1)


def test_several_outputs_are_computed_in_another_scope_together() -> None:
    a = te.placeholder((6, 8), name="A", dtype="int32")
    k = te.reduce_axis((0, 8), name="k")
    index, value = te.compute_many((6,), lambda i: te.argmax((k.var, a[i, k]), axis=k), name="arg")
    s = te.create_schedule([index.op])
    kept = s.cache_write([index, value], "local")
    assert [tensor.shape[0].value for tensor in kept] == [6, 6]
    outer, _ = s[value].split(s[value].op.axis[0], factor=2)
    s[kept[0]].compute_at(s[index], outer)
    assert s[kept[0]] is s[kept[1]]
    x = np.random.default_rng(0).permutation(48).reshape(6, 8).astype("int32")
    found = np.zeros(6, "int64"), np.zeros(6, "int32")
    tw.build(s, [a, index, value])(x, *found)
    np.testing.assert_array_equal(found[0], x.argmax(1))
    np.testing.assert_array_equal(found[1], x.max(1))
    b = te.compute((6, 8), lambda i, j: a[i, j] + 1, name="B")
    c = te.compute((6, 8), lambda i, j: b[i, j] * 2, name="C")
    with pytest.raises(UserError, match="the tensors are not outputs of one operation"):
        te.create_schedule(c.op).cache_write([b, c], "local")
