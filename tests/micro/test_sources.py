"""Models for microcontrollers: the same bits as on the host, on emulated boards; memory is static; what cannot be is
said."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from bench.micro_models import MicroModel, QuantizedGraph, tiny
from bench.micro_runner import run_micro, size_of
from bench.page_models import save_image_model, save_text_model
from tests.requirements import C_COMPILERS, need, need_tool
from tilewright.cli.main import main
from tilewright.compiler import Compilation
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.target.target import Target

M4 = "micro -mcpu=cortex-m4"
BOARDS = {
    "cortex-m3": "micro -mcpu=cortex-m3",
    "cortex-m4": M4,
    "cortex-m55": "micro -mcpu=cortex-m55",
    "riscv32": "micro -mtriple=riscv32-unknown-elf",
}


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("micro") / "tiny.onnx"
    onnx.save(tiny().proto, path)
    return path


@pytest.mark.parametrize("board", BOARDS)
def test_bytes_are_those_of_the_host(quantised: Path, board: str, tmp_path: Path) -> None:
    need("riscv-none-elf" if board == "riscv32" else "arm-none-eabi", "make")
    Compilation(quantised, target=BOARDS[board]).export_library(tmp_path / "tiny")
    image = np.random.default_rng(1).integers(-128, 128, (1, 3, 9, 9), np.int8)
    run = run_micro(tmp_path / "tiny", {"input": image})
    expected = np.asarray(tw.compile(quantised, threads=1)(image))
    assert expected.dtype == np.int8 and len(np.unique(expected)) > 2
    np.testing.assert_array_equal(run.outputs["output"], expected)
    assert len(run.instructions) > 3 and all(run.instructions)


def odd_sizes() -> MicroModel:
    """Products and convolutions of sizes that are whole words and not, of one column, one row and one element."""
    graph = QuantizedGraph("odd", (1, 4, 5, 3))
    value = "input"
    for channels, size, stride in ((8, (3, 3), 1), (3, (1, 1), 1), (5, (2, 2), 2), (12, (1, 3), 1), (4, (1, 1), 2)):
        value = graph.conv(value, channels, size, stride, relu=False)
    value = graph.pool(value)
    for outputs in (5, 8, 1, 16, 7, 12, 12, 3):
        value = graph.dense(value, outputs)
    return graph.finish(value)


@pytest.mark.parametrize("target", [M4, "micro -mcpu=cortex-m0", "micro -mcpu=cortex-m55"])
def test_sources_are_portable(target: str, tmp_path: Path) -> None:
    """What is written for a microcontroller is C that this machine's compiler takes, with the same result."""
    compiler = need_tool("c-compiler", *C_COMPILERS)
    model = odd_sizes()
    Compilation(model.proto.SerializeToString(), target=target).export_library(tmp_path / "odd")
    source = (tmp_path / "odd" / "odd.c").read_text(encoding="utf-8")
    assert "tw_run_dots_" in source
    command = [compiler, "-O1", "-ffp-contract=off", "-shared", "-fPIC", str(tmp_path / "odd" / "odd.c")]
    subprocess.run([*command, "-o", str(tmp_path / "odd.so"), "-lm"], check=True)
    run = ctypes.CDLL(str(tmp_path / "odd.so")).odd_run
    run.argtypes = [ctypes.c_void_p] * 2
    # One byte further than aligned memory.
    given = np.random.default_rng(2).integers(-128, 128, 1 + prod(model.shape), np.int8)[1:]
    result = np.zeros(4, np.int8)[1:]
    assert run(given.ctypes.data, result.ctypes.data) == 0
    expected = tw.compile(model.proto.SerializeToString(), threads=1)(given.reshape(model.shape))
    np.testing.assert_array_equal(result, np.ravel(expected))


def test_memory_is_that_of_bytes(quantised: Path, tmp_path: Path) -> None:
    """Weights take a byte each, and so do values between layers, those before sums too."""
    Compilation(quantised, target=M4).export_library(tmp_path / "tiny")
    described = json.loads((tmp_path / "tiny" / "model.json").read_text(encoding="utf-8"))
    weights = 8 * 27 + 8 * 9 + 8 * 8 + 5 * 8
    per_channel = 3 * 4 * (8 + 8 + 8 + 5)
    assert weights <= described["weight_bytes"] <= weights + per_channel
    image, layer = 3 * 9 * 9, 8 * 5 * 5
    assert described["arena_bytes"] <= image + 2 * layer + 5 * 64, "no image is copied to be padded"


def test_floats_are_those_of_the_host(tmp_path: Path) -> None:
    need("arm-none-eabi", "make")
    image = save_image_model(tmp_path / "image.onnx")
    Compilation(tmp_path / "image.onnx", target=M4).export_library(tmp_path / "image")
    run = run_micro(tmp_path / "image", {"input": image})
    expected = tw.compile(tmp_path / "image.onnx", threads=1)(image)
    np.testing.assert_allclose(run.outputs["logits"], expected, rtol=1e-5, atol=1e-6)
    described = json.loads((tmp_path / "image" / "model.json").read_text(encoding="utf-8"))
    size = size_of(tmp_path / "image")
    assert described["weight_bytes"] < size.flash and described["arena_bytes"] + image.nbytes < size.ram


