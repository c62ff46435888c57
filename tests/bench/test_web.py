"""The benchmark of JavaScript engines: the same numbers in both languages, and one small model through Node."""

from __future__ import annotations

import json
from pathlib import Path

from bench import web
from bench.page_models import save_image_model
from tests.requirements import need
from tilewright.compiler import Compilation

need("node", "wasm-ld")


def test_a_small_model_in_node(tmp_path: Path) -> None:
    save_image_model(tmp_path / "model.onnx")
    Compilation(tmp_path / "model.onnx", target="wasm").export_library(tmp_path / "package")
    inputs = json.loads((tmp_path / "package" / "model.json").read_text())["inputs"]
    job = {"model": {"name": "small", "inputs": inputs}, "device": "wasm", "threads": 1, "rounds": 2, "seconds": 0.0}
    row = web.measured("node", {**job, "runtimes": ["tilewright"]}, tmp_path, tmp_path)
    assert row["error"] < 1e-5 and row["times"]["tilewright"]["ms"] > 0
    assert row["ratio"] is None and row["bytes"]["weights"] == (tmp_path / "package" / "weights.bin").stat().st_size
    assert "small" in web._table([row]) and web._means([row]) == {}
    assert web.markdown_table([row]).splitlines()[-1].startswith("| small | node | wasm | 1 | ")
