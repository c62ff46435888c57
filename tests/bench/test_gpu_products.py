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
    ],
)
def test_layers_compile(layer: Layer, precision: str, question: str, launches: int) -> None:
    require_nvrtc()
    made = build(layer, precision, 0)
    assert made.chosen.startswith(question)
    assert len(made.built.launches) == launches and len(made.workspaces) == launches - 1


def test_other_tiles_are_tried() -> None:
    require_nvrtc()
    layer = Layer("small", 128, 0, 64, 64)
    made = {build(layer, "float32", number).chosen for number in range(3)}
    assert len(made) == 3 and all(chosen.startswith("tile ") for chosen in made)
