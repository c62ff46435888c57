"""`tilewright quantize`: a file in, a quantised file and a report out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.quantization.networks import images, residual_network
from tilewright.cli.main import main


def test_a_quantised_model_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(residual_network(), "net.onnx")
    np.savez("data.npz", image=images(3))
    assert main(["quantize", "net.onnx", "--data", "data.npz", "--threads", "1", "--report", "report.html"]) == 0
    assert "5 of 5 layers quantised" in capsys.readouterr().out
    kinds = [node.op_type for node in onnx.load("net.q.onnx").graph.node]
    assert kinds.count("QuantizeLinear") == 8
    assert "<table>" in Path("report.html").read_text()
    x = images(1, seed=9)
    ours, exact = (np.asarray(tw.compile(path, threads=1)(x)) for path in ("net.q.onnx", "net.onnx"))
    assert np.abs(ours - exact).max() < 0.05 * np.abs(exact).max()


def test_what_is_wrong_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(residual_network(), "net.onnx")
    assert main(["quantize", "net.onnx", "--data", "absent.npz"]) == 1
    assert "absent.npz" in capsys.readouterr().err
    assert main(["quantize", "net.onnx", "--data", ".", "--skip", "conv7"]) == 1
    assert not Path("net.q.onnx").exists()
