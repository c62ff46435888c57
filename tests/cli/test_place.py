"""`tilewright place`: models measured and placed from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.integration import small_models
from tests.requirements import need
from tilewright.cli.main import main
from tilewright.runtime.device.parts import PlacedModel


def _saved(folder: Path) -> str:
    path = folder / "model.onnx"
    path.write_bytes(small_models.classifier(channels=4).SerializeToString())
    return str(path)


def test_a_model_is_divided_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need("opencl")
    files = ["--timeline", str(tmp_path / "run.html"), "-o", str(tmp_path / "placed")]
    assert main(["place", _saved(tmp_path), "--device", "opencl", "--device", "accel", *files]) == 0
    printed = capsys.readouterr().out
    assert "so placed" in printed and "several at once for" in printed and "part  where" in printed
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")
    with PlacedModel.load(tmp_path / "placed") as model:
        assert np.asarray(model(small_models.image())).shape == (1, 10)


def test_a_device_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["place", _saved(tmp_path)]) == 1
    assert "no device is named" in capsys.readouterr().err
