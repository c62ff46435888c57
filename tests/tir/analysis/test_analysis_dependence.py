"""Tests of producers, consumers, cover and conflicts between iterations."""

from __future__ import annotations

from tests.tir.schedule.programs import convolution, matmul_relu, stencil
from tilewright.arith.analyzer import Analyzer
from tilewright.tir.analysis.dependence import (
    consumers,
    covered,
    iteration_conflict,
    moved_flow_conflict,
    producers,
    reads_own_output,
)
from tilewright.tir.analysis.index import ProgramIndex
from tilewright.tir.schedule import Schedule


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


def test_nothing_moved_nothing_to_prove() -> None:
    func = matmul_relu()
    old, new = ProgramIndex(func), ProgramIndex(func)
    assert moved_flow_conflict(old, new, "D", Analyzer()) is None
