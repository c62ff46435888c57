"""Tests of the program index."""

from __future__ import annotations

import pytest

from tests.tir.schedule.programs import convolution, matmul_relu
from tilewright.ir.expr import ZERO, IntImm, Var
from tilewright.support.errors import CompilerBug
from tilewright.tir.analysis.index import ProgramIndex, child_statements, statements
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.stmt import Block, For, LoopKind, seq


def test_parents_loops_and_blocks() -> None:
    func = matmul_relu()
    index = ProgramIndex(func)
    c, d = index.blocks["C"], index.blocks["D"]
    assert list(index.blocks) == ["root", "C", "D"]
    assert [loop.var.name for loop in index.loops_above(c)] == ["i", "j", "k"]
    assert index.scope_block(c) is index.root
    assert index.parent(index.root) is None
    assert index.position(c) < index.position(d)
    outer = index.loops_above(c)[0]
    assert index.is_under(c, outer)
    assert not index.is_under(d, outer)
    assert index.blocks_under(outer) == [c]
    assert [loop.var.name for loop in index.loops_between(outer, c)] == ["j", "k"]
    assert index.common_loops(c, d) == []
    assert len(index.path(c)) == 4


def test_scopes_list_readers_and_writers() -> None:
    index = ProgramIndex(convolution())
    scope = index.inside(index.root)
    pad = index.blocks["pad"].writes[0].buffer
    assert [block.name for block in scope.blocks] == ["pad", "conv", "out"]
    assert [block.name for block in scope.writers_of(pad)] == ["pad"]
    assert [block.name for block in scope.readers_of(pad)] == ["conv"]
    assert scope.loose == []


def test_every_statement_is_visited_once() -> None:
    func = matmul_relu()
    found = list(statements(func.root))
    assert len(found) == len({id(item) for item in found})
    assert all(any(child is item for item in found) for stmt in found for child in child_statements(stmt))


def test_broken_programs_are_bugs() -> None:
    func = matmul_relu()
    loops = func.root.body
    with pytest.raises(CompilerBug, match="two loops share the variable"):
        ProgramIndex(func.replace(body=func.root.replace(body=seq(loops, loops))))
    block = Block("root", (), (), (), func.root.body)
    with pytest.raises(CompilerBug, match="two blocks are named root"):
        ProgramIndex(func.replace(body=func.root.replace(body=block)))
    with pytest.raises(CompilerBug, match="has no root block"):
        ProgramIndex(func.replace(body=loops))
    index = ProgramIndex(func)
    with pytest.raises(CompilerBug, match="is in no scope"):
        index.scope_block(index.root)
    other = For(Var("x"), ZERO, IntImm(4), LoopKind.SERIAL, index.root)
    with pytest.raises(CompilerBug, match="the loop x is not around the statement"):
        index.loops_between(other, index.blocks["C"])


def _same(index: ProgramIndex) -> None:
    """An index is what it would be if nothing had been known before."""
    fresh = ProgramIndex(index.func)
    assert list(index.blocks.items()) == list(fresh.blocks.items())
    assert index.loops == fresh.loops
    assert index._parents == fresh._parents
    for block in fresh.blocks.values():
        mine, wanted = index.inside(block), fresh.inside(block)
        assert (mine.owner, mine.blocks, mine.loose) == (wanted.owner, wanted.blocks, wanted.loose)
        assert (mine.writers, mine.readers) == (wanted.writers, wanted.readers)
    assert [index.position(stmt) for stmt in statements(fresh.root)] == list(range(len(fresh._parents) + 1))


def test_an_index_after_changes_is_a_fresh_one() -> None:
    sch = Schedule(convolution())
    pad, conv, out = (sch.get_block(name) for name in ("pad", "conv", "out"))

    def check() -> None:
        _same(sch._state.index)

    check()
    loops = sch.get_loops(out)
    outer, inner = sch.split(loops[-1], [None, 4])
    check()
    sch.reorder(inner, outer)
    check()
    sch.unroll(inner)
    sch.vectorize(outer)
    check()
    sch.compute_at(conv, loops[0])
    check()
    sch.compute_at(pad, loops[0])
    check()
    sch.decompose_reduction(conv, sch.get_loops(conv)[1])
    check()
    sch.cache_read(conv, "W", "local")
    check()
    sch.annotate(conv, "note", 1)
    sch.annotate(loops[0], "note", 1)
    check()


def test_statements_that_change_places_are_noticed() -> None:
    """Blocks that are in both programs, in another order."""
    func = matmul_relu()
    index = ProgramIndex(func)
    index.inside(index.root)
    first, second = child_statements(index.root.body)
    changed = func.replace(body=index.root.replace(body=seq(second, first)))
    after = ProgramIndex(changed, index)
    assert list(after.blocks) == ["root", "D", "C"]
    _same(after)
