"""fuse_iterators: one iterator and one loop for several."""

from __future__ import annotations

import pytest

from tests.tir.schedule.programs import check_compiled, convolution, matmul
from tilewright import te
from tilewright.tir.schedule import Schedule, ScheduleError
from tilewright.tir.script import to_script


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
