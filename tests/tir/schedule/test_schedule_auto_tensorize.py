"""auto_tensorize: any block that an intrinsic can compute is brought to its tiles."""

from __future__ import annotations

import pytest

from tests.tir.schedule.programs import block_of, convolution, elementwise, matmul, row_sum
from tests.tir.schedule.scripts import check_trace, parse
from tests.tir.schedule.test_schedule_tensorize import check_compiled, dot_tile
from tilewright import te
from tilewright.support.errors import UserError
from tilewright.tir.analysis.intrinsic_mapping import IntrinsicMapping, find_mapping
from tilewright.tir.analysis.match_intrin import Mismatch
from tilewright.tir.annotations import TENSOR_INTRIN
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import Schedule, ScheduleError


def tensorized(func: PrimFunc, name: str, *tile: int) -> Schedule:
    """The function with a block tensorized automatically, checked in every way."""
    schedule = Schedule(func)
    made = schedule.auto_tensorize(schedule.get_block(name), dot_tile(*tile))
    assert TENSOR_INTRIN.of(block_of(schedule, made.name)) == dot_tile(*tile).name
    check_compiled(schedule, func)
    check_trace(schedule, func)
    return schedule


def names(schedule: Schedule) -> list[str]:
    """The blocks outside tiles."""
    return [handle.name for handle in schedule.get_child_blocks(schedule.get_block("root"))]


def test_a_product_whose_axes_are_whole_tiles_is_only_split() -> None:
    assert names(tensorized(matmul(8, 12, 16), "C", 4, 6, 8)) == ["C_o"]


def test_uneven_products_are_padded() -> None:
    assert names(tensorized(matmul(7, 9, 10), "C", 4, 4, 4)) == ["A_pad", "B_pad", "C_o", "C_crop"]
    assert names(tensorized(matmul(8, 9, 8), "C", 4, 4, 8)) == ["B_pad", "C_o", "C_crop"]


def test_the_whole_reduction_in_one_tile() -> None:
    schedule = tensorized(matmul(8, 8, 4), "C", 4, 4, 4)
    assert block_of(schedule, "C_o").init is None


def _product(result: str, left: str, right: str, swap: bool) -> PrimFunc:
    """result[...] = the sum over k of A[left] * B[right], by indices in the letters b, i, j, k."""
    sizes = {"b": 3, "i": 8, "j": 12, "k": 16}
    a = te.placeholder([sizes[c] for c in left], "int32", name="A")
    b = te.placeholder([sizes[c] for c in right], "int32", name="B")
    k = te.reduce_axis((0, 16), name="k")

    def value(*places: object) -> object:
        at = {**dict(zip(result, places, strict=True)), "k": k}
        x, y = a[tuple(at[c] for c in left)], b[tuple(at[c] for c in right)]
        return te.sum(y * x if swap else x * y, axis=k)

    c = te.compute(tuple(sizes[letter] for letter in result), value, name="C")
    return te.create_prim_func([a, b, c])


@pytest.mark.parametrize(
    ("result", "left", "right", "swap"),
    [
        ("ij", "ik", "kj", True),
        ("ji", "ki", "jk", False),
        ("bij", "bik", "bkj", False),
        ("ibj", "ibk", "kj", False),
        ("jbi", "kbi", "jk", True),
    ],
)
def test_orders_of_axes_and_batches(result: str, left: str, right: str, swap: bool) -> None:
    schedule = tensorized(_product(result, left, right, swap), "C", 4, 4, 8)
    assert "C_o" in names(schedule)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_is_a_product_of_its_windows(stride: int) -> None:
    func = convolution(3, 7, 4, stride)
    mapping = find_mapping(block_of(Schedule(func), "conv"), dot_tile(4, 4, 4))
    assert isinstance(mapping, IntrinsicMapping)
    assert (mapping.axes, mapping.rest) == (((1, 2), (0,), (3, 4, 5)), ())
    schedule = tensorized(func, "conv", 4, 4, 4)
    assert names(schedule) == ["pad", "pad_reindex_pad", "W_reindex_pad", "conv_o", "conv_reindex", "out"]
    # What comes after works on tiles: they are in loops like any block.
    tile = schedule.get_block("conv_o")
    schedule.parallel(schedule.get_loops(tile)[0])
    check_compiled(schedule, func)


