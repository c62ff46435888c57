"""blockize and tensorize: tiles as units, matched with declared intrinsics, interpreted, lowered and compiled."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir.schedule import programs
from tests.tir.schedule.programs import check, compiled, convolution, elementwise, matmul, row_sum, run
from tilewright import te
from tilewright.ir.build import const
from tilewright.ir.expr import ZERO, Call, Ramp, Var, const_value
from tilewright.ir.visit import find_all
from tilewright.support.errors import UserError
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.flatten_buffers import flatten_buffers
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.passes.lower_tensor_intrinsics import lower_tensor_intrinsics
from tilewright.tir.schedule import Schedule, ScheduleError, Trace, replay
from tilewright.tir.script import to_script
from tilewright.tir.stmt import For, LoopKind, Stmt, seq
from tilewright.tir.tensor_intrin import Operand, TensorIntrin
from tilewright.topi.intrinsics import dot


def _loops(extents: list[int], body) -> Stmt:
    names = [Var(f"x{n}") for n in range(len(extents))]
    result = body(*names)
    for var, extent in zip(reversed(names), reversed(extents), strict=True):
        result = For(var, ZERO, const(extent), LoopKind.SERIAL, result)
    return result


def dot_tile(m: int, n: int, k: int, dtype: str = "int32", name: str | None = None, parts: int = 3) -> TensorIntrin:
    """z[m, n] += w[m, k] * x[k, n], lowered to loops over the operands."""
    w, x = te.placeholder((m, k), dtype, name="w"), te.placeholder((k, n), dtype, name="x")
    r = te.reduce_axis((0, k), name="r")
    z = te.compute((m, n), lambda i, j: te.sum(w[i, r] * x[r, j], axis=r), name="z")

    def rule(inputs: list[Operand], outputs: list[Operand]):
        (a, b), (c,) = inputs, outputs
        reset = _loops([m, n], lambda i, j: c.store((i, j), 0))
        update = _loops([m, n, k], lambda i, j, q: c.store((i, j), c[i, j] + a[i, q] * b[q, j]))
        again = _loops([m, n], lambda i, j: c.store((i, j), 0))
        more = _loops([m, n, k], lambda i, j, q: c.store((i, j), c[i, j] + a[i, q] * b[q, j]))
        compute = seq(again, more)
        return (compute, reset, update) if parts == 3 else compute

    return te.decl_tensor_intrin(z.op, rule, name=name or f"dot_{m}_{n}_{k}_{dtype}_{parts}")


def check_compiled(schedule: Schedule, func: PrimFunc) -> None:
    """Interpreted, lowered-and-interpreted, and compiled: all the same."""
    programs.check_compiled(schedule, func)
    for a, b in zip(run(func), run(lower_tensor_intrinsics(schedule.func)), strict=True):
        np.testing.assert_array_equal(a, b)


def tiled_matmul(n: int, m: int, k: int, tile: tuple[int, int, int]) -> tuple[PrimFunc, Schedule, list]:
    func = matmul(n, m, k)
    schedule = Schedule(func)
    i, j, r = schedule.get_loops(schedule.get_block("C"))
    i0, i1 = schedule.split(i, [None, tile[0]])
    j0, j1 = schedule.split(j, [None, tile[1]])
    r0, r1 = schedule.split(r, [None, tile[2]])
    schedule.reorder(i0, j0, r0, i1, j1, r1)
    return func, schedule, [i0, j0, r0, i1, j1, r1]


# ---------------------------------------------------------------- blockize


def test_blockize_makes_a_tile_of_a_nest() -> None:
    func, schedule, loops = tiled_matmul(8, 12, 10, (4, 4, 5))
    tile = schedule.blockize(loops[3])
    block = schedule.block(tile)
    assert [const_value(item.domain.extent) for item in block.iters] == [2, 3, 2]
    assert block.init is not None
    assert [const_value(part.extent) for part in block.writes[0].region] == [4, 4]
    assert schedule.get_child_blocks(tile)[-1].name == "C"
    check_compiled(schedule, func)


def test_blockize_keeps_an_init_that_is_inside() -> None:
    func, schedule, loops = tiled_matmul(8, 12, 10, (4, 4, 10))
    block = schedule.block(schedule.blockize(loops[3]))
    assert block.init is None
    check_compiled(schedule, func)


def test_tiles_move_and_decompose_as_units() -> None:
    func, schedule, loops = tiled_matmul(8, 12, 10, (4, 4, 5))
    tile = schedule.blockize(loops[3])
    schedule.reorder(loops[1], loops[0])
    schedule.parallel(loops[1])
    schedule.decompose_reduction(tile, loops[2])
    check_compiled(schedule, func)


def test_blockize_of_elementwise_and_convolution() -> None:
    func = elementwise((12, 20), 2)
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("B1"))
    _, _, i1, _ = schedule.tile(i, j, 4, 5)
    schedule.blockize(i1)
    check_compiled(schedule, func)
    func = convolution(channels=4)
    schedule = Schedule(func)
    k, h, x, c, r, q = schedule.get_loops(schedule.get_block("conv"))
    k0, k1 = schedule.split(k, [None, 2])
    c0, c1 = schedule.split(c, [None, 2])
    schedule.reorder(k0, h, x, r, q, c0, k1, c1)
    schedule.blockize(k1)
    check_compiled(schedule, func)


@pytest.mark.parametrize(
    ("tile", "message"),
    [((4, 5, 5), "guarded inside the tile"), ((3, 4, 5), "guarded inside the tile")],
)
def test_blockize_refuses_partial_tiles(tile: tuple[int, int, int], message: str) -> None:
    _, schedule, loops = tiled_matmul(8, 12, 10, tile)
    with pytest.raises(ScheduleError, match=message) as error:
        schedule.blockize(loops[3])
    assert "pad_einsum" in str(error.value)


def test_blockize_refuses_other_nests() -> None:
    func = matmul(8, 12, 10)
    schedule = Schedule(func)
    block = schedule.get_block("C")
    i, j, k = schedule.get_loops(block)
    fused = schedule.fuse(i, j)
    _, n = schedule.split(fused, [None, 8])
    with pytest.raises(ScheduleError, match="divides or combines"):
        schedule.blockize(n)
    schedule = Schedule(func)
    i, j, k = schedule.get_loops(schedule.get_block("C"))
    schedule.vectorize(j)
    with pytest.raises(ScheduleError, match="vectorized"):
        schedule.blockize(j)
    schedule = Schedule(func)
    i, j, k = schedule.get_loops(schedule.get_block("C"))
    schedule.decompose_reduction(schedule.get_block("C"), k)
    with pytest.raises(ScheduleError, match="around one block"):
        schedule.blockize(j)
    schedule = Schedule(func)
    i, j, k = schedule.get_loops(schedule.get_block("C"))
    i0, i1 = schedule.split(i, [None, 4])
    i1a, i1b = schedule.split(i1, [None, 2])
    schedule.reorder(i1b, j, k, i0, i1a)
    with pytest.raises(ScheduleError, match="step by step"):
        schedule.blockize(i0)


# ---------------------------------------------------------------- tensorize


def test_tensorize_uses_reset_and_update() -> None:
    intrinsic = dot_tile(4, 4, 5)
    func, schedule, loops = tiled_matmul(8, 12, 10, (4, 4, 5))
    tile = schedule.tensorize(loops[3], intrinsic)
    assert schedule.block(tile).annotations == {"tensor_intrin": intrinsic.name}
    check_compiled(schedule, func)
    again = replay(Trace.from_json(schedule.trace.to_json()), func)
    assert to_script(again.func) == to_script(schedule.func)


def test_tensorize_uses_compute_for_a_whole_reduction() -> None:
    func, schedule, loops = tiled_matmul(8, 12, 5, (4, 4, 5))
    schedule.tensorize(loops[3], dot_tile(4, 4, 5, parts=1))
    check_compiled(schedule, func)


def test_tensorize_by_name_and_on_a_block() -> None:
    intrinsic = dot_tile(4, 4, 5)
    func, schedule, loops = tiled_matmul(8, 12, 10, (4, 4, 5))
    schedule.tensorize(schedule.blockize(loops[3]), intrinsic.name)
    check_compiled(schedule, func)


def test_a_decomposed_tile_keeps_its_reset() -> None:
    func, schedule, loops = tiled_matmul(8, 12, 10, (4, 4, 5))
    tile = schedule.tensorize(loops[3], dot_tile(4, 4, 5))
    init = schedule.decompose_reduction(tile, loops[2])
    assert "tensor_intrin_reset" in schedule.block(init).annotations
    check_compiled(schedule, func)


def test_tensorize_after_decompose_reduction() -> None:
    func, schedule, loops = tiled_matmul(8, 12, 10, (4, 4, 5))
    schedule.decompose_reduction(schedule.get_block("C"), loops[2])
    schedule.tensorize(loops[3], dot_tile(4, 4, 5))
    check_compiled(schedule, func)


def test_axes_match_in_any_order_and_operands_either_way() -> None:
    """C[j, i] = sum B[k, j] * A[i, k] written the other way round, loops in another order."""
    a, b = te.placeholder((8, 10), "int32", name="A"), te.placeholder((10, 12), "int32", name="B")
    k = te.reduce_axis((0, 10), name="k")
    c = te.compute((12, 8), lambda j, i: te.sum(b[k, j] * a[i, k], axis=k), name="C")
    func = te.create_prim_func([a, b, c])
    schedule = Schedule(func)
    j, i, r = schedule.get_loops(schedule.get_block("C"))
    i0, i1 = schedule.split(i, [None, 4])
    j0, j1 = schedule.split(j, [None, 4])
    r0, r1 = schedule.split(r, [None, 5])
    schedule.reorder(i0, j0, r0, r1, j1, i1)
    w, x = te.placeholder((4, 5), "int32", name="w"), te.placeholder((5, 4), "int32", name="x")
    q = te.reduce_axis((0, 5), name="q")
    z = te.compute((4, 4), lambda m, n: te.sum(w[n, q] * x[q, m], axis=q), name="z")

    def transposed(inputs: list[Operand], outputs: list[Operand]):
        (p, y), (o,) = inputs, outputs
        reset = _loops([4, 4], lambda m, n: o.store((m, n), 0))
        return None, reset, _loops([4, 4, 5], lambda m, n, s: o.store((m, n), o[m, n] + p[n, s] * y[s, m]))

    schedule.tensorize(r1, te.decl_tensor_intrin(z.op, transposed))
    check_compiled(schedule, func)


def test_strides_and_offsets_are_matched() -> None:
    """A dot product of four along a strided, shifted axis of a larger buffer."""
    a = te.placeholder((5, 40), "int32", name="A")
    k = te.reduce_axis((0, 4), name="k")
    c = te.compute((5, 9), lambda i, j: te.sum(a[i, j * 3 + k * 2 + 1], axis=k), name="C")
    func = te.create_prim_func([a, c])
    schedule = Schedule(func)
    loops = schedule.get_loops(schedule.get_block("C"))
    x = te.placeholder((4,), "int32", name="x")
    q = te.reduce_axis((0, 4), name="q")
    z = te.compute((1,), lambda _: te.sum(x[q], axis=q), name="z")

    def add4(inputs: list[Operand], outputs: list[Operand]) -> Stmt:
        assert inputs[0].matrix == ((0,), (2,))
        return outputs[0].store(0, inputs[0][0] + inputs[0][1] + inputs[0][2] + inputs[0][3])

    schedule.tensorize(loops[2], te.decl_tensor_intrin(z.op, add4))
    check_compiled(schedule, func)


def test_what_does_not_match_is_refused() -> None:
    def refused(message: str, intrinsic: TensorIntrin, func: PrimFunc | None = None, place: int = 3) -> None:
        _, schedule, loops = tiled_matmul(8, 12, 10, (4, 4, 5))
        if func is not None:
            schedule = Schedule(func)
            loops = [None, None, None, *schedule.get_loops(schedule.blocks()[0])]
        before = schedule.func
        with pytest.raises(ScheduleError, match=message) as error:
            schedule.tensorize(loops[place], intrinsic)
        assert schedule.func is before
        assert "here:" in str(error.value)

    refused("the tile has the axes", dot_tile(4, 4, 5), place=4)
    refused("no order of the axes", dot_tile(4, 2, 5))
    refused("float32", dot_tile(4, 4, 5, "float32"))
    refused("has no reset", dot_tile(4, 4, 5, parts=1))
    w = te.placeholder((4, 5), "int32", name="w")
    q = te.reduce_axis((0, 5), name="q")
    z = te.compute((4, 4), lambda i, j: te.sum(w[i, q] * w[j, q], axis=q), name="z")
    refused(
        "two different tiles|not accessed", te.decl_tensor_intrin(z.op, lambda i, o: o[0].store((0, 0), 0), name="gram")
    )
    z = te.compute((4, 4), lambda i, j: te.max(w[i, q] * w[j, q], axis=q), name="z")
    refused("differs", te.decl_tensor_intrin(z.op, lambda i, o: o[0].store((0, 0), 0), name="grammax"))
    v = te.placeholder((6,), "int32", name="v")
    z = te.compute((6,), lambda i: v[i] + 1, name="z")
    refused("reduction", te.decl_tensor_intrin(z.op, lambda i, o: o[0].store(0, 0), name="plain6"), func=row_sum(6, 24))


def test_a_tensorized_block_stays_what_it_is() -> None:
    func, schedule, loops = tiled_matmul(8, 12, 10, (4, 4, 5))
    tile = schedule.tensorize(loops[3], dot_tile(4, 4, 5))
    before = schedule.func
    with pytest.raises(ScheduleError, match="no longer be what its tensor intrinsic computes"):
        schedule.transform_layout(tile, "A", lambda i, k: (i // 3, i % 3, k))
    assert schedule.func is before
    schedule.transform_layout(tile, "A", lambda i, k: (k, i))
    (inner,) = schedule.get_child_blocks(tile)[1:]
    i1, *_ = schedule.get_loops(inner)
    schedule.split(i1, [None, 2])
    plain = Schedule(func)
    plain.transform_layout(plain.get_block("C"), "A", lambda i, k: (k, i))
    for a, b in zip(run(plain.func), compiled(schedule.func), strict=True):
        np.testing.assert_array_equal(a, b)


def _packed_product(item: dot.DotInstruction) -> tuple[PrimFunc, Schedule]:
    """X @ W.T with the weights in tiles of the instruction: W[n // lanes, k // group, n % lanes, k % group]."""
    lanes, group = item.lanes, item.group
    x = te.placeholder((2, 4 * group), str(item.row), name="X")
    w = te.placeholder((2 * lanes, 4 * group), str(item.column), name="W")
    k = te.reduce_axis((0, 4 * group), name="k")
    total = str(item.total)
    c = te.compute(
        (2, 2 * lanes), lambda i, j: te.sum(te.cast(x[i, k], total) * te.cast(w[j, k], total), axis=k), name="C"
    )
    schedule = Schedule(te.create_prim_func([x, w, c]))
    block = schedule.get_block("C")
    schedule.transform_layout(block, "W", lambda n, k: (n // lanes, k // group, n % lanes, k % group))
    original = schedule.func
    schedule = Schedule(original)
    block = schedule.get_block("C")
    _, j, k = schedule.get_loops(block)
    _, inner = schedule.split(j, [None, lanes])
    outer, rest = schedule.split(k, [None, group])
    schedule.reorder(outer, inner, rest)
    schedule.decompose_reduction(block, outer)
    schedule.tensorize(inner, item.intrinsic)
    return original, schedule


def test_products_of_words_read_words() -> None:
    """An instruction of one lane: both its factors are four neighbouring bytes as a word."""
    [item] = [item for item in dot.INSTRUCTIONS if item.lanes == 1]
    original, schedule = _packed_product(item)
    check(schedule, original)
    flat = flatten_buffers(lower_blocks(lower_tensor_intrinsics(schedule.func)))
    for expected, found in zip(run(original), run(flat), strict=True):
        np.testing.assert_array_equal(expected.ravel(), found.ravel())
    words = [call for call in find_all(flat.body, Call) if call.name == "word"]
    sources = {load.buffer.name for call in words for load in find_all(call, BufferLoad)}
    assert sources == {"X", "W"} and any(call.name == "dot4" for call in find_all(flat.body, Call))


_VECTORS = [item for item in dot.INSTRUCTIONS if item.total.is_int and item.lanes > 1]


@pytest.mark.parametrize("item", _VECTORS, ids=lambda item: item.name)
def test_packed_weights_of_a_dot_product_are_one_vector(item: dot.DotInstruction) -> None:
    original, schedule = _packed_product(item)
    check(schedule, original)
    lowered = lower_tensor_intrinsics(schedule.func)
    for expected, found in zip(run(original), run(lowered), strict=True):
        np.testing.assert_array_equal(expected, found)
    flat = flatten_buffers(lower_blocks(lowered))
    loads = {load for load in find_all(flat.body, BufferLoad) if load.buffer.name == "W" and load.dtype.lanes > 1}
    assert [load.dtype.lanes for load in loads] == [item.lanes * item.group]
    assert all(isinstance(load.indices[0], Ramp) and const_value(load.indices[0].stride) == 1 for load in loads)
    for expected, found in zip(run(original), run(flat), strict=True):
        np.testing.assert_array_equal(expected.ravel(), found.ravel())


def test_a_tile_with_holes_is_no_vector() -> None:
    item = next(item for item in dot.INSTRUCTIONS if item.name == "arm.udot")
    x = te.placeholder((2, 4), str(item.row), name="X")
    w = te.placeholder((4, 4), str(item.column), name="W")
    k = te.reduce_axis((0, 4), name="k")
    c = te.compute((2, 4), lambda i, j: te.sum(te.cast(x[i, k], "int32") * te.cast(w[j, k], "int32"), axis=k), name="C")
    schedule = Schedule(te.create_prim_func([x, w, c]))
    block = schedule.get_block("C")
    # Every second byte of a row.
    schedule.transform_layout(block, "W", lambda n, k: (n, k * 2))
    with pytest.raises(UserError, match="the elements of operand b are not neighbours in W"):
        schedule.tensorize(schedule.get_loops(block)[1], item.intrinsic)
