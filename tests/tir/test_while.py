"""While loops: their text, what they mean, and what is refused."""

from __future__ import annotations

import re
import signal

import numpy as np
import pytest

import tilewright as tw
from tests.tir.while_programs import CASES, MORE, NEWTON, SEARCH, Check, interpreted, program
from tilewright.ir.build import const, lt
from tilewright.ir.expr import TRUE, ZERO, Broadcast
from tilewright.ir.structural import assert_same_ir, structural_key
from tilewright.ir.visit import pre_order
from tilewright.support.errors import CompilerBug, UserError
from tilewright.te.hybrid import parse_hybrid
from tilewright.tir import stmt as s
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.interpreter import interpret
from tilewright.tir.schedule import Schedule
from tilewright.tir.script import parse_script, to_script
from tilewright.tir.verify import verify


@pytest.mark.parametrize("text", [SEARCH, NEWTON])
def test_round_trip(text: str) -> None:
    func = program(text)
    again = parse_script(to_script(func))
    assert_same_ir(func, again)
    assert any(isinstance(item, s.While) for item in pre_order(func.body))
    assert "while " in to_script(func)


def test_structural_key_tells_conditions_and_bodies_apart() -> None:
    keys = {
        structural_key(program(SEARCH)),
        structural_key(program(SEARCH.replace("while low[0] < high[0]", "while low[0] <= high[0]"))),
        structural_key(program(SEARCH.replace("while low[0] < high[0]", "if low[0] < high[0]"))),
        structural_key(program(SEARCH.replace("high[0] = middle", "high[0] = middle - int32(1)"))),
    }
    assert len(keys) == 4


BROKEN = [
    ("while A[0] < 3:\n        A[0] += 1\n    else:\n        A[0] = 0", "a loop of a script has no else"),
    ("while A[0] < 3:\n        A[0] += 1\n        break", "a script has no break"),
    ("while A[0] < 3:\n        A[0] += 1\n        continue", "a script has no continue"),
    ("while True:\n        A[0] += 1", "nothing in this loop can change its condition"),
    ("while 2 > 1:\n        A[0] += 1", "nothing in this loop can change its condition"),
    ("x = A[0]\n    while x < 3:\n        A[0] += 1", "nothing in this loop can change its condition"),
    ("while A[0]:\n        A[0] -= 1", "a condition must be bool, not int64"),
    ("x = A[0]\n    while x < A[0]:\n        x = x + 1", "x is already bound outside this suite"),
    ('while A[0] < 3:\n        with block("inside"):\n            A[0] += 1', "a while loop holds no blocks"),
    ("while A[0] < 3:\n        step(A)", "step cannot be called inside a while loop"),
]


@pytest.mark.parametrize(("body", "message"), BROKEN)
def test_what_a_script_refuses(body: str, message: str) -> None:
    step = program('def step(A: Buffer[(1,), "int64"]):\n    A[0] = A[0] + 1')
    text = f'@script.function\ndef f(A: Buffer[(1,), "int64"]):\n    {body}\n'
    with pytest.raises(UserError, match=re.escape(message)):
        parse_script(text, constants={"step": step})


def test_a_loop_that_never_begins_is_no_statement() -> None:
    func = program('def f(A: Buffer[(1,), "int64"]):\n    while False:\n        A[0] = 1\n    A[0] = 2')
    assert not any(isinstance(item, s.While) for item in pre_order(func.body))


@pytest.mark.parametrize(("text", "check"), [*CASES, *MORE])
def test_interpreted_and_compiled(text: str, check: Check) -> None:
    func = program(text)
    check(interpreted(func))
    check(tw.build(func))


def test_the_condition_is_evaluated_before_each_iteration() -> None:
    """What a condition shares between its parts, too."""
    func = program("""
def f(A: Buffer[(4,), "int64"], N: Buffer[(1,), "int64"]):
    with block("f"):
        while (A[N[0]] + 1) * (A[N[0]] + 1) > 4 or (A[N[0]] + 1) * (A[N[0]] + 1) == 1:
            N[0] += 1
""")
    for run in (interpreted(func), tw.build(func)):
        for a, expected in (([5, 0, 1, 7], 2), ([1, 5, 5, 5], 0)):
            n = np.zeros(1, np.int64)
            run(np.array(a), n)
            assert n[0] == expected


def test_deep_nests_are_interpreted() -> None:
    """Python takes 20 loops inside one another."""
    func = program('def f(A: Buffer[(1,), "int64"]):\n    A[0] += 1')
    body = func.body
    (buffer,) = func.buffers
    for _ in range(30):
        load = BufferLoad(buffer, (ZERO,))
        body = s.While(lt(load, const(30)), body)
    a = np.zeros(1, np.int64)
    interpret(func.replace(body=body), a)
    assert a[0] == 30


def test_an_endless_loop_is_interrupted() -> None:
    func = program('def f(A: Buffer[(1,), "int64"]):\n    while A[0] < 1:\n        A[0] = A[0] * 2')

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            interpret(func, np.zeros(1, np.int64))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_verifier() -> None:
    func = program(SEARCH)
    inside = func.root.body
    outer = func.root.replace(body=s.While(lt(BufferLoad(func.buffers[0], (ZERO,)), const(1.0, "float32")), inside))
    with pytest.raises(CompilerBug, match="block search stands inside a while loop"):
        verify(func.replace(body=outer), "scheduled")
    loop = s.While(Broadcast(TRUE, 4), s.SeqStmt(()))
    with pytest.raises(CompilerBug, match="the condition of a while"):
        verify(func.replace(body=func.root.replace(body=loop)), "scheduled")


def test_hybrid_script() -> None:
    func = parse_hybrid("""
def halves(a, b):
    A = bind_buffer(a, shape=[12], dtype="int64")
    B = bind_buffer(b, shape=[12], dtype="int64")
    for i in iter_range(12, iter_type="data_par"):
        B[i] = 0
        while A[i] >> B[i] > 0:
            B[i] += 1
""")
    schedule = Schedule(func)
    schedule.parallel(schedule.get_loops(schedule.get_block("B_1"))[0])
    a = np.array([0, 1, 2, 3, 4, 7, 8, 100, 1023, 1024, 5, 6])
    for run in (interpreted(func), interpreted(schedule.func), tw.build(schedule.func)):
        b = np.full(12, -1)
        run(a, b)
        assert b.tolist() == [int(item).bit_length() for item in a]
