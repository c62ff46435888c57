"""Tests of traces: recording, text, JSON, replay, decisions."""

from __future__ import annotations

import math
import pickle

import pytest

from tests.tir.schedule.programs import block_of, check, elementwise, matmul, matmul_relu, row_sum
from tilewright.ir.structural import structural_equal
from tilewright.support.errors import UserError
from tilewright.tir.schedule import (
    BlockHandle,
    Instruction,
    LoopHandle,
    SampledInt,
    Schedule,
    ScheduleError,
    Trace,
    replay,
)


def tiled() -> Schedule:
    schedule = Schedule(matmul_relu(8, 12, 10), seed=3)
    d = schedule.get_block("D")
    i, j = schedule.get_loops(d)
    factors = schedule.sample_perfect_tile(j, 2, max_innermost=6)
    outer, inner = schedule.split(j, factors)
    schedule.reorder(outer, i)
    schedule.compute_at(schedule.get_block("C"), outer)
    choice = schedule.sample_categorical([1, 2, 4], [0.2, 0.3, 0.5])
    schedule.annotate(d, "unroll", choice)
    schedule.vectorize(inner)
    return schedule


def test_a_trace_prints_as_a_program_of_calls() -> None:
    schedule = tiled()
    text = str(schedule.trace)
    assert "b0 = sch.get_block(name='D')" in text
    assert "sch.split(l2, factors=[x3, x4])" in text
    again = Schedule(matmul_relu(8, 12, 10))
    exec(text, {"sch": again})
    assert structural_equal(again.func, schedule.func)


def test_json_round_trip_replays_to_the_same_program() -> None:
    schedule = tiled()
    text = schedule.trace.to_json()
    trace = Trace.from_json(text)
    assert trace.to_json() == text
    assert len(trace) == len(schedule.trace)
    original = matmul_relu(8, 12, 10)
    replayed = replay(trace, original)
    assert structural_equal(replayed.func, schedule.func)
    check(replayed, original)


def test_another_decision_gives_another_program() -> None:
    schedule = tiled()
    (place, *_) = schedule.trace.decisions()
    changed = replay(schedule.trace.with_decision(place, [3, 4]), matmul_relu(8, 12, 10))
    assert block_of(changed, "D").iters[1].domain is not None
    assert changed.trace.decisions()[place] == [3, 4]
    check(changed, matmul_relu(8, 12, 10))
    with pytest.raises(UserError, match="instruction 0 of the trace samples nothing"):
        schedule.trace.with_decision(0, [1])
    with pytest.raises(ScheduleError, match=r"the decision \[5, 4\] is not 2 factors of the extent 12"):
        replay(schedule.trace.with_decision(place, [5, 4]), matmul_relu(8, 12, 10))


def test_sampling_is_repeatable_and_valid() -> None:
    for seed in range(20):
        first, second = Schedule(elementwise((36, 4), 1), seed=seed), Schedule(elementwise((36, 4), 1), seed=seed)
        loops = [s.get_loops(s.get_block("B0"))[0] for s in (first, second)]
        factors = first.sample_perfect_tile(loops[0], 3, max_innermost=4)
        assert factors == second.sample_perfect_tile(loops[1], 3, max_innermost=4)
        assert math.prod(factors) == 36
        assert factors[-1] <= 4
        assert all(isinstance(factor, SampledInt) for factor in factors)
        assert first.sample_categorical([5, 7], [1, 0]) == 5


def test_sampling_errors() -> None:
    schedule = Schedule(elementwise((36, 4), 1))
    i, _ = schedule.get_loops(schedule.get_block("B0"))
    with pytest.raises(ScheduleError, match="0 parts"):
        schedule.sample_perfect_tile(i, 0)
    with pytest.raises(ScheduleError, match="candidates with the probabilities"):
        schedule.sample_categorical([1, 2], [1.0])
    with pytest.raises(ScheduleError, match="the decision 2 is not one of 2 candidates"):
        schedule.sample_categorical([1, 2], [1, 1], decision=2)


