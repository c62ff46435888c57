"""Schedules that remember: the same programs as plain ones, and work only where calls differ."""

from __future__ import annotations

from random import Random

import pytest

from tilewright import te
from tilewright.ir.structural import structural_key
from tilewright.support.errors import CompilerBug
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import remembered
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.remembered import ScheduleTree
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.script.printer import to_script


def _program() -> PrimFunc:
    a, b = te.placeholder((32, 48), "float32", "a"), te.placeholder((48, 64), "float32", "b")
    k = te.reduce_axis((0, 48), "k")
    c = te.compute((32, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    d = te.compute((32, 64), lambda i, j: c[i, j] * 2.0 + 1.0, "d")
    return te.create_schedule(d.op).func([a, b, d])


def _template(sch: Schedule, rows: int, columns: int, packed: bool, unrolled: bool) -> PrimFunc:
    """A tiled product with an epilogue; every argument is a choice."""
    product, output = sch.get_block("c"), sch.get_block("d")
    i, j = sch.get_loops(output)
    i0, i1 = sch.split(i, [None, rows])
    j0, j1 = sch.split(j, [None, columns])
    sch.reorder(i0, j0, i1, j1)
    if packed:
        sch.transform_layout(product, "b", lambda k, n: (n // columns, k, n % columns))
    sch.compute_at(product, j0)
    loops = sch.get_loops(product)
    loops.append(loops.pop(2))
    sch.reorder(loops[-2], *loops[2:-2], loops[-1])
    sch.vectorize(j1)
    if unrolled:
        sch.unroll(i1)
    sch.annotate(i0, "note", {"rows": rows, "exact": unrolled})
    return sch.func


def _points(count: int) -> list[tuple[int, int, bool, bool]]:
    random = Random(0)
    return [
        (random.choice((2, 4, 5, 8)), random.choice((8, 12, 16)), random.random() < 0.5, random.random() < 0.5)
        for _ in range(count)
    ]


def test_programs_are_those_of_plain_schedules() -> None:
    func = _program()
    tree = ScheduleTree(func)
    for point in _points(40):
        found = _template(tree.schedule(), *point)
        wanted = _template(Schedule(func), *point)
        assert to_script(found) == to_script(wanted)
        assert structural_key(found) == structural_key(wanted)


def test_what_was_done_is_not_done_again() -> None:
    tree = ScheduleTree(_program())
    first = _template(tree.schedule(), 4, 16, False, True)
    made = tree._programs
    assert made > 5
    assert _template(tree.schedule(), 4, 16, False, True) is first
    assert tree._programs == made
    # Only what comes after the last choice: no unrolling, and another note.
    assert _template(tree.schedule(), 4, 16, False, False) is not first
    assert tree._programs == made + 1


def test_results_are_the_callers_own() -> None:
    tree = ScheduleTree(_program())
    loops = tree.schedule().get_loops(tree.schedule().get_block("d"))
    loops.clear()
    assert len(tree.schedule().get_loops(tree.schedule().get_block("d"))) == 2


def test_arguments_that_are_equal_in_python_are_told_apart() -> None:
    tree = ScheduleTree(_program())
    notes = []
    for value in (1, True, 1.0, "1"):
        sch = tree.schedule()
        loop = sch.get_loops(sch.get_block("d"))[0]
        sch.annotate(loop, "note", value)
        notes.append(sch.loop(loop).annotations["note"])
    assert [type(note) for note in notes] == [int, bool, float, str]


def test_failures_leave_the_program_and_are_found_again() -> None:
    tree = ScheduleTree(_program())
    for _ in range(2):
        sch = tree.schedule()
        i, j = sch.get_loops(sch.get_block("d"))
        before = sch.func
        with pytest.raises(ScheduleError, match="not directly inside"):
            sch.fuse(j, i)
        assert sch.func is before
        assert len(sch.get_loops(sch.get_block("d"))) == 2
        sch.fuse(i, j)
        assert len(sch.get_loops(sch.get_block("d"))) == 1


def test_copies_go_their_own_way() -> None:
    sch = ScheduleTree(_program()).schedule()
    i, j = sch.get_loops(sch.get_block("d"))
    trial = sch.copy()
    trial.fuse(i, j)
    assert len(sch.get_loops(sch.get_block("d"))) == 2
    assert len(trial.get_loops(trial.get_block("d"))) == 1


def test_a_tree_that_is_full_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MOST_PROGRAMS", 8)
    func = _program()
    tree = ScheduleTree(func)
    for point in _points(12):
        assert to_script(_template(tree.schedule(), *point)) == to_script(_template(Schedule(func), *point))


def test_no_trace_and_no_chance() -> None:
    sch = ScheduleTree(_program()).schedule()
    with pytest.raises(CompilerBug, match="no trace"):
        _ = sch.trace
    with pytest.raises(CompilerBug, match="by chance"):
        sch.sample_perfect_tile(sch.get_loops(sch.get_block("d"))[0], 2)


def test_calls_with_intrinsics_are_remembered() -> None:
    small, large = te.placeholder((4,), "float32", "x"), te.placeholder((8,), "float32", "input")
    doubled = te.compute((4,), lambda i: small[i] * 2.0, "doubled")
    double = te.decl_tensor_intrin(
        doubled.op, lambda inputs, outputs: outputs[0].store((0,), inputs[0][0] * 2.0), name="remembered_double"
    )
    whole = te.compute((8,), lambda i: large[i] * 2.0, "whole")
    tree = ScheduleTree(te.create_schedule(whole.op).func([large, whole]))
    programs = []
    for _ in range(2):
        sch = tree.schedule()
        _, inner = sch.split(sch.get_loops(sch.get_block("whole"))[0], [None, 4])
        sch.tensorize(inner, double)
        programs.append(sch.func)
    assert programs[0] is programs[1] and "remembered_double" in to_script(programs[0])
