"""The example of the schedules page runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright import te
from tilewright.tir.schedule import Schedule, Trace


def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[3] / "docs" / "schedules.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    exec(blocks[0], names)
    schedule = names["sch"]
    assert isinstance(schedule, Schedule)
    assert "C_init" in capsys.readouterr().out
    again = Schedule(schedule.func)
    loops = again.get_loops(again.get_block("C_init"))
    exec(blocks[2], {"te": te})
    exec(blocks[3], {"sch": again, "j": loops[1]})
    assert len(Trace.from_json(again.trace.to_json())) == len(again.trace)
