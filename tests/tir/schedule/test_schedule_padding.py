"""pad_einsum, over_compute, decompose_padding, reindex, storage_align: shapes, places and layouts made convenient."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir.schedule.programs import (
    check_compiled,
    convolution,
    elementwise,
    matmul,
    matmul_relu,
    row_argmax,
    row_sum,
)
from tests.tir.schedule.test_schedule_tensorize import dot_tile
from tilewright import te
from tilewright.ir import expr as ir
from tilewright.ir.expr import TRUE
from tilewright.ir.visit import pre_order, uses_any
from tilewright.target.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.index_map import IndexMap
from tilewright.tir.interpreter import interpret
from tilewright.tir.pipeline import cpu_pipeline
from tilewright.tir.schedule import Schedule, ScheduleError
from tilewright.tir.script import to_script
from tilewright.tir.script.parser import parse_script


def test_pad_einsum_makes_whole_tiles_for_an_intrinsic() -> None:
    func = matmul_relu(7, 9, 5)
    schedule = Schedule(func)
    block = schedule.get_block("C")
    names = [item.name for item in schedule.pad_einsum(block, [4, 4, 5])]
    assert names == ["A_pad", "B_pad", "C_crop"]
    i, j, _ = schedule.get_loops(block)
    _, _, i1, _ = schedule.tile(i, j, 4, 4)
    schedule.tensorize(i1, dot_tile(4, 4, 5))
    schedule.compute_inline(schedule.get_block("C_crop"))
    check_compiled(schedule, func)


def test_pad_einsum_leaves_what_fits() -> None:
    func = matmul(8, 12, 10)
    schedule = Schedule(func)
    assert schedule.pad_einsum(schedule.get_block("C"), [4, 4, 5]) == []
    assert [item.name for item in schedule.pad_einsum(schedule.get_block("C"), [1, 1, 4])] == ["A_pad", "B_pad"]
    check_compiled(schedule, func)


def test_pad_einsum_pads_beside_symbolic_extents() -> None:
    rows, k = ir.Var("n"), te.reduce_axis((0, 5), "k")
    a, b = te.placeholder((rows, 5), name="A"), te.placeholder((5, 9), name="B")
    c = te.compute((rows, 9), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    func = te.create_prim_func([a, b, c])
    schedule = Schedule(func)
    assert [item.name for item in schedule.pad_einsum(schedule.get_block("C"), [1, 4, 1])] == ["B_pad", "C_crop"]
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 5)).astype(np.float32), rng.standard_normal((5, 9)).astype(np.float32)
    result = np.full((3, 9), np.nan, np.float32)
    interpret(schedule.func, x, w, result)
    np.testing.assert_allclose(result, x @ w, rtol=1e-5)


def test_pad_einsum_of_symbolic_extents() -> None:
    """Rows, columns and steps of open sizes become multiples; the block's extents count, not those of its operands."""
    rows, columns, steps = (ir.Var(name) for name in ("n", "m", "d"))
    k = te.reduce_axis((0, steps), "k")
    a, b = te.placeholder((rows, 16), name="A"), te.placeholder((16, columns), name="B")
    s = te.placeholder((steps,), name="S")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j] * s[k], axis=k), name="C")
    schedule = Schedule(te.create_prim_func([a, b, s, c]))
    made = schedule.pad_einsum(schedule.get_block("C"), [4, 4, 4])
    assert [item.name for item in made] == ["A_pad", "B_pad", "S_pad", "C_crop"]
    rng = np.random.default_rng(0)
    for n, m, d in ((3, 9, 5), (4, 4, 8), (1, 1, 1)):
        x, w = rng.standard_normal((n, 16)).astype(np.float32), rng.standard_normal((16, m)).astype(np.float32)
        result = np.full((n, m), np.nan, np.float32)
        interpret(schedule.func, x, w, np.ones(d, np.float32), result)
        np.testing.assert_allclose(result, x[:, :d] @ w[:d], rtol=1e-4, atol=1e-5)