def test_bad_traces() -> None:
    for text, message in [
        ("{", "this is not a schedule trace"),
        ("[]", "it has no instructions"),
        ('{"version": 99, "instructions": []}', "of version 99"),
        ('{"version": 1, "instructions": 3}', "it has no instructions"),
        ('{"version": 1, "instructions": [3]}', "not an instruction"),
        ('{"version": 1, "instructions": [{"kind": "split", "inputs": 3}]}', "not an instruction"),
        ('{"version": 1, "instructions": [{"kind": "split", "outputs": [null]}]}', "not an instruction"),
        ('{"version": 1, "instructions": [{"kind": "split", "outputs": [true]}]}', "not an instruction"),
        ('{"version": 1, "instructions": [{"kind": "split", "attributes": []}]}', "not an instruction"),
        ('{"version": 1, "instructions": [{"kind": "split", "attributes": {"a": [{"ref": "x"}]}}]}', "is no result"),
    ]:
        with pytest.raises(UserError, match=message):
            Trace.from_json(text)
    for attributes in ({}, {"nme": "C"}, {"name": []}):
        odd = Trace([Instruction("get_block", attributes=attributes, outputs=(0,))])  # type: ignore[arg-type]
        with pytest.raises(UserError, match=r"instruction 0 of the trace, .* has arguments of a wrong kind"):
            replay(odd, matmul())
    bad = Trace.from_json('{"version": 1, "instructions": [{"kind": "explode"}]}')
    with pytest.raises(UserError, match="unknown instruction 'explode'"):
        replay(bad, matmul())
    schedule = Schedule(matmul())
    schedule.get_loops(schedule.get_block("C"))
    with pytest.raises(UserError, match="no block 'C'"):
        replay(schedule.trace, elementwise())
    other = Schedule(elementwise((4,), 1))
    other.get_loops(other.get_block("B0"))
    with pytest.raises(UserError, match="gives 2 results here, 1 in the trace"):
        replay(other.trace, elementwise((4, 4), 1))


def test_what_cannot_be_recorded_is_refused() -> None:
    schedule = Schedule(matmul())
    block = schedule.get_block("C")
    before = schedule.func
    with pytest.raises(UserError, match="a schedule cannot record"):
        schedule.annotate(block, "key", object())  # type: ignore[arg-type]
    assert schedule.func is before


def test_loops_known_from_elsewhere_are_named_in_the_trace() -> None:
    func = matmul()
    schedule = Schedule(func)
    loop = schedule._state.index.loops_above(block_of(schedule, "C"))[1]
    schedule.vectorize(LoopHandle(loop.var))
    schedule.annotate(BlockHandle("C"), "note", 1)
    check(schedule, func)


def test_copies_are_independent() -> None:
    schedule = Schedule(matmul(), seed=1)
    i, j, _ = schedule.get_loops(schedule.get_block("C"))
    other = schedule.copy()
    other.split(i, [None, 4])
    schedule.vectorize(j)
    other.unroll(j)
    assert str(schedule.trace) != str(other.trace)
    check(schedule, matmul())
    check(other, matmul())


def test_a_failed_primitive_changes_nothing() -> None:
    schedule = Schedule(matmul())
    _, _, k = schedule.get_loops(schedule.get_block("C"))
    before, steps = schedule.func, len(schedule.trace)
    with pytest.raises(ScheduleError):
        schedule.parallel(k)
    assert schedule.func is before
    assert len(schedule.trace) == steps


def test_schedule_errors_survive_pickling() -> None:
    schedule = Schedule(matmul())
    _, _, k = schedule.get_loops(schedule.get_block("C"))
    with pytest.raises(ScheduleError) as caught:
        schedule.parallel(k)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_looking_around() -> None:
    schedule = Schedule(matmul_relu())
    c, d = schedule.get_block("C"), schedule.get_block("D")
    assert schedule.get_producers(d) == [c]
    assert schedule.get_consumers(c) == [d]
    assert schedule.get_output_blocks() == [d]
    assert schedule.blocks() == [c, d]
    assert schedule.get_child_blocks(schedule.get_block("root")) == [c, d]
    assert schedule.get_child_blocks(schedule.get_loops(c)[0]) == [c]
    assert schedule.show() == str(schedule)
    with pytest.raises(UserError, match="there is no block 'E'") as caught:
        schedule.get_block("E")
    assert "it has: root, C, D" in str(caught.value)
    replay(schedule.trace, matmul_relu())


