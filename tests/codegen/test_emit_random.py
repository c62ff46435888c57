"""Random programs under random legal schedules: every stage of lowering and the compiled code agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codegen.compiled import assert_stages_agree
from tests.tir.schedule.test_schedule_random import _step, programs
from tilewright.tir.schedule import Schedule, ScheduleError


def _check(data: st.DataObject) -> None:
    func = data.draw(programs())
    schedule = Schedule(func)
    wanted = data.draw(st.integers(1, 8))
    for _ in range(wanted * 4):
        if wanted == 0:
            break
        try:
            _step(data.draw, schedule)
            wanted -= 1
        except ScheduleError:
            continue
    random = np.random.default_rng(0)
    arrays = [random.integers(-5, 6, b.static_shape).astype(b.dtype.numpy()) for b in schedule.func.buffers]
    assert_stages_agree(schedule.func, *arrays)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_random_schedules_lower_and_compile(data: st.DataObject) -> None:
    _check(data)


@pytest.mark.fuzz
@settings(max_examples=2000, deadline=None)
@given(st.data())
def test_many_random_schedules_lower_and_compile(data: st.DataObject) -> None:
    _check(data)
