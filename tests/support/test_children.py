"""Processes that run the package's code: they take modules from where this process does, and from nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, var
from tilewright.ir.function import IRModule
from tilewright.support.children import python_command, python_environment


def test_modules_of_the_folder_at_hand_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's models may lie beside files that are named like modules."""
    for name in ("json", "numpy", "pickle", "tilewright"):
        (tmp_path / f"{name}.py").write_text("open('was_run', 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    done = subprocess.run(python_command("-c", "import json, numpy, tilewright"), env=python_environment(), check=False)
    assert done.returncode == 0
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    monkeypatch.setenv("TILEWRIGHT_COMPILE_PROCESSES", "2")
    x = var("x", 3, 5)
    results = x
    for number in range(20):
        results = op("nn.softmax", op("concatenate", results, x, axis=1), axis=1) if number % 2 else op("exp", results)
    executable = tw.compile(IRModule([function([x], results)]))
    assert np.isfinite(executable(np.zeros((3, 5), np.float32))).all()
    assert not (tmp_path / "was_run").exists()


def test_modules_that_this_process_finds_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_operators.py").write_text("NUMBER = 3")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    command = python_command("-c", "import own_operators; print(own_operators.NUMBER)")
    done = subprocess.run(command, env=python_environment(), capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "3", done.stderr
