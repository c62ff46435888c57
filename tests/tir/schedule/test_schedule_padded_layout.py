"""transform_layout with a pad value: what a new arrangement has and the old one had not is filled."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir.schedule.scripts import check_script, check_trace, inputs_of, parse, results_of
from tilewright.ir.structural import assert_same_ir
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule import Schedule, ScheduleError

TWO = """
def f(A: Buffer[(14, 6), "int32"], C: Buffer[(14, 6), "int32"]):
    B = alloc_buffer((14, 6), "int32")
    for i, j in grid(14, 6):
        with block("B"):
            v, w = spatial(14, i), spatial(6, j)
            B[v, w] = A[v, w] * 2
    for i, j in grid(14, 6):
        with block("C"):
            v, w = spatial(14, i), spatial(6, j)
            C[v, w] = B[v, w] + 1
"""
SUM = """
def f(A: Buffer[(14, 6), "int32"], C: Buffer[(14,), "int32"]):
    for i, k in grid(14, 6):
        with block("C"):
            v, vk = spatial(14, i), reduce(6, k)
            with init():
                C[v] = 0
            C[v] = C[v] + A[v, vk]
"""


def check_padded(text: str, schedule: Schedule, packing: IndexMap, pad_value: int) -> None:
    """The last parameter holds the old result in the new arrangement, and the pad value elsewhere."""
    original = parse(text)
    check_trace(schedule, original)
    arrays = inputs_of(original)
    wanted = packing.rearrange(results_of(original, arrays)[-1])
    is_padding = packing.rearrange(np.ones(arrays[-1].shape, np.int32)) == 0
    assert is_padding.any()
    wanted[is_padding] = pad_value
    shape = schedule.func.buffers[-1].static_shape
    assert shape == wanted.shape
    fresh = np.full(shape, 77, wanted.dtype)
    for compiled in (False, True):
        np.testing.assert_array_equal(results_of(schedule.func, [*arrays[:-1], fresh], compiled)[-1], wanted)


def test_the_writer_writes_the_padding() -> None:
    expected = """
def f(A: Buffer[(14, 6), "int32"], C: Buffer[(4, 6, 4), "int32"]):
    B = alloc_buffer((14, 6), "int32")
    for i, j in grid(14, 6):
        with block("B"):
            v, w = spatial(14, i), spatial(6, j)
            B[v, w] = A[v, w] * 2
    for a, b, c in grid(4, 6, 4):
        with block("C"):
            x, y, z = spatial(4, a), spatial(6, b), spatial(4, c)
            C[x, y, z] = B[x * 4 + z, y] + 1 if x * 4 + z < 14 else -1
"""
    packing = IndexMap.of(lambda i, j: (i // 4, j, i % 4), 2)
    schedule = Schedule(parse(TWO))
    schedule.transform_layout(schedule.get_block("C"), "C", packing, pad_value=-1)
    assert_same_ir(schedule.func, parse(expected))
    check_padded(TWO, schedule, packing, -1)


@pytest.mark.parametrize(
    "packing",
    [
        IndexMap.of(lambda i, j: (j // 4, i // 4, i % 4, j % 4), 2),
        IndexMap.of(lambda i, j: (j // 4, i // 4, i % 4 * 4 + j % 4), 2),
        IndexMap.of(lambda i, j: (i // 5, j // 4 * 5 + i % 5, j % 4), 2),
    ],
)
def test_both_axes_divided_and_joined(packing: IndexMap) -> None:
    schedule = Schedule(parse(TWO))
    schedule.transform_layout(schedule.get_block("C"), 1, packing, pad_value=3)
    check_padded(TWO, schedule, packing, 3)
    check_script(TWO, lambda s: s.transform_layout(s.get_block("B"), "B", packing, pad_value=3))


def test_the_padded_writer_goes_on_being_scheduled() -> None:
    def apply(s: Schedule) -> None:
        block = s.get_block("B")
        s.transform_layout(block, "B", lambda i, j: (i // 4, j, i % 4), 5)
        outer, _, inner = s.get_loops(block)
        s.vectorize(inner)
        s.parallel(outer)

    check_script(TWO, apply)


def test_reductions_and_changed_loops_get_a_filling_block() -> None:
    expected = """
def f(A: Buffer[(14, 6), "int32"], C: Buffer[(4, 4), "int32"]):
    for a, b in grid(4, 4):
        with block("C_pad"):
            x, y = spatial(4, a), spatial(4, b)
            where(not a * 4 + b < 14)
            C[x, y] = 9
    for i, k in grid(14, 6):
        with block("C"):
            v, vk = spatial(14, i), reduce(6, k)
            with init():
                C[v // 4, v % 4] = 0
            C[v // 4, v % 4] = C[v // 4, v % 4] + A[v, vk]
"""
    packing = IndexMap.of(lambda i: (i // 4, i % 4), 1)
    schedule = Schedule(parse(SUM))
    schedule.transform_layout(schedule.get_block("C"), "C", packing, pad_value=9)
    assert_same_ir(schedule.func, parse(expected))
    check_padded(SUM, schedule, packing, 9)
    tiled = Schedule(parse(TWO))
    block = tiled.get_block("C")
    tiled.split(tiled.get_loops(block)[0], [None, 5])
    packing = IndexMap.of(lambda i, j: (i // 4, j, i % 4), 2)
    tiled.transform_layout(block, "C", packing, pad_value=9)
    check_padded(TWO, tiled, packing, 9)


def test_where_nothing_is_padded_nothing_is_filled() -> None:
    for index_map in (lambda i, j: (j, i), lambda i, j: (i // 7, j, i % 7), lambda i, j: (i * 6 + j,)):
        schedule = check_script(TWO, lambda s, m=index_map: s.transform_layout(s.get_block("B"), "B", m, pad_value=5))
        assert len(schedule.blocks()) == 2 and " if " not in schedule.show()


def test_refused() -> None:
    schedule = Schedule(parse(TWO))
    block = schedule.get_block("B")
    with pytest.raises(ScheduleError, match="nothing here writes A: whoever gives it decides"):
        schedule.transform_layout(block, "A", lambda i, j: (i // 4, j, i % 4), pad_value=0)
    for wrong in (0.5, 2**31, "zero", float("nan"), float("inf")):
        with pytest.raises(ScheduleError, match="is not a int32, which B holds"):
            schedule.transform_layout(block, "B", lambda i, j: (i // 4, j, i % 4), pad_value=wrong)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="where the padding of B is cannot be told of this map"):
        schedule.transform_layout(block, "B", lambda i, j: (i * 8 + j,), pad_value=0)
    with pytest.raises(ScheduleError, match="does not provably keep the elements of B apart"):
        schedule.transform_layout(block, "B", lambda i, j: (i // 2, j), pad_value=0)
    flags = Schedule(
        parse(
            TWO.replace("A[v, w] * 2", "A[v, w] > 2")
            .replace('B = alloc_buffer((14, 6), "int32")', 'B = alloc_buffer((14, 6), "bool")')
            .replace("B[v, w] + 1", "int32(B[v, w])")
        )
    )
    with pytest.raises(ScheduleError, match="the pad value 2 is not a bool"):
        flags.transform_layout(flags.get_block("B"), "B", lambda i, j: (i // 4, j, i % 4), pad_value=2)
    flags.transform_layout(flags.get_block("B"), "B", lambda i, j: (i // 4, j, i % 4), pad_value=True)
