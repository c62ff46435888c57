"""Programs in the script dialect, and the whole check of a primitive on one: text, results, trace, round trips."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import numpy as np

import tilewright as tw
from tests.tir.schedule.programs import with_parallel_loops_backwards
from tilewright.ir.structural import assert_same_ir
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.schedule import Schedule, Trace, replay
from tilewright.tir.verify import verify


def parse(text: str) -> PrimFunc:
    """A function from text, without its decorator and at any indentation."""
    func = tw.script.parse("@script.function\n" + textwrap.dedent(text).strip() + "\n")
    assert isinstance(func, PrimFunc)
    return func


def inputs_of(func: PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """Small random integers (exact in every type) for each parameter."""
    random = np.random.default_rng(seed)
    return [random.integers(-5, 6, buffer.static_shape or ()).astype(buffer.dtype.numpy()) for buffer in func.buffers]


def results_of(func: PrimFunc, arrays: list[np.ndarray], compiled: bool = False) -> list[np.ndarray]:
    """The parameters after a run."""
    copies = [array.copy() for array in arrays]
    if compiled:
        tw.build(func, target="native")(*copies)
    else:
        interpret(func, *copies)
    return copies


def check_script(before: str, apply: Callable[[Schedule], object], expected: str | None = None) -> Schedule:
    """Apply primitives to a program; check the result's text, results (interpreted and compiled), trace and text."""
    original = parse(before)
    schedule = Schedule(original)
    apply(schedule)
    verify(schedule.func, "scheduled")
    if expected is not None:
        assert_same_ir(schedule.func, parse(expected))
    arrays = inputs_of(original)
    wanted = results_of(original, arrays)
    for found in (
        results_of(schedule.func, arrays),
        results_of(with_parallel_loops_backwards(schedule.func), arrays),
        results_of(schedule.func, arrays, compiled=True),
    ):
        for a, b in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(a, b)
    check_trace(schedule, original)
    return schedule


def check_trace(schedule: Schedule, original: PrimFunc) -> None:
    """The trace replays, from memory and from JSON, to the same program; the program's text reads back as itself."""
    assert_same_ir(replay(schedule.trace, original).func, schedule.func)
    assert_same_ir(replay(Trace.from_json(schedule.trace.to_json()), original).func, schedule.func)
    assert_same_ir(tw.script.parse(tw.script.print(schedule.func)), schedule.func)