def test_only_functions_with_blocks_are_scheduled() -> None:
    with pytest.raises(UserError, match="a schedule needs a PrimFunc"):
        Schedule("f")  # type: ignore[arg-type]
    func = matmul()
    with pytest.raises(UserError, match="has no root block"):
        Schedule(func.replace(body=func.root.body))


def test_simplified_traces_drop_unused_questions() -> None:
    schedule = Schedule(matmul())
    schedule.blocks()
    schedule.get_output_blocks()
    block = schedule.get_block("C")
    i, _, _ = schedule.get_loops(block)
    schedule.get_loops(block)
    schedule.cache_read(block, "A", "local", [block])
    schedule.parallel(i)
    short = schedule.trace.simplified()
    assert [item.kind for item in short.instructions] == ["get_block", "get_loops", "cache_read", "parallel"]
    assert structural_equal(replay(short, matmul()).func, schedule.func)
    assert structural_equal(replay(Trace.from_json(short.to_json()), matmul()).func, schedule.func)


def test_a_failing_replay_names_the_instruction() -> None:
    schedule = Schedule(matmul(8, 12, 10))
    i, _, _ = schedule.get_loops(schedule.get_block("C"))
    schedule.split(i, [4, 2])
    wanted = r"instruction 2 of the trace, `l4, l5 = sch.split\(l1, factors=\[4, 2\]\)`: split"
    with pytest.raises(ScheduleError, match=wanted):
        replay(schedule.trace, matmul(9, 12, 10))
    with pytest.raises(UserError, match=r"instruction 0 of the trace, `b0 = sch\.get_block"):
        replay(schedule.trace, row_sum())
    broken = Trace([Instruction("get_loops", (7,), {}, (0, 1))])
    with pytest.raises(UserError, match="instruction 0 of the trace uses result 7, which no instruction gives"):
        replay(broken, matmul())


def test_simplified_traces_ask_once() -> None:
    func = matmul(8, 12, 10)
    schedule = Schedule(func)
    schedule.get_block("C")
    schedule.get_loops(schedule.get_block("C"))
    schedule.cache_read(schedule.get_block("C"), "A", "local", [])
    i, *_ = schedule.get_loops(schedule.get_block("C"))
    schedule.parallel(i)
    simple = schedule.trace.simplified()
    assert [item.kind for item in simple.instructions] == ["get_block", "cache_read", "get_loops", "parallel"]
    assert structural_equal(replay(simple, func).func, schedule.func)
    assert len(simple.simplified()) == len(simple)


def test_general_index_maps_replay() -> None:
    func = elementwise((6, 8), 2)
    schedule = Schedule(func)
    schedule.transform_layout(schedule.get_block("B0"), "B0", lambda i, j: ((i * 8 + j) // 12, (i * 8 + j) % 12))
    assert "(((i0 * 8) + i1) // 12), (((i0 * 8) + i1) % 12)" in str(schedule.trace)
    check(schedule, func)
    again = replay(Trace.from_json(schedule.trace.to_json()), func)
    assert structural_equal(again.func, schedule.func)
    for text in ("i0 +", "f(i0)", "i7", "i0 / 2"):
        with pytest.raises(UserError, match="is not an index map"):
            Schedule(func).transform_layout(BlockHandle("B0"), "B0", text)


def test_sampled_compute_locations() -> None:
    func = elementwise((6, 8), 2)
    seen = set()
    for seed in range(12):
        schedule = Schedule(func, seed=seed)
        block = schedule.get_block("B0")
        place = schedule.sample_compute_location(block)
        schedule.compute_at_location(block, place)
        seen.add(int(place))
        check(schedule, func)
    assert seen == {-2, -1, 0, 1}
    schedule = Schedule(func)
    block = schedule.get_block("B0")
    place = schedule.sample_compute_location(block, decision=1)
    schedule.compute_at_location(block, place)
    (number,) = schedule.trace.decisions()
    other = replay(schedule.trace.with_decision(number, -2), func)
    assert [item.name for item in other.blocks()] == ["B1"]
    with pytest.raises(ScheduleError, match="cannot be computed at 5"):
        replay(schedule.trace.with_decision(number, 5), func)
    with pytest.raises(ScheduleError, match="there is no loop 4"):
        Schedule(func).compute_at_location(BlockHandle("B0"), 4)
