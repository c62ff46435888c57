"""`tilewright inspect`: every stage prints, and the text of the loop programs parses back to the same IR."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from bench import zoo
from tests.integration import small_models
from tilewright.cli import inspect
from tilewright.cli.main import main
from tilewright.graph.text import parse_text
from tilewright.ir.function import IRModule
from tilewright.ir.structural import assert_same_ir
from tilewright.tir.script import parse_script

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "small.onnx"
    onnx.save(small_models.classifier(), path)
    return path


def printed(path: Path, stage: str, capsys: Captured, *options: str) -> str:
    assert main(["inspect", str(path), "--stage", stage, "--threads", "1", *options]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("imported", ["nn.conv2d", "nn.batch_norm", '"conv1"']),
        ("graph", ["nn.conv2d", "primitive", '"conv1"']),
        ("kernels", ["kernel", "FLOP", "conv1", "fc"]),
        ("bounds", ["times slower", "share", "contraction", "conv1"]),
        ("te", ["@script.function", "conv2d"]),
        ("tir", ["@script.function", "vectorized"]),
        ("lowered", ["@script.function", "ramp"]),
        ("llvm", ["define i32 @tw_", "getelementptr"]),
        ("asm", [".text", "tw_"]),
        ("memory", ["workspace:", "lower bound"]),
        ("vm", ["no virtual machine is involved"]),
        ("profile", ["GFLOP/s", "conv1"]),
    ],
)
def test_every_stage_prints(model: Path, stage: str, words: list[str], capsys: Captured) -> None:
    text = printed(model, stage, capsys)
    for word in words:
        assert word in text


def test_algorithms_can_be_forbidden(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "wide.onnx"
    weight = onnx.numpy_helper.from_array(np.ones((64, 64, 3, 3), np.float32), "w")
    shape = [1, 64, 56, 56]
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy")
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "wide", [x], [y], [weight])), path)
    assert "nn.conv2d_winograd" in printed(path, "graph", capsys)
    assert "nn.conv2d_winograd" not in printed(path, "graph", capsys, "--no-winograd")


def test_the_stages_of_the_help_are_the_stages(capsys: Captured) -> None:
    listed = [line.split()[0] for line in inspect.DESCRIPTION.split("\n\n")[1].splitlines()]
    assert listed == list(inspect._STAGES)


# Convolutions, transposed ones, recurrence and gathers, products with softmax and normalisation, depthwise.
SCHEDULED = [("tir", name) for name in ("dqn", "dcgan", "lstm_lm_1", "bert_small", "mobilenet_v2")]
OTHERS = [(stage, name) for stage in ("te", "lowered") for name in ("dqn", "lstm_lm_1", "bert_small")]


@pytest.mark.parametrize(("stage", "name"), [*SCHEDULED, *OTHERS])
def test_loop_programs_parse_back_to_the_same_ir(name: str, stage: str, capsys: Captured) -> None:
    path = zoo.path(name)
    text = printed(path, stage, capsys)
    compilation = tw.Compilation(path, threads=1)
    steps = {"te": lambda k: k.func, "tir": compilation.scheduled, "lowered": compilation.lowered_kernel}
    expected = IRModule([steps[stage](kernel) for kernel in compilation.kernels])
    parsed = parse_script(text)
    assert isinstance(parsed, IRModule)
    assert list(parsed.functions) == list(expected.functions)
    for function, other in zip(parsed.functions.values(), expected.functions.values(), strict=True):
        assert_same_ir(function, other)


def test_graphs_parse_back(model: Path, capsys: Captured) -> None:
    """The structure; the constants are not in the printed text."""
    for stage in ("imported", "graph"):
        text = printed(model, stage, capsys)
        assert "const[0]" in text
    compilation = tw.Compilation(model, threads=1)
    again = parse_text(inspect.to_text(compilation.optimized))
    assert_same_ir(again, compilation.optimized)


def test_kernels_are_chosen_by_symbol_or_node(model: Path, capsys: Captured) -> None:
    every = printed(model, "kernels", capsys).splitlines()[2:]
    [row] = printed(model, "kernels", capsys, "--kernel", "fc").splitlines()[2:]
    assert row.split() in [line.split() for line in every]
    symbol = row.split()[0]
    assert f"def {symbol}(" in printed(model, "tir", capsys, "--kernel", symbol)
    assert main(["inspect", str(model), "--stage", "tir", "--kernel", "nonsense"]) == 1
    errors = capsys.readouterr().err
    assert "no kernel matches 'nonsense'" in errors
    assert main(["inspect", str(model), "--stage", "memory", "--kernel", "fc"]) == 1
    assert "the stage memory is not about single kernels" in capsys.readouterr().err


def test_other_machines_can_be_looked_at(model: Path, capsys: Captured) -> None:
    text = printed(model, "asm", capsys, "--target", "llvm -mtriple=aarch64-linux-gnu", "--kernel", "fc")
    assert "fmla" in text or "fmul" in text
    assert main(["inspect", str(model), "--stage", "profile", "--target", "llvm -mtriple=riscv64-linux-gnu"]) == 1
    assert "is not this machine" in capsys.readouterr().err


def test_a_model_that_cannot_be_lowered_can_still_be_looked_at(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def refuse(*arguments: object) -> object:
        raise tw.UserError("this cannot be lowered")

    monkeypatch.setattr("tilewright.compiler.lower_model", refuse)
    assert "nn.conv2d" in printed(model, "graph", capsys)
    assert main(["inspect", str(model), "--stage", "kernels"]) == 1
    assert "this cannot be lowered" in capsys.readouterr().err


def test_a_library_is_not_a_model(model: Path, tmp_path: Path, capsys: Captured) -> None:
    tw.compile(model, threads=1).export_library(tmp_path / "small.so")
    assert main(["inspect", str(tmp_path / "small.so")]) == 1
    assert "is a compiled library: this command needs the model" in capsys.readouterr().err


def test_progress_of_long_steps(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("TILEWRIGHT_PROGRESS", "always")
    monkeypatch.setattr("tilewright.support.progress._QUIET_SECONDS", 0.0)
    assert main(["inspect", str(model), "--stage", "lowered", "--threads", "1"]) == 0
    assert "kernels to the stage lowered: 1/" in capsys.readouterr().err
