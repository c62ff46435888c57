"""Blocks become loops and conditions: the structure afterwards, and the same results when both are interpreted."""

from __future__ import annotations

import pytest

from tests.tir.passes.programs import agree, data, loops_of, row_sums, script
from tilewright import te
from tilewright.ir.visit import find_all
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.schedule import Schedule
from tilewright.tir.stmt import Block, IfThenElse


class TestLowerBlocks:
    @pytest.mark.parametrize("order", ["ik", "ki"])
    def test_init_moves_in_front_of_the_reduction(self, order: str) -> None:
        func = row_sums(order)
        lowered = lower_blocks(func)
        assert not find_all(lowered.body, Block)
        assert not find_all(lowered.body, IfThenElse)
        expected = [("serial", 4), ("serial", 8)] if order == "ik" else [("serial", 4), ("serial", 8), ("serial", 4)]
        assert loops_of(lowered) == expected
        agree(func, lowered, data(4, 8), data(4, seed=1))

    def test_init_stays_where_a_loop_is_spatial_and_reducing(self) -> None:
        func = script(
            """
@script.function
def sums(A: Buffer[(4, 8), "float32"], C: Buffer[(4,), "float32"]):
    for f in range(32):
        with block("C"):
            vi, vk = spatial(4, f // 8), reduce(8, f % 8)
            with init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]
"""
        )
        lowered = lower_blocks(func)
        assert len(find_all(lowered.body, IfThenElse)) == 1
        agree(func, lowered, data(4, 8), data(4, seed=1))

    def test_init_stays_when_something_else_uses_the_result(self) -> None:
        func = script(
            """
@script.function
def sums(A: Buffer[(8,), "float32"], C: Buffer[(1,), "float32"], D: Buffer[(8,), "float32"]):
    for k in range(8):
        with block("C"):
            vk = reduce(8, k)
            with init():
                C[0] = 0.0
            C[0] = C[0] + A[vk]
        with block("D"):
            vd = opaque(8, k)
            D[vd] = C[0]
"""
        )
        lowered = lower_blocks(func)
        assert len(find_all(lowered.body, IfThenElse)) == 1
        agree(func, lowered, data(8), data(1), data(8))

    def test_predicates_become_conditionals(self) -> None:
        a = te.placeholder((10,), name="A")
        s = Schedule(te.create_prim_func([a, te.compute((10,), lambda i: a[i] + 1.0, name="B")]))
        s.split(s.get_loops(s.get_block("B"))[0], [None, 4])
        lowered = lower_blocks(s.func)
        assert len(find_all(lowered.body, IfThenElse)) == 1
        agree(s.func, lowered, data(10), data(10))
