"""The benchmark of symbolic sizes: sizes are checked, figures written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import dynamic


def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(dynamic, "CHECKED", ((1, 1), (2, 5)))
    path = tmp_path / "dynamic.json"
    code = dynamic.main(["--layers", "1", "--lengths", "8", "--rounds", "1", "--json", str(path)])
    # The time of one round on a busy machine may be anything.
    assert code in (0, 4)
    figures = json.loads(path.read_text())
    assert max(figures["errors"].values()) < 1e-4
    assert figures["lengths"]["8"]["ratio"] > 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == figures
