"""The benchmark of open sizes: outputs are checked, figures written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench import open_shapes


def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = replace(open_shapes.MODELS["open_recogniser"], timed=(1, 3, 32, 40), checked=((2, 3, 32, 21),))
    monkeypatch.setitem(open_shapes.MODELS, "open_recogniser", small)
    path = tmp_path / "open_shapes.json"
    assert open_shapes.main(["--only", "open_rec*", "--rounds", "1", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())
    assert figures["models"]["open_recogniser"]["compile_ratio"] > 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == figures


def test_an_unknown_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert open_shapes.main(["--only", "resnet"]) == 2
    assert "unknown model 'resnet'" in capsys.readouterr().err