def test_nothing_is_asked_of_an_operating_system(quantised: Path, tmp_path: Path) -> None:
    """The compiled model needs memcpy and memset at most, and its only memory that is written is the arena."""
    need("arm-none-eabi")
    Compilation(quantised, target=M4).export_library(tmp_path / "tiny")
    compiled = tmp_path / "tiny.o"
    flags = [
        "-mthumb",
        "-mcpu=cortex-m4",
        "-mfloat-abi=hard",
        "-mfpu=fpv4-sp-d16",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]
    source = tmp_path / "tiny" / "tiny.c"
    subprocess.run(["arm-none-eabi-gcc", *flags, "-c", str(source), "-o", str(compiled)], check=True)
    names = subprocess.run(["arm-none-eabi-nm", str(compiled)], check=True, capture_output=True, text=True).stdout
    undefined = set(re.findall(r"^\s+U (\S+)$", names, re.MULTILINE))
    assert undefined <= {"memcpy", "memset"}
    assert re.findall(r" [bBdDcC] (\S+)$", names, re.MULTILINE) == ["tw_arena"]
    assert re.findall(r" T (\S+)$", names, re.MULTILINE) == ["tiny_run"]


def test_files_and_names(quantised: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["compile", str(quantised), "--target", M4, "-o", str(out), "--name", "9 lives"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "(flash)" in said and "(RAM)" in said
    assert {file.name for file in out.iterdir()} == {
        "_9_lives.c",
        "_9_lives.h",
        "_9_lives_weights.h",
        "model.json",
        "example",
    }
    header = (out / "_9_lives.h").read_text(encoding="utf-8")
    assert "int32_t _9_lives_run(const int8_t* input, int8_t* output);" in header
    arena = json.loads((out / "model.json").read_text(encoding="utf-8"))["arena_bytes"]
    assert f"#define _9_LIVES_ARENA_BYTES {arena}\n" in header
    # Once more, over what is there; but not over anything else.
    assert main(command) == 0
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="holds no sources of a model"):
        Compilation(quantised, target=M4).export_library(tmp_path / "full")
    assert (tmp_path / "full" / "mine.txt").exists()


def test_names_of_parameters(tmp_path: Path) -> None:
    """Whatever tensors are called, C can call them something."""
    need("arm-none-eabi")
    names = ["int", "a b", "a/b", "tw_arena", "7"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in names]
    total = helper.make_node("Sum", names, ["code"])
    graph = helper.make_graph([total], "g", inputs, [helper.make_tensor_value_info("code", TensorProto.FLOAT, [2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    Compilation(model.SerializeToString(), target=M4).export_library(tmp_path / "names")
    header = (tmp_path / "names" / "names.h").read_text(encoding="utf-8")
    parameters = ", ".join(f"const float* {name}" for name in ("int_", "a_b", "a_b_2", "p_tw_arena", "p__7"))
    assert f"names_run({parameters}, float* code_);" in header
    source = str(tmp_path / "names" / "names.c")
    subprocess.run(["arm-none-eabi-gcc", "-mcpu=cortex-m3", "-mthumb", "-fsyntax-only", source], check=True)


def test_models_that_have_no_fixed_memory(tmp_path: Path) -> None:
    save_text_model(tmp_path / "text.onnx")
    with pytest.raises(UserError, match=r"inputs of any batch, sequence.*\n.*--shape input_ids=1"):
        Compilation(tmp_path / "text.onnx", target=M4).export_library(tmp_path / "text")
    fixed = {"input_ids": (1, 4)}
    Compilation(tmp_path / "text.onnx", target=M4, shapes=fixed).export_library(tmp_path / "text")
    header = (tmp_path / "text" / "text.h").read_text(encoding="utf-8")
    assert re.search(r"^   16: .*index.*out of range", header, re.MULTILINE), "codes of checks are in the header"


def test_programs_are_refused(tmp_path: Path) -> None:
    shape = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    result = [helper.make_tensor_value_info("y", TensorProto.INT64, [1, None])]
    graph = helper.make_graph(nodes, "g", shape, result)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(UnsupportedError, match="is a program"):
        Compilation(model.SerializeToString(), target=M4).export_library(tmp_path / "p")


def test_targets(quantised: Path) -> None:
    assert Target("micro").arch == "thumb" and Target("micro").cores == 1
    assert Target("micro -mtriple=riscv32-unknown-elf").arch == "riscv32"
    with pytest.raises(UserError, match="not for aarch64"):
        Compilation(quantised, target="micro -mtriple=aarch64-linux-gnu").artifact()
    with pytest.raises(UserError, match="cannot run here"):
        Compilation(quantised, target=M4).executable()
