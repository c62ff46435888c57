"""`tilewright bench`: the table, JSON, exit codes, peers that are missing or cannot run a model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from bench.tflite_writer import Graph, Tensor, write
from tests.integration import small_models
from tilewright.cli import bench, own_runtimes, peers
from tilewright.cli.main import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "small.onnx"
    onnx.save(small_models.classifier(), path)
    return path


def test_against_onnxruntime(model: Path, capsys: Captured) -> None:
    assert main(["bench", str(model), "--threads", "1", "--rounds", "1", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "small.onnx, 1 thread"
    assert [line.split()[0] for line in lines[3:5]] == ["tilewright", "onnxruntime"]
    figures = json.loads(lines[-1])
    assert figures["threads"] == 1
    assert figures["max_rel_err"]["onnxruntime"] < 1e-4
    assert figures["times"]["tilewright"]["min_ms"] <= figures["times"]["tilewright"]["median_ms"]
    found = figures["ratios"]["onnxruntime"]
    assert 0 < found["between"][0] <= found["ratio"] <= found["between"][1]
    assert f"{found['ratio']:.2f}x (" in lines[4]


def test_without_peers_and_of_a_library(model: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["bench", str(model), "--threads", "1", "--rounds", "1", "--against", ""]) == 0
    assert "onnxruntime" not in capsys.readouterr().out
    library = tmp_path / "small.so"
    tw.compile(model, threads=1).export_library(library)
    assert main(["bench", str(library), "--threads", "2", "--rounds", "1"]) == 0
    assert capsys.readouterr().out.startswith("small.so, 2 threads")
    assert main(["bench", str(library), "--against", "onnxruntime"]) == 1
    assert "other runtimes cannot run" in capsys.readouterr().err


def test_outputs_that_differ_are_4(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setitem(bench.PEERS, "onnxruntime", lambda path, threads, inputs: lambda: [np.ones((1, 10))])
    assert main(["bench", str(model), "--threads", "1", "--rounds", "1"]) == 4
    assert "the outputs differ by more than 1e-03" in capsys.readouterr().out


def test_unknown_and_missing_peers(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    assert main(["bench", str(model), "--against", "tflite"]) == 1
    assert "unknown peer 'tflite'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setitem(sys.modules, "openvino", None)
    for peer, hint in (("onnxruntime", "pip install 'tilewright[bench]'"), ("openvino", "pip install openvino")):
        assert main(["bench", str(model), "--threads", "1", "--against", peer]) == 1
        errors = capsys.readouterr().err
        assert f"measuring against {peer} needs the package" in errors
        assert hint in errors


class Interpreter:
    """As LiteRT's: a model that doubles its input."""

    def __init__(self, **settings: Any) -> None:
        self.tensors: dict[int, Any] = {}
        self.settings = settings

    def get_signature_list(self) -> dict[str, Any]:
        return {"serving_default": {}}

    def get_signature_runner(self, key: str) -> Interpreter:
        return self

    def get_input_details(self) -> dict[str, Any]:
        return {"x": {"index": 3}}

    def get_output_details(self) -> list[dict[str, Any]]:
        return [{"index": 5}]

    def get_tensor_details(self) -> list[dict[str, Any]]:
        return [{"name": name, "index": at} for name, at in (("x", 3), ("y", 5), ("nothing", 7))]

    def resize_tensor_input(self, place: int, shape: tuple[int, ...]) -> None:
        self.tensors[place] = np.zeros(shape, np.float32)

    def allocate_tensors(self) -> None:
        self.tensors[5] = np.zeros_like(self.tensors[3])

    def reset_all_variables(self) -> None:
        pass

    def set_tensor(self, place: int, value: Any) -> None:
        self.tensors[place] = value

    def invoke(self) -> None:
        self.tensors[5] = 2 * self.tensors[3]

    def get_tensor(self, place: int) -> Any:
        if place not in self.tensors:
            raise ValueError("Tensor data is null")
        return self.tensors[place]


def _doubled(path: Path) -> Path:
    """A TFLite model that doubles its input."""
    graph = Graph()
    x = graph.input("x", (2, 3))
    y = graph.add("ADD", [x, x], [Tensor("y", (2, 3))])
    signature = {"key": "serving_default", "inputs": {"x": x}, "outputs": {"y": y}}
    path.write_bytes(write([graph.output(y)], [signature]))
    return path


def test_models_of_tflite_against_litert(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    path = _doubled(tmp_path / "double.tflite")
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    assert main(["bench", str(path), "--threads", "1", "--against", "litert"]) == 1
    assert "pip install ai-edge-litert" in capsys.readouterr().err
    runtime = ModuleType("ai_edge_litert.interpreter")
    monkeypatch.setattr(runtime, "Interpreter", Interpreter, raising=False)
    resolvers = SimpleNamespace(BUILTIN_REF="reference", AUTO="auto")
    monkeypatch.setattr(runtime, "OpResolverType", resolvers, raising=False)
    monkeypatch.setitem(sys.modules, "ai_edge_litert", ModuleType("ai_edge_litert"))
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", runtime)
    assert main(["bench", str(path), "--threads", "1", "--rounds", "1", "--against", "litert", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["max_rel_err"] == {"litert": 0.0}
    assert main(["check", str(path)]) == 0
    assert "ok" in capsys.readouterr().out
    assert main(["bench", str(model), "--threads", "1", "--against", "litert"]) == 1
    assert "litert reads files of the format tflite" in capsys.readouterr().err
    with pytest.raises(tw.UserError, match="LiteRT knows no input 'z'"):
        peers.litert(path, 1, {"z": np.zeros(3, np.float32)})
    found = own_runtimes.tflite(path, {"x": np.ones((2, 3), np.float32)})
    assert set(found.layers) == {"x", "y"} and (found.outputs[0] == 2).all()


def test_a_peer_that_cannot_run_the_model(tmp_path: Path) -> None:
    path = tmp_path / "odd.onnx"
    onnx.save(small_models.one_node("Frobnicate", {"x": (small_models.FLOAT, [2])}), path)
    with pytest.raises(tw.UserError, match="onnxruntime cannot run the model") as caught:
        peers.onnxruntime(path, 1, {})
    assert caught.value.where == str(path)
    onnx.save(small_models.one_node("Relu", {"x": (small_models.FLOAT, [2])}), path)
    run = peers.onnxruntime(path, 1, {"x": np.zeros((2, 2), np.float32)})
    with pytest.raises(tw.UserError, match="onnxruntime cannot run the model"):
        run()
