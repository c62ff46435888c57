"""`tilewright convert`: what is written runs elsewhere, and what cannot be written is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.integration import small_models
from tests.requirements import need_module
from tilewright.cli.main import main

Captured = pytest.CaptureFixture[str]


def test_onnx_in_and_out(tmp_path: Path, capsys: Captured) -> None:
    source, output = tmp_path / "model.bin", tmp_path / "out.onnx"
    source.write_bytes(small_models.classifier().SerializeToString())
    assert main(["convert", str(source), "-o", str(output)]) == 0
    assert "from ONNX in" in capsys.readouterr().out
    onnx.checker.check_model(str(output), full_check=True)
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    ours, theirs = (onnxruntime.InferenceSession(path).run(None, {"image": x})[0] for path in (output, source))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_torch_in_onnx_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = need_module("torch")
    monkeypatch.chdir(tmp_path)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.SiLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    )
    x = torch.randn(2, 3, 8, 8)
    torch.export.save(torch.export.export(network.eval(), (x,)), "net.pt2")
    assert main(["convert", "net.pt2"]) == 0
    session = onnxruntime.InferenceSession("net.onnx")
    (theirs,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(theirs, network(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_shapes_and_bad_arguments(tmp_path: Path, capsys: Captured) -> None:
    source, output = tmp_path / "open.onnx", tmp_path / "fixed.onnx"
    node = small_models.helper.make_node("Relu", ["x"], ["y"])
    shape = (small_models.FLOAT, ["n", 3])
    source.write_bytes(small_models.model([node], {"x": shape}, {"y": shape}).SerializeToString())
    assert main(["convert", str(source), "--shape", "x=4,3", "-o", str(output)]) == 0
    (info,) = onnx.load(output).graph.input
    assert [dim.dim_value for dim in info.type.tensor_type.shape.dim] == [4, 3]
    assert main(["convert", str(source), "-o", str(source)]) == 1
    assert "is the model itself" in capsys.readouterr().err
    assert main(["convert", str(tmp_path), "-o", str(output)]) == 1
    assert "a folder without a model" in capsys.readouterr().err
