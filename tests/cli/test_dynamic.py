"""Models with symbolic dimensions and with control flow on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.cli.main import main

Captured = pytest.CaptureFixture[str]


def value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def save(path: Path, nodes: list[onnx.NodeProto], inputs: list, outputs: list) -> Path:
    graph = helper.make_graph(nodes, "net", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    onnx.save(model, path)
    return path


@pytest.fixture
def symbolic(tmp_path: Path) -> Path:
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Add", ["r", "x"], ["y"])]
    shape = ("batch", 4)
    return save(
        tmp_path / "net.onnx", nodes, [value("x", TensorProto.FLOAT, *shape)], [value("y", TensorProto.FLOAT, *shape)]
    )


def test_sizes_are_asked_for_or_taken_from_inputs(symbolic: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["run", str(symbolic), "--size", "batch=3", "--output-file", str(tmp_path / "y.npz")]) == 0
    assert np.load(tmp_path / "y.npz")["y"].shape == (3, 4)
    np.save(tmp_path / "x.npy", np.ones((5, 4), np.float32))
    assert main(["run", str(symbolic), "--input", f"x={tmp_path / 'x.npy'}"]) == 0
    assert "y: float32[5, 4]" in capsys.readouterr().out
    assert main(["run", str(symbolic), "--size", "length=3"]) == 1
    assert "no symbolic dimension length" in capsys.readouterr().err
    assert main(["run", str(symbolic), "--size", "batch"]) == 1
    assert "'batch' is not a size" in capsys.readouterr().err


def test_a_symbolic_library(symbolic: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["compile", str(symbolic), "-o", str(tmp_path / "net.so"), "--threads", "1"]) == 0
    assert "sized by batch" in capsys.readouterr().out
    assert main(["run", str(tmp_path / "net.so"), "--size", "batch=2", "--profile"]) == 0
    assert "kernel" in capsys.readouterr().out


def test_bytecode_is_shown(tmp_path: Path, capsys: Captured) -> None:
    branch = [
        helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [value(op, TensorProto.FLOAT, 4)])
        for op in ("Exp", "Neg")
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1])
    inputs = [value("c", TensorProto.BOOL), value("x", TensorProto.FLOAT, 4)]
    model = save(tmp_path / "if.onnx", [node], inputs, [value("y", TensorProto.FLOAT, 4)])
    assert main(["inspect", str(model), "--stage", "vm"]) == 0
    assert "branch        r0 to" in capsys.readouterr().out
    assert main(["inspect", str(model), "--stage", "memory"]) == 0
    assert "net_segment1" in capsys.readouterr().out
    assert main(["run", str(model), "--profile"]) == 0
    assert "net_segment" in capsys.readouterr().out
