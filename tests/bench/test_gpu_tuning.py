"""Tuning the benchmark's models on a GPU: how time is divided, what is written, words that make no sense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from bench import gpu_tuning
from tilewright.lower.database import Database
from tilewright.runtime.core.module import TimingResult
from tilewright.support.errors import UserError
from tilewright.tune.in_graph import InGraph
from tilewright.tune.tuner import Report


class Executable:
    """Stands for a compiled model: what is tuned is twice as quick."""

    def __init__(self, database: object) -> None:
        self.seconds = 2e-5 if database == "shipped" else 1e-5

    def run(self, inputs: object) -> list[np.ndarray]:
        return [np.ones(3)]

    def time_evaluator(self, number: int, repeat: int) -> Callable[..., TimingResult]:
        return lambda *inputs: TimingResult((self.seconds,) * repeat)


def test_models_are_tuned_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned: list[tuple[str, float]] = []

    def tune(model: bytes, target: str, *, seconds: float, precision: str, **others: object) -> Report:
        tuned.append((precision, seconds))
        if precision == "float16":
            raise UserError("no room")
        return Report((), 7, 3.0, 2.0, False, InGraph(3e-5, 2e-5, 1.5e-5, 40, 2.0, 1))

    monkeypatch.setattr(gpu_tuning, "tune_model", tune)
    monkeypatch.setattr(tw, "compile", lambda model, target, precision, database: Executable(database))
    figures, database = tmp_path / "tuned.json", tmp_path / "tuned.db"
    Database(database).close()
    words = ["--models", "dqn", "--precisions", "fp32,fp16", "--time", "90s", "--total", "60s", "--reserve", "4"]
    assert gpu_tuning.main([*words, "--database", str(database), "--json", str(figures)]) == 1
    assert [precision for precision, _ in tuned] == ["float32", "float16"]
    # Half of the time less the reserve; the second model gets what the first one left.
    assert 25 < tuned[0][1] <= 26 and 50 < tuned[1][1] <= 56
    written = json.loads(figures.read_text())
    first, second = written["results"]
    assert (first["trials"], first["default_us"], first["alone_us"], first["together_us"]) == (7, 30.0, 20.0, 15.0)
    assert (first["shipped_wall_us"], first["tuned_wall_us"], first["max_rel_err"]) == (20.0, 10.0, 0.0)
    assert written["geomean_ratio"] == 2.0 and second["error"] == "UserError: no room"
    assert "0 records" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "gpt"], "unknown model 'gpt'"),
        (["--models", "dqn", "--precisions", "fp8"], "unknown precision 'fp8'"),
    ],
)
def test_messages(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_tuning.main([*words, "--database", "x.db"]) == 2
    assert message in capsys.readouterr().err
