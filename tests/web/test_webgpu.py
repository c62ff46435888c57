"""Packages through WebGPU in a real browser on its software adapter; what is in them, and what falls back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from bench.page_models import save_image_model, save_text_model
from bench.web import in_browser
from tests.requirements import need, need_tool
from tilewright.cli.main import main
from tilewright.compiler import Compilation
from tilewright.request import model_targets
from tilewright.support.errors import UserError

need("wasm-ld")
TARGET = {"webgpu": "webgpu -mattr=+software", "host": "wasm -mattr=+relaxed-simd"}


def save_program(path: Path) -> Path:
    """A model whose result has a size that data decide."""
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.INT64, [1, None])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("webgpu")
    save_image_model(path / "image.onnx")
    save_text_model(path / "text.onnx")
    save_program(path / "program.onnx")
    levels = {"image": {**TARGET, "host": "wasm"}, "text": TARGET, "program": TARGET}
    for name, target in levels.items():
        Compilation(path / f"{name}.onnx", target=target).export_library(path / name)
    Compilation(path / "image.onnx", target="wasm -mattr=+relaxed-simd").export_library(path / "wasm")
    return path


def test_what_pages_rely_on(folder: Path) -> None:
    need("chromium")
    folders = {name: folder / name for name in ("image", "text", "program", "wasm")}
    browser = need_tool("chromium", "chromium", "chromium-browser", "google-chrome")
    answer = in_browser(browser, {**folders, "tests": Path(__file__).parent}, "tests/gpu_check.html")
    assert answer["problems"] == []
    assert answer["device"]["kind"] == "webgpu" and answer["device"]["name"]
    pixels = np.sin(np.arange(3 * 32 * 32)).astype(np.float32).reshape(1, 3, 32, 32)
    expected = tw.compile(folder / "image.onnx")(pixels)
    np.testing.assert_allclose(np.array(answer["logits"]), np.ravel(expected), rtol=1e-4, atol=1e-5)


def test_what_is_in_a_package(folder: Path) -> None:
    description = json.loads((folder / "image" / "model.json").read_text())
    plan = description["webgpu"]
    assert [code["level"] for code in description["code"]] == ["relaxed", "simd", "plain"]
    assert (folder / "image" / plan["file"]).stat().st_size == plan["bytes"] == plan["kernels"][-1]["code"][1]
    assert (folder / "image" / plan["weights"]).stat().st_size == plan["constant_bytes"]
    assert all(offset + size <= plan["constant_bytes"] for offset, size in plan["constants"])
    assert plan["limits"]["maxComputeInvocationsPerWorkgroup"] <= 256 and not plan["language_features"]
    program = json.loads((folder / "program" / "model.json").read_text())
    assert "is a program" in program["webgpu"]["refused"] and not list((folder / "program").glob("*.wgsl"))


def test_software_stages_no_operands(folder: Path, tmp_path: Path) -> None:
    Compilation(folder / "image.onnx", target={**TARGET, "webgpu": ""}).export_library(tmp_path / "real")
    found = [_barriers(package, "transpose_nn_conv2d") for package in (tmp_path / "real", folder / "image")]
    assert found == [True, False]


def _barriers(package: Path, name: str) -> bool:
    """Whether kernels of a name meet at barriers."""
    kernels = json.loads((package / "model.json").read_text())["webgpu"]["kernels"]
    text = (package / "model.wgsl").read_bytes()
    codes = [text[slice(*kernel["code"])] for kernel in kernels if name in kernel["symbol"]]
    return any(b"workgroupBarrier" in code for code in codes)


def test_kernels_that_the_gpu_refuses_are_left_to_webassembly(tmp_path: Path) -> None:
    nodes = [helper.make_node("Sin", ["x"], ["y"], name="wave")]
    infos = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "d.onnx")
    Compilation(tmp_path / "d.onnx", target=TARGET).export_library(tmp_path / "d")
    assert "wave" in json.loads((tmp_path / "d" / "model.json").read_text())["webgpu"]["refused"]


def test_a_package_is_not_for_the_gpu_of_this_machine() -> None:
    target, host = model_targets({"webgpu": "", "host": "wasm"})
    assert (target.features, host.kind) == ("", "wasm")


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compile", str(folder / "program.onnx"), "--target", "webgpu -mattr=+software", "-o"]
    assert main([*command, str(tmp_path / "out")]) == 0
    assert "WebAssembly alone runs it, and not WebGPU: the model is a program" in capsys.readouterr().out
    assert (tmp_path / "out" / "index.js").exists()


def test_other_devices_have_no_packages(folder: Path, tmp_path: Path) -> None:
    compilation = Compilation(folder / "image.onnx", target={"opencl": "", "host": "wasm -mattr=+relaxed-simd"})
    with pytest.raises(UserError, match="through webgpu, not through opencl"):
        compilation.export_library(tmp_path / "out")
