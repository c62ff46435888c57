"""The benchmark of bit-serial layers: a tiny layer through the whole road, table and JSON."""

from __future__ import annotations

import json

import pytest

from bench import bitserial
from bench.bitserial import Layer


def test_a_tiny_layer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    layer = Layer(5, 40, 16, 3, 2)
    monkeypatch.setattr(bitserial, "LAYERS", (layer,))
    monkeypatch.setattr(bitserial, "_SLICE_SECONDS", 1e-5)
    assert bitserial.main(["--threads", "1", "--rounds", "1"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last)["threads 1"][layer.name]
    assert {"float32", "int8", "W1A1", "W1A2", "W2A2"} <= set(figures)
    assert all(item["ms"] > 0 and item["over int8"] > 0 for item in figures.values())


def test_bounds_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert Layer(56, 64, 64, 3, 1).bound == pytest.approx(8 / 3)
    assert Layer(224, 3, 64, 7, 2).bound < 1, "a word for three channels"
    assert bitserial.main(["--only", "nothing"]) == 2
    assert "no layer" in capsys.readouterr().err
