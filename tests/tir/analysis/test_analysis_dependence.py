"""Tests of producers, consumers, cover and conflicts between iterations."""

from __future__ import annotations

import pytest

from tests.tir.schedule.programs import convolution, elementwise, matmul_relu, stencil
from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import add, const, lt, mul
from tilewright.ir.expr import ZERO, IntImm, PrimExpr, Range, Var
from tilewright.tir.analysis.dependence import (
    _iterations_apart,
    consumers,
    covered,
    iteration_conflict,
    moved_flow_conflict,
    producers,
    reads_own_output,
)
from tilewright.tir.analysis.index import ProgramIndex
from tilewright.tir.buffer import BufferRegion, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import Schedule
from tilewright.tir.stmt import Block, BlockIter, BufferStore, For, IterKind, LoopKind


def test_producers_and_consumers() -> None:
    index = ProgramIndex(convolution())
    pad, conv, out = (index.blocks[name] for name in ("pad", "conv", "out"))
    assert producers(index, conv) == [pad]
    assert consumers(index, conv) == [out]
    assert producers(index, pad) == []
    assert consumers(index, out) == []
    assert not reads_own_output(conv)


def test_cover_follows_the_tile() -> None:
    schedule = Schedule(stencil(18))
    (i,) = schedule.get_loops(schedule.get_block("C"))
    outer, _ = schedule.split(i, [None, 4])
    schedule.compute_at(schedule.get_block("B"), outer)
    index, analyzer = schedule._state.index, schedule._state.analyzer
    loop = index.loops[outer.var]
    b, c = index.blocks["B"], index.blocks["C"]
    assert covered(index, b, c, b.writes[0].buffer, loop, analyzer)
    assert not covered(index, c, b, b.writes[0].buffer, loop, analyzer)


def test_iterations_conflict_through_overlap_unless_private() -> None:
    schedule = Schedule(stencil(18))
    (i,) = schedule.get_loops(schedule.get_block("C"))
    outer, _ = schedule.split(i, [None, 4])
    schedule.compute_at(schedule.get_block("B"), outer)
    index, analyzer = schedule._state.index, schedule._state.analyzer
    loop = index.loops[outer.var]
    assert iteration_conflict(index, loop, analyzer, private=True) is None
    conflict = iteration_conflict(index, loop, analyzer, private=False)
    assert conflict is not None
    assert conflict.block.name == "B"


@pytest.mark.parametrize("rows", [1, 2])
def test_iterations_with_lines_of_their_own_are_independent(rows: int) -> None:
    """What is read cannot be seen to be all written, but each iteration keeps to its own lines."""
    schedule = Schedule(elementwise((8, 8, 8), 2))
    first, last = schedule.get_block("B0"), schedule.get_block("B1")
    i, j, k = schedule.get_loops(last)
    outer, inner = schedule.split(i, [None, rows])
    jo, ji = schedule.split(j, [None, 4])
    ko, ki = schedule.split(k, [None, 4])
    schedule.reorder(outer, jo, ko, inner, ji, ki)
    tile = schedule.fuse(jo, ko)
    schedule.compute_at(first, tile)
    loops = schedule.get_loops(first)
    schedule.blockize(loops[[loop.var for loop in loops].index(tile.var) + 1])
    index, analyzer = schedule._state.index, schedule._state.analyzer
    one, two = index.blocks["B0_o"], index.blocks["B1"]
    assert not covered(index, one, two, one.writes[0].buffer, index.loops[outer.var], analyzer)
    assert iteration_conflict(index, index.loops[outer.var], analyzer, private=True) is None


@pytest.mark.parametrize(("most", "apart"), [(1, True), (4, True), (5, False)])
def test_iterations_that_a_guard_forbids_conflict_with_none(most: int, apart: bool) -> None:
    """More threads than elements: only the first of each does something."""
    i, j, v = Var("i"), Var("j"), Var("v")
    b = make_buffer("B", (8,), "float32")
    body = BufferStore(b, (v,), const(1.0, "float32"))
    iters = (BlockIter(v, Range(ZERO, const(8)), IterKind.SPATIAL, j),)
    block = Block(
        "B", iters, (), (BufferRegion(b, (Range(v, const(1)),)),), body, predicate=lt(add(mul(i, 4), j), most)
    )
    inner = For(j, ZERO, const(4), LoopKind.SERIAL, block)
    root = Block("root", (), (), (), For(i, ZERO, const(3), LoopKind.SERIAL, inner))
    index = ProgramIndex(PrimFunc("guarded", (b,), root))
    assert (iteration_conflict(index, index.loops[i], Analyzer(), private=False) is None) is apart


STEP = Var("i")


@pytest.mark.parametrize(
    ("read", "written", "apart"),
    [
        ((STEP * 4, 2), (STEP * 4 + 2, 2), True),
        ((STEP * 4, 4), (STEP * 4, 4), True),
        ((STEP * -4 + 3, 1), (STEP * -4, 4), True),
        ((STEP * 4, 4), (STEP * 4 + 1, 4), False),  # An iteration writes the first place that the next one reads.
        ((STEP * 4, 5), (STEP * 4, 4), False),
        ((STEP * 4, 1), (STEP * 3, 1), False),
        ((STEP // 2 * 4, 1), (STEP // 2 * 4, 1), False),
        ((IntImm(0), 1), (IntImm(0), 1), False),
    ],
)
def test_when_places_of_iterations_are_apart(
    read: tuple[PrimExpr, int], written: tuple[PrimExpr, int], apart: bool
) -> None:
    one, other = ((None, Range(low, const(length))) for low, length in (read, written))
    assert _iterations_apart(one, other, STEP) == apart
    assert _iterations_apart(other, one, STEP) == apart


def test_nothing_moved_nothing_to_prove() -> None:
    func = matmul_relu()
    old, new = ProgramIndex(func), ProgramIndex(func)
    assert moved_flow_conflict(old, new, "D", Analyzer()) is None