def test_axes_that_nothing_tells_apart() -> None:
    """A description with two axes of steps: the last has the last iterator, the first the others."""
    w, x = te.placeholder((4, 2, 4), "int32", name="w"), te.placeholder((2, 4), "int32", name="x")
    p, q = te.reduce_axis((0, 2), name="p"), te.reduce_axis((0, 4), name="q")
    y = te.compute((4,), lambda i: te.sum(w[i, p, q] * x[p, q], axis=[p, q]), name="y")
    steps = te.decl_tensor_intrin(y.op, lambda i, o: o[0].store((0,), 0), name="two_axes_of_steps")
    a, b = te.placeholder((8, 3, 2, 4), "int32", name="A"), te.placeholder((3, 2, 4), "int32", name="B")
    r, s, t = (te.reduce_axis((0, n), name=f"r{n}") for n in (3, 2, 4))
    c = te.compute((8,), lambda i: te.sum(a[i, r, s, t] * b[r, s, t], axis=[r, s, t]), name="C")
    mapping = find_mapping(block_of(Schedule(te.create_prim_func([a, b, c])), "C"), steps)
    assert isinstance(mapping, IntrinsicMapping) and mapping.axes == ((0,), (1, 2), (3,))
    only = te.compute((8,), lambda i: te.sum(a[i, 0, 0, t] * b[0, 0, t], axis=t), name="C")
    found = find_mapping(block_of(Schedule(te.create_prim_func([a, b, only])), "C"), steps)
    assert isinstance(found, Mismatch) and "moves just the operands that its axis p moves" in found.reason


def _matrix_and_vector() -> PrimFunc:
    a, b = te.placeholder((8, 8), "int32", name="A"), te.placeholder((8,), "int32", name="B")
    k = te.reduce_axis((0, 8), name="k")
    return te.create_prim_func([a, b, te.compute((8,), lambda i: te.sum(a[i, k] * b[k], axis=k), name="C")])


def _from_seven() -> PrimFunc:
    """A product that begins at seven: only the init is another one."""
    schedule = Schedule(matmul(8, 8, 8))
    return parse(schedule.show().removeprefix("@script.function").replace("= 0", "= 7"))


@pytest.mark.parametrize(
    ("func", "name", "message"),
    [
        (elementwise(), "B0", "one of block B0 and dot_4_4_4_int32_3 is a reduction and the other is not"),
        (row_sum(), "S", "the computation differs"),
        (_matrix_and_vector(), "C", "no iterator of block C moves just the operands that its axis [ij] moves"),
        (_from_seven(), "C", "the init differs"),
    ],
)
def test_blocks_that_compute_something_else(func: PrimFunc, name: str, message: str) -> None:
    schedule = Schedule(func)
    with pytest.raises(ScheduleError, match=message):
        schedule.auto_tensorize(schedule.get_block(name), dot_tile(4, 4, 4))


def test_what_is_no_intrinsic() -> None:
    schedule = Schedule(matmul(7, 8, 8))
    block = schedule.get_block("C")
    with pytest.raises(UserError, match="auto_tensorize: 7 is not a tensor intrinsic"):
        schedule.auto_tensorize(block, 7)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="there is no tensor intrinsic 'gemm9x9'"):
        schedule.auto_tensorize(block, "gemm9x9")
    schedule.split(schedule.get_loops(block)[0], [None, 2])
    with pytest.raises(ScheduleError, match="not one plain loop for each iterator"):
        schedule.auto_tensorize(block, dot_tile(4, 4, 4))


def test_a_refusal_on_the_way_leaves_the_program() -> None:
    """The same buffer as both operands: it is read at two places, which reindex refuses after others were done."""
    a = te.placeholder((8, 2, 4), "int32", name="A")
    k, q = te.reduce_axis((0, 2), name="k"), te.reduce_axis((0, 4), name="q")
    c = te.compute((8, 8), lambda i, j: te.sum(a[i, k, q] * a[j, k, q], axis=[k, q]), name="C")
    schedule = Schedule(te.create_prim_func([a, c]))
    block = schedule.get_block("C")
    before, steps = schedule.func, len(schedule.trace)
    with pytest.raises(ScheduleError, match="accesses A at 2 different places"):
        schedule.auto_tensorize(block, dot_tile(4, 4, 4))
    assert schedule.func is before and len(schedule.trace) == steps
