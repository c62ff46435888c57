"""The benchmarks of the virtual machine, and of loops that it runs natively."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import cells, vm


def test_every_figure_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vm.main(["--repeat", "5", "--json", str(tmp_path / "vm.json")]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["vm_ns"]
    assert found == json.loads((tmp_path / "vm.json").read_text())["vm_ns"]
    assert found["whole_call_static"] > 0
    # The loop runs natively: a turn is less than a call and return of the machine. Both are means over thousands of
    # turns and 20 times apart; the call of one segment is the difference of two single calls, which noise turns round.
    assert 0 < found["loop_turn_of_two_segments"] < found["call_and_return"]


def test_cells_as_loops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cells.main(["--repeat", "1", "--widths", "8", "--json", str(tmp_path / "cells.json")]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["cells"]
    assert [row["operator"] for row in found] == ["Scan", "Loop"]
    assert all(row["ratio"] > 0 for row in found)
