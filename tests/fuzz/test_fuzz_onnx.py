"""Damaged and senseless ONNX models: the importer gives a module or a UserError, and never anything else."""

from __future__ import annotations

import subprocess
import sys

import onnx
import pytest

from tests.fuzz import onnx_files, onnx_victims
from tilewright.frontend import from_onnx

MODELS = 150


@pytest.mark.parametrize("model", onnx_victims.built(), ids=lambda model: model.graph.node[0].op_type)
def test_victims_are_good_models(model: onnx.ModelProto) -> None:
    assert from_onnx(model)["main"].params


def test_mutated_models_are_no_worse_than_an_error() -> None:
    assert onnx_files.fuzz(0, MODELS, built=True) == []


def test_mutations_are_repeatable_and_various() -> None:
    victims = onnx_victims.built()
    assert onnx_files.make(5, victims) == onnx_files.make(5, victims)
    assert len({onnx_files.make(seed, victims) for seed in range(50)}) > 45


def child(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def test_crashes_and_hangs_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert onnx_files._follow(child("print('begin 3\\nbegin 4\\ndone')")) == (None, "")
    assert onnx_files._follow(child("import os\nprint('begin 7', flush=True)\nos.abort()")) == (7, None)
    monkeypatch.setattr(onnx_files, "LONGEST", 0.2)
    sleeper = child("import time\nprint('begin 9', flush=True)\ntime.sleep(60)")
    assert onnx_files._follow(sleeper) == (9, "not done after 0 s")
    sleeper.kill()
    sleeper.wait()
