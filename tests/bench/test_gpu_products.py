"""The bench of products on tensor cores: layers compile on machines without a GPU, and say what was chosen."""

from __future__ import annotations

import pytest

from bench.gpu_products import Layer, build
from tests.codegen.on_device import require_nvrtc


@pytest.mark.parametrize(
    ("layer", "precision", "question", "launches"),
    [
        (Layer("few rows, many steps", 128, 0, 1024, 128, residual=True), "float16", "group_tile", 2),
        (Layer("convolution", 16, 28, 64, 64, 3), "tf32", "group_tile", 1),
        (Layer("no tensor cores", 128, 0, 64, 64), "float32", "tile", 1),
    ],
)
def test_layers_compile(layer: Layer, precision: str, question: str, launches: int) -> None:
    require_nvrtc()
    made = build(layer, precision, 0)
    assert made.chosen.startswith(question)
    assert len(made.built.launches) == launches and len(made.workspaces) == launches - 1
    other = build(layer, precision, 1)
    assert other.chosen.startswith(question) and other.chosen != made.chosen
