"""A block's own iterators: fuse_iterators, transform_block_layout, reorder_block_iter_var."""

from __future__ import annotations

import pytest

from tests.tir.schedule.programs import check_compiled, convolution, matmul
from tests.tir.schedule.scripts import check_script, parse
from tilewright import te
from tilewright.support.errors import UserError
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule import Schedule, ScheduleError
from tilewright.tir.script import to_script
from tilewright.tir.stmt import IterKind


def test_operands_in_the_order_of_a_group_have_the_plain_index() -> None:
    a = te.placeholder((3, 5, 4), name="A")
    b = te.compute((3, 5, 4), lambda i, j, k: a[i, j, k] * 2.0, name="B")
    func = te.create_prim_func([a, b])
    sch = Schedule(func)
    block = sch.get_block("B")
    copy = sch.reindex(block, "A")
    sch.transform_layout(block, sch.block(copy).writes[0].buffer.name, lambda i, j, k: (i * 5 + j, k))
    rows, columns = sch.fuse_iterators(block, [[0, 1], [2]])
    assert [sch.loop(loop).extent.value for loop in (rows, columns)] == [15, 4]
    assert f"A_reindex[{sch.block(block).iters[0].var.name}, {sch.block(block).iters[1].var.name}]" in to_script(
        sch.func
    )
    check_compiled(sch, func)


def test_reductions_keep_their_kind_and_groups_may_change_the_order() -> None:
    func = convolution()
    sch = Schedule(func)
    block = next(handle for handle in sch.blocks() if sch.block(handle).is_reduction)
    numbers = {kind: [] for kind in ("spatial", "reduce")}
    for number, item in enumerate(sch.block(block).iters):
        numbers[item.kind.value].append(number)
    loops = sch.fuse_iterators(block, [numbers["spatial"][::-1], numbers["reduce"]])
    assert [item.kind.value for item in sch.block(block).iters] == ["spatial", "reduce"]
    sch.split(loops[1], [None, 3])
    check_compiled(sch, func)


def test_refusals() -> None:
    sch = Schedule(matmul(8, 8, 8))
    block = sch.get_block("C")
    with pytest.raises(ScheduleError, match="does not name each iterator once"):
        sch.fuse_iterators(block, [[0, 1]])
    with pytest.raises(ScheduleError, match="different kinds"):
        sch.fuse_iterators(block, [[0], [1, 2]])
    sch.split(sch.get_loops(block)[0], [None, 4])
    with pytest.raises(ScheduleError, match="not one plain loop"):
        sch.fuse_iterators(block, [[0, 1], [2]])


TWO = """
def f(A: Buffer[(8, 12), "int32"], C: Buffer[(8, 12), "int32"]):
    for i, j in grid(8, 12):
        with block("C"):
            vi, vj = spatial(8, i), spatial(12, j)
            C[vi, vj] = A[vi, vj] + 1
"""
PRODUCT = """
def f(A: Buffer[(8, 12), "int32"], B: Buffer[(12, 4), "int32"], C: Buffer[(8, 4), "int32"]):
    for i, j, k in grid(8, 4, 12):
        with block("C"):
            vi, vj, vk = spatial(8, i), spatial(4, j), reduce(12, k)
            with init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""


def test_transform_block_layout_divides_an_iterator() -> None:
    expected = """
def f(A: Buffer[(8, 12), "int32"], C: Buffer[(8, 12), "int32"]):
    for i, n, m in grid(8, 3, 4):
        with block("C"):
            vi, vn, vm = spatial(8, i), spatial(3, n), spatial(4, m)
            C[vi, vn * 4 + vm] = A[vi, vn * 4 + vm] + 1
"""
    check_script(TWO, lambda s: s.transform_block_layout(s.get_block("C"), lambda i, j: (i, j // 4, j % 4)), expected)


@pytest.mark.parametrize(
    "index_map",
    [
        lambda i, j, k: (k, j, i),
        lambda i, j, k: (i * 4 + j, k),
        lambda i, j, k: (j, i // 2, k // 4, i % 2, k % 4),
        lambda i, j, k: (i // 2, j * 2 + i % 2, k % 3 * 4 + k // 3),
        "i0 * 4 + i1, i2",
    ],
)
def test_transform_block_layout_of_a_reduction(index_map: object) -> None:
    def apply(s: Schedule) -> None:
        block = s.get_block("C")
        loops = s.transform_block_layout(block, index_map)  # type: ignore[arg-type]
        assert loops == s.get_loops(block)
        reducing = [n for n, item in enumerate(s.block(block).iters) if item.kind is IterKind.REDUCE]
        s.decompose_reduction(block, loops[min(reducing)])

    check_script(PRODUCT, apply)


def test_transform_block_layout_refused() -> None:
    schedule = Schedule(parse(PRODUCT))
    block = schedule.get_block("C")
    with pytest.raises(UserError, match="an index map of 2 indices for block C of 3 iterators"):
        schedule.transform_block_layout(block, lambda i, j: (j, i))
    with pytest.raises(ScheduleError, match="the map takes 2 iterators, block C has 3"):
        schedule.transform_block_layout(block, IndexMap.of(lambda i, j: (j, i), 2))
    for wrong in (lambda i, j, k: (i // 2, j, k), lambda i, j, k: (i, j, k // 5, k % 5), lambda i, j, k: (i + 1, j, k)):
        with pytest.raises(ScheduleError, match="does not provably take the instances of block C one to one"):
            schedule.transform_block_layout(block, wrong)
    with pytest.raises(ScheduleError, match="new iterator 0 is made of iterators of different kinds"):
        schedule.transform_block_layout(block, lambda i, j, k: (i * 12 + k, j))
    schedule.split(schedule.get_loops(block)[0], [2, 4])
    with pytest.raises(ScheduleError, match="are not one plain loop for each iterator"):
        schedule.transform_block_layout(block, lambda i, j, k: (j, i, k))


def test_reorder_block_iter_var() -> None:
    expected = PRODUCT.replace(
        "vi, vj, vk = spatial(8, i), spatial(4, j), reduce(12, k)",
        "vk, vi, vj = reduce(12, k), spatial(8, i), spatial(4, j)",
    )
    schedule = check_script(PRODUCT, lambda s: s.reorder_block_iter_var(s.get_block("C"), [2, 0, 1]), expected)
    for wrong in ([0, 1], [0, 1, 1], [1, 2, 3]):
        with pytest.raises(ScheduleError, match="does not name each iterator of block C once"):
            schedule.reorder_block_iter_var(schedule.get_block("C"), wrong)
