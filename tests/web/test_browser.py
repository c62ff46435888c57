"""The demonstration in a real browser, without a window."""

from __future__ import annotations

from pathlib import Path

import tilewright.cli
from bench.web import in_browser
from tests.requirements import need, need_tool
from tilewright.cli.demo import TARGET
from tilewright.compiler import Compilation

need("chromium", "wasm-ld")


def test_a_drawn_digit_is_classified(tmp_path: Path) -> None:
    page = Path(tilewright.cli.__path__[0]) / "web"
    Compilation(page / "digits.onnx", target=TARGET).export_library(tmp_path / "digits")
    folders = {"": page, "digits": tmp_path / "digits", "tests": Path(__file__).parent}
    answer = in_browser(
        need_tool("chromium", "chromium", "chromium-browser", "google-chrome"), folders, "tests/demo_check.html"
    )
    assert answer["message"].startswith("This is a 1: "), answer
    assert "by WebAssembly (" in answer["message"] and "played by software" in answer["place"]
    assert answer["digits"] == 10 and answer["kernels"] >= 3 and answer["isolated"]
