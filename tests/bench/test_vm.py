"""The benchmark of the virtual machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import vm


def test_every_figure_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vm.main(["--repeat", "1", "--json", str(tmp_path / "vm.json")]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["vm_ns"]
    assert found == json.loads((tmp_path / "vm.json").read_text())["vm_ns"]
    assert found["whole_call_static"] > 0
    assert found["loop_turn_of_two_segments"] > found["instruction"]
