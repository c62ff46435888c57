"""The benchmark of backward passes: it runs, checks results against torch, and says what it measured."""

from __future__ import annotations

import json

import pytest

from bench import backward
from bench.backward_cases import cases
from tests.requirements import need_module
from tilewright.support.errors import UserError


def test_small_run(tmp_path, capsys):
    need_module("torch")
    path = tmp_path / "backward.json"
    backward.main(["--threads", "1", "--batch", "1", "--rounds", "1", "--only", "softmax,1x1/1", "--json", str(path)])
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) == 3
    assert all(row["ours_ms"] > 0 and row["torch_ms"] > 0 for row in rows)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["cases"] == 3


def test_names_are_different():
    names = [case.name for case in cases(2)]
    assert len(set(names)) == len(names)


def test_unknown_case():
    with pytest.raises(UserError, match="no case is called 'nothing'"):
        backward.main(["--only", "nothing"])