def test_pad_einsum_takes_zeros_where_operands_go_on() -> None:
    """What a sum does not reach must not get into it by padding, though both operands have it."""
    k = te.reduce_axis((0, 5), "k")
    a, b = te.placeholder((2, 16), name="A"), te.placeholder((16, 3), name="B")
    c = te.compute((2, 3), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    schedule = Schedule(te.create_prim_func([a, b, c]))
    schedule.pad_einsum(schedule.get_block("C"), [1, 1, 4])
    x, w = np.ones((2, 16), np.float32), np.ones((16, 3), np.float32)
    result = np.full((2, 3), np.nan, np.float32)
    interpret(schedule.func, x, w, result)
    assert (result == 5).all()


RECURRENCE = """@script.function
def rows(A: Buffer[(3, 5), "int32"], W: Buffer[(5, 5), "int32"], S: Buffer[(4, 3, 5), "int32"]):
    P = alloc_buffer((4, 3, 5), "int32")
    for b, n in grid(3, 5):
        with block("first"):
            v, w = spatial(3, b), spatial(5, n)
            S[0, v, w] = A[v, w]
    for t in serial(3, start=1):
        for b, n, k in grid(3, 5, 5):
            with block("P"):
                v_t, v, w, x = opaque(3, t, start=1), spatial(3, b), spatial(5, n), reduce(5, k)
                with init():
                    P[v_t, v, w] = 0
                P[v_t, v, w] = P[v_t, v, w] + S[v_t - 1, v, x] * W[w, x]
        for b, n in grid(3, 5):
            with block("S"):
                v_t, v, w = opaque(3, t, start=1), spatial(3, b), spatial(5, n)
                S[v_t, v, w] = S[v_t - 1, v, w] + P[v_t, v, w]
"""
"""A recurrence: each row of the state from a product of the row before, and from that row itself."""


def recurrence() -> PrimFunc:
    func = parse_script(RECURRENCE)
    assert isinstance(func, PrimFunc)
    return func


def test_pad_einsum_in_a_step_of_a_recurrence() -> None:
    """The padding of a state is made in each step, of the row that is read there."""
    func = recurrence()
    schedule = Schedule(func)
    product = schedule.get_block("P")
    assert [item.name for item in schedule.pad_einsum(product, [1, 4, 4, 4])] == ["S_pad", "W_pad", "P_crop"]
    assert len(schedule.get_loops(schedule.get_block("S_pad"))) == 4
    check_compiled(schedule, func)
    with pytest.raises(ScheduleError, match="not one plain loop for each iterator"):
        Schedule(func).pad_einsum(product, [2, 4, 4, 4])


def test_what_a_step_reads_of_the_row_before_is_copied_before_its_product() -> None:
    func = recurrence()
    schedule = Schedule(func)
    step, product = schedule.get_block("S"), schedule.get_block("P")
    copy = schedule.cache_read(step, "S", "local")
    row = schedule.get_loops(step)[1]
    schedule.compute_at(product, row)
    schedule.compute_at(copy, row, index=-2)
    assert [item.name for item in schedule.blocks()] == ["first", "S_local", "P", "S"]
    assert schedule.get_loops(copy)[:2] == schedule.get_loops(step)[:2]
    check_compiled(schedule, func)


def test_a_pipeline_inside_the_steps_of_a_recurrence() -> None:
    """An iterator whose order is fixed keeps it where its loop is around the pipeline; not where it is the pipeline."""
    func = recurrence()
    schedule = Schedule(func)
    product = schedule.get_block("P")
    copy = schedule.cache_read(product, "S", "shared")
    row = schedule.get_loops(product)[1]
    schedule.compute_at(copy, row)
    schedule.software_pipeline(row, [0, 1])
    check_compiled(schedule, func)
    steps = Schedule(func)
    with pytest.raises(ScheduleError):
        steps.software_pipeline(steps.get_loops(steps.get_block("P"))[0], [0, 1])


def test_zeros_that_a_packed_parameter_holds_are_copied_with_the_rest() -> None:
    func = matmul(6, 5, 8)
    schedule = Schedule(func)
    product = schedule.get_block("C")
    (padded, *_) = [item for item in schedule.pad_einsum(product, [1, 4, 1]) if item.name == "B_pad"]
    with pytest.raises(ScheduleError, match="has no elements past the end"):
        schedule.promise_padding(padded)
    schedule.transform_layout(padded, "B", lambda k, n: (n // 4, k, n % 4))
    schedule.promise_padding(padded)
    assert not any(isinstance(item, ir.Select) for item in pre_order(schedule.func.body))
    a, b = (np.random.default_rng(n).integers(-9, 9, shape).astype("int32") for n, shape in enumerate([(6, 8), (8, 5)]))
    result = np.zeros((6, 5), "int32")
    interpret(schedule.func, a, IndexMap.of(lambda k, n: (n // 4, k, n % 4), 2).rearrange(b), result)
    np.testing.assert_array_equal(result, a @ b)
    with pytest.raises(ScheduleError, match="does not choose between a parameter and a constant"):
        schedule.promise_padding(product)


def test_pad_einsum_refusals() -> None:
    schedule = Schedule(matmul())
    block = schedule.get_block("C")
    with pytest.raises(ScheduleError, match="one positive number for each of 3"):
        schedule.pad_einsum(block, [4, 4])
    schedule.split(schedule.get_loops(block)[0], [None, 4])
    with pytest.raises(ScheduleError, match="not one plain loop for each iterator"):
        schedule.pad_einsum(block, [4, 4, 4])
    schedule = Schedule(row_argmax())
    with pytest.raises(ScheduleError, match="block arg does not store one value"):
        schedule.pad_einsum(schedule.get_block("arg"), [4, 4])
    schedule = Schedule(convolution())
    with pytest.raises(ScheduleError, match="is not one iterator"):
        schedule.pad_einsum(schedule.get_block("conv"), [1, 64, 64, 1, 1, 1])
    a, b = te.placeholder((6, 5), "float32", name="A"), te.placeholder((6,), "float32", name="B")
    k = te.reduce_axis((0, 5), name="k")
    c = te.compute((6,), lambda i: te.sum(a[i, k] * b[i], axis=k), name="C")
    schedule = Schedule(te.create_prim_func([a, b, c]))
    with pytest.raises(ScheduleError, match="past the end of the reduction iterator v_k is not certainly"):
        schedule.pad_einsum(schedule.get_block("C"), [1, 4])
    schedule.pad_einsum(schedule.get_block("C"), [4, 1])
    k = te.reduce_axis((0, 5), name="k")
    c = te.compute((6,), lambda i: te.sum(a[i, k] + 1, axis=k), name="C")
    schedule = Schedule(te.create_prim_func([a, c]))
    with pytest.raises(ScheduleError, match="past the end of the reduction iterator v_k is not certainly"):
        schedule.pad_einsum(schedule.get_block("C"), [1, 4])
    a, b = te.placeholder((6,), "int32", name="A"), te.placeholder((6,), "int32", name="B")
    schedule = Schedule(te.create_prim_func([a, b, te.compute((6,), lambda i: a[i] // b[i], name="C")]))
    with pytest.raises(ScheduleError, match="divides by what may be zero past the ends"):
        schedule.pad_einsum(schedule.get_block("C"), [4])


def test_pad_einsum_of_operands_read_anywhere_else() -> None:
    """An index that is no iterator stays as it is where none of its iterators is padded: keys of groups of heads."""
    a, b = te.placeholder((6, 5), "float32", name="A"), te.placeholder((2, 5, 7), "float32", name="B")
    k = te.reduce_axis((0, 5), name="k")
    c = te.compute((6, 7), lambda h, j: te.sum(a[h, k] * b[h // 3, k, j], axis=k), name="C")
    schedule = Schedule(te.create_prim_func([a, b, c]))
    schedule.pad_einsum(schedule.get_block("C"), [1, 4, 1])
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 5), (2, 5, 7)))
    result = np.full((6, 7), np.nan, np.float32)
    interpret(schedule.func, x, w, result)
    np.testing.assert_allclose(result, np.einsum("hk,hkj->hj", x, np.repeat(w, 3, axis=0)), rtol=1e-5)
    schedule = Schedule(te.create_prim_func([a, b, c]))
    with pytest.raises(ScheduleError, match="an index of B is not one iterator"):
        schedule.pad_einsum(schedule.get_block("C"), [4, 1, 1])


PADDED = {
    "constant factor": lambda a, b, w, i, j, k: te.sum(a[i, k] * b[j, k] * 3, axis=k),
    "a factor without the reduction": lambda a, b, w, i, j, k: te.sum(a[i, k] * b[j, k] * w[i], axis=k),
    "squared distance": lambda a, b, w, i, j, k: te.sum((a[i, k] - b[j, k]) * (a[i, k] - b[j, k]), axis=k),
    "sum of products": lambda a, b, w, i, j, k: te.sum((a[i, k] + b[j, k]) * b[j, k], axis=k),
    "greatest": lambda a, b, w, i, j, k: te.max(a[i, k], axis=k),
    "least": lambda a, b, w, i, j, k: te.min(b[j, k], axis=k),
    "no reduction": lambda a, b, w, i, j, k: a[i, 0 * i + j] * 2 + w[i],
}


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("padding", [(4, 4, 4), (1, 1, 8), (3, 1, 1)])
def test_pad_einsum_of_other_combinations(name: str, padding: tuple[int, ...]) -> None:
    a, b = te.placeholder((7, 5), "int32", name="A"), te.placeholder((5, 5), "int32", name="B")
    w = te.placeholder((7,), "int32", name="W")
    k = te.reduce_axis((0, 5), name="k")
    c = te.compute((7, 5), lambda i, j: PADDED[name](a, b, w, i, j, k), name="C")
    func = te.create_prim_func([a, b, w, c])
    schedule = Schedule(func)
    numbers = padding[:2] if name == "no reduction" else padding
    made = schedule.pad_einsum(schedule.get_block("C"), numbers)
    assert bool(made) == any(n > 1 for n in numbers)
    check_compiled(schedule, func)


def test_decompose_padding_fills_and_copies() -> None:
    func = convolution()
    for place in range(3):
        schedule = Schedule(func)
        block = schedule.get_block("pad")
        fill = schedule.decompose_padding(block, schedule.get_loops(block)[place])
        assert fill.name == "pad_fill"
        assert "select" not in to_script(schedule.func)
        check_compiled(schedule, func)


def test_decompose_padding_refusals() -> None:
    schedule = Schedule(convolution())
    pad, conv, out = (schedule.get_block(name) for name in ("pad", "conv", "out"))
    with pytest.raises(ScheduleError, match="is not around block"):
        schedule.decompose_padding(pad, schedule.get_loops(conv)[0])
    with pytest.raises(ScheduleError, match="does not store a choice"):
        schedule.decompose_padding(out, schedule.get_loops(out)[0])
    schedule.compute_at(pad, schedule.get_loops(conv)[0])
    with pytest.raises(ScheduleError, match="something else stands in loop"):
        schedule.decompose_padding(pad, schedule.get_loops(pad)[0])


def test_reindex_gives_plain_operands() -> None:
    func = convolution(channels=4)
    schedule = Schedule(func)
    conv = schedule.get_block("conv")
    copy = schedule.reindex(conv, "pad")
    assert [region.buffer.name for region in schedule.block(conv).reads] == ["pad_reindex", "W"]
    assert len(schedule.block(copy).iters) == 5
    check_compiled(schedule, func)
    schedule.reindex(conv, "conv", "write")
    check_compiled(schedule, func)


def test_reindex_takes_what_no_condition_needs_to_guard() -> None:
    mask, a = te.placeholder((5, 4), "bool", "mask"), te.placeholder((5, 8), "float32", "a")
    chosen = te.compute((5, 4), lambda i, j: te.select(mask[i, j], te.const(0.0), a[i, j * 2]), "chosen")
    func = te.create_prim_func([mask, a, chosen], "where")
    schedule = Schedule(func)
    block = schedule.get_block("chosen")
    for name in ("mask", "a"):
        schedule.reindex(block, name)
    assert [region.buffer.name for region in schedule.block(block).reads] == ["mask_reindex", "a_reindex"]
    check_compiled(schedule, func)


def test_reindex_refusals() -> None:
    schedule = Schedule(convolution())
    with pytest.raises(ScheduleError, match="only where a condition holds"):
        schedule.reindex(schedule.get_block("pad"), "A")
    with pytest.raises(ScheduleError, match="not read or write"):
        schedule.reindex(schedule.get_block("pad"), "A", "both")
    schedule = Schedule(row_sum())
    with pytest.raises(ScheduleError, match="no such buffer"):
        schedule.reindex(schedule.get_block("S"), "Z")
    a = te.placeholder((12,), "int32", name="A")
    b = te.compute((6,), lambda i: a[i] + a[i + 6], name="B")
    schedule = Schedule(te.create_prim_func([a, b]))
    with pytest.raises(ScheduleError, match="at 2 different places"):
        schedule.reindex(schedule.get_block("B"), "A")


def test_storage_align_spaces_out_rows() -> None:
    func = elementwise((12, 20), 2)
    schedule = Schedule(func)
    schedule.storage_align(schedule.get_block("B0"), 0, 0, 32, 1)
    check_compiled(schedule, func)
    lowered = schedule.func
    for step in cpu_pipeline(Target("native")).passes:
        lowered = step.run(lowered) if hasattr(step, "run") else step(lowered)
        if step.name == "align_storage":
            break
    assert "strides=(33, 1)" in to_script(lowered)


def test_storage_align_refusals() -> None:
    schedule = Schedule(elementwise((12, 20), 2))
    first, last = schedule.get_block("B0"), schedule.get_block("B1")
    with pytest.raises(ScheduleError, match="is a parameter"):
        schedule.storage_align(last, 0, 0, 32, 1)
    with pytest.raises(ScheduleError, match="has no axis 2"):
        schedule.storage_align(first, 0, 2, 32, 1)
    with pytest.raises(ScheduleError, match="a factor of 8 with an offset of 8"):
        schedule.storage_align(first, 0, 0, 8, 8)


def panels(size: int = 10, width: int = 4) -> PrimFunc:
    """T[i] = sum over k of A[i // width, k, i % width]; B[i] = T[i] + 1, with A padded to whole panels."""
    a = te.placeholder((-(-size // width), 3, width), "int32", "A")
    k = te.reduce_axis((0, 3), "k")
    t = te.compute((size,), lambda i: te.sum(a[i // width, k, i % width], axis=k), name="T")
    return te.create_prim_func([a, te.compute((size,), lambda i: t[i] + 1, name="B")])


def test_over_compute_frees_tiles_of_guards() -> None:
    func = panels()
    schedule = Schedule(func)
    block, out = schedule.get_block("T"), schedule.get_block("B")
    schedule.over_compute(block, 0, 4)
    (i,) = schedule.get_loops(out)
    outer, _ = schedule.split(i, [None, 4])
    schedule.compute_at(block, outer)
    assert schedule.block(block).predicate is TRUE
    assert schedule.block(out).predicate is not TRUE
    check_compiled(schedule, func)
    guarded = Schedule(func)
    outer, _ = guarded.split(guarded.get_loops(out)[0], [None, 4])
    guarded.compute_at(block, outer)
    assert guarded.block(block).predicate is not TRUE


def test_over_compute_of_a_symbolic_extent_beside_a_guarded_one() -> None:
    rows, columns = ir.Var("n"), ir.Var("m")
    a = te.placeholder((rows, (columns + 3) // 4 * 4), name="A")
    t = te.compute((rows, columns), lambda i, j: a[i, j] * 2.0, name="T")
    schedule = Schedule(te.create_prim_func([a, te.compute((rows, columns), lambda i, j: t[i, j] + 1.0, name="B")]))
    block = schedule.get_block("T")
    outer, _ = schedule.split(schedule.get_loops(schedule.get_block("B"))[0], [None, 2])
    schedule.compute_at(block, outer)
    schedule.over_compute(block, 1, 4)
    schedule.split(schedule.get_loops(block)[-1], [None, 4])
    assert not uses_any(schedule.block(block).predicate, [columns])
    for n, m in ((3, 5), (2, 4), (1, 1)):
        x = np.random.default_rng(0).standard_normal((n, (m + 3) // 4 * 4)).astype(np.float32)
        result = np.full((n, m), np.nan, np.float32)
        interpret(schedule.func, x, result)
        np.testing.assert_allclose(result, x[:, :m] * 2 + 1)


def test_over_compute_refusals() -> None:
    schedule = Schedule(panels())
    block, out = schedule.get_block("T"), schedule.get_block("B")
    with pytest.raises(ScheduleError, match="A has no elements past the end of v_i"):
        schedule.over_compute(block, 0, 16)
    with pytest.raises(ScheduleError, match="B must be an intermediate buffer"):
        schedule.over_compute(out, 0, 4)
    with pytest.raises(ScheduleError, match="must be spatial and begin at 0"):
        schedule.over_compute(block, 1, 4)
    with pytest.raises(ScheduleError, match="has no iterator number 2"):
        schedule.over_compute(block, 2, 4)
    schedule.over_compute(block, 0, 5)
    schedule.split(schedule.get_loops(block)[0], [None, 2])
    with pytest.raises(ScheduleError, match="does not have a plain loop of its own"):
        schedule.over_compute(block, 0, 4)


def test_over_compute_does_not_divide_by_what_may_be_zero() -> None:
    a, b = te.placeholder((8,), "int32", "A"), te.placeholder((8,), "int32", "B")
    t = te.compute((6,), lambda i: a[i] // b[i], name="T")
    schedule = Schedule(te.create_prim_func([a, b, te.compute((6,), lambda i: t[i] + 1, name="C")]))
    with pytest.raises(ScheduleError, match="divides by what may be zero past the end of v_i"):
        schedule.over_compute(schedule.get_block("T"), 0, 4)


def test_what_is_known_of_a_loop_changes_with_its_extent() -> None:
    """The padded loop is longer than what is cropped: the consumer in it is guarded."""
    func = matmul(2, 5, 8)
    schedule = Schedule(func)
    block = schedule.get_block("C")
    assert schedule._state.analyzer.upper_bound(schedule.get_loops(block)[1].var) == 4
    schedule.pad_einsum(block, [1, 4, 1])
    schedule.reverse_compute_at(schedule.get_block("C_crop"), schedule.get_loops(block)[1])
    assert "where(j < 5)" in str(schedule)
    check_compiled(schedule, func)
