"""`bench.training`: which rows a file of results keeps, and who is left out."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from bench import harness, training
from tilewright.support.errors import UserError


class Waiting:
    """A contestant without a process: its steps take as long as it is said to."""

    def __init__(self, way: str, *, is_ready: bool = True, loss: float = 1.0) -> None:
        self.way, self.is_ready, self.loss, self.ready_s = way, is_ready, loss, 0.5
        self.steps, self.closed = 0, False

    def get_ready(self, seconds: float) -> bool:
        return self.is_ready

    def step(self) -> float:
        self.steps += 1
        return 0.1 if self.way == "tilewright" else 0.2

    def close(self) -> None:
        self.closed = True


def options(**more: Any) -> argparse.Namespace:
    given = {"against": "eager,jax.jit", "small": True, "patience": 1, "rounds": 4, "seconds": 100}
    return argparse.Namespace(**{**given, **more})


def field(monkeypatch: pytest.MonkeyPatch, **kinds: dict[str, Any]) -> list[Waiting]:
    """Contestants that take the place of processes."""
    made: list[Waiting] = []

    def start(way: str, name: str, threads: int, small: bool) -> Waiting:
        made.append(Waiting(way, **kinds.get(way.partition(".")[0], {})))
        return made[-1]

    monkeypatch.setattr(training, "Contestant", start)
    return made


def test_ratios_of_those_that_got_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    made = field(monkeypatch, jax={"is_ready": False})
    row = training.measured("lstm", 1, options())
    assert row["ratios"] == {"eager": 2.0} and row["not_ready"] == ["jax.jit"] and row["rounds"] == 4
    assert all(item.closed for item in made) and made[-1].steps == 0


def test_slow_models_have_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    field(monkeypatch)
    assert training.measured("lstm", 1, options(rounds=50, seconds=0))["rounds"] == 3


def test_other_losses_and_no_step_at_all_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    # The weights of JAX are others.
    field(monkeypatch, jax={"loss": 2.0})
    training.measured("lstm", 1, options())
    made = field(monkeypatch, eager={"loss": 2.0})
    with pytest.raises(UserError, match=r"the first loss is 1\.0, that of eager is 2\.0"):
        training.measured("lstm", 1, options())
    assert all(item.closed for item in made)
    field(monkeypatch, tilewright={"is_ready": False})
    with pytest.raises(UserError, match="no first step after 1 seconds"):
        training.measured("lstm", 1, options())


def test_a_run_goes_on_where_another_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "training.json"
    command = ["--only", "lstm,small cnn", "--threads", "1", "--rounds", "3", "--output", str(path)]
    field(monkeypatch)
    training.main([*command[:1], "lstm", *command[2:]])
    made = field(monkeypatch)
    training.main([*command, "--resume"])
    assert [row["name"] for row in json.loads(path.read_text())["rows"]] == ["small cnn", "lstm"]
    assert {item.way for item in made} >= {"eager, channels last"}, "only images have another layout"
    assert sum(item.way == "tilewright" for item in made) == 1, "the LSTM was there"
    # What another machine measured is no part of this table.
    facts = json.loads(path.read_text())
    harness.write_json(path, {**facts, "machine": {**facts["machine"], "cores": 99}})
    made = field(monkeypatch)
    training.main([*command, "--resume"])
    assert sum(item.way == "tilewright" for item in made) == 2
