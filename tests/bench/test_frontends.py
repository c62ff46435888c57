"""`bench.frontends` counts what passes, what is refused and what fails."""

from __future__ import annotations

import json

import numpy as np
import pytest
from onnx import helper

from bench import frontends
from bench.frontend_case import Case, run_case
from tests.integration import small_models

Captured = pytest.CaptureFixture[str]


def relu() -> bytes:
    shape = (small_models.FLOAT, [2])
    node = helper.make_node("Relu", ["x"], ["y"])
    return bytes(small_models.model([node], {"x": shape}, {"y": shape}).SerializeToString())


def case(name: str, source: bytes, expected: float) -> Case:
    return Case(name, lambda: (source, {"x": np.float32([-1, 2])}, [np.float32([0, expected])]))


def test_verdicts() -> None:
    assert run_case(case("right", relu(), 2)).verdict == "passed"
    assert run_case(case("wrong", relu(), 3)).verdict == "failed"
    assert run_case(case("damaged", b"nothing", 2)).verdict == "refused"
    assert run_case(Case("broken", lambda: [][0])).verdict == "failed"  # type: ignore[arg-type, return-value]


def test_the_table(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    suites = {
        "good": ((), lambda: iter([case("right", relu(), 2), case("damaged", b"nothing", 2)])),
        "absent": (("no_such_package",), lambda: iter(())),
    }
    monkeypatch.setattr(frontends, "SUITES", suites)
    assert frontends.main(["--only", "good,absent", "--details"]) == 0
    shown = capsys.readouterr().out
    assert "needs no_such_package" in shown and "refused damaged: " in shown
    assert json.loads(shown.splitlines()[-1]) == {"good": {"passed": 1, "refused": 1, "failed": 0}}
    suites["good"] = ((), lambda: iter([case("wrong", relu(), 3)]))
    assert frontends.main(["--only", "good"]) == 1
